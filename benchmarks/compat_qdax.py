"""Cost of QDax's documented API in `rookery.compat` compared with Rookery's API, for the same work.

    python -m benchmarks.compat_qdax [--quick] [--work train-sac train-td3 update-sac update-td3 diayn]

On walker2d_uni (spring), with networks (64, 64) and batch size 64, for DIAYN (256, 256) and 256:

- `train-sac`, `train-td3`: 10 members with 25 environments each, 1 update per environment step, buffers of 100 thousand
  rows; `get_train_fn` against the learner's step mapped over members.
- `update-sac`, `update-td3`: 50 updates of each of 10 members in a scan; `jax.vmap(agent.update)` against the learner's
  block of updates, which draws its noise at once.
- `diayn`: 200 environments, 0.1 updates per step; `do_iteration_fn` in a scan against the learner's step.

All contenders run on one device in one process. `documented` is compiled by `jax.jit` without donation, as in
documented programs; `library` is donated, and `documented_donated` is the documented API with donation.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import diayn, harness, pbt_training, work
from rookery.compat import qdax
from rookery.envs import registry
from rookery.types import Key

TASK, ROWS = pbt_training.TASK, 100_000
WORK = ("train-sac", "train-td3", "update-sac", "update-td3", "diayn")
EPISODE = 1000
CLASSES = {"sac": (qdax.PBTSAC, qdax.PBTSacConfig), "td3": (qdax.PBTTD3, qdax.PBTTD3Config)}


def main() -> None:
    made = harness.parser(__doc__, rounds=7)
    made.add_argument("--work", nargs="+", choices=WORK, default=list(WORK), help="parts to time")
    made.add_argument("--iterations", type=int, default=20, help="steps of every environment per call (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.iterations = 2
    load = harness.load()
    rows = [measure(part, options.iterations, options.rounds) for part in options.work]
    harness.report("compat_qdax", options, rows, load)


def measure(part: str, iterations: int, rounds: int) -> dict[str, Any]:
    """One row of results; ratios above 1 mean that the documented classes are faster."""
    first, library_work, first_documented, documented = CONTENDERS[part.split("-", maxsplit=1)[0]](part, iterations)
    calls = {
        "library": _loop(*library_work, first, donate=True),
        "documented": _loop(*documented, first_documented, donate=False),
        "documented_donated": _loop(*documented, first_documented, donate=True),
    }
    times = harness.interleave(calls, rounds)
    return {
        "work": part,
        **{f"{name}_s": value.median for name, value in times.items()},
        **harness.speedup(times["documented"], times["library"]),
        "ratio_donated": times["library"].median / times["documented_donated"].median,
        "seconds": {name: value.seconds for name, value in times.items()},
    }


def _loop(step: Callable, carry: Any, first: tuple, donate: bool) -> harness.Loop:
    """A contender that passes a copy of `carry` from call to call."""
    library_work = jax.tree.map(jnp.copy, carry)
    program = harness.compile_program(step, *first, library_work, donate=(len(first),) if donate else ())
    return harness.Loop(program.call, harness.Held(library_work), *first)


def population(kind: str) -> tuple[Any, Any, Any]:
    """The documented agent, its initial training states, and buffers with random rows."""
    task = registry.find(TASK)
    made, config = CLASSES[kind]
    agent = made(
        config(
            batch_size=64,
            episode_length=EPISODE,
            policy_hidden_layer_size=(64, 64),
            critic_hidden_layer_size=(64, 64),
        ),
        task.action_size,
    )
    init_states = agent.get_init_fn(pbt_training.POPULATION, task.action_size, task.observation_size, ROWS)
    states, buffers = jax.jit(init_states)(jax.random.key(0))
    return agent, states, jax.jit(fill)(buffers, jax.random.key(1))


def fill(buffers: qdax.ReplayBuffer, key: Key) -> qdax.ReplayBuffer:
    """Fill a buffer with random rows without the end of an episode."""
    rows = buffers.state.rows
    keys = jax.random.split(key, 4)
    names = ("obs", "next_obs", "rewards", "actions")
    drawn = {name: jax.random.normal(k, getattr(rows, name).shape) for name, k in zip(names, keys, strict=True)}
    size = jnp.full_like(buffers.state.size, ROWS)
    return buffers.replace(state=buffers.state._replace(rows=rows.replace(**drawn), size=size))


def train(part: str, iterations: int) -> tuple:
    """Both contenders of a population's training."""
    kind = part.split("-")[1]
    library_work = pbt_training.ours(pbt_training.shapes_of(kind, ROWS), iterations, full=True)
    agent, states, buffers = population(kind)
    env = qdax.environments.create(TASK, batch_size=pbt_training.ENVS * pbt_training.POPULATION)
    env_states = jax.jit(env.reset)(jax.random.key(2))
    shape = (pbt_training.POPULATION, pbt_training.ENVS)
    env_states = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), env_states)
    step = agent.get_train_fn(env, iterations, pbt_training.ENVS, 1.0)
    return (), library_work, (), (lambda carry: step(*carry), (states, env_states, buffers))


