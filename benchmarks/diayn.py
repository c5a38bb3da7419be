"""Skill discovery, environments included: one DIAYN agent of Rookery against QDax's, and METRA and LSD against DIAYN.

    python -m benchmarks.diayn [--quick] [--rows 10000 1000000] [--work iterations updates steps methods]

An iteration is one step of 200 environments of walker2d_uni (spring, automatic reset), 200 rows stored, and 20 updates
from batches of 256: discriminator, critics, policy, temperature, targets. There are five skills, all networks are
(256, 256), and the discriminator's input are the contacts of the two feet. Buffers have 10 thousand rows, as in QDax's
test, or 1 million, as in its example, and are filled with random rows, each with one skill, before timing. `updates`
times the updates of the same iterations alone, and `steps` the remaining work, which attributes the ratio:
1 / iterations is about 1 / updates + 1 / steps.

`ours` is the learner's step, donated, on one device as for any single agent. `qdax` is QDax's `do_iteration_fn` with
DIAYN's `play_step_fn`, in one compiled scan without donation, as in its example; ratios refer to it. `qdax_donated` is
the same with donation. QDax assigns a fixed skill to each environment, Rookery draws a skill for each episode. QDax's
discriminator learns from the state before a step and rewards the state after it; Rookery uses the state after it for
both, which saves one forward pass. Peak memory is measured for whole iterations, separately, from empty buffers, in one
process per contender, after two calls.

`methods` needs no QDax: the updates of DIAYN, METRA and LSD, whose discriminator or phi reads the whole observation;
the ratios are those of their times to DIAYN's.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import harness, work
from rookery import buffers, hyperparams
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.agents.skills.metra import LsdConfig, MetraConfig, lsd, metra
from rookery.envs import registry
from rookery.envs.wrappers.skills import skills
from rookery.learners.base import Learner, Member
from rookery.learners.off_policy import OffPolicyBindings, OffPolicyConfig, off_policy
from rookery.learners.off_policy import learn as off_policy_learn
from rookery.types import Array, Key, Metrics, PyTree

CONTENDERS = ("ours", "qdax", "qdax_donated")
METHODS = {
    "diayn": lambda inner, spec: diayn(inner, spec, DiaynConfig(True, discriminator_hidden_sizes=HIDDEN)),
    "metra": lambda inner, spec: metra(inner, spec, MetraConfig(True, phi_hidden_sizes=HIDDEN)),
    "lsd": lambda inner, spec: lsd(inner, spec, LsdConfig(True, phi_hidden_sizes=HIDDEN)),
}
WORK = ("iterations", "updates", "steps", "methods")
TASK, ENVS, SKILLS, BATCH, HIDDEN = "walker2d_uni", 200, 5, 256, (256, 256)
UPDATES_PER_STEP = 0.1
UPDATES = 20  # per iteration
MODULE = "benchmarks.diayn"


class Job(NamedTuple):
    """The timed call, `carry, outputs = call(*first, carry)`."""

    call: Callable
    first: tuple
    carry: PyTree


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000], help="buffer sizes")
    made.add_argument("--work", choices=WORK, nargs="+", default=list(WORK), help="parts to time (%(default)s)")
    made.add_argument("--iterations", type=int, default=10, help="iterations of one timed call (%(default)s)")
    made.add_argument("--memory-of", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = harness.parse(made)
    if options.quick:
        options.iterations, options.rows = 2, options.rows[:1]
    if options.memory_of:
        print(json.dumps(peak_memory(options.memory_of, options.rows[0], options.iterations)))
        return
    load = harness.load()
    timing = options.iterations, options.rounds
    rows = [
        methods(count, *timing) if part == "methods" else measure(part, count, *timing)
        for count in options.rows
        for part in options.work
    ]
    for row in rows:
        if row["work"] == "iterations":
            flags = ("--rows", str(row["rows"]), "--iterations", str(options.iterations))
            peaks = {name: harness.in_process(MODULE, *flags, "--memory-of", name) for name in CONTENDERS}
            row |= {f"{name}_gb": peak for name, peak in peaks.items()}
            row |= {"memory_ratio": peaks["ours"] / peaks["qdax"]}
    harness.report("diayn", options, rows, load)


def measure(part: str, rows: int, iterations: int, rounds: int) -> dict[str, Any]:
    """One row of results: iterations per second, with only the work of `part`."""
    made = {name: contender(name, part, rows, iterations) for name in CONTENDERS}
    times = harness.interleave({name: loop for name, (_, loop) in made.items()}, rounds)
    return {
        "work": part,
        "rows": rows,
        **{f"{name}/s": iterations / times[name].median for name in CONTENDERS},
        **harness.speedup(times["ours"], times["qdax"]),
        "ratio_to_donated": times["qdax_donated"].median / times["ours"].median,
        **{f"{name}_compile_s": made[name][0].seconds for name in ("ours", "qdax")},
        "temporary_gb": {name: made[name][0].temporary_gb for name in CONTENDERS},
        "seconds": {name: value.seconds for name, value in times.items()},
    }


def methods(rows: int, iterations: int, rounds: int) -> dict[str, Any]:
    """One row of results: updates per second of each method, and the ratio of its time to DIAYN's."""
    made = {name: contender(name, "updates", rows, iterations)[1] for name in METHODS}
    times = harness.interleave(made, rounds)
    return {
        "work": "methods",
        "rows": rows,
        **{f"{name}/s": UPDATES * iterations / value.median for name, value in times.items()},
        **{f"{name}_time_ratio": value.median / times["diayn"].median for name, value in times.items()},
        **{f"{name}_best_time_ratio": value.best / times["diayn"].best for name, value in times.items()},
        "seconds": {name: value.seconds for name, value in times.items()},
    }


