"""MuJoCo Playground's tasks: they are Playground's own, cost no more than they must, and fail with a sentence."""

import importlib
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import running
from rookery.envs import registry
from rookery.envs.base import Environment, descriptor_spec
from rookery.envs.check import check_interface
from rookery.envs.suites import third_party
from rookery.envs.suites.playground import adapter, descriptors, loading, tasks
from rookery.envs.suites.playground.adapter import from_playground
from rookery.envs.suites.playground.picture import picture

STEPS = 20


@pytest.fixture(scope="module")
def suite() -> Any:
    return loading.suite()


@pytest.fixture(scope="module")
def pendulum() -> Any:
    """Playground's own environment."""
    return loading.load("PendulumSwingup", "jax")


@pytest.fixture(scope="module")
def task() -> Environment:
    return registry.make("PendulumSwingup", impl="jax")


def actions_of(spec: Any, *batch: int) -> jax.Array:
    return jax.random.uniform(jax.random.key(1), (STEPS, *batch, spec.action_size), minval=-1.5, maxval=1.5)


def roll(environment: Environment, key: jax.Array, actions: jax.Array) -> Any:
    """Features and rewards `[STEPS + 1, ...]` of an episode, and the state that it begins in."""
    state, first = environment.reset(key)

    def advance(state: Any, action: jax.Array) -> Any:
        state, step = environment.step(state, action, key)
        return state, (step.observation.features, step.reward)

    _, (features, rewards) = jax.lax.scan(advance, state, actions)
    first = first.observation.features, first.reward
    joined = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, (features, rewards))
    return *joined, state


@pytest.fixture(scope="module")
def rolled(task: Environment) -> Any:
    return jax.jit(partial(roll, task))


def test_every_task_of_the_suite_is_in_the_registry(suite: Any) -> None:
    assert set(tasks.TASKS) == set(suite.ALL_ENVS)
    randomized = {**sys.modules[suite.locomotion.__name__]._randomizer, **suite.manipulation._randomizer}
    assert {name for name, sizes in tasks.TASKS.items() if sizes.randomized} == set(randomized)
    for name, sizes in tasks.TASKS.items():
        assert suite.get_default_config(name).episode_length == sizes.episode_length, name


@pytest.fixture(scope="module")
def suite_rolled(pendulum: Any) -> Any:
    """Masses of the bodies, key and actions -> features and rewards `[STEPS + 1, ...]` of Playground's functions, and
    the coordinates at the start."""

    def advance(state: Any, action: jax.Array) -> Any:
        after = third_party.strongly_typed(pendulum.step(state, jnp.clip(action, -1.0, 1.0)))
        return after, (after.obs, after.reward)

    def run(mass: jax.Array, key: jax.Array, actions: jax.Array) -> Any:
        model = pendulum.mjx_model
        pendulum._mjx_model = model.tree_replace({"body_mass": mass})
        with third_party.standard_promotion():
            first = third_party.strongly_typed(pendulum.reset(jax.random.key_data(key)))
            _, rest = jax.lax.scan(advance, first, actions)
        pendulum._mjx_model = model
        joined = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), (first.obs, first.reward), rest)
        return *joined, first.data.qpos

    return jax.jit(run)


def test_steps_are_those_of_the_suite(pendulum: Any, task: Environment, suite_rolled: Any, rolled: Any) -> None:
    key, actions = jax.random.key(3), actions_of(task.spec)
    features, rewards, _ = rolled(key, actions)
    own_features, own_rewards, _ = suite_rolled(pendulum.mjx_model.body_mass, key, actions)
    np.testing.assert_allclose(features, own_features, atol=1e-6)
    np.testing.assert_allclose(rewards[1:], own_rewards[1:], atol=1e-6)
    assert float(np.ptp(np.asarray(features)[:, 2])) > 0.1  # the pendulum moves


def test_the_carried_state_is_what_a_step_reads(task: Environment, pendulum: Any) -> None:
    with third_party.standard_promotion():
        whole = jax.eval_shape(pendulum.reset, jax.random.key_data(jax.random.key(0)))
    state, _ = jax.eval_shape(task.reset, jax.random.key(0))
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (state, whole)]
    assert sizes[0] < 0.2 * sizes[1]


