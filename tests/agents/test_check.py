"""Checks of user-defined agents: shipped agents pass, and each mistake is reported in one sentence."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from rookery import gradients
from rookery.agents import check
from rookery.agents.base import OffPolicyAgent
from rookery.agents.check import check_agent
from rookery.agents.multi_agent import independent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.pqn import PqnConfig, pqn
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.envs.base import EnvSpec, Team
from rookery.hyperparams import Space, Uniform
from rookery.types import Observation, Transition
from tests.agents.common import SKILLED, SPEC

SMALL: dict[str, Any] = {"hidden_sizes": (4,)}
DISCRETE = SPEC._replace(discrete=True)
TEAM = DISCRETE._replace(team=Team(("a", "b"), (3, 3), (5, 5)), masked=True, action_size=5, identified=True)
DIAYN = DiaynConfig(discriminator_hidden_sizes=(4,))
ON_POLICY = {**SMALL, "minibatches": 2}


@pytest.mark.parametrize(
    ("build", "spec"),
    [  # one agent of each kind; the contracts of agents test all of them
        (lambda spec: diayn(sac(spec, SacConfig(**SMALL)), spec, DIAYN), SKILLED),
        (lambda spec: ppo(spec, PpoConfig(recurrent=True, memory_size=2, **ON_POLICY)), SPEC),
        (lambda spec: independent(pqn(spec, PqnConfig(**ON_POLICY)), spec), TEAM),
    ],
    ids=["off-policy", "on-policy", "team"],
)
def test_shipped_agents_pass(build: Any, spec: EnvSpec) -> None:
    check_agent(build(spec), spec)


def test_actions_of_parts_are_below_the_count_of_each_part() -> None:
    spec = DISCRETE._replace(action_size=5, categories=(2, 3))
    agent, mistake = ppo(spec), "explore returns actions that are not from 0 to below (2, 3)."
    for action, expected in (([1, 2], []), ([2, 1], [mistake]), ([0, -1], [mistake])):
        drawn = jnp.asarray([action], jnp.int32)
        assert list(check._action_problems("explore", agent, spec, drawn, bounded=False, leading=(1,))) == expected


class OwnHyper(NamedTuple):
    """Hyper-parameters of a user-defined agent."""

    learning_rate: Any = 1e-2
    noise: Any = 0.1


class OwnState(NamedTuple):
    """State of a user-defined agent."""

    learned: gradients.Learned
    keys: Any = ()

    @property
    def params(self) -> Any:
        return self.learned.params


def own(*mistakes: str) -> OffPolicyAgent:  # noqa: C901
    """A linear policy that imitates the actions of the batch, with some mistakes."""

    def init(key: jax.Array) -> Any:
        return jax.random.normal(key, (3, 2)) * (jnp.nan if "nan" in mistakes else 0.1)

    def start(params: Any) -> Any:
        if "no params" in mistakes:
            return {"weights": params}
        every = {"typed key": jax.random.key(0), "raw key": jnp.zeros(2, jnp.uint32)}
        keys = {name: key for name, key in every.items() if name in mistakes}
        return OwnState(gradients.start(params[:2] if "other params" in mistakes else params), keys)

    def act(params: Any, observation: Observation) -> jax.Array:
        if "wrong call" in mistakes:
            return observation @ params  # pyright: ignore[reportOperatorIssue]
        action = observation.features @ params
        if "wide action" in mistakes:
            return jnp.ones(3)
        return action * 100.0 if "unbounded" in mistakes else jnp.tanh(action)

    def explore(state: Any, hyper: OwnHyper, observation: Observation, key: jax.Array) -> jax.Array:
        if "impure" in mistakes:
            CALLS.append(1)
            return act(state.params, observation) * (0.5 / len(CALLS))
        noise = 0.1 if "unread" in mistakes else hyper.noise
        return jnp.clip(act(state.params, observation) + noise * jax.random.normal(key, (2,)), -1.0, 1.0)

    def loss(params: Any, batch: Transition) -> jax.Array:
        return jnp.mean((batch.observation.features @ params - batch.action) ** 2)

    def update(state: Any, hyper: OwnHyper, batch: Transition, noise: Any, step: jax.Array) -> Any:
        rate = 0.0 if "no learning" in mistakes else hyper.learning_rate
        learned = gradients.adam(state.learned, jax.grad(loss)(state.params, batch), rate)
        metrics = {"loss": loss(state.params, batch) * (jnp.ones(2) if "wide metric" in mistakes else 1.0)}
        if "other state" in mistakes:
            return OwnState(learned, jnp.zeros(1)), metrics
        return OwnState(learned, state.keys) if "no metrics" in mistakes else (OwnState(learned, state.keys), metrics)

    space = Space(OwnHyper(), {"learning_rate": Uniform(1e-3, 1e-1), "noise": Uniform(0.0, 0.3)})
    return OffPolicyAgent(init, start, explore, act, no_noise, update, space)


def no_noise(key: jax.Array, batch_size: int) -> Any:
    return ()


CALLS: list[int] = []
PREFIX = "the agent is wrong, see docs/guides/own_agent.md: "


def test_an_agent_of_ones_own_passes() -> None:
    check_agent(own(), SPEC)


MESSAGES = {
    "no params": "the state, dict, has no attribute params.",
    "other params": "state.params after start(params) has an array of float32 (2, 2) instead of float32 (3, 2).",
    "wrong call": "act(params, observation) raised TypeError",
    "wide action": "act must return an action of float32 (2,), got float32 (3,).",
    "other state": "the state after update has another structure",
    "no metrics": "update must return (state, metrics), got OwnState.",
    "nan": "start(init(key)) has numbers that are not finite.",
    "impure": "two calls of explore(state, hyper, observation, key) with equal arguments differ",
    "typed key": "the state has a random key, .keys['typed key']; functions get the keys that they need as arguments",
    "raw key": "the state has a random key, .keys['raw key'];",
    "unbounded": "act returns actions outside of [-1, 1].",
    "wide metric": "update returns the metric loss of shape (2,) instead of ().",
    "no learning": "8 updates change no parameters.",
    "unread": "the hyper-parameter noise changes neither 8 updates nor an exploratory action; read it from hyper",
}
ALONE = ("no params", "other params", "wrong call", "wide action", "other state", "no metrics")
"""After these no further check is possible."""
TOGETHER = (("nan", "impure"), ("typed key", "raw key", "unbounded", "wide metric", "no learning", "unread"))


@pytest.mark.parametrize("mistakes", [*((name,) for name in ALONE), *TOGETHER], ids=" ".join)
def test_each_mistake_is_a_sentence(mistakes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=rf"^{PREFIX}") as raised:
        check_agent(own(*mistakes), SPEC)
    found = str(raised.value).removeprefix(PREFIX).splitlines()
    missing = [name for name in mistakes if not any(line.startswith(MESSAGES[name]) for line in found)]
    assert not missing, found


def test_other_objects_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a rookery.agents.OffPolicyAgent or OnPolicyAgent, got function"):
        check_agent(sac, SPEC)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"takes the spec of an environment, env.spec, got function"):
        check_agent(own(), sac)  # pyright: ignore[reportArgumentType]
