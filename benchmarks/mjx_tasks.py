"""Compare the tasks mjx_* with Brax's on its backend mjx: equality of the trajectories, and speed.

    python -m benchmarks.mjx_tasks [--quick] [--tasks hopper_uni,ant_trap]

All contenders take the same random actions from the same start states. Reported are the largest absolute differences
from Brax's observation, of one step from each of Brax's states, and of trajectories that run on by themselves; and the
environment steps per second. The tasks are those with a descriptor for ground contact, and one with walls.
"""

import time
from typing import Any

import jax
import numpy as np

from benchmarks import harness
from rookery.envs import registry
from rookery.envs.base import Environment, Step
from rookery.envs.suites.playground.brax_tasks import Physics
from rookery.envs.wrappers.time_limit import TimeLimitState

TASKS = ("hopper_uni", "walker2d_uni", "halfcheetah_uni", "ant_uni", "humanoid_uni", "ant_trap")
STEPS = 50


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--tasks", default=",".join(TASKS), help="comma-separated names of Brax's tasks (%(default)s)")
    made.add_argument("--environments", type=int, default=256, help="number of environments (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.environments = 8
    load = harness.load()
    rows = []
    for task in options.tasks.split(","):
        rows += measure(task, options.environments)
        harness.show(rows[-3:])  # the whole takes many minutes, most of them compiling
    harness.report("mjx_tasks", options, rows, load)


def measure(task: str, environments: int) -> list[dict[str, Any]]:
    """Result rows of one task: Brax, and the two implementations of MJX."""
    brax = registry.make(task, backend="mjx")
    keys = jax.random.split(jax.random.key(0), environments)
    start, _ = jax.jit(jax.vmap(brax.reset))(keys)
    shape = STEPS, environments, brax.spec.action_size
    actions = jax.random.uniform(jax.random.key(1), shape, minval=-1.0)
    states, steps, row = _trajectory(brax, start, actions, keys)
    rows = [{"task": task, "contender": "Brax", **row}]
    for impl in ("jax", "warp"):
        ours = registry.make(f"mjx_{task}", impl=impl)
        _, own_steps, row = _trajectory(ours, carried(start), actions, keys)
        step = jax.jit(jax.vmap(ours.step))
        single = [step(carried(states[i]), actions[i], keys)[1] for i in range(STEPS)]
        rows.append({"task": task, "contender": impl, **row, **_differences(steps, single, "one step")})
        rows[-1] |= _differences(steps, own_steps, "50 steps")
    return rows


def carried(state: TimeLimitState) -> TimeLimitState:
    """The state of a task mjx_* that is equal to one of Brax's task on its backend mjx."""
    data: Any = state.inner
    return state._replace(inner=Physics(data.q, data.qd, data.x, data.xd, data.qacc_warmstart))


def _trajectory(env: Environment, state: Any, actions: Any, keys: Any) -> tuple[list[Any], list[Step], dict[str, Any]]:
    """Return the states before each step, the steps, and compile time and speed."""
    step = jax.jit(jax.vmap(env.step))
    begun = time.perf_counter()
    jax.block_until_ready(step(state, actions[0], keys))
    compiled = time.perf_counter()
    states, steps = [], []
    for action in actions:
        states.append(state)
        state, taken = step(state, action, keys)
        steps.append(taken)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - compiled
    row = {"compile s": compiled - begun, "steps/s": actions.shape[0] * actions.shape[1] / seconds}
    return states, steps, row


def _differences(expected: list[Step], found: list[Step], name: str) -> dict[str, Any]:
    """Largest differences over all environments and steps; those of flags are numbers of steps."""
    one, other = (jax.tree.map(lambda *rows: np.stack(rows), *steps) for steps in (expected, found))

    def largest(a: Any, b: Any) -> float:
        return float(np.abs(a - b).max(initial=0.0))

    return {
        f"{name}: observation": largest(one.final_observation.features, other.final_observation.features),
        f"{name}: reward": largest(one.reward, other.reward),
        f"{name}: terminated": int((one.terminated != other.terminated).sum()),
        f"{name}: descriptor": largest(one.descriptor, other.descriptor),
    }


if __name__ == "__main__":
    main()
