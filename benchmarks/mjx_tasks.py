"""Compare the tasks mjx_* with Brax's on its backend mjx: equality of the trajectories, and speed.

    python -m benchmarks.mjx_tasks [--quick] [--tasks hopper_uni,ant_trap]

All contenders take the same random actions from the same start states. Reported are the absolute differences from
Brax's observation in single environment steps, each from Brax's own state, until the first fall of each environment;
after a fall the robot is in contacts that no agent trains in. Brax's classes stop the constraint solver early (after
one iteration for ant and humanoid), and then the result is that of the solver, not of the equations. Warp's solver runs
to its end, so it is also compared with JAX's with as many iterations. The tasks are those with a descriptor for ground
contact, and those with walls.
"""

import time
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks import harness
from rookery.envs import registry
from rookery.envs.base import Environment, Step
from rookery.envs.suites.playground.brax_tasks import WARP_ITERATIONS, Physics
from rookery.envs.wrappers.time_limit import TimeLimitState

TASKS = ("hopper_uni", "walker2d_uni", "halfcheetah_uni", "ant_uni", "humanoid_uni", "ant_trap", "ant_maze")
STEPS = 50


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--tasks", default=",".join(TASKS), help="comma-separated names of Brax's tasks (%(default)s)")
    made.add_argument("--environments", type=int, default=64, help="number of environments (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.environments = 8
    load = harness.load()
    rows = []
    for task in options.tasks.split(","):
        rows += measure(task, options.environments)
        harness.show(rows[-5:])  # the whole takes many minutes, most of them compiling
    harness.report("mjx_tasks", options, rows, load)


def measure(task: str, environments: int) -> list[dict[str, Any]]:
    """Result rows of one task: Brax, MJX for JAX as Brax configures it and with a converged solver, and Warp."""
    brax = registry.make(task, backend="mjx")
    keys = jax.random.split(jax.random.key(0), environments)
    start, _ = jax.jit(jax.vmap(brax.reset))(keys)
    shape = STEPS, environments, brax.spec.action_size
    actions = jax.random.uniform(jax.random.key(1), shape, minval=-1.0)
    states, steps, row = _trajectory(brax, start, actions, keys)
    alive = _until_the_fall(steps)
    rows = [{"task": task, "contender": "Brax", "steps": int(alive.sum()), **row}]
    states = [carried(state) for state in states]

    contenders = {
        "jax": registry.make(f"mjx_{task}", impl="jax"),
        "jax, converged": _converged(task),
        "warp": registry.make(f"mjx_{task}", impl="warp"),
    }
    found = {}
    for name, env in contenders.items():
        found[name], row = _singles(env, states, actions, keys)
        rows.append({"task": task, "contender": name, **row, **_differences(steps, found[name], alive)})
    differences = _differences(found["jax, converged"], found["warp"], alive)
    rows.append({"task": task, "contender": "warp, from jax, converged", **differences})
    return rows


def _converged(task: str) -> Environment:
    """The task on MJX for JAX with as many iterations of the solver as on Warp."""
    build: Any = registry.find(f"mjx_{task}").build
    variant = build.keywords["variant"]
    return build(impl="jax", variant=variant._replace(prepare=partial(_iterate, variant)))


def _iterate(variant: Any, brax_env: Any, name: str) -> Any:
    readers = variant.prepare(brax_env, name)
    brax_env.sys = brax_env.sys.tree_replace({"opt.iterations": WARP_ITERATIONS, "opt.ls_iterations": WARP_ITERATIONS})
    return readers


def _until_the_fall(steps: list[Step]) -> np.ndarray:
    """Whether no step before has ended the episode, `[STEPS, E]` bool."""
    fallen = np.cumsum([np.asarray(step.terminated) for step in steps], axis=0) > 0
    return ~np.concatenate([np.zeros_like(fallen[:1]), fallen[:-1]])


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


def _singles(env: Environment, states: list[Any], actions: Any, keys: Any) -> tuple[list[Step], dict[str, Any]]:
    """Return one step from each of the states, and compile time and speed."""
    step = jax.jit(jax.vmap(env.step))
    begun = time.perf_counter()
    jax.block_until_ready(step(states[0], actions[0], keys))
    compiled = time.perf_counter()
    steps = [step(state, action, keys)[1] for state, action in zip(states, actions, strict=True)]
    jax.block_until_ready(steps)
    seconds = time.perf_counter() - compiled
    return steps, {"compile s": compiled - begun, "steps/s": actions.shape[0] * actions.shape[1] / seconds}


def _differences(expected: list[Step], found: list[Step], alive: np.ndarray) -> dict[str, Any]:
    """Differences over the steps `alive`: percentiles of those in the observation, and the largest of all others."""
    one, other = (jax.tree.map(lambda *rows: np.stack(rows)[alive], *steps) for steps in (expected, found))
    observation = np.abs(one.final_observation.features - other.final_observation.features).max(axis=-1)
    return {
        **{f"observation, {p} %": float(np.percentile(observation, p)) for p in (50, 99, 100)},
        "reward": float(np.abs(one.reward - other.reward).max()),
        "terminated": int((one.terminated != other.terminated).sum()),
        "descriptor": float(np.abs(one.descriptor - other.descriptor).max(initial=0.0)),
    }


if __name__ == "__main__":
    main()