def update(part: str, iterations: int) -> tuple:
    """Both contenders of updates alone."""
    kind, count = part.split("-")[1], 50 if iterations > 2 else 2
    shapes = pbt_training.shapes_of(kind, ROWS)
    parts = work.update_parts(shapes, count)
    members = work.members(parts, shapes, jax.random.key(0))
    agent, states, buffers = population(kind)

    def updates(buffers: Any, states: Any) -> tuple[Any, Any]:
        def once(states: Any, _: None) -> tuple[Any, Any]:
            states, _, metrics = jax.vmap(agent.update)(states, buffers)
            return states, metrics

        return jax.lax.scan(once, states, length=count)

    library_work = (partial(work.update_block, parts), (members._replace(buffer=None), jax.random.key(1)))
    return (members.buffer,), library_work, (buffers,), (updates, states)


def skills(part: str, iterations: int) -> tuple:
    """Both contenders of DIAYN's iterations."""
    del part
    job = diayn.ours("iterations", ROWS, iterations, full=True)
    env = qdax.environments.create(TASK, batch_size=diayn.ENVS)
    sizes = env.observation_size, env.action_size, env.descriptor_length
    widths = {"policy_hidden_layer_size": diayn.HIDDEN, "critic_hidden_layer_size": diayn.HIDDEN}
    agent = qdax.DIAYN(qdax.DiaynConfig(diayn.BATCH, EPISODE, num_skills=diayn.SKILLS, **widths), sizes[1])
    state = agent.init(jax.random.key(0), sizes[1], sizes[0], sizes[2])
    empty = qdax.ReplayBuffer.init(ROWS, qdax.QDTransition.init_dummy(sizes[0] + diayn.SKILLS, *sizes[1:]))
    chosen = jnp.tile(jnp.eye(diayn.SKILLS), (diayn.ENVS // diayn.SKILLS, 1))
    buffers, drawn = fill(empty, jax.random.key(1)), diayn.draw_skills(jax.random.key(3), ROWS)
    rows = buffers.state.rows
    with_skills = {name: getattr(rows, name).at[:, -diayn.SKILLS :].set(drawn) for name in ("obs", "next_obs")}
    buffers = buffers.replace(state=buffers.state._replace(rows=rows.replace(**with_skills)))
    iterate = partial(
        qdax.do_iteration_fn,
        env_batch_size=diayn.ENVS,
        grad_updates_per_step=diayn.UPDATES_PER_STEP,
        play_step_fn=partial(agent.play_step_fn, skills=chosen, env=env),
        update_fn=agent.update,
    )
    env_states = jax.jit(env.reset)(jax.random.key(2))
    return (
        job.first,
        (job.call, job.carry),
        (),
        (partial(diayn.run_qdax_iterations, iterate, iterations), (state, env_states, buffers)),
    )


CONTENDERS = {"train": train, "update": update, "diayn": skills}

if __name__ == "__main__":
    main()
