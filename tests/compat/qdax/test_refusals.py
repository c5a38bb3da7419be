"""QDax's documented classes: what was silently wrong or a stranger's error once, and is a sentence or right now."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rookery.compat import qdax
from rookery.compat.qdax import DIAYN, PBT, PBTSAC, DiaynConfig, MAPElites, PBTEmitter, PBTEmitterConfig, ReplayBuffer
from tests.compat.qdax.documented import NETS, T, agent, population, room, rows

SKILLS = 2


def diayn(**changes: Any) -> DIAYN:
    return DIAYN(DiaynConfig(8, T, **{"num_skills": SKILLS, **NETS, **changes}), 2)


def emitter(devices: int = 1) -> PBTEmitter:
    sizes = {"pg_population_size_per_device": 2, "ga_population_size_per_device": 3, "num_devices": devices}
    fractions: Any = {"fraction_best_to_replace_from": 0.5, "fraction_to_replace_from_best": 0.0}
    config = PBTEmitterConfig(
        16, 1, 2, 1.0, **sizes, **fractions, fraction_to_replace_from_samples=0.5, fraction_sort_exchange=0.1
    )
    vary = partial(qdax.sac_pbt_variation_fn, iso_sigma=0.01, line_sigma=0.0)
    return PBTEmitter(agent(PBTSAC), config, room(4), vary)


def stripped(count: int = 5) -> Any:
    states = agent(PBTSAC).get_init_fn(count, 2, 2, 4)(jax.random.key(0))[0]
    return jax.vmap(states.empty_optimizers_states)(states)


def judged(genotypes: Any, fitness: float) -> tuple:
    count = genotypes.steps.shape[0]
    return jnp.full(count, fitness), jnp.full((count, 2), 0.5), {}


def test_an_empty_repertoire_breeds_the_members_and_nothing_of_zeros():
    hopeless = MAPElites(lambda genotypes, key: judged(genotypes, jnp.nan), emitter(), lambda repertoire: {})  # noqa: ARG005
    cells = qdax.compute_euclidean_centroids((2, 2), 0.0, 1.0)
    repertoire, state, _ = jax.jit(hopeless.init)(stripped(), cells, jax.random.key(1))
    assert not jnp.isfinite(repertoire.fitnesses).any()
    assert (state.training_states.hyper.tau > 0).all()
    emitted, _ = jax.jit(emitter().emit)(repertoire, state, jax.random.key(2))
    assert (emitted.hyper.tau > 0).all()
    assert (jnp.abs(emitted.policy_params["params"]["Dense_0"]["kernel"]).max(axis=(1, 2)) > 0).all()


def test_an_emitter_runs_on_as_many_devices_as_it_was_told():
    cells, genotypes = qdax.compute_euclidean_centroids((2, 2), 0.0, 1.0), stripped()
    lost = MAPElites(lambda genotypes, key: judged(genotypes, 1.0), emitter(2), lambda repertoire: {})  # noqa: ARG005
    with pytest.raises(ValueError, match="num_devices is 2, but 1 devices share the axis 'p'"):
        lost.init(genotypes, cells, jax.random.key(0))
    apart = qdax.DistributedMAPElites(lambda genotypes, key: judged(genotypes, 1.0), emitter(), lambda _: {})  # noqa: ARG005
    with pytest.raises(ValueError, match="only inside a mapped axis 'p'"):
        apart.init(genotypes, cells, jax.random.key(0))
    alive = jax.vmap(genotypes.init_optimizers_states)(genotypes)
    alone = MAPElites(lambda genotypes, key: judged(genotypes, 1.0), emitter(), lambda repertoire: {})  # noqa: ARG005
    with pytest.raises(ValueError, match=r"must not have optimizer states; .*empty_optimizers_states"):
        alone.init(alive, cells, jax.random.key(0))


def test_iterations_notice_another_number_of_environments():
    one, env = agent(qdax.SAC), room(4)
    state, where = one.init(jax.random.key(0), 2, 2), env.reset(jax.random.key(1))
    held, play = ReplayBuffer.init(64, rows(1)), partial(one.play_step_fn, env=env)
    with pytest.raises(ValueError, match=r"env_batch_size is 10, but \(4,\) environments were stepped"):
        qdax.do_iteration_fn(state, where, held, 10, 0.0, play, one.update)
    with pytest.raises(ValueError, match="env_batch_size is 2, but"):
        qdax.warmstart_buffer(held, state, where, play, 8, 2)
    with pytest.raises(ValueError, match=r"map step with jax\.vmap"):
        play(jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), where), state)


def test_an_evaluation_of_skills_leaves_the_statistics_and_uses_them():
    learner, env = diayn(normalize_observations=True, descriptor_full_state=True), room(4)
    state, where = learner.init(jax.random.key(0), 2, 2, 2), env.reset(jax.random.key(1))
    skills = jnp.tile(jnp.eye(SKILLS), (2, 1))
    play = partial(learner.play_step_fn, skills=skills, env=env)
    where, state, _ = play(where, state)
    _, judged_by, _ = play(where, state, deterministic=True)
    assert float(judged_by.normalization_running_stats.count) == float(state.normalization_running_stats.count) == 4.0
    # An opinionated discriminator, so that what it is shown shows.
    sharp = jax.tree.map(lambda leaf: leaf + 0.3, state.discriminator_params)
    kernel = sharp["params"]["Dense_1"]["kernel"]
    sharp["params"]["Dense_1"]["kernel"] = kernel.at[:, 0].multiply(-1.0)
    state = state.replace(discriminator_params=sharp)
    evaluator = partial(learner.eval_policy_fn, eval_env_first_state=where, env_batch_size=4)
    told = evaluator(state, play_step_fn=partial(play, deterministic=True))
    bare = evaluator(
        state.replace(normalization_running_stats=None), play_step_fn=lambda *both: _played_by(play, state, *both)
    )
    assert jnp.allclose(told[1], bare[1])
    assert not jnp.allclose(told[2], bare[2], rtol=1e-3)


def _played_by(play: Any, state: Any, where: Any, other: Any) -> tuple:
    """A step as `state` makes it, whoever is asked."""
    where, _, told = play(where, state, deterministic=True)
    return where, other, told


def test_mistakes_are_told_in_the_words_of_their_place():
    made, states, held = population(PBTSAC, 4)
    pbt = PBT(4, 1, 1)
    with pytest.raises(ValueError, match=r"population_returns must be mean returns \[P\], got shape \(4, 2\)"):
        pbt.update_states_and_buffer(jax.random.key(0), jnp.ones((4, 2)), states, held)
    with pytest.raises(ValueError, match=r"obs of this buffer have shape \(4,\), got \(2,\)"):
        ReplayBuffer.init(8, qdax.Transition.init_dummy(4, 2)).insert(rows(3))
    with pytest.raises(ValueError, match="capacity of at least 1"):
        ReplayBuffer.init(0, rows(1))
    with pytest.raises(ValueError, match="learns from QDTransition, but the buffer stores Transition"):
        diayn().update(diayn().init(jax.random.key(0), 2, 2, 2), ReplayBuffer.init(8, rows(1)))
    with pytest.raises(ValueError, match=r"tau must lie in \(0, 1\], got 2"):
        agent(PBTSAC, tau=2.0).init(jax.random.key(0), 2, 2)
    with pytest.raises(ValueError, match="limits of 2 dimensions must be one number or 2 numbers"):
        qdax.compute_cvt_centroids(2, 100, 4, [0.0], [1.0], jax.random.key(0))
    assert made.kind is qdax.PBTSacTrainingState


def test_sigmas_may_be_traced():
    pair = jnp.ones((3, 2)), jnp.zeros((3, 2))
    vary = jax.jit(lambda iso, line: qdax.isoline_variation(*pair, jax.random.key(0), iso, line))
    assert (vary(0.0, 0.0) == pair[0]).all()
    assert not (vary(0.1, 0.5) == pair[0]).any()
    assert (qdax.isoline_variation(*pair, jax.random.key(0), 5.0, 0.0, minval=0.5, maxval=0.6) >= 0.5).all()