def contender(
    name: str, part: str, rows: int, iterations: int, full: bool = True
) -> tuple[harness.Compiled, harness.Loop]:
    """A contender's program, and the loop that feeds its state back."""
    build = qdax if name.startswith("qdax") else partial(ours, method=METHODS.get(name))
    job = build(part, rows, iterations, full)
    donate = () if name == "qdax" else (len(job.first),)
    program = harness.compile_program(job.call, *job.first, job.carry, donate=donate)
    return program, harness.Loop(program.call, harness.Held(job.carry), *job.first)


def ours(part: str, rows: int, iterations: int, full: bool, method: Callable | None = None) -> Job:
    """The learner's step, or its blocks of updates. `steps` uses the warm-up, which draws the actions twice.

    `method` builds the agent; by default it is DIAYN, whose discriminator reads the descriptor.
    """
    env = skills(registry.make(TASK), SKILLS, with_previous=method in (METHODS["metra"], METHODS["lsd"]))
    inner = sac(env.spec, SacConfig(hidden_sizes=HIDDEN))
    agent = (method or diayn)(inner, env.spec)
    config = OffPolicyConfig(
        num_envs=ENVS,
        steps_per_generation=ENVS * iterations,
        updates_per_step=UPDATES_PER_STEP,
        batch_size=BATCH,
        buffer_size=rows,
        warmup_steps=ENVS * iterations if part == "steps" else 0,
    )
    learner = off_policy(agent, env, config)
    bank_key, born_key, fill_key, key = jax.random.split(jax.random.key(0), 4)
    bank = jax.jit(learner.start_states)(bank_key)
    member = jax.jit(learner.init)(born_key, hyperparams.defaults(learner.space), bank)
    if full:
        member = member._replace(buffer=jax.jit(fill, donate_argnums=0)(member.buffer, fill_key))
    if part != "updates":
        return Job(partial(run_iterations, learner), (bank,), (member, key))
    bindings = OffPolicyBindings(agent, env, buffers.ring(rows), config)
    return Job(partial(learn, bindings), (member._replace(state=None),), (member.state, key))


def run_iterations(learner: Learner, bank: PyTree, carry: tuple[Member, Key]) -> tuple[tuple[Member, Key], Metrics]:
    """The iterations of a generation."""
    member, key = carry
    key, step_key = jax.random.split(key)
    member, metrics = learner.step(member, bank, step_key, jnp.zeros((), jnp.int32))
    return (member, key), metrics


def learn(bindings: OffPolicyBindings, member: Member, carry: tuple[PyTree, Key]) -> tuple[tuple[PyTree, Key], Metrics]:
    """The updates of the same number of iterations; `carry` is the agent's state, and a key."""
    state, key = carry
    key, learn_key = jax.random.split(key)

    def block(state: PyTree, key: Key) -> tuple[PyTree, Metrics]:
        counts, zero = (bindings.config.updates, bindings.config.batch_size), jnp.zeros((), jnp.int32)
        return off_policy_learn(bindings.agent, bindings.buffer, member._replace(state=state), key, zero, *counts)

    state, metrics = jax.lax.scan(block, state, jax.random.split(learn_key, bindings.config.iterations))
    return (state, key), metrics


