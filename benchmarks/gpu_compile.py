"""Kernels, memory and collectives of this library's programs on an H200, counted without one.

    python -m benchmarks.gpu_compile [--quick] [--work updates generations devices fused]

See `described_gpu` for the method. `updates` compiles a block of 50 gradient updates of P members, with observations of
17 and actions of 6 numbers, for Rookery, for Rookery in the arrangement for CPUs, and for QDax if it is installed; for
Rookery also a block of 25, the number of updates per step with the default settings. `generations` compiles whole
generations; kernels beside the updates are those of an environment step with acting, storing and random numbers.
`devices` divides a population over several GPUs. `fused` compares parts of SAC's update by the kernels of `fused_mlp`
and by plain networks. No times are measured: a kernel takes about 2 to 4 microseconds to start, so for small networks
their number determines the time.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import described_gpu, fused_sac, harness, work
from benchmarks.kernels import Count, Loop, collectives, count_kernels
from rookery.agents.base import OffPolicyAgent
from rookery.networks import computing_in

UPDATES = 50
ODD = 25  # updates per step with the default settings
ENVIRONMENTS = 64
STEPS = 100
EPISODES = 10
EPISODE_LENGTH = 200  # of the point tasks
WORK = ("updates", "generations", "devices", "fused")
OFF_POLICY = f"--eval-episodes {EPISODES} --buffer-size 10000"
GENERATIONS = {
    "pbt-sac": f"--env point_maze {OFF_POLICY}",
    "pbt-td3": f"--env point_maze {OFF_POLICY}",
    "me-pbt-td3": f"--env point_trap --ga-population 64 --grid 16 16 {OFF_POLICY}",
    "diayn": f"--env point_room --updates-per-step 1 {OFF_POLICY}",
}
"""Off-policy kinds of run -> their flags, besides those of `generation`."""
PPO = "--env point_maze --rollout-length 32 --minibatches 4 --actor-epochs 4 --critic-epochs 4 --evaluate-every 1"
WHOLE = {
    "pbt-ppo": f"--population {{}} --num-envs {ENVIRONMENTS} {PPO} --eval-episodes {EPISODES}",
    "map-elites": f"--env point_trap --batch-size {{}} --grid 16 16 --eval-episodes {EPISODES}",
}
"""Other kinds of run -> their flags, with a place for P."""
FUSED = (16, 80)
"""Numbers of members of `fused`."""
SIZES = ("pbt-sac", "pbt-td3", "diayn", "pbt-ppo")
"""Kinds of run that are compiled for every P; the others for 64 members."""


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
    usual = options.populations if options.quick else [64]
    load, rows = harness.load(), []
    if "updates" in options.work:
        for agent in options.agent:
            for population in options.populations:
                rows += updates(work.Shapes(population, agent=agent))
    if "generations" in options.work:
        for kind in [*GENERATIONS, *WHOLE]:
            compiled = generation if kind in GENERATIONS else whole
            rows += [compiled(kind, population) for population in (options.populations if kind in SIZES else usual)]
        rows += [generation("pbt-td3", population, environments=ODD) for population in usual]
    if "devices" in options.work:
        rows += [divided(devices) for devices in (2, 8)]
    if "fused" in options.work:
        sizes = options.populations if options.quick else FUSED
        jobs = [(kind, one) for kind, contenders in fused_sac.KINDS.items() for one in contenders]
        rows += [fused(work.Shapes(population), *job) for population in sizes for job in jobs]
    part = "" if set(options.work) == set(WORK) else "-" + "-".join(options.work)
    harness.report(f"gpu_compile{part}", options, rows, load)


def updates(shapes: work.Shapes) -> list[dict[str, Any]]:
    """Rows of a block of updates: ours, ours in the arrangement for CPUs, and QDax's."""
    found = {
        "ours": ours(shapes, "gpu", UPDATES),
        "ours, arranged for CPUs": ours(shapes, "cpu", UPDATES),
        "QDax": qdax(shapes),
    }
    rows = [_updates_row(shapes, name, compiled, UPDATES) for name, compiled in found.items() if compiled is not None]
    return [*rows, _updates_row(shapes, f"ours, {ODD} updates", ours(shapes, "gpu", ODD), ODD)]


