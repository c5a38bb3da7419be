"""What is Brax's own trouble: feet, contacts, backends, errors and noise."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import brax, tasks

FEET = {"hopper": [3], "walker2d": [3, 6], "halfcheetah": [3, 6], "ant": [2, 4, 6, 8], "humanoid": [4, 6]}


@pytest.mark.parametrize("robot", sorted(FEET))
def test_feet_are_found_by_geometry(robot: str) -> None:
    system = brax.load(robot, "spring").sys
    feet = brax.find_feet(system, len(FEET[robot]))
    assert feet.links.tolist() == FEET[robot]
    assert tasks.find(f"{robot}_uni").descriptor == brax.feet_descriptor(len(FEET[robot]))
    with pytest.raises(ValueError, match=f"expected 7 feet, the model has {len(FEET[robot])}"):
        brax.find_feet(system, 7)


@pytest.mark.parametrize("robot", ["walker2d", "ant"])  # capsules, spheres
def test_foot_height_is_the_simulators_contact_distance(robot: str) -> None:
    world = brax.load(robot, "spring", debug=True)
    feet = brax.find_feet(world.sys, len(FEET[robot]))
    noise = 0.3 * jax.random.normal(jax.random.key(0), (8, world.sys.q_size()))

    def measure(noise: jax.Array) -> tuple[jax.Array, ...]:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            physics = world.pipeline_init(world.sys.init_q + noise, jnp.zeros(world.sys.qd_size()))
        heights = brax.foot_heights(feet, physics.x.pos, physics.x.rot)
        return heights, physics.contact.dist, physics.contact.link_idx[1]

    with pytest.warns(DeprecationWarning, match="Accessing `"):
        heights, distances, links = (np.asarray(x) for x in jax.jit(jax.vmap(measure))(noise))
    lowest = [np.where(links == link, distances, np.inf).min(axis=1) for link in feet.links]
    np.testing.assert_allclose(heights, np.stack(lowest, axis=1), atol=1e-6)


def test_no_floor_no_feet() -> None:
    with pytest.raises(ValueError, match="one level floor, the model has 0"):
        brax.make("inverted_pendulum", feet=1)


def test_brax_does_not_know_the_name() -> None:
    with pytest.raises(ValueError, match="no environment 'hoper'"):
        brax.make("hoper")


@pytest.mark.parametrize(("name", "backend"), [("hopper", "bullet"), ("swimmer", "spring")])
def test_a_backend_that_cannot_be_had(name: str, backend: str) -> None:
    with pytest.raises(ValueError, match=f"{name} does not run on backend '{backend}'; use one of"):
        tasks.make(name, backend=backend)


def test_an_option_that_brax_does_not_take() -> None:
    with pytest.raises(ValueError, match="does not take the options"):
        brax.make("hopper", legs=3)


def test_missing_brax_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name == "brax" or name.startswith("brax.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "brax", None)
    with pytest.raises(ImportError, match=r'pip install "rookery\[brax\]"'):
        tasks.make("hopper")


def test_loading_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    brax.load("halfcheetah", "spring")  # MuJoCo complains about this model, by default into a file
    assert list(tmp_path.iterdir()) == []
    said = capfd.readouterr()
    assert said.out == said.err == ""