def fill(state: buffers.BufferState, key: Key) -> buffers.BufferState:
    """Fill a ring buffer with random rows; both observations of a row contain the same skill."""
    fill_key, skill_key = jax.random.split(key)
    population = jax.tree.map(lambda leaf: leaf[None], state)
    filled = jax.tree.map(lambda leaf: leaf[0], work.fill(population, fill_key))
    drawn = draw_skills(skill_key, filled.rows.reward.shape[0])
    with_skills = {
        name: getattr(filled.rows, name)._replace(skill=drawn) for name in ("observation", "next_observation")
    }
    return filled._replace(rows=filled.rows._replace(**with_skills))


def draw_skills(key: Key, count: int) -> Array:
    """One-hot skills `[count, S]`."""
    return jax.nn.one_hot(jax.random.randint(key, (count,), 0, SKILLS), SKILLS)


def qdax(part: str, rows: int, iterations: int, full: bool) -> Job:
    """QDax's iterations, or its updates.

    Raises:
      SystemExit: QDax is not installed.
    """
    try:
        from qdax.baselines import diayn as baseline
        from qdax.core.neuroevolution.buffers.buffer import QDTransition, ReplayBuffer
        from qdax.core.neuroevolution.sac_td3_utils import do_iteration_fn
    except ImportError as error:
        raise SystemExit(f"{work.INSTALL} ({error})") from error
    environment = work.qdax_environment(TASK, ENVS)
    sizes = environment.observation_size, environment.action_size, environment.state_descriptor_length
    config = baseline.DiaynConfig(
        batch_size=BATCH,
        episode_length=1000,
        policy_hidden_layer_size=HIDDEN,
        critic_hidden_layer_size=HIDDEN,
        num_skills=SKILLS,
    )
    agent: Any = baseline.DIAYN(config, action_size=sizes[1])
    born_key, start_key, fill_key = jax.random.split(jax.random.key(0), 3)
    begin = partial(agent.init, action_size=sizes[1], observation_size=sizes[0], descriptor_size=sizes[2])
    state = jax.jit(begin)(jax.random.key_data(born_key))  # raw keys, because QDax splits them itself
    row = QDTransition.init_dummy(sizes[0] + SKILLS, *sizes[1:])
    store = jax.jit(partial(ReplayBuffer.init, rows))(row)
    if full:
        store = jax.jit(fill_qdax, donate_argnums=0)(store, fill_key)
    if part == "updates":
        return Job(partial(learn_qdax, agent, iterations), (store,), state)
    env_states = jax.jit(environment.reset)(jax.random.key_data(start_key))
    chosen = jnp.tile(jnp.eye(SKILLS), (ENVS // SKILLS, 1))
    iterate = partial(
        do_iteration_fn,
        env_batch_size=ENVS,
        grad_updates_per_step=UPDATES_PER_STEP if part == "iterations" else 0.0,
        play_step_fn=partial(agent.play_step_fn, skills=chosen, env=environment),
        update_fn=agent.update,
    )
    return Job(partial(run_qdax_iterations, iterate, iterations), (), (state, env_states, store))


def fill_qdax(store: Any, key: Key) -> Any:
    """`fill` for QDax's buffer."""
    fill_key, skill_key = jax.random.split(key)
    store = work.fill_qdax(store, fill_key)
    drawn, data = draw_skills(skill_key, store.data.shape[0]), store.data
    for end in (store.transition.observation_dim, 2 * store.transition.observation_dim):
        data = data.at[:, end - SKILLS : end].set(drawn)
    return store.replace(data=data)


def run_qdax_iterations(iterate: Callable, iterations: int, carry: tuple) -> tuple[tuple, Any]:
    """QDax's iterations; `carry` is its training state, environment states and buffer."""

    def step(carry: tuple, _: None) -> tuple[tuple, Any]:
        *after, metrics = iterate(*carry)
        return tuple(after), metrics

    return jax.lax.scan(step, carry, None, length=iterations)


def learn_qdax(agent: Any, iterations: int, store: Any, state: Any) -> tuple[Any, Any]:
    """The updates of the same number of iterations, in a scan as in QDax's iterations."""

    def update(carry: tuple, _: None) -> tuple[tuple, Any]:
        state, store, metrics = agent.update(*carry)
        return (state, store), metrics

    (state, _), metrics = jax.lax.scan(update, (state, store), None, length=iterations * UPDATES)
    return state, metrics


def peak_memory(name: str, rows: int, iterations: int) -> float:
    """Peak memory in GB of this process after two calls of one contender."""
    _, loop = contender(name, "iterations", rows, iterations, full=False)
    loop()
    loop()
    return harness.peak_memory()


if __name__ == "__main__":
    main()
