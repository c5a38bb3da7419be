"""What a GPU does with populations: updates, whole generations, robots, the largest population that fits.

    benchmarks/on_gpu.sh [--minutes 8] [--parts limits updates generations brax playground]

The parts, each with SAC networks of two layers of 256 and batches of 256 unless said otherwise:
- limits: the GPU's own limits, measured here: bytes per second of a copy, and FLOP per second of a large matrix
  product. All parts have the precision of the command line's runs, float32.
- updates: blocks of 50 updates of P members (17 observations, 6 actions), SAC and TD3; time beside one member's, and
  the fractions of both limits. The FLOP are those of the matrix products; the bytes are those that an update cannot
  avoid, its state read and written once and its batch read once.
- generations: whole generations of `pbt-sac` on point_maze, 10 environments and 1,000 steps of each member; memory; P
  doubles after the listed sizes until a population does not fit.
- brax: environment steps per second of `pbt-sac` and `ppo` on hopper and ant, built as the command line does.
- playground: likewise on CheetahRun of MuJoCo Playground.

The parts share the time equally, and a part gets what the ones before it left. A measurement that would begin after the
end of its part is left out, and named in the results. Compilation takes most of the time at first; with
JAX_COMPILATION_CACHE_DIR a second start finds what is compiled, and measures what the first one left out.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks import harness, population, population_update, work
from rookery.agents.sac import SacConfig, sac
from rookery.distributed import mesh, programs
from rookery.envs import registry
from rookery.experiments import build, kinds
from rookery.learners.off_policy import OffPolicyConfig, off_policy

POPULATIONS = [1, 80, 512, 2_048]
UPDATES = 50
ROBOTS = {
    "pbt-sac": {"num_envs": 64, "updates_per_step": 0.25, "steps_per_generation": 6_400, "buffer_size": 20_000},
    "ppo": {"num_envs": 256, "rollout_length": 32, "evaluate_every": 2},
}
"""Kind -> settings of its learner."""
ROBOT_POPULATION = 16
Rows = Iterator[dict[str, Any]]


def main() -> None:
    made = harness.parser(__doc__, rounds=3)
    made.add_argument("--minutes", type=float, default=8.0, help="no measurement begins after this time (%(default)s)")
    made.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="(%(default)s)")
    made.add_argument("--populations", type=int, nargs="+", default=POPULATIONS, help="(%(default)s)")
    made.add_argument("--output", default="on_gpu", help="name of the results (%(default)s)")
    options = harness.parse(made)
    if jax.default_backend() != "gpu" and not options.quick:
        raise SystemExit("JAX sees no GPU; install the extra cuda12 or cuda13, or try the command with --quick")
    if options.quick:
        options.populations = [1, 4]
    begun, load, rows = time.monotonic(), harness.load(), []
    for turn, part in enumerate(options.parts):
        options.ends = begun + 60 * options.minutes * (turn + 1) / len(options.parts)
        for row in PARTS[part](options):
            rows.append({"part": part, **row})
            harness.show(rows[-1:])
            harness.write(options.output, options, rows, load)  # compilation cannot be interrupted, only killed
    harness.report(options.output, options, rows, load)


def in_time(options: argparse.Namespace, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The row of a measurement, or the reason why there is none: no time, or no memory."""
    if time.monotonic() > options.ends:
        return {"name": name, "not_measured": "no time left"}
    try:
        return {"name": name, **measure()}
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"name": name, "did_not_fit": str(error).splitlines()[0][:100]}


def limits(options: argparse.Namespace) -> Rows:
    """Bandwidth and FLOP per second of the device."""
    yield {"name": jax.devices()[0].device_kind, **measured_limits(options)}


def measured_limits(options: argparse.Namespace) -> dict[str, float]:
    """`copy_gb_per_s`, bytes read and written, and `products_tflops`, both of the median call."""
    size = 512 if options.quick else 8_192
    matrix = jax.random.normal(jax.random.key(0), (size, size))
    copied, product = jax.jit(lambda x: x + 1.0), jax.jit(lambda x: x @ x)
    calls = {
        "copy": lambda: jax.block_until_ready([copied(matrix) for _ in range(10)]),
        "product": lambda: jax.block_until_ready([product(matrix) for _ in range(10)]),
    }
    times = harness.interleave(calls, max(5, options.rounds))
    return {
        "copy_gb_per_s": 10 * 2 * matrix.nbytes / times["copy"].median / 1e9,
        "products_tflops": 10 * 2 * size**3 / times["product"].median / 1e12,
    }


def updates(options: argparse.Namespace) -> Rows:
    """Blocks of updates for each population size."""
    limit = measured_limits(options)
    for agent in work.PEERS:
        alone = float("nan")
        for count in options.populations:
            row = in_time(options, f"{agent} P={count}", partial(updates_of, count, agent, options, limit))
            if count == 1:
                alone = row.get("update_us", alone)
            yield {**row, "times_of_one": row.get("update_us", float("nan")) / alone}


