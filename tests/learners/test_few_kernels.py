"""Training arranged for a GPU, run on a CPU: equal to the default up to rounding, with states of the same structure."""

import dataclasses
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
from tests.tiny import CONFIG

ROOM = registry.make("point_room", episode_length=10)
MAZE = registry.make("point_maze", episode_length=10)
HIDDEN = (4,)


def config_with(updates: int, **changes: object):
    """A training loop with a number of updates after each step of 4 environments, and 5 iterations of warm-up."""
    return dataclasses.replace(CONFIG, updates_per_step=updates / CONFIG.num_envs, warmup_steps=20, **changes)  # pyright: ignore[reportArgumentType]


def of_sac() -> Learner:
    return off_policy(sac(MAZE.spec, SacConfig(hidden_sizes=HIDDEN, critics=3)), MAZE, config_with(4))


def of_diayn() -> Learner:
    environment = skills(ROOM, 3)
    agent = td3(environment.spec, Td3Config(hidden_sizes=HIDDEN))
    agent = diayn(agent, environment.spec, DiaynConfig(discriminator_hidden_sizes=(4,)))
    return off_policy(agent, environment, config_with(4, normalize_observations=True))


# `test_grouped_updates` has other numbers of updates, also those that do not divide into periods.
@pytest.mark.parametrize("build", [of_sac, of_diayn])
def test_few_kernels_give_the_same_training_also_when_it_continues_with_the_other_arrangement(build: Callable):
    learner, key = build(), jax.random.key(0)
    hyper = jax.tree.map(jnp.float32, learner.space.defaults)
    start, init = jax.jit(learner.start_states), jax.jit(jax.vmap(learner.init, in_axes=(0, None, None)))
    step = jax.jit(jax.vmap(learner.step, in_axes=(0, None, 0, None)))

    def train(platforms: tuple[str, ...]) -> tuple[Member, list[PyTree]]:
        """Members of a population of two after a generation on each platform, and the metrics of each."""
        with backend.tracing_for(platforms[0]):
            bank = start(key)
            members = init(jax.random.split(key, 2), hyper, bank)
        metrics = []
        for generation, platform in enumerate(platforms):
            keys = jax.random.split(jax.random.fold_in(key, generation), 2)
            with backend.tracing_for(platform):
                members, row = step(members, bank, keys, jnp.int32(generation))
            metrics.append(row)
        return members, metrics

    expected = train(("cpu", "cpu", "cpu"))  # the first generation is half warm-up
    for platforms in (("gpu", "gpu", "gpu"), ("cpu", "cpu", "gpu"), ("gpu", "gpu", "cpu")):
        trained = train(platforms)
        assert jax.tree.structure(trained) == jax.tree.structure(expected)  # so that checkpoints have one layout
        for (path, leaf), other in zip(jax.tree.leaves_with_path(trained), jax.tree.leaves(expected), strict=True):
            assert (leaf.shape, leaf.dtype) == (other.shape, other.dtype), path
            np.testing.assert_allclose(leaf, other, rtol=2e-3, atol=2e-4, err_msg=jax.tree_util.keystr(path))


def test_a_generation_that_is_continued_in_the_warm_up_gives_the_same_bits():
    agent, key = td3(MAZE.spec, Td3Config(hidden_sizes=HIDDEN, policy_delay=2)), jax.random.key(0)
    learner = off_policy(agent, MAZE, config_with(2))
    step = divisible(learner.step)
    with backend.tracing_for("gpu"):
        bank = jax.jit(learner.start_states)(key)
        member = jax.jit(learner.init)(key, jax.tree.map(jnp.float32, learner.space.defaults), bank)
        advance = jax.jit(step.advance)

        def run(cuts: list[int]) -> PyTree:
            state, log = member, step.start(member, bank)
            for first, last in zip([0, *cuts], [*cuts, step.iterations], strict=True):
                state, log = advance(state, log, bank, key, jnp.int32(0), jnp.int32(first), jnp.int32(last))
            return state, log

        whole, parts = run([]), run([2, 5, 7])
    for leaf, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_array_equal(leaf, other)


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
