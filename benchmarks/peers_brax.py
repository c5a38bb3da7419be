"""The same agents on Brax's tasks by Rookery and by Brax's own trainers.

The settings are those of `peers_gymnasium.Settings`. SAC has 10 environments, one update per environment step, and
Brax's target entropy of minus half the size of the action. PPO has 64 environments with 32 steps each per rollout, 10
epochs of 32 minibatches of 64 rows, layers of 64 with tanh, as Rookery's; observations are normalised, rewards are not,
since Brax scales them by a constant only. What has no common setting is left as each library has it: PPO's initial
weights, the distribution of PPO's actions (Brax: a normal one, then tanh), SAC's standard deviation (Brax: softplus in
place of exp), the actions before the first update of SAC (Brax: those of the untrained policy; here uniform ones),
PPO's epsilon of Adam, and whether a rollout's minibatches consist of whole sequences (Brax) or of single rows.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers_gymnasium import (
    CLIP_EPSILON,
    ENTROPY_COEFFICIENT,
    GAE_LAMBDA,
    MAX_GRAD_NORM,
    VALUE_COEFFICIENT,
    ActFn,
    Settings,
)

BACKEND, EPISODE_LENGTH = "spring", 1_000
TARGET_ENTROPY_SCALE = 0.5
"""Brax's, which is not a parameter of its trainer."""


def learning_settings(agent: str, task: str, steps: int) -> Settings:
    """The settings of a learning curve, see above."""
    if agent == "ppo":
        return Settings("ppo", task, (64, 64), num_envs=64, batch_size=64, rollout_length=32, normalize=True)
    sizes = {"num_envs": 10, "learning_starts": min(10_000, steps // 2), "buffer_size": steps}
    return Settings(agent, task, (64, 64), **sizes, target_entropy_scale=TARGET_ENTROPY_SCALE)


def scaled(act: ActFn, _: str) -> ActFn:
    """Brax's actions are in [-1, 1]."""
    return act


def returns(act: ActFn, params: Any, task: str, seeds: Sequence[int]) -> np.ndarray:
    """Returns `[N]` of full episodes in Brax's environment that are reset with keys of `seeds`."""
    return np.asarray(_episodes(task, act)(params, jnp.asarray(seeds)))


@cache
def _episodes(task: str, act: ActFn) -> Callable:
    from brax import envs

    return jax.jit(partial(_run_episodes, envs.get_environment(task, backend=BACKEND), act))


def _run_episodes(env: Any, act: ActFn, params: Any, seeds: jax.Array) -> jax.Array:
    states = jax.vmap(env.reset)(jax.vmap(jax.random.PRNGKey)(seeds))

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        states, active, totals = carry
        states = jax.vmap(env.step)(states, jnp.clip(act(params, states.obs), -1.0, 1.0))
        return (states, active & (states.done == 0), totals + jnp.where(active, states.reward, 0.0)), None

    start = states, jnp.ones(len(seeds), bool), jnp.zeros(len(seeds))
    return jax.lax.scan(step, start, length=EPISODE_LENGTH)[0][2]


def train(settings: Settings, seed: int, steps: int, every: int, evaluate: Callable[[int, ActFn, Any], None]) -> float:
    """Train Brax's agent; see `peers_gymnasium.train`. The seconds include compilation."""
    common = {
        **arguments(settings.task, steps),
        "seed": seed,
        **{"num_envs": settings.num_envs, "learning_rate": settings.learning_rate, "discounting": settings.discount},
        **{"num_evals": steps // every + 1, "num_eval_envs": 1},
        "normalize_observations": settings.normalize,
    }
    started = time.perf_counter()
    policies = (_ppo if settings.agent == "ppo" else _sac)(settings, common)
    seconds = time.perf_counter() - started
    for done, act, params in policies:
        evaluate(done, act, params)
    return seconds


def arguments(task: str, steps: int) -> dict[str, Any]:
    """What every trainer of Brax takes.

    JAX 0.10 has no `device_put_replicated`, which Brax 0.14 calls; for one device it adds an axis of size 1.
    """
    from brax import envs

    if not hasattr(jax, "device_put_replicated"):
        setattr(jax, "device_put_replicated", _replicate)  # noqa: B010 - the type checker knows no such name
    environment = envs.get_environment(task, backend=BACKEND)
    sizes = {"num_timesteps": steps, "episode_length": EPISODE_LENGTH, "max_devices_per_host": 1}
    return {"environment": environment, **sizes}


def _replicate(tree: Any, devices: Sequence[Any]) -> Any:
    return jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * len(devices)), tree)


def ppo_trainer(hidden_sizes: tuple[int, ...], **options: Any) -> None:
    """Run Brax's PPO trainer without evaluations, with tanh layers; `options` are its own."""
    from brax.training.agents.ppo import networks, train

    sizes = {"policy_hidden_layer_sizes": hidden_sizes, "value_hidden_layer_sizes": hidden_sizes}
    factory = partial(networks.make_ppo_networks, activation=jnp.tanh, **sizes)
    train.train(**options, network_factory=factory, run_evals=False)


def _ppo(settings: Settings, common: dict[str, Any]) -> list[tuple[int, ActFn, Any]]:
    policies: list[tuple[int, ActFn, Any]] = []

    def keep(step: int, make_policy: Callable, params: Any) -> None:
        if step:
            policies.append((step, _act(make_policy), jax.device_get(params)))

    ppo_trainer(
        settings.hidden_sizes,
        **common,
        unroll_length=settings.rollout_length,
        batch_size=settings.num_envs // settings.minibatches,
        num_minibatches=settings.minibatches,
        num_updates_per_batch=settings.epochs,
        entropy_cost=ENTROPY_COEFFICIENT,
        gae_lambda=GAE_LAMBDA,
        clipping_epsilon=CLIP_EPSILON,
        max_grad_norm=MAX_GRAD_NORM,
        vf_loss_coefficient=VALUE_COEFFICIENT,
        policy_params_fn=keep,
    )
    first = policies[0][1]  # one function, so that episodes are compiled once
    return [(step, first, params) for step, _, params in policies]


def _sac(settings: Settings, common: dict[str, Any]) -> list[tuple[int, ActFn, Any]]:
    from brax.training.agents.sac import checkpoint, networks, train

    with tempfile.TemporaryDirectory() as folder:
        make_policy, _, _ = train.train(
            **common,
            batch_size=settings.batch_size,
            tau=settings.tau,
            min_replay_size=settings.learning_starts,
            max_replay_size=settings.buffer_size,
            grad_updates_per_step=settings.num_envs,
            network_factory=partial(networks.make_sac_networks, hidden_layer_sizes=settings.hidden_sizes),
            checkpoint_logdir=folder,
        )
        act = _act(make_policy)
        return [(int(path.name), act, checkpoint.load(str(path))) for path in sorted(Path(folder).glob("0*"))]


def _act(make_policy: Callable) -> ActFn:
    return partial(_deterministic, make_policy)


def _deterministic(make_policy: Callable, params: Any, observations: Any) -> Any:
    return make_policy(params, deterministic=True)(observations, jax.random.PRNGKey(0))[0]
