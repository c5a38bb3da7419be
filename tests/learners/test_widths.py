"""Widths that differ between members: what is 0 stays 0, growth changes no output, and a width is what it says."""

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import hyperparams, trees
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.learners import widths
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.populations.pbt import pbt
from rookery.types import Observation
from tests.learners.fixed_agents import idle, started

FULL, NARROW = 8, 3
ENV = rookery.make("point_room", episode_length=8)
OFF = OffPolicyConfig(num_envs=2, steps_per_generation=8, batch_size=4, buffer_size=32, warmup_steps=2, eval_episodes=1)
SIZES = (FULL, FULL)


def make() -> Any:
    return off_policy(sac(ENV.spec, SacConfig(SIZES)), ENV, OFF)


def units(tree) -> list[tuple[int, int]]:
    """For each network in a tree, the number of hidden units of each layer that any weight belongs to."""
    found = []
    for layers in widths._networks(jax.device_get(tree)):
        for layer, later in itertools.pairwise(layers):
            alive = (layer["kernel"] != 0).any(axis=-2) | (layer["bias"] != 0) | (later["kernel"] != 0).any(axis=-1)
            found.append(int(alive.sum()))
    return found


@pytest.fixture(scope="module")
def trained():
    """A learner, a member with a width of 3 after a generation, the start states, the member before, and the step."""
    learner = make()
    member, bank = started(learner, hidden_size=NARROW)
    step = jax.jit(learner.step)
    return learner, step(member, bank, jax.random.key(2), jnp.int32(0))[0], bank, member, step


def outputs(learner, member):
    observation = Observation(jnp.linspace(-1.0, 1.0, 8).reshape(4, 2))
    return jax.jit(jax.vmap(learner.evaluator.act, in_axes=(None, 0)))(member.state.params, observation)


def test_units_beyond_the_width_stay_0_in_training_in_optimisers_and_in_targets(trained):
    learner, after, _, before, _ = trained
    assert set(units(before.state.params)) == {NARROW}
    assert set(units(after.state.params)) == {NARROW}
    assert max(units(after.state)) == NARROW, "of moments and targets too"
    changed = jax.tree.map(lambda a, b: (a != b).any(), before.state.params, after.state.params)
    assert any(jax.tree.leaves(changed)), "the member has learned"


def test_a_member_that_grows_keeps_its_outputs_exactly_and_can_use_the_new_units(trained):
    learner, member, bank, _, step = trained
    grown = jax.jit(learner.resize)(
        member._replace(hyper=member.hyper._replace(hidden_size=jnp.float32(6))), jax.random.key(3)
    )
    np.testing.assert_array_equal(outputs(learner, grown), outputs(learner, member))
    assert set(units(grown.state.params)) == {6}
    for layers in widths._networks(grown.state.params):
        for layer, later in itertools.pairwise(layers):
            assert (layer["kernel"][..., NARROW:6] != 0).any(axis=-2).all(), "new units have weights to them"
            to_old = later["kernel"] if later is layers[-1] else later["kernel"][..., :NARROW]
            assert (to_old[..., NARROW:, :] == 0).all(), "and none from them to what was there"
    learned = step(grown, bank, jax.random.key(4), jnp.int32(1))[0]
    last = [layers[-1]["kernel"][..., NARROW:6, :] for layers in widths._networks(learned.state.params)]
    assert all((kernel != 0).any() for kernel in last), "training gives them weights"
    assert max(units(learned.state)) == 6


def test_a_member_of_the_right_width_is_unchanged_and_one_that_shrinks_loses_its_last_units(trained):
    learner, member, _, _, _ = trained
    same = jax.jit(learner.resize)(member, jax.random.key(3))
    assert type(same.state) is type(member.state)
    jax.tree.map(np.testing.assert_array_equal, same, member)
    shrunk = jax.jit(learner.resize)(
        member._replace(hyper=member.hyper._replace(hidden_size=jnp.float32(2))), jax.random.key(3)
    )
    assert set(units(shrunk.state.params)) == {2}
    assert max(units(shrunk.state)) == 2
    kept = [layers[0]["kernel"][..., :2] for layers in widths._networks(shrunk.state.params)]
    jax.tree.map(
        np.testing.assert_array_equal,
        kept,
        [layers[0]["kernel"][..., :2] for layers in widths._networks(member.state.params)],
    )


def test_the_full_width_is_the_agent_without_a_width():
    learner = make()
    full, _ = started(learner, hidden_size=FULL)
    plain, _ = started(learner)
    jax.tree.map(np.testing.assert_array_equal, full.state, plain.state)


