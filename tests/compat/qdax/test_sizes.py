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
    PBTTD3,
    SAC,
    TD3,
    DiaynConfig,
    MapElitesRepertoire,
    PBTEmitter,
    QDTransition,
    ReplayBuffer,
    warmstart_buffer,
)
from tests.compat.jaxagents.goals import CONFIG, HYPER, Actor, Continuous, Critic, Goals, Params
from tests.compat.qdax.documented import NETS, T, agent, make_emitter, make_env, population, reshaped, rows
from tests.tiny import assert_equal

KEY = jax.random.key(0)
CELL = qdax.compute_euclidean_centroids((1,), 0.0, 1.0)


def cut(tree: Any, count: int) -> Any:
    """The first `count` rows."""
    return jax.tree.map(lambda leaf: leaf[:count], tree)


@pytest.mark.parametrize(("width", "size"), [(0, 0), (2, 1)])
def test_a_buffer_of_one_row_stores_transitions_without_a_descriptor(width: int, size: int):
    row = QDTransition.init_dummy(observation_dim=size, action_dim=size, descriptor_dim=width)
    buffer = ReplayBuffer.init(1, row).insert(row).insert(row)
    assert (int(buffer.current_size), int(buffer.current_position)) == (1, 0)
    drawn = buffer.sample(KEY, 1)
    assert type(drawn) is QDTransition
    assert_equal(drawn, row)
    assert (buffer.sample(KEY, 0).state_desc.shape, row.flatten_dim) == ((0, width), 3 * size + 3 + 2 * width)
    assert_equal(buffer.insert(cut(row, 0)), buffer)
    assert_equal(ReplayBuffer.init(1, cut(row, 0)), ReplayBuffer.init(1, row))  # an empty batch has shapes, too
    assert_equal(jax.jit(lambda stored, one: stored.insert(one))(ReplayBuffer.init(1, row), row).sample(KEY, 1), row)


def test_a_repertoire_of_one_cell_with_no_and_with_one_genotype():
    genotypes, fitness, place = {"x": jnp.arange(1.0)}, jnp.zeros(1), jnp.full((1, 1), 0.5)
    none: Any = cut((genotypes, fitness, place), 0)
    empty = MapElitesRepertoire.init(none[0], none[1], none[2], CELL)
    assert_equal(empty, MapElitesRepertoire.init_default({"x": jnp.zeros(())}, CELL))
    assert_equal(empty.add(none[0], none[2], none[1]), empty)
    assert qdax.default_qd_metrics(empty, 1.0) == {"qd_score": 0.0, "max_fitness": -np.inf, "coverage": 0.0}
    one = MapElitesRepertoire.init(genotypes, fitness, place, CELL)
    assert_equal(empty.add(genotypes, place, fitness), one)
    assert qdax.default_qd_metrics(one, 1.0) == {"qd_score": 1.0, "max_fitness": 0.0, "coverage": 100.0}
    assert [one.select(KEY, count).fitnesses.tolist() for count in (0, 1)] == [[], [[0.0]]]
    assert qdax.compute_cvt_centroids(1, 1, 1, 0.0, 1.0, KEY).shape == CELL.shape == (1, 1)
    for count in (0, 1):
        pair = {"x": jnp.ones((count, 2))}, {"x": jnp.zeros((count, 2))}
        assert_equal(qdax.isoline_variation(*pair, KEY, 0.0, 0.0), pair[0])


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_actions_of_empty_batches_batches_of_one_and_single_observations(kind: Any):
    learner, noise = agent(kind, 1), {} if kind is SAC else {"expl_noise": 0.1}
    params = learner.init(KEY, 1, 1).policy_params
    for leading in ((), (2, 0)):
        for deterministic in (False, True):
            action = learner.select_action(jnp.zeros((*leading, 1)), params, KEY, deterministic=deterministic, **noise)
            assert (action.shape, action.dtype) == ((*leading, 1), jnp.float32)


def test_a_population_of_one_is_not_replaced():
    learner, states, buffers = population(PBTTD3, 1, capacity=1, stored=1)
    env = make_env(1)
    first = reshaped(jax.jit(env.reset)(KEY), 1, 1)
    _, metrics = jax.eval_shape(learner.get_train_fn(env, 1, 1, 1.0), states, first, buffers)
    assert metrics["critic_loss"].shape == (1, 1), "it trains in one environment"
    exploits = [PBT(1, *counts).update_states_and_buffer for counts in ((1, 0), (0, 1))]
    for kept, stored in jax.jit(lambda *given: [exploit(KEY, *given) for exploit in exploits])(
        jnp.zeros(1), states, buffers
    ):
        assert_equal((kept.learned, kept.hyper, stored), (states.learned, states.hyper, buffers))
    bare = jax.vmap(states.empty_optimizers_states)(states)
    assert_equal(qdax.td3_pbt_variation_fn(cut(bare, 0), cut(bare, 0), KEY, 0.1, 0.1), cut(bare, 0))


