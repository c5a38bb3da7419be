"""Training in environments of Gymnasium, which run on the host while the device learns."""

from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills.diayn import diayn
from rookery.distributed import layout
from rookery.distributed.mesh import make_mesh
from rookery.envs import registry
from rookery.envs.base import Environment
from rookery.envs.host.base import FRESH
from rookery.envs.wrappers.skills import skills
from rookery.learners.base import EvaluationConfig, Learner, genotype
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.qd.centroids import grid
from rookery.qd.emitters import iso_line
from rookery.qd.map_elites import map_elites, repertoire_of
from rookery.qd.scoring import PolicyConfig, policy_scoring
from rookery.types import Transition
from tests.envs import gymnasium_environments as own
from tests.envs.gymnasium_environments import Counter, limited, play
from tests.learners import fixed_agents
from tests.tiny import assert_equal

OFF_POLICY = OffPolicyConfig(
    num_envs=3,
    steps_per_generation=30,
    batch_size=4,
    buffer_size=64,
    updates_per_step=1 / 3,
    warmup_steps=6,
    eval_episodes=3,
    start_states=3,
)
ON_POLICY = OnPolicyConfig(num_envs=4, rollout_length=6, evaluate_every=2, eval_episodes=2, start_states=2)
CELLS = grid((2, 2), own.SHARE.lower, own.SHARE.upper)
SIZES = (4, 4)


@pytest.fixture(scope="module")
def counter() -> Environment:
    return own.make()


def moved(state: Any, hyper: Any, batch: Transition, noise: Any, step: Any) -> tuple[Any, dict]:
    """An update by the data that compiles fast."""
    moved = jax.tree.map(lambda leaf: leaf + 1e-3 * jnp.mean(batch.reward), state.policy.params)
    return state._replace(policy=state.policy._replace(params=moved)), {}


@pytest.fixture(scope="module")
def learner(counter: Environment) -> Learner:
    agent = sac(counter.spec, SacConfig(hidden_sizes=SIZES))._replace(update=moved)
    return off_policy(agent, counter, OFF_POLICY)


def check(environment: Environment) -> None:
    """No episode failed or was left behind."""
    pool = environment.host
    assert pool is not None
    assert (pool.failure, pool.warnings) == (None, [])


@pytest.fixture(scope="module")
def trained(learner: Learner) -> tuple[Any, dict[tuple[float, ...], int]]:
    """A member after two generations, and first observation -> seed of all its start states."""
    step = jax.jit(learner.step)
    banks = [learner.start_states(jax.random.key(number)) for number in range(3)]
    member = jax.jit(learner.init)(jax.random.key(9), learner.space.defaults, banks[0])
    for generation in range(2):
        member, _ = step(member, banks[1 + generation], jax.random.key(20 + generation), jnp.asarray(generation))
    seeds = {
        tuple(features): seed
        for bank in banks
        for features, seed in zip(bank[1].observation.features.tolist(), bank[0].seed.tolist(), strict=True)
    }
    return member, seeds


