"""What is Brax's own trouble: feet, contacts, backends, errors and noise."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import feet as brax_feet
from rookery.envs.suites.brax import patches
from rookery.envs.suites.brax.rewards import RewardWeights

FEET = {"hopper": [3], "walker2d": [3, 6], "halfcheetah": [3, 6], "ant": [2, 4, 6, 8], "humanoid": [4, 6]}


@pytest.mark.parametrize("robot", sorted(FEET))
def test_feet_are_found_by_geometry(robot: str) -> None:
    system = brax.load(robot, "spring").sys
    feet = brax_feet.find_feet(system, len(FEET[robot]))
    assert feet.links.tolist() == FEET[robot]
    assert registry.find(f"{robot}_uni").descriptor == brax_feet.ground_contact(len(FEET[robot])).descriptor
    with pytest.raises(ValueError, match=f"expected 7 feet, the model has {len(FEET[robot])}"):
        brax_feet.find_feet(system, 7)


@pytest.mark.parametrize("robot", ["walker2d", "ant"])  # capsules, spheres
def test_foot_height_is_the_simulators_contact_distance(robot: str) -> None:
    environment = brax.load(robot, "spring", debug=True)
    feet = brax_feet.find_feet(environment.sys, len(FEET[robot]))
    noise = 0.3 * jax.random.normal(jax.random.key(0), (8, environment.sys.q_size()))

    def measure(noise: jax.Array) -> tuple[jax.Array, ...]:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            physics = environment.pipeline_init(environment.sys.init_q + noise, jnp.zeros(environment.sys.qd_size()))
        heights = brax_feet.foot_heights(feet, physics.x.pos, physics.x.rot)
        return heights, physics.contact.dist, physics.contact.link_idx[1]

    with pytest.warns(DeprecationWarning, match="Accessing `"):
        heights, distances, links = (np.asarray(x) for x in jax.jit(jax.vmap(measure))(noise))
    lowest = [np.where(links == link, distances, np.inf).min(axis=1) for link in feet.links]
    np.testing.assert_allclose(heights, np.stack(lowest, axis=1), atol=1e-6)


def test_a_model_is_on_the_device_of_its_process() -> None:
    """And not on the first device that there is, which another process may own."""
    with jax.default_device(jax.devices()[1]):
        environment = brax.load("hopper", "spring")
    arrays = [leaf for leaf in jax.tree.leaves(environment.sys) if isinstance(leaf, jax.Array)]
    assert {device for array in arrays for device in array.devices()} == {jax.devices()[1]}


OWN = {  # what is left of the reward without the forward term, of an action [A]: living minus control
    "humanoid": lambda action: 5.0 - 0.1 * np.square(0.4 * action).sum(-1),  # its actuators take 0.4 at most
    "halfcheetah": lambda action: -0.1 * np.square(action).sum(-1),
}


@pytest.mark.parametrize("robot", sorted(OWN))
def test_omni_rewards_no_direction_and_describes_the_position_of_the_torso(robot: str) -> None:
    env = registry.make(f"{robot}_omni")
    actions = jax.random.uniform(jax.random.key(1), (5, env.spec.action_size), minval=-1.0)

    def advance(state: Any, action: jax.Array) -> tuple[Any, tuple[Any, ...]]:
        state, step = env.step(state, action, jax.random.key(0))
        return state, (step, state.inner.q, state.inner.qd, state.inner.x.pos)

    def roll(key: jax.Array) -> tuple[Any, ...]:
        return jax.lax.scan(advance, env.reset(key)[0], actions)[1]

    step, q, qd, positions = jax.jit(roll)(jax.random.key(0))
    assert np.abs(qd[:, 0]).max() > 0.05  # it moves along x, for which plain robots are paid
    np.testing.assert_allclose(step.reward, OWN[robot](np.asarray(actions)), atol=1e-4)
    axes = env.spec.descriptor_size
    assert axes == (1 if robot == "halfcheetah" else 2)
    np.testing.assert_array_equal(step.descriptor, q[:, :axes])
    np.testing.assert_allclose(step.descriptor, positions[:, 0, :axes], atol=1e-5)
    assert step.observation.features.shape[-1] == registry.find(robot).observation_size


def test_a_weight_changes_its_part_of_the_reward() -> None:
    environment = registry.make("hopper")
    rows = [(1.0, 1.0, 1.0), (3.0, 1.0, 1.0), (1.0, 5.0, 1.0), (1.0, 1.0, 0.0), (1.0, 1.0, 1.5)]
    weights: Any = RewardWeights(*(jnp.asarray(column) for column in zip(*rows, strict=True)))
    bind: Any = environment.parameterize
    action = jnp.asarray([0.5, -1.0, 0.25])

    step, key = jax.jit(environment.step), jax.random.key(0)
    state, _ = step(jax.jit(environment.reset)(key)[0], action, key)
    plain = step(state, action, key)[1]
    reward, distance = plain.reward, (plain.measures or {})["distance"]
    weighted = np.asarray(jax.jit(jax.vmap(lambda row: bind(row).step(state, action, key)[1].reward))(weights))
    assert weighted[0] == reward  # in every bit
    # Brax's time step, and its factors 1 and 0.001.
    forward, control = float(distance) / 0.008, -1e-3 * (0.25 + 1.0 + 0.0625)
    np.testing.assert_allclose(weighted[1:] - reward, [2.0 * forward, 4.0 * control, -1.0, 0.5], rtol=2e-3, atol=1e-6)


def test_the_tasks_declare_the_parts_that_their_reward_has() -> None:
    all_parts = ["forward_weight", "control_weight", "healthy_weight"]
    parts = {"hopper": all_parts, "halfcheetah_uni": all_parts[:2], "ant_omni": all_parts[1:], "ant_trap": all_parts}
    parts |= {"halfcheetah_omni": all_parts[1:2]}
    for name, expected in parts.items():
        parameters: Any = registry.find(name).parameters
        assert list(parameters.fields) == expected
        assert list(registry.find(f"mjx_{name}").parameters or ()) == list(parameters)
    assert (registry.find("ant_maze").parameters, registry.find("reacher").parameters) == (None, None)
    assert (list(registry.find("ant_maze").measures), dict(registry.find("reacher").measures)) == (["distance"], {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: brax.make("hopper", variant=brax.OMNI), "this undirected task needs ant or humanoid; got hopper"),
        (lambda: brax.make("inverted_pendulum", variant=brax_feet.ground_contact(1)), "one level floor, .* has 0"),
        (lambda: brax.make("hoper"), "no environment 'hoper'"),
        (lambda: registry.make("swimmer", backend="spring"), "backend is .* swimmer, got 'spring'; use generalized"),
        (lambda: brax.make("hopper", legs=3), "does not take the options"),
    ],
)
def test_what_brax_cannot_do_is_an_error(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_loading_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    brax.load("halfcheetah", "spring")  # MuJoCo complains about this model, by default into a file
    assert list(tmp_path.iterdir()) == []
    info = capfd.readouterr()
    assert info.out == info.err == ""


def test_sums_over_bodies_in_order_are_those_of_jax() -> None:
    data, bodies = jax.random.normal(jax.random.key(0), (7, 3)), jnp.asarray([2, 0, -1, 2, 5, 2, 4])
    ordered, scattered = (sums(data, bodies, 5) for sums in (patches._in_order, jax.ops.segment_sum))
    np.testing.assert_allclose(ordered, scattered, atol=1e-6)
    assert (ordered.dtype, ordered.shape) == (scattered.dtype, (5, 3))


@pytest.mark.parametrize("backend", ["spring", "positional"])
def test_a_gpu_adds_no_forces_in_any_order(backend: str) -> None:
    """What is still scattered is the torque of each actuator, to the one joint that it has."""
    environment = registry.make("ant", backend=backend)
    state, _ = jax.eval_shape(environment.reset, jax.random.key(0))
    traced = jax.jit(environment.step).trace(state, jnp.zeros(environment.spec.action_size), jax.random.key(0))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert len(re.findall(r"stablehlo\.scatter.*", text)) == 1
