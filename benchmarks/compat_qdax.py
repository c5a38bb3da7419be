"""What QDax's documented classes cost over the library's own path, for the same work.

    python -m benchmarks.compat_qdax [--quick] [--work train-sac train-td3 update-sac update-td3 diayn]

On walker2d_uni (spring), nets (64, 64) and batches of 64 but for DIAYN's (256, 256) and 256:

- `train-sac`, `train-td3`: 10 members with 25 environments each, 1 update per environment step, buffers of 100 thousand
  rows; `get_train_fn` beside the learner's own step mapped over members.
- `update-sac`, `update-td3`: 50 updates of each of 10 members in a scan; `jax.vmap(agent.update)` beside a block of
  updates as learners make them, whose noise is drawn at once.
- `diayn`: 200 environments, 0.1 updates per step; `do_iteration_fn` in a scan beside the learner's own step.

All on one device in one process. `documented` is compiled by `jax.jit` alone, as documented programs do it; the
library's own step is donated, and `documented_donated` shows what that would give.
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
    made.add_argument("--work", nargs="+", choices=WORK, default=list(WORK), help="what is timed")
    made.add_argument("--iterations", type=int, default=20, help="steps of every environment per call (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.iterations = 2
    load = harness.load()
    rows = [measure(part, options.iterations, options.rounds) for part in options.work]
    harness.report("compat_qdax", options, rows, load)


def measure(part: str, iterations: int, rounds: int) -> dict[str, Any]:
    """One row; ratios above 1 say that the documented classes are faster."""
    first, own, first_documented, documented = CONTENDERS[part.split("-", maxsplit=1)[0]](part, iterations)
    calls = {
        "library": _loop(*own, first, donate=True),
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
    """Calls that feed a state of their own back."""
    own = jax.tree.map(jnp.copy, carry)
    program = harness.compile_program(step, *first, own, donate=(len(first),) if donate else ())
    return harness.Loop(program.call, harness.Held(own), *first)


def population(kind: str) -> tuple[Any, Any, Any]:
    """The documented agent, its newborn states, and buffers full of random rows."""
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
    born = agent.get_init_fn(pbt_training.POPULATION, task.action_size, task.observation_size, ROWS)
    states, held = jax.jit(born)(jax.random.key(0))
    return agent, states, jax.jit(fill)(held, jax.random.key(1))


def fill(held: qdax.ReplayBuffer, key: Key) -> qdax.ReplayBuffer:
    """Random rows, in which nothing ends."""
    rows = held.state.rows
    keys = jax.random.split(key, 4)
    names = ("obs", "next_obs", "rewards", "actions")
    drawn = {name: jax.random.normal(k, getattr(rows, name).shape) for name, k in zip(names, keys, strict=True)}
    size = jnp.full_like(held.state.size, ROWS)
    return held.replace(state=held.state._replace(rows=rows.replace(**drawn), size=size))


def train(part: str, iterations: int) -> tuple:
    """Both contenders of a population's training."""
    kind = part.split("-")[1]
    own = pbt_training.ours(pbt_training.shapes_of(kind, ROWS), iterations, full=True)
    agent, states, held = population(kind)
    env = qdax.environments.create(TASK, batch_size=pbt_training.ENVS * pbt_training.POPULATION)
    lives = jax.jit(env.reset)(jax.random.key(2))
    shape = (pbt_training.POPULATION, pbt_training.ENVS)
    lives = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), lives)
    step = agent.get_train_fn(env, iterations, pbt_training.ENVS, 1.0)
    return (), own, (), (lambda carry: step(*carry), (states, lives, held))


def update(part: str, iterations: int) -> tuple:
    """Both contenders of updates alone."""
    kind, count = part.split("-")[1], 50 if iterations > 2 else 2
    shapes = pbt_training.shapes_of(kind, ROWS)
    parts = work.update_parts(shapes, count)
    members = work.members(parts, shapes, jax.random.key(0))
    agent, states, held = population(kind)

    def updates(held: Any, states: Any) -> tuple[Any, Any]:
        def once(states: Any, _: None) -> tuple[Any, Any]:
            states, _, metrics = jax.vmap(agent.update)(states, held)
            return states, metrics

        return jax.lax.scan(once, states, length=count)

    own = (partial(work.update_block, parts), (members._replace(buffer=None), jax.random.key(1)))
    return (members.buffer,), own, (held,), (updates, states)


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
    held, drawn = fill(empty, jax.random.key(1)), diayn.draw_skills(jax.random.key(3), ROWS)
    rows = held.state.rows
    shown = {name: getattr(rows, name).at[:, -diayn.SKILLS :].set(drawn) for name in ("obs", "next_obs")}
    held = held.replace(state=held.state._replace(rows=rows.replace(**shown)))
    iterate = partial(
        qdax.do_iteration_fn,
        env_batch_size=diayn.ENVS,
        grad_updates_per_step=diayn.UPDATES_PER_STEP,
        play_step_fn=partial(agent.play_step_fn, skills=chosen, env=env),
        update_fn=agent.update,
    )
    lives = jax.jit(env.reset)(jax.random.key(2))
    return job.first, (job.call, job.carry), (), (partial(diayn.live_qdax, iterate, iterations), (state, lives, held))


CONTENDERS = {"train": train, "update": update, "diayn": skills}

if __name__ == "__main__":
    main()