def _updates_row(shapes: work.Shapes, contender: str, compiled: harness.Compiled, count: int) -> dict[str, Any]:
    counted = count_kernels(compiled.text)
    loop = counted.loops[0]
    return {
        "work": f"update, {shapes.agent}",
        "P": shapes.population,
        "of": contender,
        # A block of an odd number also has updates beside the loop of groups: there only the whole block is counted.
        "kernels": (loop.trips or 1) * loop.kernels / count if count % 2 == 0 else None,
        "with_setup": counted.total / count,
        **_memory_and_compilation(compiled, counted),
    }


def ours(shapes: work.Shapes, platform: str, count: int, agent: OffPolicyAgent | None = None) -> harness.Compiled:
    """Rookery's block of `count` updates, for members as the training loop holds them."""
    parts = work.update_parts(shapes, count, agent)
    population = jax.eval_shape(partial(work.members, parts, shapes), jax.random.key(0))
    if platform == "gpu" and parts.agent.layout:
        population = population._replace(state=jax.eval_shape(jax.vmap(parts.agent.layout.pack), population.state))
    carry = population._replace(buffer=None), jax.eval_shape(lambda: jax.random.key(1))
    block, first = partial(work.update_block, parts), jax.ShapeDtypeStruct((), jnp.int32)
    return described_gpu.compile_for_gpu(block, population.buffer, carry, first, donate=(1,), platform=platform)


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


def generation(kind: str, population: int, environments: int = ENVIRONMENTS) -> dict[str, Any]:
    """A row of a whole generation of an off-policy kind of run, with as many updates as environments in each step."""
    words = [kind, "--population", str(population), "--num-envs", str(environments), *GENERATIONS[kind].split()]
    compiled = described_gpu.compile_generation([*words, "--steps-per-generation", str(STEPS * environments)])
    counted = count_kernels(compiled.text)
    groups = (environments, environments // 2)  # repetitions of the loop of updates
    inner = next(loop for loop in counted.loops if loop.trips in groups and loop.kernels > 20)
    outer = next(loop for loop in counted.loops if loop.kernels > (inner.trips or 1) * inner.kernels)
    made = (inner.trips or 1) * inner.kernels
    return {
        "work": f"generation, {kind}" + (f", {environments} updates" if environments != ENVIRONMENTS else ""),
        "P": population,
        "of": "ours",
        "kernels": made / (environments - environments % 2),
        "beside_updates": outer.kernels - made,  # with the updates before and after the groups
        "evaluation_step": _evaluation_step(counted, outer),
        **_memory_and_compilation(compiled, counted),
    }


def whole(kind: str, population: int) -> dict[str, Any]:
    """A row of a generation of another kind: PPO with one rollout and 4 epochs of 4 minibatches, or MAP-Elites."""
    compiled = described_gpu.compile_generation([kind, *WHOLE[kind].format(population).split()])
    counted = count_kernels(compiled.text)
    return {
        "work": f"generation, {kind}",
        "P": population,
        "of": "ours",
        "evaluation_step": _evaluation_step(counted, None),
        "total": counted.total,
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


def fused(shapes: work.Shapes, kind: str, contender: str) -> dict[str, Any]:
    """A row of a part of SAC's update with the kernels of `fused_mlp`, or with plain networks; see `fused_sac`."""
    params, batches = jax.eval_shape(lambda: fused_sac.draw(shapes, UPDATES))
    with computing_in(fused_sac.precision_of(contender)):
        if kind == "update":
            compiled = ours(shapes, "gpu", UPDATES, fused_sac.with_kernels(shapes, contender))
        else:
            carry = jax.eval_shape(partial(fused_sac.start, kind=kind), params)
            block = fused_sac.block(shapes, kind, contender)
            compiled = described_gpu.compile_for_gpu(block, batches, params, carry, donate=(2,))
    counted = count_kernels(compiled.text)
    return {
        "work": kind,
        "P": shapes.population,
        "of": contender,
        "kernels": counted.total / UPDATES,
        **_memory_and_compilation(compiled, counted),
    }


def _evaluation_step(counted: Count, outer: Loop | None) -> int:
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
