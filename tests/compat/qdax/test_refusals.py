"""QDax's documented classes: cases that once gave wrong results or obscure errors."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rookery.compat import qdax
from rookery.compat.qdax import DIAYN, PBT, PBTSAC, DiaynConfig, DistributedMAPElites, MAPElites, ReplayBuffer
from tests.compat.qdax.documented import NETS, T, agent, make_emitter, make_env, population, reshaped, rows

SKILLS = 2


def make_diayn(**changes: Any) -> DIAYN:
    return DIAYN(DiaynConfig(8, T, **{"num_skills": SKILLS, **NETS, **changes}), 2)


def search(kind: type[MAPElites] = MAPElites, devices: int = 1) -> MAPElites:
    """MAP-Elites with an ME-PBT emitter, in which all genotypes have the same fitness."""

    def score(genotypes: Any, key: jax.Array) -> tuple:
        del key
        count = genotypes.steps.shape[0]
        return jnp.ones(count), jnp.full((count, 2), 0.5), {}

    metrics = partial(qdax.default_qd_metrics, qd_offset=0.0)
    return kind(score, make_emitter(PBTSAC, num_devices=devices), metrics)


def test_an_emitter_runs_on_the_configured_number_of_devices():
    arguments = qdax.compute_euclidean_centroids((2, 2), 0.0, 1.0), jax.random.key(0)
    states = population(PBTSAC, 5)[1]
    genotypes = states.empty_optimizers_states(states)
    for searching, given, message in (
        (search(devices=2), genotypes, "num_devices is 2, but 1 devices share the axis 'p'"),
        (search(DistributedMAPElites), genotypes, "only inside a mapped axis 'p'"),
        (search(), states, r"must not have optimizer states; .*empty_optimizers_states"),
    ):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(searching.init, given, *arguments)
    distributed: Any = search(DistributedMAPElites)
    with pytest.raises(ValueError, match="arguments need a row for each of"):
        distributed.get_distributed_init_fn(arguments[0], None)(
            genotypes=genotypes, key=jax.random.split(arguments[1], 5)
        )


def test_another_number_of_environments_is_rejected():
    one, env = agent(qdax.SAC), make_env(4)
    state, env_state = jax.eval_shape(lambda key: (one.init(key, 2, 2), env.reset(key)), jax.random.key(0))
    held, play = ReplayBuffer.init(64, rows(1)), partial(one.play_step_fn, env=env)
    with pytest.raises(ValueError, match=r"env_batch_size is 10, but \(4,\) environments were stepped"):
        jax.eval_shape(lambda a, b: qdax.do_iteration_fn(a, b, held, 10, 0.0, play, one.update), state, env_state)
    nested = jax.eval_shape(lambda tree: reshaped(tree, 2, 2), env_state)
    with pytest.raises(ValueError, match=r"map step with jax\.vmap"):
        jax.eval_shape(play, nested, state)


def test_an_evaluation_of_skills_uses_the_statistics_and_leaves_them_unchanged():
    learner, env = make_diayn(normalize_observations=True, descriptor_full_state=True), make_env(4)
    state, env_state = jax.jit(lambda key: (learner.init(key, 2, 2, 2), env.reset(key)))(jax.random.key(0))
    skills = jnp.tile(jnp.eye(SKILLS), (2, 1))
    play = jax.jit(partial(learner.play_step_fn, skills=skills, env=env), static_argnames="deterministic")
    env_state, state, _ = play(env_state, state)
    _, evaluated, _ = play(env_state, state, deterministic=True)
    assert float(evaluated.normalization_running_stats.count) == float(state.normalization_running_stats.count) == 4.0
    # A discriminator whose output depends strongly on its input.
    sharp = jax.tree.map(lambda leaf: leaf + 0.3, state.discriminator_params)
    kernel = sharp["params"]["Dense_1"]["kernel"]
    sharp["params"]["Dense_1"]["kernel"] = kernel.at[:, 0].multiply(-1.0)
    state = state.replace(discriminator_params=sharp)
    evaluator = partial(learner.eval_policy_fn, eval_env_first_state=env_state, env_batch_size=4)
    normalized = jax.jit(partial(evaluator, play_step_fn=partial(play, deterministic=True)))(state)
    without = state.replace(normalization_running_stats=None)
    bare = jax.jit(partial(evaluator, play_step_fn=lambda *both: _step_with(play, state, *both)))(without)
    assert jnp.allclose(normalized[1], bare[1])
    assert not jnp.allclose(normalized[2], bare[2], rtol=1e-3)


def _step_with(play: Any, state: Any, env_state: Any, other: Any) -> tuple:
    """A step with the training state `state` instead of the given one."""
    env_state, _, row = play(env_state, state, deterministic=True)
    return env_state, other, row


def test_errors_name_the_argument():
    made, states, held = population(PBTSAC, 4)
    with pytest.raises(ValueError, match=r"population_returns must be mean returns \[P\], got shape \(4, 2\)"):
        PBT(4, 1, 1).update_states_and_buffer(jax.random.key(0), jnp.ones((4, 2)), states, held)
    with pytest.raises(ValueError, match=r"obs of this buffer have shape \(4,\), got \(2,\)"):
        ReplayBuffer.init(8, qdax.Transition.init_dummy(4, 2)).insert(rows(3))
    with pytest.raises(ValueError, match="5 rows at once do not fit a buffer of 4"):
        ReplayBuffer.init(4, rows(1)).insert(rows(5))
    with pytest.raises(ValueError, match="created for Transition, got QDTransition; insert the same class"):
        ReplayBuffer.init(4, rows(1)).insert(qdax.QDTransition.init_dummy(2, 2, 2))
    with pytest.raises(ValueError, match="created for action_size 2, got 3"):
        agent(qdax.SAC).init(jax.random.key(0), action_size=3, observation_size=2)
    with pytest.raises(ValueError, match="learns from QDTransition, but the buffer stores Transition"):
        make_diayn().update(make_diayn().init(jax.random.key(0), 2, 2, 2), ReplayBuffer.init(8, rows(1)))
    with pytest.raises(ValueError, match="limits of 2 dimensions must be one number or 2 numbers"):
        qdax.compute_cvt_centroids(2, 100, 4, [0.0], [1.0], jax.random.key(0))
    assert made.kind is qdax.PBTSacTrainingState


def test_sigmas_may_be_traced():
    pair = jnp.ones((3, 2)), jnp.zeros((3, 2))
    vary = jax.jit(lambda iso, line: qdax.isoline_variation(*pair, jax.random.key(0), iso, line))
    assert (vary(0.0, 0.0) == pair[0]).all()
    assert not (vary(0.1, 0.5) == pair[0]).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": float("nan")}, r"^learning_rate must lie in \(0, inf\), got nan\.$"),
        ({"batch_size": 4.0}, r"^batch_size must be a whole number, got 4\.0\.$"),
        ({"soft_tau_update": 3.0}, r"^soft_tau_update must lie in \(0, 1\], got 3\.$"),
        ({"expl_noise": -1.0}, r"^expl_noise must lie in \[0, inf\), got -1\.$"),
    ],
)
def test_numbers_out_of_range_are_named_at_construction(changes: dict[str, Any], message: str):
    kind, config = (qdax.TD3, qdax.TD3Config) if {*changes} <= {*vars(qdax.TD3Config())} else (qdax.SAC, qdax.SacConfig)
    with pytest.raises(ValueError, match=message):
        kind(config(**{"batch_size": 8, "episode_length": T, **NETS, **changes}), 2)