def test_drawn_bodies_are_where_mujoco_computes_them(pendulum: Any, task: Any, suite_rolled: Any, rolled: Any) -> None:
    mujoco: Any = importlib.import_module("mujoco")
    key, actions, drawn = jax.random.key(3), actions_of(task.spec), task.picture
    pose = jax.jit(drawn.bodies)(rolled(key, actions)[2])
    data = mujoco.MjData(pendulum.mj_model)
    data.qpos[:] = suite_rolled(pendulum.mjx_model.body_mass, key, actions)[2]
    mujoco.mj_kinematics(pendulum.mj_model, data)
    np.testing.assert_allclose(pose.position, data.xpos[1:], atol=1e-5)
    np.testing.assert_allclose(np.abs(pose.rotation), np.abs(data.xquat[1:]), atol=1e-5)
    assert {shape.kind for shape in drawn.shapes} >= {"capsule", "plane"}
    assert drawn.seconds == pytest.approx(0.02)


def test_ellipsoids_are_drawn_and_a_task_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    fish = picture(loading.load("FishSwim", "jax"), lambda state: state)
    assert "ellipsoid" in {shape.kind for shape in fish.shapes}
    assert capfd.readouterr() == ("", "")


def heavier(model: Any, keys: jax.Array) -> tuple[Any, Any]:
    """A randomisation function in Playground's format."""
    mass = jax.vmap(lambda key: model.body_mass * jax.random.uniform(key, (), minval=0.5, maxval=4.0))(keys)
    axes = jax.tree.map(lambda _: None, model).tree_replace({"body_mass": 0})
    return model.tree_replace({"body_mass": mass}), axes


def test_randomised_physics_differ_between_episodes(pendulum: Any, suite_rolled: Any) -> None:
    before = pendulum.mjx_model
    environment = from_playground(pendulum, randomization=heavier)
    keys, actions = jax.random.split(jax.random.key(0), 3), actions_of(environment.spec)
    randomised, _, states = jax.jit(jax.vmap(partial(roll, environment), in_axes=(0, None)))(keys, actions)
    (masses,) = jax.tree.leaves(
        [leaf for leaf in jax.tree.leaves(states) if leaf.shape == (3, *before.body_mass.shape)]
    )
    ratios = np.asarray(masses[:, -1] / before.body_mass[-1])
    assert np.all((ratios > 0.5) & (ratios < 4.0))
    assert len(np.unique(ratios)) == 3
    assert pendulum.mjx_model is before  # the suite's object is as it was

    # One episode equals that of a model which has the drawn mass from the start.
    start_key = jax.random.split(keys[0])[0]
    expected, unchanged = (suite_rolled(mass, start_key, actions)[0] for mass in (masses[0], before.body_mass))
    np.testing.assert_allclose(randomised[0], expected, atol=1e-6)
    assert float(np.abs(unchanged - randomised[0]).max()) > 1e-3


def test_positions_have_the_robots_axes() -> None:
    assert descriptors.position("HumanoidStand").meaning == "final x, y of the torso"
    assert descriptors.position("HopperStand").meaning == "final x of the torso"


@pytest.mark.parametrize(("height", "expected"), [(0.0, 1.0), (0.004, 1.0), (0.006, 0.0)])
def test_a_foot_on_the_floor_is_in_contact(height: float, expected: float) -> None:
    """MuJoCo's own kinematics of the hopper, moved to stand on the floor or above it."""
    mujoco: Any = importlib.import_module("mujoco")
    env = loading.load("HopperHop", "jax")
    model = env.mj_model
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    foot = model.geom("foot").id
    lowest = data.geom_xpos[foot, 2] - abs(data.geom_xmat[foot].reshape(3, 3)[2, 2]) * model.geom_size[foot, 1]
    data.qpos[model.joint("rootz").qposadr] += height - (lowest - model.geom_size[foot, 0])
    mujoco.mj_kinematics(model, data)
    read = SimpleNamespace(data=SimpleNamespace(xpos=jnp.asarray(data.xpos), xquat=jnp.asarray(data.xquat)))
    assert float(descriptors.ground_contact("HopperHop", env).function(read)[0]) == expected