def emitter(**changes: int) -> PBTEmitter:
    sizes: Any = {"env_batch_size": 1, "pg_population_size_per_device": 1, "ga_population_size_per_device": 0}
    fractions = {"fraction_best_to_replace_from": 1.0, "fraction_to_replace_from_samples": 0.0}
    return make_emitter(env_size=1, **{**sizes, **fractions, **changes})


def test_an_emitter_of_one_member_and_no_variation_emits_it():
    learner, states = emitter(), population(PBTTD3, 1, capacity=1, stored=1)[1]
    genotypes = jax.vmap(states.empty_optimizers_states)(states)
    state = jax.jit(learner.init)(KEY, None, genotypes, None, None, None)
    emitted, _ = learner.emit(MapElitesRepertoire.init_default({"x": jnp.zeros(())}, CELL), state, KEY)
    assert learner.batch_size == 1
    assert_equal(emitted, genotypes)


def test_a_single_skill_is_always_recognised():
    config: dict[str, Any] = {"num_skills": 1, **NETS}
    learner, env = DIAYN(DiaynConfig(8, T, **config), 2), make_env(1)
    state, row = jax.jit(lambda key: learner.init(key, 2, 2, 2))(KEY), QDTransition.init_dummy(3, 2, 2)
    play = partial(learner.play_step_fn, skills=jnp.eye(1), env=env, deterministic=True)
    reached = env.reset(KEY)
    assert_equal(warmstart_buffer(ReplayBuffer.init(1, row), state, reached, play, 0, 1)[1], reached)
    _, returns, diverse, places = jax.jit(lambda state: learner.eval_policy_fn(state, reached, play, 1))(state)
    assert (returns.shape, diverse.tolist(), places.shape) == ((1,), [0.0], (T, 1, 2))


REJECTED: dict[str, Any] = {
    "capacity of a buffer must be at least 1": lambda: ReplayBuffer.init(0, rows(1)),
    "num_skills": lambda: DIAYN(DiaynConfig(8, T, num_skills=0), 2),
    "descriptor_size": lambda: DIAYN(DiaynConfig(8, T), 2).init(KEY, 2, 2, 0),
    "observation_size": lambda: agent(SAC).init(KEY, 2, 0),
    "action_size": lambda: agent(TD3, 0),
    "population_size": lambda: PBT(0, 0, 0),
    "population_size must": lambda: agent(PBTSAC).get_init_fn(0, 2, 2, 4),
    "num_iterations": lambda: agent(PBTSAC).get_train_fn(make_env(1), 0, 1, 1.0),
    "pg_population_size_per_device": lambda: emitter(pg_population_size_per_device=0),
    "env_batch_size": lambda: emitter(env_batch_size=0),
    "env_batch_size must": lambda: warmstart_buffer(None, None, None, None, 1, 0),  # pyright: ignore[reportArgumentType]
    "batch_size": lambda: make_env(0),
    "batch_size must": lambda: agent(SAC, batch_size=0),
    "episode_length": lambda: agent(SAC, episode_length=0),
    "grid needs at least 1 cell": lambda: qdax.compute_euclidean_centroids((0,), 0.0, 1.0),
    "limits of one equal size >= 1": lambda: qdax.compute_euclidean_centroids((), 0.0, 1.0),
    "cells must": lambda: qdax.compute_cvt_centroids(1, 1, 0, 0.0, 1.0, KEY),
    "max_steps": lambda: TruncationWrapper(Goals(1), 0),
    "n_actors": lambda: Continuous(Goals(0), Params(), CONFIG),
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_size_of_zero_is_rejected_by_its_name(name: str):
    message = (
        name if " " in name and not name.endswith(" must") else f"^{name.removesuffix(' must')} must be at least 1"
    )
    with pytest.raises(ValueError, match=message):
        REJECTED[name]()


def test_a_team_of_one_learns_from_one_environment():
    sizes = dict.fromkeys(["n_steps", "batch_size", "minibatch_size", "actor_epochs", "critic_epochs"], 1)
    networks = {"actor_network": partial(Actor, outputs=1), "critic_network": partial(Critic, n_critics=1)}
    config = CONFIG._replace(**sizes, **networks, rollout_length=2, max_episode_steps=1, eval_frequency=1, n_evals=1)
    learner = Continuous(Goals(1), Params(), config)
    runner, metrics = learner.train(KEY, HYPER)
    assert {name: value.shape[1:] for name, value in metrics.items()} == {
        **{"actor_loss": (1,), "critic_loss": (1,), "terminated": (1,), "truncated": (1,)},
        **{"final_rewards": (1, 1), "returns": (1, 1)},
    }
    learner.collect_training(runner, metrics)
    statistics = learner.summarize(metrics["terminated"])
    assert [stat.shape for stat in statistics] == [(2, 1), *[(2,)] * 7]
    with pytest.raises(ValueError, match=r"^n_evals must be at least 1, got 0"):
        learner.eval(KEY, 0)
    with pytest.raises(ValueError, match=r"metrics of shape \(3, 0\) contain no episode"):
        learner.summarize(jnp.zeros((3, 0)))
