"""Brax's tasks on the current MJX: they are Brax's, step by step, and Warp loses no contact of a batch."""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import Environment, Step
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import walls as brax_walls
from rookery.envs.suites.playground import brax_tasks
from rookery.envs.suites.playground.brax_tasks import Physics
from rookery.envs.wrappers.time_limit import TimeLimitState

NAMES = [name for name in registry.names() if name.startswith("mjx_")]
STEPS, BATCH = 50, 4
needs_warp = pytest.mark.skipif(importlib.util.find_spec("warp") is None, reason="Warp is not installed")


@pytest.fixture(scope="module")
def theirs() -> Environment:
    return registry.make("hopper_uni", backend="mjx")


@pytest.fixture(scope="module")
def ours() -> Environment:
    return registry.make("mjx_hopper_uni", impl="jax")


@pytest.fixture(scope="module")
def on_brax(theirs: Environment) -> tuple[TimeLimitState, jax.Array, list[Step], list[TimeLimitState]]:
    """Start states of Brax's hopper on its backend mjx, actions, and the steps and states of `BATCH` episodes."""
    env = theirs
    start, _ = jax.jit(jax.vmap(env.reset))(keys())
    actions = jax.random.uniform(jax.random.key(1), (STEPS, BATCH, env.spec.action_size), minval=-1.0)
    steps, states = trajectory(jax.jit(jax.vmap(env.step)), start, actions)
    return start, actions, steps, states


def keys() -> jax.Array:
    return jax.random.split(jax.random.key(0), BATCH)


def trajectory(step: Callable, state: Any, actions: jax.Array) -> tuple[list[Step], list[Any]]:
    """The steps, and the states before each of them."""
    steps, states = [], []
    for action in actions:
        states.append(state)
        state, taken = step(state, action, keys())
        steps.append(taken)
    return steps, states


def carried(state: TimeLimitState) -> TimeLimitState:
    """The state of ours that is equal to one of Brax's."""
    data: Any = state.inner
    return state._replace(inner=Physics(data.q, data.qd, data.x, data.xd, data.qacc_warmstart))


def assert_equal(found: list[Step], expected: list[Step], tolerance: float) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), mine, theirs)


@pytest.mark.parametrize(
    ("impl", "one", "all_of_them"), [("jax", 1e-5, 1e-4), pytest.param("warp", 1e-3, 1e-3, marks=needs_warp)]
)
def test_a_task_is_that_of_brax(on_brax: Any, ours: Environment, impl: str, one: float, all_of_them: float) -> None:
    """Observation, reward, flags and descriptor: of single steps from Brax's states, and of whole trajectories."""
    start, actions, steps, states = on_brax
    assert any(step.terminated.any() for step in steps)
    env = ours if impl == "jax" else registry.make("mjx_hopper_uni", impl=impl)
    first = carried(start)
    if impl == "jax":
        first, observed = jax.jit(jax.vmap(env.reset))(keys())
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), first.inner.x, start.inner.x)
        assert not observed.terminated.any()
    step = jax.jit(jax.vmap(env.step))
    singles = [step(carried(state), action, keys())[1] for state, action in zip(states, actions, strict=True)]
    assert_equal(singles, steps, one)
    assert_equal(trajectory(step, first, actions)[0], steps, all_of_them)


def test_a_model_has_room_for_all_contacts() -> None:
    """Each foot of an ant can touch the floor; each foot and the torso all walls of the trap."""
    env = brax.load("ant", "mjx")
    plain = brax_tasks._engine(env, "jax")
    assert (plain.contacts, plain.constraints, plain.frames) == (4, 4 * 4 + 8, 5)  # pyramids of four, and joint limits
    brax_walls.add_walls(env, "ant", brax_walls.trap_walls(11.5))
    walled = brax_tasks._engine(env, "jax")
    assert (walled.contacts, walled.constraints) == (4 + 5 * 3, 4 * 19 + 8)
    assert (walled.mj_model.opt.iterations, walled.mj_model.opt.ls_iterations) == (1, 4)  # as Brax's class sets them
    assert env.sys.mj_model.opt.iterations == 4  # Brax's model is not changed