class TestOffPolicy:
    def test_stored_transitions_are_those_of_the_object(self, trained: Any) -> None:
        member, seeds = trained
        count = int(member.buffer.size)
        assert count == 60
        rows = jax.tree.map(lambda leaf: np.asarray(leaf[:count]).reshape(20, 3, *leaf.shape[1:]), member.buffer.rows)
        ends = []
        for slot in range(3):
            env: gymnasium.Env = limited(Counter)
            ended = True
            for t in range(20):
                observation, action = rows.observation.features[t, slot], rows.action[t, slot]
                if ended:
                    first, _ = env.reset(seed=seeds[tuple(observation.tolist())])
                    np.testing.assert_array_equal(observation, np.float32(first))
                successor, reward, terminated, truncated, _ = env.step(own.raw_action(action))
                np.testing.assert_array_equal(rows.next_observation.features[t, slot], np.float32(successor))
                np.testing.assert_allclose(rows.reward[t, slot], float(reward), rtol=1e-6)
                assert bool(rows.terminated[t, slot]) == terminated
                if not (ended := terminated or truncated) and t < 19:
                    np.testing.assert_array_equal(rows.observation.features[t + 1, slot], np.float32(successor))
                ends += [terminated] if ended else []
        assert set(ends) == {True, False}, "episodes were terminated, and others truncated"

    def test_fitness_is_that_of_the_policy_on_the_same_seeds(
        self, learner: Learner, counter: Environment, trained: Any
    ) -> None:
        policy = genotype(trained[0])
        bank = learner.start_states(jax.random.key(5))
        found = jax.jit(learner.evaluate)(policy, bank, jax.random.key(6))
        act = jax.jit(partial(rookery.act, sac(counter.spec, SacConfig(hidden_sizes=SIZES))))
        episodes = [
            play(limited(Counter), seed, lambda features: act(policy, jnp.asarray(features, jnp.float32)))
            for seed in bank[0].seed.tolist()
        ]
        np.testing.assert_allclose(found.returns, [sum(s.reward for s in steps) for steps in episodes], rtol=1e-5)
        np.testing.assert_allclose(found.fitness, np.mean(found.returns), rtol=1e-6)
        assert found.lengths.tolist() == [len(steps) for steps in episodes]
        shares = [len(steps) / own.LIMIT for steps in episodes]
        even = [steps[0].observation[0] % 2 == 0 for steps in episodes]
        np.testing.assert_allclose(found.descriptor, [np.mean(shares), np.mean(even)], rtol=1e-6)

    def test_with_exact_one_and_two_devices_give_the_same_bits(self, learner: Learner, counter: Environment) -> None:
        states = []
        for devices in (1, 2):
            program = rookery.pbt(
                learner, population_size=2, placement=layout.placement(make_mesh(devices), exact=True)
            )
            result = rookery.run(program, generations=2, quiet=True)
            assert np.isfinite([row["fitness"] for row in result.history]).all()
            states.append(result.state)
        check(counter)
        one, two = (_without_slots(state) for state in states)
        assert_equal(one, two)
        assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(states[1].members)} == {2}


def _without_slots(state: Any) -> Any:
    """The state of a run, in which the numbers of the slots do not matter, since they follow the order of the calls."""
    env_batch = state.members.env_state
    running = jnp.where(env_batch.state.slot == FRESH, FRESH, 0)
    env_batch = env_batch._replace(state=env_batch.state._replace(slot=running))
    members = state.members._replace(env_state=env_batch)
    return jax.tree.map(
        lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf),
        state._replace(members=members),
    )


def test_ppo_with_discrete_actions() -> None:
    cartpole = registry.make("gym:CartPole-v1", episode_length=30, workers=2)
    agent = fixed_agents.idle(ppo(cartpole.spec, PpoConfig(hidden_sizes=SIZES, minibatches=2)))
    _, metrics = fixed_agents.trained(on_policy(agent, cartpole, ON_POLICY))
    check(cartpole)
    assert (float(metrics["reward"]), float(metrics["broken_steps"])) == (1.0, 0.0)


def test_skills(counter: Environment) -> None:
    environment = skills(counter, 2)
    agent = fixed_agents.idle(diayn(sac(environment.spec, SacConfig(hidden_sizes=SIZES)), environment.spec))
    member, _ = fixed_agents.trained(off_policy(agent, environment, OFF_POLICY))
    check(counter)
    assert set(np.unique(np.asarray(member.buffer.rows.observation.skill)[:30])) == {0.0, 1.0}


def test_a_repertoire_of_policies(counter: Environment) -> None:
    evaluation = EvaluationConfig(eval_episodes=1, start_states=1)
    scoring = policy_scoring(counter, PolicyConfig(hidden_sizes=SIZES), evaluation)
    result = rookery.run(map_elites(scoring, CELLS, iso_line(scoring, 4)), generations=2, quiet=True)
    check(counter)
    # Descriptors are the share of an episode's time and whether its start was even.
    repertoire = repertoire_of(result.state)
    occupied = np.asarray(repertoire.occupied)
    assert occupied.any()
    found = np.asarray(repertoire.descriptors)[occupied]
    assert set(found[:, 1].tolist()) <= {0.0, 1.0}
    np.testing.assert_allclose(found[:, 0], 1.0 - found[:, 1] * (1.0 - own.END / own.LIMIT), rtol=1e-5)