def test_initial_weights_have_the_variance_of_a_network_created_with_the_width():
    agent = sac(ENV.spec, SacConfig((256, 256)))
    learner = off_policy(agent, ENV, OFF)
    member, _ = started(learner, hidden_size=64)
    narrow = widths._networks(member.state.params.policy)[0][1]["kernel"][:64, :64]
    small = widths._networks(jax.jit(sac(ENV.spec, SacConfig((64, 64))).init)(jax.random.key(1)).policy)[0][1]["kernel"]
    assert float(narrow.std()) == pytest.approx(float(small.std()), rel=0.05)


def test_widths_evolve_in_a_population_and_every_member_has_the_width_that_is_recorded():
    learner = off_policy(idle(td3(ENV.spec, Td3Config(SIZES))), ENV, OFF)
    space = hyperparams.choose(learner.space, hidden_size=(2, FULL))
    program = pbt(learner, space, population_size=4, replace_count=2, best_count=1, resample_probability=1.0)
    state, step = jax.jit(program.init)(jax.random.key(0)), jax.jit(program.step)
    seen = [np.asarray(state.members.hyper.hidden_size)]
    for generation in range(3):
        state, metrics = step(state, jax.random.key(generation))
        np.testing.assert_array_equal(metrics["hyper/hidden_size"], seen[-1])
        seen.append(np.asarray(state.members.hyper.hidden_size))
        for member in range(4):
            of_member = trees.take(jax.device_get(state.members.state.policy.params), member)
            assert set(units(of_member)) == {int(seen[-1][member])}
    assert all(value == round(value) and 2 <= value <= FULL for value in np.concatenate(seen))
    assert any((before != after).any() for before, after in itertools.pairwise(seen))


def test_other_agents_do_not_offer_a_width():
    env = rookery.make("pursuit_continuous", episode_length=8)
    team = rookery.agents.independent(ppo(env.spec, PpoConfig(hidden_sizes=SIZES, minibatches=2)), env.spec)
    recurrent = ppo(ENV.spec, PpoConfig(hidden_sizes=SIZES, recurrent=True, minibatches=2))
    skills = rookery.skills(ENV, num_skills=2)
    diayn = rookery.diayn(sac(skills.spec, SacConfig(SIZES)), skills.spec)
    normalised = sac(ENV.spec, SacConfig(SIZES, layer_norm=True))
    simba = sac(ENV.spec, network="simba", hidden_sizes=(8,), critic_hidden_sizes=(8,))
    assert [widths.space(agent) for agent in (team, recurrent, diayn, normalised, simba)] == [None] * 5
    assert widths.space(ppo(ENV.spec, PpoConfig(hidden_sizes=SIZES))) is not None, "an on-policy agent can have one"


class Heads(nn.Module):
    """Two dense layers that read the same."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.Dense(4)(x)
        return nn.Dense(1)(hidden) + nn.Dense(1)(hidden)


@pytest.mark.parametrize("module", [Heads(), nn.Dense(2)])
def test_an_agent_with_other_networks_is_bound_without_a_width(module: nn.Module):
    agent = sac(ENV.spec, SacConfig(SIZES))._replace(init=lambda key: module.init(key, jnp.zeros((3,))))
    assert widths.space(agent) is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ((0.5, 4), r"must lie in \[1, 8\], got 0.5\.$"),
        (12.0, r"must lie in \[1, 8\], got 12; use larger hidden_sizes\.$"),
        ((2.5, 8), r"must be a whole number, got 2\.5\.$"),
    ],
)
def test_a_width_that_the_networks_cannot_have_is_an_error(choice, message):
    with pytest.raises(ValueError, match=f"^hidden_size {message}"):
        hyperparams.choose(make().space, hidden_size=choice)


def test_a_repertoire_a_warm_start_and_a_replay_refuse_widths():
    learner = make()
    space = hyperparams.choose(learner.space, hidden_size=(2, FULL))
    with pytest.raises(ValueError, match="hidden_size cannot be chosen with a repertoire"):
        rookery.qd.learner_scoring(learner, space)
    program = rookery.seeds(learner, space, draw_hyper=True)
    member, _ = started(learner, hidden_size=NARROW)
    with pytest.raises(ValueError, match="have the width of its networks"):
        rookery.populations.begin_as(program, learner, rookery.genotype(member))
    with pytest.raises(ValueError, match="which cannot be replayed"):
        rookery.populations.replay(program, {"hidden_size": np.array([4.0])})
