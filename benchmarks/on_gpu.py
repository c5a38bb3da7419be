"""What a GPU does with populations: updates, whole generations, robots, the largest population that fits.

    benchmarks/on_gpu.sh [--minutes 8] [--parts limits updates generations brax playground fused]

The parts, each with SAC networks of two layers of 256 and batches of 256 unless said otherwise:
- limits: the GPU's own limits, measured here: bytes per second of a copy, and FLOP per second of a large matrix
  product in JAX's default precision.
- updates: blocks of 50 updates of P members (17 observations, 6 actions): Rookery in three precisions (`--precision`),
  QDax in its default, which is `auto`, and the matrix products alone (`population_update.ceiling`); and the fractions
  of both limits. The FLOP are those of the matrix products; the bytes are those that an update cannot avoid, its state
  read and written once and its batch read once.
- ppo: environment steps per second on Brax's hopper, layers of 64, rollouts of 32, 4 epochs of 8 minibatches, 4,096
  environments in all: training alone, generations of 4 updates with one evaluation episode a member, the same with
  fitness from training, and Brax's own trainer.
- cartpole: `benchmarks.ppo` beside rejax.
- generations: whole generations of `pbt-sac` on point_maze, 10 environments and 1,000 steps of each member; memory; P
  doubles after the listed sizes until a population does not fit.
- brax: environment steps per second of `pbt-sac` and `ppo` on hopper and ant, built as the command line does.
- playground: likewise on CheetahRun of MuJoCo Playground.
- fused: the gradient of the critics' loss, their step, and the whole update of SAC with the kernels of
  `benchmarks.fused_mlp`, and with plain networks in bfloat16 and in `auto`, for 16 and 80 members: microseconds for all
  members. `difference` is that of the gradients (or of Adam's means of them after a block) from those in bfloat16,
  divided by their norm; from 0.01 on (0.1) nothing is timed.

The parts share the time equally, and a part gets what the ones before it left. A measurement that would begin after the
end of its part is left out, and named in the results. Compilation takes most of the time at first; with
JAX_COMPILATION_CACHE_DIR a second start finds what is compiled, and measures what the first one left out.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import fused_sac, harness, peers_brax, population, population_update, work
from benchmarks import ppo as seeds_ppo
from rookery.agents.sac import SacConfig, sac
from rookery.distributed import mesh, programs
from rookery.envs import registry
from rookery.experiments import build, kinds
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.networks import Precision, computing_in

POPULATIONS = [1, 16, 80, 512, 2_048]
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
    made.add_argument("--threads", type=int, default=8, help="programs compiled at once (%(default)s)")
    made.add_argument("--output", default="on_gpu", help="name of the results (%(default)s)")
    options = harness.parse(made)
    if jax.default_backend() != "gpu" and not options.quick:
        raise SystemExit("JAX sees no GPU; install the extra cuda12 or cuda13, or try the command with --quick")
    if options.quick:
        options.populations = [1, 4]
    begun, load = time.monotonic(), harness.load()
    rows = measured_before(options)
    options.known = [f"{row['part']}: {row['name']}" for row in rows]
    for turn, part in enumerate(options.parts):
        options.part = part
        options.ends = begun + 60 * options.minutes * (turn + 1) / len(options.parts)
        for row in PARTS[part](options):
            if is_known(options, row["name"]):
                continue
            rows.append({"part": part, **row})
            harness.show(rows[-1:])
            harness.write(options.output, options, rows, load)  # compilation cannot be interrupted, only killed
    harness.report(options.output, options, rows, load)


def measured_before(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of an earlier start with this commit on this device today."""
    path = harness.path_of(options.output, options.quick)
    record = json.loads(path.read_text()) if path.exists() else {}
    if (record.get("commit"), record.get("hardware")) != (harness.commit(), harness.hardware()):
        return []
    return [row for row in record["rows"] if "not_measured" not in row]


def is_known(options: argparse.Namespace, name: str) -> bool:
    """Whether an earlier start has the row of this part."""
    return f"{options.part}: {name}" in options.known