@needs_warp
def test_warp_loses_no_contact_of_a_batch_and_runs_the_solver_to_its_end() -> None:
    """Ants with their feet in the ground: batched twice, they move as each alone does. Where Brax stops after one
    iteration, Warp gives what MJX for JAX gives with a hundred."""
    env = brax.load("ant", "mjx")
    assert brax_tasks._engine(env, "jax").mj_model.opt.iterations == 1
    alone = jax.jit(partial(brax_tasks._step, brax_tasks._engine(env, "warp")))  # traced once for both
    env.sys = env.sys.tree_replace({"opt.iterations": 100, "opt.ls_iterations": 100})
    converged = jax.jit(jax.vmap(partial(brax_tasks._step, brax_tasks._engine(env, "jax"))))
    nested = jax.jit(jax.vmap(jax.vmap(alone)))
    q = jnp.tile(env.sys.init_q.at[2].set(0.3), (64, 1))  # metres
    q = q.at[:, 7:].add(0.1 * jax.random.normal(jax.random.key(1), (64, 8)))
    state = Physics(q, jnp.zeros((64, 14)), (), (), jnp.zeros((64, 14)))
    square = jax.tree.map(lambda leaf: leaf.reshape(8, 8, *leaf.shape[1:]), state)
    actions = jax.random.uniform(jax.random.key(0), (3, 64, 8), minval=-1.0)
    singles = {index: jax.tree.map(lambda leaf, i=index: leaf[i], state) for index in (0, 1, 40, 63)}
    exact = np.asarray(converged(state, actions[0]).qd)
    for step, action in enumerate(actions):
        square = jax.block_until_ready(nested(square, action.reshape(8, 8, 8)))
        if step == 0:
            assert np.abs(exact).max() > 1.0
            np.testing.assert_allclose(square.qd.reshape(exact.shape), exact, atol=1e-3)
        for index, single in singles.items():
            singles[index] = alone(single, action[index])
            np.testing.assert_allclose(singles[index].q, square.q[divmod(index, 8)], atol=1e-5)


def test_every_walking_robot_and_variant_of_brax_is_listed_with_the_same_sizes() -> None:
    for name in NAMES:
        ours, theirs = registry.find(name), registry.find(name.removeprefix("mjx_"))
        assert (ours.suite, ours.extra, ours.overrides) == ("playground", "playground", ("episode_length", "impl"))
        for field in ("observation_size", "action_size", "episode_length", "descriptor", "qd_offset"):
            assert getattr(ours, field) == getattr(theirs, field), (name, field)
    robots = ("hopper", "walker2d", "halfcheetah", "ant", "humanoid")
    brax_names = [name for name in registry.names() if registry.find(name).suite == "brax"]
    assert {f"mjx_{name}" for name in brax_names if name.split("_")[0] in robots} == set(NAMES)
    assert len(NAMES) == 16


def test_the_state_has_only_what_a_step_reads_and_is_drawn_as_on_brax(ours: Any, theirs: Any) -> None:
    spec, row = ours.spec, registry.find("mjx_hopper_uni")
    assert spec[:4] == (row.name, row.observation_size, row.action_size, row.episode_length)
    state, _ = jax.eval_shape(ours.reset, jax.random.key(0))
    assert isinstance(state.inner, Physics)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 3 * 6 + 4 * (7 + 6) + 1  # joints, links, time
    assert ours.picture.shapes == theirs.picture.shapes
    assert ours.picture.seconds == theirs.picture.seconds
    pose = jax.eval_shape(ours.picture.bodies, state)
    assert (pose.position.shape, pose.rotation.shape) == ((4, 3), (4, 4))


def test_unknown_options() -> None:
    with pytest.raises(ValueError, match=r"^impl must be jax or warp, got 'cuda'\.$"):
        registry.make("mjx_hopper", impl="cuda")
    with pytest.raises(ValueError, match=r"the tasks mjx_.* run on MJX only; for another backend use Brax's task"):
        brax_tasks.make("hopper", backend="spring")


@pytest.mark.parametrize(
    ("impl", "missing", "sentence"),
    [
        ("jax", "brax.envs", r'import of brax.envs .*install them: pip install "rookery\[playground\]"$'),
        ("warp", "warp", "impl=warp needs NVIDIA Warp, which is not installed: pip install warp-lang"),
    ],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, impl: str, missing: str, sentence: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=sentence):
        registry.make("mjx_hopper", impl=impl)