def updates_of(count: int, agent: str, options: argparse.Namespace, limit: dict[str, float]) -> dict[str, Any]:
    """Time of an update of `count` members, and its fractions of the device's limits."""
    sizes = population_update.SMALL if options.quick else population_update.WIDE
    shapes = work.Shapes(count, agent=agent, **sizes)
    program, loop = population_update.ours(shapes, UPDATES)
    seconds = harness.interleave({"ours": loop}, options.rounds)["ours"].median / UPDATES
    parts = work.update_parts(shapes, UPDATES)
    row = jax.eval_shape(lambda: work.members(parts, shapes, jax.random.key(0)))
    batch = sum(leaf.dtype.itemsize * np.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(row.buffer.rows))
    needed = 2 * size_of(row.state) + count * shapes.batch_size * float(batch)
    flop = count * products_of(shapes)
    return {
        "update_us": 1e6 * seconds,
        "updates_per_s": count / seconds,
        "of_bandwidth": needed / seconds / 1e9 / limit["copy_gb_per_s"],
        "of_flop": flop / seconds / 1e12 / limit["products_tflops"],
        "temporary_gb": program.temporary_gb,
        "compile_s": program.seconds,
    }


def size_of(tree: Any) -> float:
    """Bytes of arrays or of their shapes."""
    return float(sum(leaf.dtype.itemsize * np.prod(leaf.shape) for leaf in jax.tree.leaves(tree)))


def products_of(shapes: work.Shapes) -> float:
    """FLOP of the matrix products in one update of one member, TD3's policy in every second update.

    A forward pass of a layer counts one product, a backward pass two; the first layer has no gradient of its input.
    """

    def passes(inputs: int, outputs: int, forward: float, backward: float, to_input: bool) -> float:
        widths = (inputs, *shapes.hidden_sizes, outputs)
        products = [a * b for a, b in itertools.pairwise(widths)]
        first = 0 if to_input else products[0]
        return 2 * shapes.batch_size * ((forward + 2 * backward) * sum(products) - backward * first)

    share, td3 = (1 / work.POLICY_DELAY, True) if shapes.agent == "td3" else (1.0, False)
    actions, sensed = shapes.action_size, shapes.observation_size
    policy = passes(sensed, actions if td3 else 2 * actions, 1 + share, share, to_input=False)
    critics = 2 * passes(sensed + actions, 1, 2, 1, to_input=False)  # two targets, two losses
    # Through the critics to the actions: gradients of inputs only, half of a backward pass.
    through = (1 if td3 else 2) * share * passes(sensed + actions, 1, 1, 0.5, to_input=True)
    return policy + critics + through


def generations(options: argparse.Namespace) -> Rows:
    """Whole generations; the population doubles after the listed sizes until one does not fit."""
    environment = registry.make("point_maze")
    steps, width = (100, 16) if options.quick else (1_000, 256)
    config = OffPolicyConfig(
        num_envs=10, steps_per_generation=steps, warmup_steps=0, eval_episodes=2, buffer_size=100_000 // (width // 16)
    )
    learner = off_policy(sac(environment.spec, SacConfig(hidden_sizes=(width,) * 2)), environment, config)
    alone, count, sizes = float("nan"), 0, sorted(options.populations)
    while sizes or not options.quick:
        count = sizes.pop(0) if sizes else 2 * count
        row = in_time(options, f"pbt-sac P={count}", partial(population.measure, learner, count, options.rounds))
        if count == 1:
            alone = row.get("generation_s", alone)
        yield {**row, "times_of_one": row.get("generation_s", float("nan")) / alone}
        if "did_not_fit" in row or "not_measured" in row:
            return


def robots(tasks: Sequence[str], options: argparse.Namespace) -> Rows:
    """Environment steps per second, training and evaluation included."""
    for kind, task in itertools.product(ROBOTS, tasks):
        settings = {**ROBOTS[kind], "warmup_steps": 0} if kind == "pbt-sac" else ROBOTS[kind]
        yield in_time(options, f"{kind} on {task}", partial(training_of, kind, task, settings, options))


def training_of(kind: str, task: str, settings: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Time generations of a kind of run as the command line builds it."""
    if options.quick:
        settings = {**settings, "num_envs": 8, **({"steps_per_generation": 64} if kind == "pbt-sac" else {})}
    config = kinds.configure(kind, population=2 if options.quick else ROBOT_POPULATION)
    environment = dataclasses.replace(config.environment, env=task, devices=1)
    assert config.learner is not None
    learner = dataclasses.replace(config.learner, eval_episodes=2, **settings)
    program = build.build(dataclasses.replace(config, environment=environment, learner=learner)).program
    started = time.perf_counter()
    compiled = programs.compile_program(program, mesh.make_mesh(1))
    held = harness.Held(compiled.init(jax.random.key(0)))
    advance = partial(population.advance, compiled.step, held)
    times = harness.interleave({"generation": advance}, options.rounds)["generation"]
    return {
        "generation_s": times.median,
        "env_steps_per_s": program.steps_per_generation / times.median,
        "start_s": time.perf_counter() - started - sum(times.seconds),
    }


PARTS = {
    "limits": limits,
    "updates": updates,
    "generations": generations,
    "brax": partial(robots, ("hopper", "ant")),
    "playground": partial(robots, ("CheetahRun",)),
}


if __name__ == "__main__":
    main()