def in_time(options: argparse.Namespace, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The row of a measurement, or the reason why there is none: known, no time, or no memory."""
    if is_known(options, name):
        return {"name": name}
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
    """`copy_gb_per_s`, bytes read and written, and `products_tflops`, in JAX's precision; of the median call."""
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


class Block(NamedTuple):
    """A contender of the part `updates`."""

    contender: str
    agent: str
    members: int
    precision: Precision = "auto"

    @property
    def name(self) -> str:
        """Name of its row."""
        return f"{self.contender} {self.agent} P={self.members} {self.precision}"


def blocks(options: argparse.Namespace) -> list[Block]:
    """The contenders, those that matter most first."""
    sizes = [count for count in (80, 512, 1, 16, 2_048) if count in options.populations] or options.populations
    found = [Block("ours", "sac", count, precision) for count in sizes for precision in ("auto", "bfloat16")]
    peers = ["qdax"] if importlib.util.find_spec("qdax") else []
    found += [Block(peer, "sac", count) for peer in peers for count in sizes if count <= 512]
    found += [Block("ceiling", "sac", sizes[0]), Block("ours", "sac", sizes[0], "float32")]
    return found + [Block(contender, "td3", sizes[0]) for contender in ("ours", *peers)]


def updates(options: argparse.Namespace) -> Rows:
    """Blocks of updates: ours in each precision, QDax's in its own, and the matrix products alone."""
    limit, chosen = measured_limits(options), [block for block in blocks(options) if not is_known(options, block.name)]
    with ThreadPoolExecutor(options.threads) as pool:  # compiling would disturb the measurements
        compiled = list(pool.map(partial(loop_of, options), chosen))
    for block, made in zip(chosen, compiled, strict=True):
        yield in_time(options, block.name, partial(updates_of, block, made, options, limit))


def loop_of(options: argparse.Namespace, block: Block) -> tuple[harness.Compiled, harness.Loop]:
    """The compiled block, and its loop."""
    made = {"ours": population_update.ours, "qdax": population_update.qdax, "ceiling": population_update.ceiling}
    with computing_in(block.precision):
        return made[block.contender](shapes_of(options, block), UPDATES)


def shapes_of(options: argparse.Namespace, block: Block) -> work.Shapes:
    """The sizes of a block's networks and batches."""
    sizes = population_update.SMALL if options.quick else population_update.WIDE
    return work.Shapes(block.members, agent=block.agent, **sizes)


def updates_of(
    block: Block, made: tuple[harness.Compiled, harness.Loop], options: argparse.Namespace, limit: dict[str, float]
) -> dict[str, Any]:
    """Time of an update of all members, and its fractions of the device's limits."""
    program, loop = made
    seconds = harness.interleave({"": loop}, options.rounds)[""].median / UPDATES
    shapes = shapes_of(options, block)
    parts = work.update_parts(shapes, UPDATES)
    row = jax.eval_shape(lambda: work.members(parts, shapes, jax.random.key(0)))
    batch = sum(leaf.dtype.itemsize * np.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(row.buffer.rows))
    needed = 2 * size_of(row.state) + block.members * shapes.batch_size * float(batch)
    flop = block.members * products_of(shapes)
    return {
        "update_us": 1e6 * seconds,
        "updates_per_s": block.members / seconds,
        "of_bandwidth": needed / seconds / 1e9 / limit["copy_gb_per_s"],
        "of_flop": flop / seconds / 1e12 / limit["products_tflops"],
        "temporary_gb": program.temporary_gb,
        "compile_s": program.seconds,
    }


def fused(options: argparse.Namespace) -> Rows:
    """Parts of SAC's update with fused kernels beside plain networks, whose gradients are compared before."""
    sizes = [count for count in (80, 16) if count in options.populations] or options.populations[:1]
    for kind, contenders in fused_sac.KINDS.items():
        names = {count: f"{kind} P={count}" for count in sizes}
        jobs = [(count, kind, one) for count in sizes if not is_known(options, names[count]) for one in contenders]
        with ThreadPoolExecutor(options.threads) as pool:
            loops = dict(zip(jobs, pool.map(partial(fused_loop, options), jobs), strict=True))
        for count, name in names.items():
            chosen = {one: found for (size, _, one), found in loops.items() if size == count}
            yield in_time(options, name, partial(in_turn, chosen, kind, options))


def fused_loop(options: argparse.Namespace, job: tuple[int, str, str]) -> fused_sac.Loop:
    """A compiled block of a part of the update: members, kind and contender."""
    count, kind, contender = job
    shapes = shapes_of(options, Block(contender, "sac", count))
    return fused_sac.loop(shapes, fused_updates(options), kind, contender, interpret=jax.default_backend() != "gpu")


def fused_updates(options: argparse.Namespace) -> int:
    """Repetitions in a block."""
    return 2 if options.quick else UPDATES


def in_turn(loops: dict[str, fused_sac.Loop], kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of each contender, and how many times as fast as bfloat16 the fastest kernels are."""
    for loop in loops.values():
        loop.call()
    differences = {
        one: fused_sac.difference(loop.gradient(), loops["bfloat16"].gradient()) for one, loop in loops.items()
    }
    kernels = [one for one in loops if one in fused_sac.TILES]
    row = {"difference": max(differences[one] for one in kernels), "differences": differences}
    if not row["difference"] < (0.01 if kind == "gradient" else 0.1):
        return row
    times = harness.interleave({one: loop.call for one, loop in loops.items()}, options.rounds)
    taken = {one: 1e6 * times[one].median / fused_updates(options) for one in loops}
    fastest = min(kernels, key=lambda one: taken[one])
    return {
        **{f"{one}_us": taken[one] for one in loops},
        "fastest": fastest,
        "times_as_fast": taken["bfloat16"] / taken[fastest],
        **row,
        "temporary_gb": {one: loop.temporary_gb for one, loop in loops.items()},
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


PPO: dict[str, Any] = {"rollout_length": 32, "evaluate_every": 4, "eval_episodes": 1, "start_states": 64}


def ppo(options: argparse.Namespace) -> Rows:
    """PPO on Brax's hopper, 4,096 environments in all: training alone, with evaluations, with fitness from training."""
    members, count = (2, 8) if options.quick else (16, 256)
    wide = count * members
    jobs: dict[str, tuple[int, int, str]] = {
        f"training alone, 1 x {wide}": (1, wide, "alone"),
        f"training alone, {members} x {count}": (members, count, "alone"),
    }
    jobs |= {f"fitness from {what}, {members} x {count}": (members, count, what) for what in ("training", "evaluation")}
    jobs = {name: job for name, job in jobs.items() if not is_known(options, name)}
    with ThreadPoolExecutor(options.threads) as pool:
        calls = list(pool.map(lambda job: generation_of(*job, options), jobs.values()))
    for name, call in zip(jobs, calls, strict=True):
        steps = wide * PPO["rollout_length"] * PPO["evaluate_every"]
        yield in_time(options, name, partial(steps_of, call, steps, options))
    if importlib.util.find_spec("brax"):
        yield in_time(options, f"Brax's trainer, {wide}", partial(brax_trainer, wide, options))


def generation_of(members: int, count: int, fitness: str, options: argparse.Namespace) -> Callable[[], None]:
    """A compiled generation of 4 updates, with 4 epochs of 8 minibatches; "alone" is its training."""
    environment = registry.make("hopper", episode_length=20) if options.quick else registry.make("hopper")
    agent = rookery.ppo(environment.spec, actor_epochs=4, critic_epochs=4, minibatches=8)
    config = OnPolicyConfig(**PPO, num_envs=count, fitness_from="training" if fitness == "training" else "evaluation")
    learner = on_policy(agent, environment, config)
    program = rookery.pbt(learner, population_size=members, exploit="none")
    compiled = programs.compile_program(program, mesh.make_mesh(1))
    state = compiled.init(jax.random.key(0))
    if fitness != "alone":
        step = compiled.step.lower(state, jax.random.key(1)).compile()  # pyright: ignore[reportFunctionMemberAccess]
        return partial(population.advance, step, harness.Held(state))
    bank, keys = jax.jit(learner.start_states)(jax.random.key(1)), jax.random.split(jax.random.key(2), members)
    train = jax.vmap(
        lambda bank, keys, member: learner.step(member, bank, keys, jnp.zeros((), jnp.int32)), in_axes=(None, 0, 0)
    )
    trained = harness.compile_program(train, bank, keys, state.members, donate=(2,))
    return harness.Loop(trained.call, harness.Held(state.members), bank, keys)


def steps_of(call: Callable[[], None], steps: int, options: argparse.Namespace) -> dict[str, Any]:
    """Environment steps per second of a call."""
    seconds = harness.interleave({"": call}, options.rounds)[""].median
    return {"generation_s": seconds, "env_steps_per_s": steps / seconds}


def brax_trainer(count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Environment steps per second of Brax's PPO trainer with the same sizes, from the times of its evaluations."""
    times: list[float] = []

    def note(*_: Any) -> None:
        times.append(time.monotonic())

    rounds = options.rounds + 2  # the first two may compile
    steps = rounds * 4 * PPO["rollout_length"] * count
    sizes = {"num_envs": count, "unroll_length": PPO["rollout_length"], "num_minibatches": 8, "batch_size": count // 8}
    common = {**peers_brax.arguments("hopper", steps), "num_evals": rounds + 1, "num_updates_per_batch": 4}
    peers_brax.ppo_trainer((64, 64), policy_params_fn=note, **common, **sizes)
    seconds = float(np.median(np.diff(times[2:]))) if len(times) > 3 else float("nan")
    return {"generation_s": seconds, "env_steps_per_s": steps / rounds / seconds}


def cartpole(options: argparse.Namespace) -> Rows:
    """PPO on CartPole beside rejax, where it is installed; see `benchmarks.ppo`."""
    if not importlib.util.find_spec("rejax"):
        yield {"name": "cartpole", "not_measured": "rejax is not installed"}
        return
    for seeds in [2] if options.quick else [256, 2_048, 1]:
        yield in_time(options, f"CartPole, {seeds} seeds", partial(seeds_ppo.measure, "ours", seeds, options))


PARTS = {
    "limits": limits,
    "updates": updates,
    "ppo": ppo,
    "cartpole": cartpole,
    "generations": generations,
    "brax": partial(robots, ("hopper", "ant")),
    "playground": partial(robots, ("CheetahRun",)),
    "fused": fused,
}


if __name__ == "__main__":
    main()
