"""The choice of an agent's network: its defaults, what a user gives, and what does not fit."""

from collections.abc import Callable
from typing import Any, get_args

import jax
import numpy as np
import pytest

import rookery
from rookery import hyperparams, networks
from rookery.experiments.config_io import from_record, run_record
from rookery.experiments.kinds import configure
from rookery.storage.record import DEFAULTS
from rookery.types import Observation
from tests.agents.common import SKILLED, SPEC, drawn_transitions, numbers
from tests.agents.test_optional_hyper import updating
from tests.learners.rollouts import CHOOSING

MAKERS: list[Callable[..., Any]] = [rookery.sac, rookery.td3]
SIMBA: dict[str, Any] = {"network": "simba"}
RATES = ("policy_lr", "critic_lr", "alpha_lr")


def test_every_network_of_the_table_can_be_chosen() -> None:
    assert get_args(networks.NetworkName) == tuple(networks.NETWORKS)


@pytest.mark.parametrize("make", MAKERS)
def test_simba_comes_with_its_settings(make: Callable[..., Any]) -> None:
    plain, simba = make(SPEC), make(SPEC, **SIMBA)
    config = simba.settings["agent"]
    assert (config["hidden_sizes"], config["critic_hidden_sizes"]) == ((128,), (512, 512))
    assert (config.get("target_entropy_scale", 0.5), config.get("alpha_init", 0.01)) == (0.5, 0.01)
    assert (plain.normalize, simba.normalize) == (False, True)
    changed = {name: 1e-4 for name in RATES if hasattr(plain.space.defaults, name)} | {"weight_decay": 0.01}
    assert simba.space.defaults._asdict() == plain.space.defaults._asdict() | changed
    assert simba.space.domains == plain.space.domains
    params = jax.eval_shape(simba.init, jax.random.key(0))
    widths = [params.policy["params"][name]["kernel"].shape for name in ("Dense_0", "Dense_1")]
    assert widths == [(3, 128), (128, 2 * 2 if make is rookery.sac else 2)]
    assert params.critic[1]["params"]["ResidualBlock_1"]["Dense_0"]["kernel"].shape == (512, 2048)


def test_simba_of_values_has_the_widths_of_critics() -> None:
    plain, simba = rookery.pqn(CHOOSING), rookery.pqn(CHOOSING, **SIMBA)
    assert [agent.settings["agent"]["hidden_sizes"] for agent in (plain, simba)] == [(256, 256), (512, 512)]
    assert (plain.normalize, simba.normalize) == (False, True)
    assert simba.space.defaults._asdict() == {**plain.space.defaults._asdict(), "weight_decay": 0.01}
    small = rookery.pqn(CHOOSING, **SIMBA, hidden_sizes=(4, 4))
    params = small.init(jax.random.key(0))
    seen = Observation(jax.random.normal(jax.random.key(1), (5, CHOOSING.observation_size)))
    values = networks.simba((CHOOSING.observation_size,), (4, 4), CHOOSING.action_size).apply(params, seen)
    np.testing.assert_array_equal(small.act(params, seen), np.argmax(values, axis=-1))
    assert len(np.unique(np.argmax(values, axis=-1))) > 1
    record = run_record(configure("pqn", **SIMBA))
    assert (record["agent"]["hidden_sizes"], record["learner"]["normalize_observations"]) == ((512, 512), True)
    with pytest.raises(ValueError, match=r"^hidden_sizes must be equal widths, .* got \(\); give such as 128 128\.$"):
        rookery.pqn(CHOOSING, **SIMBA, hidden_sizes=())


def test_given_settings_have_precedence() -> None:
    given = {"hidden_sizes": (4,), "critic_hidden_sizes": (8,), "alpha_init": 0.5, "target_entropy_scale": 2.0}
    agent = rookery.sac(SPEC, **SIMBA, **given)
    assert given.items() <= agent.settings["agent"].items()
    space: Any = rookery.choose(agent.space, weight_decay=(1e-3, 1e-1), policy_lr=1e-3, adam_b1=0.8)
    assert (space.defaults.policy_lr, space.defaults.critic_lr, space.defaults.adam_b1) == (1e-3, 1e-4, 0.8)
    assert "weight_decay" in space.domains
    without: Any = rookery.choose(agent.space, weight_decay=0)
    assert without.defaults.weight_decay == 0.0
    env = rookery.make("point_room")
    simba = rookery.sac(env.spec, **SIMBA, **given)
    learners = rookery.off_policy(simba, env), rookery.off_policy(simba, env, normalize_observations=False)
    assert [learner.settings["learner"]["normalize_observations"] for learner in learners] == [True, False]


def test_skills_keep_the_settings_of_the_network() -> None:
    agent = rookery.diayn(rookery.sac(SKILLED, **SIMBA, hidden_sizes=(4,), critic_hidden_sizes=(4,)), SKILLED)
    assert agent.normalize
    assert (agent.space.defaults.policy_lr, agent.space.defaults.weight_decay) == (1e-4, 0.01)
    inner = hyperparams.select(rookery.sac(SKILLED, **SIMBA).space, hyperparams.defaults(agent.space))
    assert float(inner.weight_decay) == np.float32(0.01)


def test_weights_decay_and_the_temperature_does_not() -> None:
    agent = rookery.sac(SPEC, **SIMBA, hidden_sizes=(4,), critic_hidden_sizes=(4,))
    update = updating(agent, 1, drawn_transitions(jax.random.key(0)))
    decayed, plain = update(weight_decay=0.01), update(weight_decay=0.0)
    before = agent.init(jax.random.key(1))
    for part in ("policy", "critic"):
        after = numbers(getattr(plain, part).params) - 1e-4 * 0.01 * numbers(getattr(before, part))
        np.testing.assert_allclose(numbers(getattr(decayed, part).params), after, rtol=1e-5, atol=1e-7)
    assert decayed.log_alpha.params == plain.log_alpha.params


def test_the_record_of_a_run_shows_the_settings_of_its_network() -> None:
    spec = configure("sac", **SIMBA, critic_hidden_sizes=(8,))
    record = run_record(spec)
    assert (record["agent"]["hidden_sizes"], record["learner"]["normalize_observations"]) == ((128,), True)
    assert record[DEFAULTS] == {
        "agent.hidden_sizes": (256, 256),
        "agent.critic_hidden_sizes": None,
        "agent.alpha_init": 1.0,
        "agent.target_entropy_scale": 1.0,
        "agent.network": "mlp",
        "learner.normalize_observations": False,
    }
    assert from_record(record) == spec.with_network()
    assert run_record(configure("sac"))[DEFAULTS] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer_norm": True}, r"^layer_norm has no effect with network simba, .*; leave it out\.$"),
        ({"hidden_sizes": (8, 4)}, r"^hidden_sizes must be equal widths, .* got \(8, 4\); give such as 128 128\.$"),
        ({"critic_hidden_sizes": ()}, r"^critic_hidden_sizes must be equal widths, .* got \(\); give such as"),
    ],
)
def test_settings_that_do_not_fit_the_network_are_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rookery.sac(SPEC, **SIMBA, **options)
