"""Programs written with QDax's documented classes learn."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.compat.qdax import (
    DIAYN,
    PBT,
    PBTSAC,
    PBTTD3,
    DiaynConfig,
    DistributedMAPElites,
    MAPElites,
    PBTEmitter,
    PBTEmitterConfig,
    PBTSacConfig,
    PBTTD3Config,
    QDTransition,
    ReplayBuffer,
    compute_cvt_centroids,
    default_qd_metrics,
    do_iteration_fn,
    environments,
    sac_pbt_variation_fn,
    td3_pbt_variation_fn,
    warmstart_buffer,
)

CONFIGS = {PBTSAC: PBTSacConfig, PBTTD3: PBTTD3Config}


def learner(kind: Any, episode_length: int, action_size: int, hidden: int) -> Any:
    sizes = {"policy_hidden_layer_size": (hidden,), "critic_hidden_layer_size": (hidden,)}
    return kind(CONFIGS[kind](batch_size=32, episode_length=episode_length, **sizes), action_size)


@pytest.mark.parametrize("kind", CONFIGS)
def test_pbt_finds_the_best_action(kind: Any):
    """The best action is half the observation; the action 0 has a return of -0.25."""
    task, population, num_envs = "probe_both", 4, 8
    env = environments.create(task, batch_size=population * num_envs, episode_length=1, auto_reset=True)
    eval_env = environments.create(task, batch_size=population * num_envs, episode_length=1, auto_reset=True)

    @jax.jit
    def begin(env_key: Any, eval_key: Any) -> Any:
        states = env.reset(rng=env_key), eval_env.reset(rng=eval_key)
        return jax.tree.map(lambda leaf: jnp.reshape(leaf, (population, num_envs, *leaf.shape[1:])), states)

    env_states, eval_env_first_states = begin(*jax.random.split(jax.random.key(0)))
    agent = learner(kind, 1, env.action_size, 16)
    init = agent.get_init_fn(
        population_size=population,
        action_size=env.action_size,
        observation_size=env.observation_size,
        buffer_size=2048,
    )
    training_states, replay_buffers = jax.jit(init)(jax.random.PRNGKey(3))
    train = jax.jit(
        agent.get_train_fn(env=env, num_iterations=100, env_batch_size=num_envs, grad_updates_per_step=0.25)
    )
    evaluate = jax.jit(agent.get_eval_fn(eval_env=eval_env))
    pbt = PBT(population_size=population, num_best_to_replace_from=1, num_worse_to_replace=1)
    exploit = jax.jit(pbt.update_states_and_buffer)
    untrained, _ = evaluate(training_states, eval_env_first_states)
    key, best = jax.random.PRNGKey(5), []
    for _ in range(8):
        key, exploit_key = jax.random.split(key)
        (training_states, env_states, replay_buffers), _ = train(training_states, env_states, replay_buffers)
        returns, _ = evaluate(training_states, eval_env_first_states)
        best.append(float(returns.max()))
        training_states, replay_buffers = exploit(exploit_key, returns, training_states, replay_buffers)
    assert max(best[-2:]) > -0.02
    assert float(untrained.max()) < -0.06


def build_me_pbt(kind: Any, vary: Any) -> tuple[Any, Any, Any]:
    """The parts of ME-PBT in the maze that both forms of it share."""
    members, num_envs, length = 4, 4, 20
    env = environments.create("point_maze", batch_size=members * num_envs, episode_length=length)
    eval_env = environments.create("point_maze", batch_size=1, episode_length=length)
    first = jax.jit(eval_env.reset)(rng=jax.random.key(1))
    agent = learner(kind, length, env.action_size, 16)
    config = PBTEmitterConfig(
        buffer_size=4096,
        num_training_iterations=40,
        env_batch_size=num_envs,
        grad_updates_per_step=0.5,
        pg_population_size_per_device=members,
        ga_population_size_per_device=2,
        num_devices=1,
        fraction_best_to_replace_from=0.25,
        fraction_to_replace_from_best=0.25,
        fraction_to_replace_from_samples=0.25,
        fraction_sort_exchange=0.25,
    )
    emitter = PBTEmitter(agent, config, env, partial(vary, iso_sigma=0.005, line_sigma=0.05))
    evaluator = agent.get_eval_qd_fn(eval_env, environments.descriptor_extractor["point_maze"])

    def score(genotypes: Any, key: Any) -> tuple:
        del key
        size = jax.tree.leaves(genotypes)[0].shape[0]
        firsts = jax.tree.map(lambda leaf: jnp.repeat(jnp.expand_dims(leaf, 0), size, axis=0), first)
        fitnesses, descriptors, _, _ = evaluator(genotypes, firsts)
        return fitnesses, descriptors, {}

    lower, upper = env.descriptor_limits
    cells = compute_cvt_centroids(
        num_descriptors=env.descriptor_length,
        num_init_cvt_samples=1000,
        num_centroids=32,
        minval=lower,
        maxval=upper,
        key=jax.random.key(2),
    )
    measure = partial(default_qd_metrics, qd_offset=environments.reward_offset["point_maze"] * length)
    init = agent.get_init_fn(emitter.batch_size, env.action_size, env.observation_size, config.buffer_size)
    states, _ = jax.jit(init)(jax.random.key(3))
    genotypes = jax.vmap(states.__class__.empty_optimizers_states)(states)
    return (score, emitter, measure), cells, genotypes


GENERATIONS = 10


def run_on_devices(parts: tuple, cells: Any, genotypes: Any) -> list[dict]:
    devices = jax.local_devices()[:1]
    search = DistributedMAPElites(scoring_function=parts[0], emitter=parts[1], metrics_function=parts[2])
    keys = jnp.stack([jax.random.PRNGKey(4)])
    init = search.get_distributed_init_fn(devices=devices, centroids=cells)
    repertoire, state, initial = init(genotypes=jax.tree.map(lambda leaf: leaf[None], genotypes), key=keys)
    update = search.get_distributed_update_fn(num_iterations=GENERATIONS, devices=devices)
    repertoire, state, later = update(repertoire, state, keys)
    return [jax.tree.map(lambda leaf: float(leaf[0]), initial), jax.tree.map(lambda leaf: float(leaf[0, -1]), later)]


def run_on_one_device(parts: tuple, cells: Any, genotypes: Any) -> list[dict]:
    search = MAPElites(scoring_function=parts[0], emitter=parts[1], metrics_function=parts[2])
    carry = jax.random.key(4)
    repertoire, state, initial = jax.jit(search.init)(genotypes, cells, carry)
    _, later = jax.lax.scan(search.scan_update, (repertoire, state, carry), (), length=GENERATIONS)
    return [jax.tree.map(float, initial), jax.tree.map(lambda leaf: float(leaf[-1]), later)]


@pytest.mark.parametrize(
    ("kind", "vary", "search", "score", "coverage"),
    [
        (PBTSAC, sac_pbt_variation_fn, run_on_devices, 25.0, 4.5),
        (PBTTD3, td3_pbt_variation_fn, run_on_one_device, 43.0, 11.0),
    ],
)
def test_me_pbt_fills_its_cells_with_trained_members(kind: Any, vary: Any, search: Any, score: float, coverage: float):
    """With one iteration of training in each generation instead of 40 the score grows by 17 (SAC) and 25 (TD3) instead
    of 32 and 61, the coverage by 3 and 6 instead of 6 and 16; the bounds are in the middle."""
    before, after = search(*build_me_pbt(kind, vary))
    assert after["qd_score"] > before["qd_score"] + score
    assert after["coverage"] > before["coverage"] + coverage
    assert after["max_fitness"] >= before["max_fitness"]


def test_the_skills_of_diayn_are_recognised():
    """By their final positions; a random guess is right in one of 4 cases."""
    num_skills, num_envs, length = 4, 16, 10
    env = environments.create("point_room", batch_size=num_envs, episode_length=length)
    eval_env = environments.create("point_room", batch_size=num_envs, episode_length=length, eval_metrics=True)
    dummy = QDTransition.init_dummy(
        observation_dim=env.observation_size + num_skills,
        action_dim=env.action_size,
        descriptor_dim=env.state_descriptor_length,
    )
    replay_buffer = ReplayBuffer.init(buffer_size=4096, transition=dummy)
    config = DiaynConfig(
        batch_size=64,
        episode_length=length,
        learning_rate=3e-3,
        discount=0.9,
        alpha_init=0.1,
        policy_hidden_layer_size=(32,),
        critic_hidden_layer_size=(32,),
        num_skills=num_skills,
    )
    diayn = DIAYN(config=config, action_size=env.action_size)
    training_state = diayn.init(
        jax.random.key(2),
        action_size=env.action_size,
        observation_size=env.observation_size,
        descriptor_size=env.state_descriptor_length,
    )
    skills = jnp.concatenate([jnp.eye(num_skills)] * (num_envs // num_skills), axis=0)
    play = partial(diayn.play_step_fn, skills=skills, env=env, deterministic=False)
    play_eval = partial(diayn.play_step_fn, skills=skills, env=eval_env, deterministic=True)
    warm = jax.jit(partial(warmstart_buffer, play_step_fn=play, num_warmstart_steps=160, env_batch_size=num_envs))
    env_state = jax.jit(env.reset)(rng=jax.random.key(0))
    replay_buffer, env_state, training_state = warm(replay_buffer, training_state, env_state)
    assert int(replay_buffer.current_size) == 160
    iterate = partial(
        do_iteration_fn,
        env_batch_size=num_envs,
        grad_updates_per_step=0.125,
        play_step_fn=play,
        update_fn=diayn.update,
    )

    @jax.jit
    def scan_iteration(carry: Any, _: Any) -> Any:
        training_state, env_state, replay_buffer, metrics = iterate(*carry)
        return (training_state, env_state, replay_buffer), metrics

    evaluator = jax.jit(partial(diayn.eval_policy_fn, play_step_fn=play_eval, env_batch_size=num_envs))
    first = jax.jit(eval_env.reset)(rng=jax.random.key(1))
    _, _, untrained, _ = evaluator(training_state, first)
    carry = (training_state, env_state, replay_buffer)
    (training_state, _, _), metrics = jax.lax.scan(scan_iteration, carry, (), length=300)
    assert metrics["discriminator_loss"].shape == (300, 2)
    true_return, true_returns, diverse, places = evaluator(training_state, first)
    accuracy = metrics["discriminator_accuracy"][-20:].mean()
    assert float(untrained.mean()) < 2.0
    assert float(diverse.mean()) > 8.0  # of 10 steps, each worth at most log 4 = 1.39
    assert float(accuracy) > 0.7
    assert places.shape == (length, num_envs, 2)
    assert -0.02 * length <= float(true_return) <= 0.0
    np.testing.assert_allclose(true_return, true_returns.mean(), rtol=1e-5)
