"""Kernels, memory and collectives of this library's programs on an H200, counted without one.

    python -m benchmarks.gpu_compile [--quick] [--work updates generations devices]

See `described_gpu` for the method. `updates` compiles a block of gradient updates of P members, with observations of
17 and actions of 6 numbers, for Rookery, for Rookery in the arrangement for CPUs, and for QDax if it is installed.
`generations` compiles whole generations; kernels beside the updates are those of an environment step with acting,
storing and random numbers. `devices` divides a population over several GPUs. No times are measured: a kernel takes
about 2 to 4 microseconds to start, so for small networks their number determines the time.
"""

from functools import partial
from typing import Any

import jax

from benchmarks import described_gpu, harness, work
from rookery.distributed.kernels import Count, Loop, collectives, count_kernels

UPDATES = 50
ENVIRONMENTS = 64
STEPS = 100
EPISODES = 10
EPISODE_LENGTH = 200  # of the point tasks
WORK = ("updates", "generations", "devices")
GENERATIONS = {
    "pbt-sac": "--env point_maze",
    "pbt-td3": "--env point_maze",
    "diayn": "--env point_room --updates-per-step 1",
}
"""Off-policy kinds of run -> their flags, besides those of `generation`."""
PPO = "--env point_maze --rollout-length 32 --minibatches 4 --actor-epochs 4 --critic-epochs 4 --evaluate-every 1"


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    made.add_argument("--populations", type=int, nargs="+", default=[1, 64, 1024])
    work.add_agents(made)
    options = harness.parse(made)
    if options.quick:
        options.populations, options.agent = [2], options.agent[:1]
    if reason := described_gpu.missing():
        raise SystemExit(reason)
    load, rows = harness.load(), []
    if "updates" in options.work:
        for agent in options.agent:
            for population in options.populations:
                rows += updates(work.Shapes(population, agent=agent))
    if "generations" in options.work:
        rows += [generation(kind, 2 if options.quick else 64) for kind in GENERATIONS]
        rows.append(ppo(2 if options.quick else 64))
    if "devices" in options.work:
        rows += [divided(devices) for devices in (2, 8)]
    part = "" if set(options.work) == set(WORK) else "-" + "-".join(options.work)
    harness.report(f"gpu_compile{part}", options, rows, load)


def updates(shapes: work.Shapes) -> list[dict[str, Any]]:
    """Rows of a block of updates: ours, ours in the arrangement for CPUs, and QDax's."""
    found = {"ours": ours(shapes, "gpu"), "ours, arranged for CPUs": ours(shapes, "cpu"), "QDax": qdax(shapes)}
    rows = []
    for contender, compiled in found.items():
        if compiled is not None:
            counted = count_kernels(compiled.text)
            loop = counted.loops[0]
            rows.append(
                {
                    "work": f"update, {shapes.agent}",
                    "P": shapes.population,
                    "of": contender,
                    "kernels": (loop.trips or 1) * loop.kernels / UPDATES,
                    "with_setup": counted.total / UPDATES,
                    **_memory_and_compilation(compiled, counted),
                }
            )
    return rows


def ours(shapes: work.Shapes, platform: str) -> harness.Compiled:
    """Rookery's block of updates, for members as the training loop holds them."""
    parts = work.update_parts(shapes, UPDATES)
    population = jax.eval_shape(partial(work.members, parts, shapes), jax.random.key(0))
    if platform == "gpu" and parts.agent.layout:
        population = population._replace(state=jax.eval_shape(jax.vmap(parts.agent.layout.pack), population.state))
    carry = population._replace(buffer=None), jax.eval_shape(lambda: jax.random.key(1))
    block = partial(work.update_block, parts)
    return described_gpu.compile_for_gpu(block, population.buffer, carry, donate=(1,), platform=platform)


def qdax(shapes: work.Shapes) -> harness.Compiled | None:
    """QDax's block of updates; None if it is not installed."""
    agents = []

    def start() -> tuple[Any, Any]:
        peer = work.qdax_peer(shapes, jax.random.key(0), full=False)
        agents.append(peer.agent)
        return peer.states, peer.buffers

    try:
        states, stores = jax.eval_shape(start)
    except SystemExit:
        return None
    block = partial(work.qdax_update_block, agents[0], UPDATES)
    return described_gpu.compile_for_gpu(block, stores, states, donate=(1,))


def generation(kind: str, population: int) -> dict[str, Any]:
    """A row of a whole generation of an off-policy kind of run, with as many updates as environments in each step."""
    words = [kind, "--population", str(population), "--num-envs", str(ENVIRONMENTS), *GENERATIONS[kind].split()]
    words += ["--steps-per-generation", str(STEPS * ENVIRONMENTS), "--eval-episodes", str(EPISODES)]
    compiled = described_gpu.compile_generation([*words, "--buffer-size", "10000"])
    counted = count_kernels(compiled.text)
    inner = next(loop for loop in counted.loops if loop.trips and ENVIRONMENTS % loop.trips == 0 and loop.kernels > 20)
    outer = next(loop for loop in counted.loops if loop.kernels > (inner.trips or 1) * inner.kernels)
    made = (inner.trips or 1) * inner.kernels
    return {
        "work": f"generation, {kind}",
        "P": population,
        "of": "ours",
        "kernels": made / ENVIRONMENTS,
        "beside_updates": outer.kernels - made,
        "evaluation_step": _evaluation_step(counted, outer),
        **_memory_and_compilation(compiled, counted),
    }


def ppo(population: int) -> dict[str, Any]:
    """A row of a generation of PPO: one rollout of 32 steps, then 4 epochs of 4 minibatches."""
    words = ["pbt-ppo", "--population", str(population), "--num-envs", str(ENVIRONMENTS), *PPO.split()]
    compiled = described_gpu.compile_generation([*words, "--eval-episodes", str(EPISODES)])
    counted = count_kernels(compiled.text)
    return {
        "work": "generation, pbt-ppo",
        "P": population,
        "of": "ours",
        "evaluation_step": _evaluation_step(counted, counted.loops[0]),
        **_memory_and_compilation(compiled, counted),
        "loops": [loop._asdict() for loop in counted.loops[:8]],
    }


def divided(devices: int) -> dict[str, Any]:
    """A row of a generation of PBT with SAC, divided over several GPUs."""
    words = "pbt-sac --env point_maze --population 16 --num-envs 4 --steps-per-generation 400 --buffer-size 1000 "
    compiled = described_gpu.compile_generation([*words.split(), "--eval-episodes", "2"], devices)
    counted = count_kernels(compiled.text)
    return {
        "work": "generation, pbt-sac",
        "P": 16,
        "of": f"ours on {devices} GPUs",
        "collectives": collectives(counted),
        **_memory_and_compilation(compiled, counted),
    }


def _evaluation_step(counted: Count, outer: Loop) -> int:
    """Kernels of a step of evaluation: its loop ends with the last episode, after at most `EPISODE_LENGTH` steps.

    The loop of the warm-up has an unknown length too; it is returned if the compiler has changed that of evaluation.
    """
    loops = [loop.kernels for loop in counted.loops if loop != outer and loop.trips in (None, EPISODE_LENGTH)]
    return max(loops, default=0)


def _memory_and_compilation(compiled: harness.Compiled, counted: Count) -> dict[str, Any]:
    return {
        "temporary_gb": compiled.temporary_gb,
        "compile_s": compiled.seconds,
        "copies": counted.kinds["copy"],
        "kinds": dict(counted.kinds),
        "unknown_loops": [loop._asdict() for loop in counted.unknown],
    }


if __name__ == "__main__":
    main()
