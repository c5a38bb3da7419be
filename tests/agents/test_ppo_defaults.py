"""The defaults of PPO: they depend on the kind of actions, are recorded, and are kept when a run is resumed."""

import dataclasses
import json
from typing import Any

import jax
import pytest

from rookery import make, on_policy
from rookery.agents.multi_agent import independent
from rookery.agents.ppo import ppo
from rookery.agents.ppo_settings import PpoConfig, resolve_defaults
from rookery.experiments.build import build
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.kinds import configure, with_space
from rookery.experiments.parts import with_annealing
from rookery.experiments.spec import Built
from rookery.learners.on_policy import OnPolicyConfig
from rookery.training.config import RunConfig

CONTINUOUS, DISCRETE, TEAM = "point_room", "CartPole-v1", "pursuit_continuous"


def built(kind: str, env: str, **options: Any) -> Built:
    return build(configure(kind, environment=EnvironmentConfig(env=env, devices=1), **options))


def settings(made: Built) -> dict[str, Any]:
    """The settings without a fixed default, as the run records them."""
    config: Any = made.spec
    assert made.space is not None
    return {
        "epochs": (config.agent.actor_epochs, config.agent.critic_epochs),
        "minibatches": config.agent.minibatches,
        "rewards": config.agent.normalize_rewards,
        "observations": config.learner.normalize_observations,
        "entropy": made.space.defaults.entropy_coefficient,
        "rates": (made.space.defaults.actor_lr, made.space.defaults.critic_lr),
    }


OF_CONTINUOUS = {"epochs": (10, 10), "minibatches": 32, "rewards": True, "observations": True, "entropy": 0.0}
OF_CONTINUOUS |= {"rates": (3e-4, 3e-4)}
OF_DISCRETE = {**OF_CONTINUOUS, "epochs": (4, 4), "minibatches": 16, "entropy": 0.01, "rates": (1e-3, 1e-3)}
OF_TEAMS = {"epochs": (4, 4), "minibatches": 4, "rewards": True, "observations": False, "entropy": 0.01}
OF_TEAMS |= {"rates": (2.5e-4, 2.5e-4)}


@pytest.mark.parametrize(
    ("kind", "env", "expected"),
    [
        ("ppo", CONTINUOUS, OF_CONTINUOUS),
        ("pbt-ppo", DISCRETE, OF_DISCRETE),
        ("ippo", "pursuit_discrete", OF_TEAMS),
    ],
)
def test_defaults_depend_on_the_actions_and_are_recorded(kind, env, expected):
    made = built(kind, env)
    found = settings(made)
    assert found == expected
    assert jax.tree.map(type, found) == jax.tree.map(type, expected)
    assert made.spec is not None
    record = json.loads(json.dumps(to_record(with_space(made.spec, made.space))))
    assert record["agent"]["minibatches"] == expected["minibatches"]
    assert record["learner"]["normalize_observations"] is expected["observations"]
    resumed = build(from_record(record))
    assert resumed.space == made.space
    assert settings(resumed) == expected
    assert resumed.spec == with_space(made.spec, made.space)


def test_what_is_chosen_is_kept():
    agent = PpoConfig(actor_epochs=2, critic_epochs=3, minibatches=8, normalize_rewards=False, anneal_updates=7)
    learner = OnPolicyConfig(normalize_observations=False)
    config: Any = built("ppo", CONTINUOUS, agent=agent, learner=learner, space={"entropy_coefficient": 0.5}).spec
    assert (config.agent, config.learner) == (agent, learner)
    assert with_annealing(config, scheduled=False).anneal_updates == 7
    config = built("ippo", TEAM, agent=PpoConfig(normalize_rewards=False)).spec
    assert config.agent.normalize_rewards is False


@pytest.mark.parametrize(
    ("learner", "recurrent", "expected"),
    [
        (OnPolicyConfig(num_envs=5, rollout_length=100), False, 25),
        (OnPolicyConfig(num_envs=2, rollout_length=16), False, 16),
        (OnPolicyConfig(num_envs=1, rollout_length=7), False, 1),
        (OnPolicyConfig(num_envs=3), True, 3),
    ],
)
def test_default_minibatches_divide_the_rollout(learner, recurrent, expected):
    config: Any = built("ppo", CONTINUOUS, learner=learner, agent=PpoConfig(recurrent=recurrent)).spec
    assert config.agent.minibatches == expected


def test_entropy_evolves_only_where_actions_are_discrete():
    spaces = {env: built("pbt-ppo", env).space for env in (CONTINUOUS, DISCRETE)}
    evolving = {"discount", "gae_lambda", "clip_epsilon", "actor_lr", "critic_lr"}
    assert {env: set(space.domains) for env, space in spaces.items() if space} == {
        CONTINUOUS: evolving,
        DISCRETE: evolving | {"entropy_coefficient"},
    }


@pytest.mark.parametrize(
    ("kind", "env", "scheduled", "updates"),
    [
        ("ppo", CONTINUOUS, False, 30 * 10),
        ("ppo", CONTINUOUS, True, 0),
        ("pbt-ppo", CONTINUOUS, False, 0),
        ("ippo", TEAM, False, 0),
    ],
)
def test_rates_are_annealed_over_the_whole_run_unless_they_evolve(kind, env, scheduled, updates):
    config: Any = built(kind, env, run=RunConfig(generations=30)).spec
    found = with_annealing(config, scheduled).anneal_updates
    assert (found, type(found)) == (updates, int)


def test_a_run_resumed_with_more_generations_anneals_over_all_and_the_next_run_over_its_own():
    first: Any = built("ppo", CONTINUOUS, run=RunConfig(generations=30)).spec
    record = to_record(first)
    record["run"]["generations"] = 45
    for config, updates in ((from_record(record), 450), (dataclasses.replace(first, run=RunConfig(generations=5)), 50)):
        made: Any = build(config).spec
        assert with_annealing(made, scheduled=False).anneal_updates == updates


def test_the_same_defaults_from_python():
    for env, expected in ((CONTINUOUS, OF_CONTINUOUS), (DISCRETE, OF_DISCRETE), (TEAM, OF_TEAMS)):
        environment = make(env)
        agent, passes = ppo(environment.spec), resolve_defaults(PpoConfig(), environment.spec)
        assert (passes.actor_epochs, passes.critic_epochs) == expected["epochs"]
        assert (passes.minibatches, agent.minibatches) == (expected["minibatches"],) * 2
        assert (PpoConfig().normalize_rewards, agent.normalize) == (expected["rewards"], expected["observations"])
        assert agent.space.defaults.entropy_coefficient == expected["entropy"]
        agent = independent(agent, environment.spec) if environment.spec.team else agent
        for chosen in (None, False, True):
            learner = on_policy(agent, environment, OnPolicyConfig(normalize_observations=chosen))
            bank = jax.eval_shape(learner.start_states, jax.random.key(0))
            member = jax.eval_shape(learner.init, jax.random.key(0), learner.space.defaults, bank)
            assert (member.normalizer is not None) is (expected["observations"] if chosen is None else chosen)
