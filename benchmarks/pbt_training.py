"""Training of a population of small agents, environments included: Rookery against QDax's `get_train_fn`.

    python -m benchmarks.pbt_training [--quick] [--agent sac td3]

P = 10 members with 25 environments each on walker2d_uni (spring), 1 update per environment step, batch size 64, hidden
sizes (64, 64), no evaluation; TD3's policy is updated every second step in both. Buffers of 100 thousand and of 1
million rows are filled with random rows before timing. `ours` is Rookery's learner step, mapped over members and
donated, with one device per core as on the command line (`use_cores`); QDax uses the same cores within one device.
QDax's examples do not donate (`qdax`, which ratios refer to); `qdax_donated` is QDax with donation. Peak memory is
measured separately, from empty buffers, in one process per contender, after two calls.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import harness, work
from rookery.distributed import programs
from rookery.distributed.layout import population_map
from rookery.distributed.mesh import mesh_for, use_cores
from rookery.envs import registry
from rookery.learners.base import Bank, Learner, Member
from rookery.populations import base
from rookery.types import Key, Metrics

CONTENDERS = ("ours", "qdax", "qdax_donated")
TASK, ENVS, POPULATION = "walker2d_uni", 25, 10
MODULE = "benchmarks.pbt_training"


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000], help="buffer sizes")
    work.add_agents(made)
    made.add_argument("--iterations", type=int, default=20, help="steps of every environment per call (%(default)s)")
    made.add_argument("--memory-of", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = harness.parse(made)
    use_cores(POPULATION)
    if options.quick:
        options.iterations = 2
    if options.memory_of:
        shapes = shapes_of(options.agent[0], options.rows[0])
        print(json.dumps(peak_memory(options.memory_of, shapes, options.iterations)))
        return
    load = harness.load()
    rows = [
        measure(shapes_of(agent, count), options.iterations, options.rounds)
        for agent in options.agent
        for count in options.rows
    ]
    for row in rows:
        flags = ("--agent", row["agent"], "--rows", str(row["rows"]), "--iterations", str(options.iterations))
        peaks = {name: harness.in_process(MODULE, *flags, "--memory-of", name) for name in CONTENDERS}
        row |= {f"{name}_gb": peak for name, peak in peaks.items()}
        row |= {"memory_ratio": peaks["ours"] / peaks["qdax"]}
    harness.report("pbt_training", options, rows, load)


def shapes_of(agent: str, rows: int) -> work.Shapes:
    task = registry.find(TASK)
    sizes = {"observation_size": task.observation_size, "action_size": task.action_size}
    return work.Shapes(POPULATION, batch_size=64, hidden_sizes=(64, 64), rows=rows, agent=agent, **sizes)


def measure(shapes: work.Shapes, iterations: int, rounds: int) -> dict[str, Any]:
    """One row of results: updates per second, summed over the members."""
    made = {name: contender(name, shapes, iterations) for name in CONTENDERS}
    times = harness.interleave({name: loop for name, (_, loop) in made.items()}, rounds)
    updates = POPULATION * ENVS * iterations
    return {
        "agent": shapes.agent,
        "rows": shapes.rows,
        **{f"{name}/s": updates / times[name].median for name in CONTENDERS},
        **harness.speedup(times["ours"], times["qdax"]),
        "ratio_to_donated": times["qdax_donated"].median / times["ours"].median,
        **{f"{name}_compile_s": made[name][0].seconds for name in ("ours", "qdax")},
        "temporary_gb": {name: made[name][0].temporary_gb for name in CONTENDERS},
        "seconds": {name: value.seconds for name, value in times.items()},
    }


def contender(
    name: str, shapes: work.Shapes, iterations: int, full: bool = True
) -> tuple[harness.Compiled, harness.Loop]:
    """A contender's program, and the loop that feeds its state back."""
    step, carry = (ours if name == "ours" else qdax)(shapes, iterations, full)
    program = harness.compile_program(step, carry, donate=() if name == "qdax" else (0,))
    return program, harness.Loop(program.call, harness.Held(carry))


def ours(shapes: work.Shapes, iterations: int, full: bool) -> tuple[Callable, tuple]:
    """The learner's step for a population, and the initial members."""
    learner = work.learner(registry.make(TASK), shapes, ENVS, iterations)
    mesh = mesh_for(POPULATION)
    layout = programs.shardings(mesh)
    place = (layout.members, layout.shared, layout.shared)
    members, key, bank = jax.jit(partial(begin, learner), out_shardings=place)(jax.random.key(0))
    if full:
        fill = jax.jit(work.fill, donate_argnums=0, out_shardings=layout.members)
        members = members._replace(buffer=fill(members.buffer, key))
    return partial(train, learner, population_map(mesh)), (members, key, bank)


def begin(learner: Learner, key: Key) -> tuple[Member, Key, Bank]:
    """Initial members, a key, and the start states of a generation."""
    bank_key, member_key, hyper_key, key = jax.random.split(key, 4)
    bank = learner.start_states(bank_key)
    hyper = jax.vmap(partial(work.hyperparams.sample, learner.space))(base.member_keys(hyper_key, POPULATION))
    members = base.vmap(learner.init, (base.member_keys(member_key, POPULATION), hyper), (bank,))
    return members, key, bank


def train(
    learner: Learner, spread: base.PopulationMap, carry: tuple[Member, Key, Bank]
) -> tuple[tuple[Member, Key, Bank], Metrics]:
    """A generation of training without evaluation."""
    members, key, bank = carry
    key, step_key = jax.random.split(key)
    keys = base.member_keys(step_key, POPULATION)

    def step(member: Member, key: Key, bank: Bank) -> tuple[Member, Metrics]:
        return learner.step(member, bank, key, jnp.zeros((), jnp.int32))

    members, metrics = spread(step, (members, keys), (bank,))
    return (members, key, bank), metrics


def qdax(shapes: work.Shapes, iterations: int, full: bool) -> tuple[Callable, tuple]:
    """QDax's training of a population, and its initial state."""
    peer = work.qdax_peer(shapes, jax.random.key(0), full=full)
    environment = work.qdax_environment(TASK, ENVS)
    keys = jax.random.key_data(jax.random.split(jax.random.key(1), POPULATION))
    env_states = jax.jit(jax.vmap(environment.reset))(keys)
    train = peer.agent.get_train_fn(environment, iterations, ENVS, 1.0)
    return lambda carry: train(*carry), (peer.states, env_states, peer.buffers)


def peak_memory(name: str, shapes: work.Shapes, iterations: int) -> float:
    """Peak memory in GB of this process after two calls of one contender."""
    _, loop = contender(name, shapes, iterations, full=False)
    loop()
    loop()
    return harness.peak_memory()


if __name__ == "__main__":
    main()
