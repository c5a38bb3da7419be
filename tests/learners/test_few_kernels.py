"""Training arranged for a GPU, run on a CPU: equal to the default up to rounding, with states of the same structure."""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import networks
from rookery.agents import backend
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.agents.td3 import Td3Config, td3
from rookery.envs import registry
from rookery.envs.wrappers.skills import skills
from rookery.learners.base import Learner, Member
from rookery.learners.iterations import divisible
from rookery.learners.off_policy import off_policy
from rookery.types import PyTree
from tests.tiny import CONFIG, assert_equal

ROOM = registry.make("point_room", episode_length=10)
MAZE = registry.make("point_maze", episode_length=10)
HIDDEN = (4,)
LOOP = dataclasses.replace(CONFIG, warmup_steps=20)  # 4 updates in each of 10 iterations, after 5 of warm-up


def of_sac() -> Learner:
    return off_policy(sac(MAZE.spec, SacConfig(hidden_sizes=HIDDEN, critics=3)), MAZE, LOOP)


def of_diayn() -> Learner:
    environment = skills(ROOM, 3)
    agent = td3(environment.spec, Td3Config(hidden_sizes=HIDDEN))
    agent = diayn(agent, environment.spec, DiaynConfig(discriminator_hidden_sizes=(4,)))
    return off_policy(agent, environment, dataclasses.replace(LOOP, normalize_observations=True))


# `test_grouped_updates` has other numbers of updates, also those that do not divide into periods.
@pytest.mark.parametrize("build", [of_sac, of_diayn])
def test_few_kernels_give_the_same_training_also_when_it_continues_with_the_other_arrangement(build: Callable):
    learner, key = build(), jax.random.key(0)
    step, hyper = divisible(learner.step), jax.tree.map(jnp.float32, learner.space.defaults)
    bank = jax.jit(learner.start_states)(key)
    init = jax.jit(jax.vmap(learner.init, in_axes=(0, None, None)))
    first_members = init(jax.random.split(key, 2), hyper, bank)
    empty = jax.vmap(step.start, in_axes=(0, None))(first_members, bank)
    advance = jax.jit(jax.vmap(step.advance, in_axes=(0, 0, None, 0, None, None, None)))

    def train(platforms: tuple[str, ...], cuts: tuple[int, ...] = ()) -> tuple[Member, list[PyTree]]:
        """A population of two after a generation on each platform, in parts, and the logs of the generations."""
        members, logs = first_members, []
        for generation, platform in enumerate(platforms):
            keys = jax.random.split(jax.random.fold_in(key, generation), 2)
            log = empty
            with backend.tracing_for(platform):
                for first, last in itertools.pairwise((0, *cuts, step.iterations)):
                    counts = (jnp.int32(count) for count in (generation, first, last))
                    members, log = advance(members, log, bank, keys, *counts)
            logs.append(log)
        return members, logs

    expected = train(("cpu", "cpu", "cpu"))  # the first generation is half warm-up
    for platforms in (("gpu", "gpu", "gpu"), ("cpu", "cpu", "gpu"), ("gpu", "gpu", "cpu")):
        trained = train(platforms)
        assert jax.tree.structure(trained) == jax.tree.structure(expected)  # so that checkpoints have one layout
        for (path, leaf), other in zip(jax.tree.leaves_with_path(trained), jax.tree.leaves(expected), strict=True):
            assert (leaf.shape, leaf.dtype) == (other.shape, other.dtype), path
            np.testing.assert_allclose(leaf, other, rtol=2e-3, atol=2e-4, err_msg=jax.tree_util.keystr(path))
    # A generation that is continued in the warm-up and after it gives the same bits.
    assert_equal(train(("gpu",), (2, 5, 7)), train(("gpu",)))


def test_the_platform_selects_the_arrangement_and_traces_again():
    traced = []

    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        traced.append(backend.prefers_few_kernels())
        return x + 1

    program(jnp.zeros(()))
    with backend.tracing_for("gpu"):
        program(jnp.zeros(()))
    with backend.tracing_for("tpu"):
        program(jnp.zeros(()))
    program(jnp.zeros(()))
    assert traced == [jax.default_backend() == "gpu", True, False]


@pytest.mark.parametrize(("count", "build"), [(2, networks.mlp), (3, networks.simba)])
def test_stacked_twins_compute_the_same_and_can_be_separated(count: int, build: Callable):
    value = build([3, 2], [4], 1)
    pair = networks.twin(value, count)
    params = jax.jit(pair.init)(jax.random.key(0))
    tree = {"params": params, "other": jnp.ones(3)}
    stacked = networks.stack_twins(tree)
    inputs = jax.random.normal(jax.random.key(1), (5, 3)), jax.random.normal(jax.random.key(2), (5, 2))
    for apply in map(jax.jit, (pair.apply, networks.first_twin(value))):
        np.testing.assert_allclose(apply(stacked["params"], *inputs), apply(params, *inputs), rtol=1e-5, atol=1e-6)
    separated = networks.separate_twins(stacked)
    assert jax.tree.structure(separated) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, separated, tree)