class Swing:
    """A user-defined environment on MJX, whose observation is a dictionary and whose info grows."""

    action_size = 1

    def __init__(self, env: Any):
        self.env, self.mjx_model, self.mj_model, self.dt = env, env.mjx_model, env.mj_model, env.dt

    def reset(self, rng: jax.Array) -> Any:
        start = self.env.reset(rng)
        return start.replace(obs={"state": start.obs, "privileged_state": start.data.qfrc_bias}, info={"rng": rng})

    def step(self, state: Any, action: jax.Array) -> Any:
        rng, noise = jax.random.split(state.info["rng"])
        state.info["rng"] = rng
        after = self.env.step(state, action)
        seen = after.obs + 0.01 * jax.random.normal(noise, after.obs.shape)
        return after.replace(obs={"state": seen, "privileged_state": after.data.qfrc_bias})


def test_an_environment_of_ones_own_on_mjx(pendulum: Any) -> None:
    angle = adapter.Descriptor(descriptor_spec("angle", "final", (-7.0,), (7.0,)), lambda state: state.data.qpos)
    environment = rookery.from_playground(Swing(pendulum), episode_length=7, name="swing", descriptor=angle)
    assert (environment.spec.name, environment.spec.observation_size) == ("swing", 3)
    check_interface(environment)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CheetahRun", {"impl": "mujoco"}, "impl must be jax or warp, got 'mujoco'"),
        ("CheetahRun", {"naconmax": 0}, "naconmax must be at least 1, got 0"),
        ("CheetahRun", {"randomize": True}, "task 'CheetahRun' has no override randomize; it has episode_length"),
    ],
)
def test_wrong_options_get_a_sentence(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.make(name, **options)


def test_robots_that_must_be_downloaded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, suite: Any) -> None:
    monkeypatch.setattr("mujoco_playground._src.mjx_env.MENAGERIE_PATH", tmp_path / "absent")
    with pytest.raises(ImportError, match=r"Go1Getup needs robot models .* once: python -c 'from mujoco_play"):
        registry.make("Go1Getup")


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)
    loading.suite.cache_clear()
    with pytest.raises(ImportError, match=r'cannot be imported .*; install it: pip install "rookery\[playground\]"'):
        registry.make("CheetahRun")
    monkeypatch.undo()
    loading.suite.cache_clear()
    importlib.invalidate_caches()


def test_a_title_names_the_implementation() -> None:
    program: Any = SimpleNamespace(settings={"environment": {"env": "CheetahRun", "impl": "warp"}})
    assert running.task_title(program, "CheetahRun") == "CheetahRun (impl warp)"


def test_warp_gives_nearly_what_jax_gives_also_with_members_by_environments(task: Environment, rolled: Any) -> None:
    keys, actions = jax.random.split(jax.random.key(0), 4), jnp.moveaxis(actions_of(task.spec, 4), 1, 0)
    nested = jax.jit(jax.vmap(jax.vmap(partial(roll, registry.make("PendulumSwingup", impl="warp")))))
    found = nested(keys.reshape(2, 2), actions.reshape(2, 2, *actions.shape[1:]))[0]
    expected = np.stack([rolled(key, action)[0] for key, action in zip(keys, actions, strict=True)])
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-4)


WITHOUT_WARP = """
import sys
sys.modules["warp"] = None  # its import fails, as if it were not installed
from rookery.envs.suites.playground import loading
print(loading.implementation(loading.load("PendulumSwingup")))
try:
    loading.load("PendulumSwingup", "warp")
except ImportError as error:
    print(error)
"""


def test_the_implementation_of_jax_needs_no_warp() -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT_WARP], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.splitlines()[0]) == (0, "jax"), result.stderr
    assert "impl=warp needs NVIDIA Warp" in result.stdout
