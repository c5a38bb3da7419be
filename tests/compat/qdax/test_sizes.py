"""QDax's and jaxagents' documented classes with sizes of 0 and 1."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.compat import qdax
from rookery.compat.jaxagents import TruncationWrapper
from rookery.compat.qdax import (
    DIAYN,
    PBT,
    PBTSAC,
    SAC,
    TD3,
    DiaynConfig,
    MapElitesRepertoire,
    QDTransition,
    ReplayBuffer,
    warmstart_buffer,
)
from tests.compat.jaxagents.goals import CONFIG, HYPER, Actor, Continuous, Critic, Goals, Params
from tests.compat.qdax.documented import T, agent, make_emitter, make_env, rows
from tests.tiny import assert_equal

KEY = jax.random.key(0)
CELL = qdax.compute_euclidean_centroids((1,), 0.0, 1.0)


def cut(tree: Any, count: int) -> Any:
    """The first `count` rows."""
    return jax.tree.map(lambda leaf: leaf[:count], tree)


def test_a_buffer_of_one_row_stores_transitions_without_a_descriptor():
    row = QDTransition.init_dummy(observation_dim=0, action_dim=0, descriptor_dim=0)
    buffer = ReplayBuffer.init(1, row).insert(row).insert(row)
    assert (int(buffer.current_size), int(buffer.current_position)) == (1, 0)
    drawn = buffer.sample(KEY, 1)
    assert type(drawn) is QDTransition
    assert_equal(drawn, row)
    assert (buffer.sample(KEY, 0).state_desc.shape, row.flatten_dim) == ((0, 0), 3)
    assert_equal(buffer.insert(cut(row, 0)), buffer)
    assert_equal(ReplayBuffer.init(1, cut(row, 0)), ReplayBuffer.init(1, row))  # an empty batch has shapes, too
    assert_equal(jax.jit(lambda stored, one: stored.insert(one))(ReplayBuffer.init(1, row), row).sample(KEY, 1), row)


def test_a_repertoire_of_one_cell_may_begin_without_a_genotype():
    empty = MapElitesRepertoire.init({"x": jnp.zeros(0)}, jnp.zeros(0), jnp.zeros((0, 1)), CELL)
    assert_equal(empty, MapElitesRepertoire.init_default({"x": jnp.zeros(())}, CELL))
    assert qdax.default_qd_metrics(empty, 1.0) == {"qd_score": 0.0, "max_fitness": -np.inf, "coverage": 0.0}


REJECTED: dict[str, Any] = {
    "capacity of a buffer": lambda: ReplayBuffer.init(0, rows(1)),
    "num_skills": lambda: DIAYN(DiaynConfig(8, T, num_skills=0), 2),
    "descriptor_size": lambda: DIAYN(DiaynConfig(8, T), 2).init(KEY, 2, 2, 0),
    "observation_size": lambda: agent(SAC).init(KEY, 2, 0),
    "action_size": lambda: agent(TD3, 0),
    "population_size": lambda: PBT(0, 0, 0),
    "population_size must": lambda: agent(PBTSAC).get_init_fn(0, 2, 2, 4),
    "num_iterations": lambda: agent(PBTSAC).get_train_fn(make_env(1), 0, 1, 1.0),
    "pg_population_size_per_device": lambda: make_emitter(env_size=1, pg_population_size_per_device=0),
    "env_batch_size": lambda: warmstart_buffer(None, None, None, None, 1, 0),  # pyright: ignore[reportArgumentType]
    "batch_size": lambda: make_env(0),
    "max_steps": lambda: TruncationWrapper(Goals(1), 0),
    "n_actors": lambda: Continuous(Goals(0), Params(), CONFIG),
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_size_of_zero_is_rejected_by_its_name(name: str):
    with pytest.raises(ValueError, match=f"{name.removesuffix(' must')} must be at least 1"):
        REJECTED[name]()


def test_fewer_steps_than_none_are_rejected():
    with pytest.raises(ValueError, match="num_warmstart_steps must be at least 0, got -1"):
        warmstart_buffer(None, None, None, None, -1, 1)  # pyright: ignore[reportArgumentType]


def test_a_team_of_one_trains_in_one_environment():
    sizes = dict.fromkeys(["n_steps", "batch_size", "minibatch_size", "actor_epochs", "critic_epochs"], 1)
    networks = {"actor_network": partial(Actor, outputs=1), "critic_network": partial(Critic, n_critics=1)}
    config = CONFIG._replace(**sizes, **networks, rollout_length=2, max_episode_steps=1, eval_frequency=1, n_evals=1)
    learner = Continuous(Goals(1), Params(), config)
    _, metrics = jax.eval_shape(learner.train, KEY, HYPER)
    assert {name: value.shape[1:] for name, value in metrics.items()} == {
        **{"actor_loss": (1,), "critic_loss": (1,), "terminated": (1,), "truncated": (1,)},
        **{"final_rewards": (1, 1), "returns": (1, 1)},
    }
    with pytest.raises(ValueError, match=r"metrics of shape \(3, 0\) contain no episode"):
        learner.summarize(jnp.zeros((3, 0)))
