"""The same agents on Gymnasium's environments by Rookery, SBX (JAX) and stable-baselines3 (PyTorch).

`Settings` has the values that all three take: sizes of networks, batches and buffers, learning rates, discount, the
numbers of steps and updates. They are the defaults of SBX 0.28, except for TD3's exploration noise, of which SBX has
none by default: N(0, 0.1) of Fujimoto 2018 is given to all. TD3's target networks move by `tau` in every update in SBX;
here, as in Fujimoto 2018, in every second one, by as much as in two of SBX. Its policy maximises the smaller value of
both critics, as in SBX and by default not here. What has no common setting is left as each library has it: initial
weights, Adam's epsilon, and the loss's constant factors. DQN is that of SBX: one network of plain layers whose
maximum values the next state, without double Q-learning.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import rookery
from rookery import hyperparams
from rookery.agents.base import OffPolicyAgent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.envs.base import Environment
from rookery.learners.base import Learner
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy

INSTALL = "SBX or stable-baselines3 is not installed; create an environment with them: benchmarks/peers.sh"
AGENTS = ("sac", "td3", "ppo", "dqn")
POLICY_DELAY, ENTROPY_COEFFICIENT, CLIP_EPSILON, GAE_LAMBDA, VALUE_COEFFICIENT, MAX_GRAD_NORM = (
    2,
    0.0,
    0.2,
    0.95,
    0.5,
    0.5,
)
POLICY_CRITIC = "smaller"
NO_LIMIT = 1e9
"""Threshold of PPO's KL divergence in place of none, which SBX has."""


class Settings(NamedTuple):
    """The settings of one agent on one task."""

    agent: str
    task: str
    """Gymnasium's id."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    num_envs: int = 1
    batch_size: int = 256
    learning_rate: float = 3e-4
    discount: float = 0.99
    tau: float = 0.005
    learning_starts: int = 100
    """Environment steps before the first update, with random actions."""
    buffer_size: int = 1_000_000
    exploration_noise: float = 0.1
    """Of TD3."""
    epsilon: float = 0.05
    """Of DQN: the share of random actions after it has fallen from 1."""
    exploration_share: float = 0.1
    """Of DQN: the share of the run over which it falls."""
    rollout_length: int = 256
    """Steps of each environment in a rollout of PPO."""
    epochs: int = 10
    """Of PPO."""
    normalize: bool = False
    """Whether observations are normalised by running statistics, for PPO; in SBX by `VecNormalize`."""
    normalize_rewards: bool = False
    """Whether rewards are divided by the standard deviation of discounted returns, for PPO; likewise."""
    target_entropy_scale: float = 1.0
    """Of SAC: the target entropy is minus this times the size of the action."""

    @property
    def rows(self) -> int:
        """Environment steps of a rollout of PPO."""
        return self.num_envs * self.rollout_length

    @property
    def minibatches(self) -> int:
        """Minibatches in an epoch of PPO."""
        return self.rows // self.batch_size

    def whole_rollouts(self, steps: int) -> int:
        """At least `steps` environment steps: of all environments together, and for PPO in whole rollouts."""
        unit = self.rows if self.agent == "ppo" else self.num_envs
        return -(-steps // unit) * unit


def ppo_settings(task: str, num_envs: int = 8, rows: int = 2_048, **more: Any) -> Settings:
    """SBX's defaults of PPO, with its 2,048 steps of a rollout divided among the environments."""
    sizes = {"hidden_sizes": (64, 64), "batch_size": 64, "num_envs": num_envs, "rollout_length": rows // num_envs}
    return Settings("ppo", task, **sizes, **more)


def chosen(settings: Settings) -> dict[str, float]:
    """The hyper-parameters of Rookery's agent that are set to the common values."""
    if settings.agent == "ppo":
        rates = dict.fromkeys(("actor_lr", "critic_lr"), settings.learning_rate)
        clipping = {"clip_epsilon": CLIP_EPSILON, "max_grad_norm": MAX_GRAD_NORM, "kl_threshold": NO_LIMIT}
        losses = {"entropy_coefficient": ENTROPY_COEFFICIENT, "value_coefficient": VALUE_COEFFICIENT}
        return {"discount": settings.discount, "gae_lambda": GAE_LAMBDA, **rates, **clipping, **losses}
    if settings.agent == "dqn":
        rates = {"learning_rate": settings.learning_rate, "tau": settings.tau}
        return {"discount": settings.discount, "epsilon": settings.epsilon, **rates}
    values = {"policy_lr": settings.learning_rate, "critic_lr": settings.learning_rate, "tau": settings.tau}
    if settings.agent == "td3":
        own = {"exploration_noise": settings.exploration_noise, "tau": 1 - (1 - settings.tau) ** POLICY_DELAY}
    else:
        own = {"alpha_lr": settings.learning_rate}
    return {"discount": settings.discount, **values, **own}


def flags(settings: Settings, steps_per_generation: int) -> tuple[str, ...]:
    """The settings as flags of `rookery train`."""
    sizes = {"num-envs": settings.num_envs}
    if settings.agent == "ppo":
        epochs = {"actor-epochs": settings.epochs, "critic-epochs": settings.epochs}
        updates = {"rollout-length": settings.rollout_length, "minibatches": settings.minibatches, **epochs}
        sizes |= {"evaluate-every": steps_per_generation // settings.rows, "anneal-updates": 0, **updates}
    else:
        rows = {"batch-size": settings.batch_size, "buffer-size": settings.buffer_size}
        sizes |= {"steps-per-generation": steps_per_generation, "warmup-steps": settings.learning_starts, **rows}
    values = {f"space.{name.replace('_', '-')}": value for name, value in chosen(settings).items()}
    words = [word for name, value in (sizes | values).items() for word in (f"--{name}", str(value))]
    if settings.agent == "td3":
        words += ["--policy-critic", POLICY_CRITIC]
    if settings.agent == "dqn":
        words += ["--no-double", "--no-layer-norm", "--exploration-share", str(settings.exploration_share)]
    if settings.target_entropy_scale != 1.0:
        words += ["--target-entropy-scale", str(settings.target_entropy_scale)]
    words.append(f"--{'' if settings.normalize else 'no-'}normalize-observations")
    if settings.agent == "ppo":
        words.append(f"--{'' if settings.normalize_rewards else 'no-'}normalize-rewards")
    return *words, "--hidden-sizes", *map(str, settings.hidden_sizes)


def learner_of(
    settings: Settings, env: Environment, steps_per_generation: int, **evaluation: Any
) -> tuple[Learner, hyperparams.Space]:
    """Rookery's learner in an environment, and its space, in which every hyper-parameter is fixed.

    Args:
      settings: of the agent.
      env: the environment.
      steps_per_generation: environment steps of a generation, for PPO a multiple of the steps of a rollout.
      **evaluation: fields of `EvaluationConfig`.
    """
    spec = env.spec
    if settings.agent == "ppo":
        config = PpoConfig(
            hidden_sizes=settings.hidden_sizes,
            actor_epochs=settings.epochs,
            critic_epochs=settings.epochs,
            minibatches=settings.minibatches,
            normalize_rewards=settings.normalize_rewards,
        )
        on_policy_config = OnPolicyConfig(
            num_envs=settings.num_envs,
            rollout_length=settings.rollout_length,
            evaluate_every=steps_per_generation // settings.rows,
            normalize_observations=settings.normalize,
            **evaluation,
        )
        learner = on_policy(ppo(spec, config), env, on_policy_config)
    else:
        hidden_sizes = settings.hidden_sizes
        agent: OffPolicyAgent = (
            sac(spec, SacConfig(hidden_sizes, target_entropy_scale=settings.target_entropy_scale))
            if settings.agent == "sac"
            else td3(spec, Td3Config(hidden_sizes, policy_critic=POLICY_CRITIC))
        )
        off_policy_config = OffPolicyConfig(
            num_envs=settings.num_envs,
            steps_per_generation=steps_per_generation,
            batch_size=settings.batch_size,
            buffer_size=settings.buffer_size,
            warmup_steps=settings.learning_starts,
            **evaluation,
        )
        learner = off_policy(agent, env, off_policy_config)
    return learner, rookery.choose(learner.space, **chosen(settings))


def peer(library: str, settings: Settings, seed: int) -> Any:
    """The model of `sbx` or `sb3`, as its documentation makes one.

    Raises:
      SystemExit: the library is not installed.
    """
    try:
        import sbx
        import stable_baselines3 as sb3
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.vec_env import VecNormalize
    except ImportError as error:
        raise SystemExit(f"{INSTALL} ({error})") from error
    envs = make_vec_env(settings.task, settings.num_envs, seed=seed)
    if settings.normalize or settings.normalize_rewards:
        normalized = {"norm_obs": settings.normalize, "norm_reward": settings.normalize_rewards}
        envs = VecNormalize(envs, gamma=settings.discount, **normalized)
    agent = getattr(sbx if library == "sbx" else sb3, settings.agent.upper())
    device = {"device": "cpu"} if library == "sb3" else {}
    sizes = {"policy_kwargs": {"net_arch": list(settings.hidden_sizes)}, "seed": seed, **device}
    return agent("MlpPolicy", envs, **arguments(settings, envs.action_space.shape), **sizes)


def arguments(settings: Settings, action_shape: tuple[int, ...]) -> Mapping[str, Any]:
    """Keyword arguments of the class of the agent in SBX and stable-baselines3; DQN's actions have the shape ()."""
    common = {
        "learning_rate": settings.learning_rate,
        "batch_size": settings.batch_size,
        "gamma": settings.discount,
    }
    if settings.agent == "ppo":
        clipping = {"clip_range": CLIP_EPSILON, "max_grad_norm": MAX_GRAD_NORM}
        losses = {"ent_coef": ENTROPY_COEFFICIENT, "vf_coef": VALUE_COEFFICIENT, "gae_lambda": GAE_LAMBDA}
        return {**common, "n_steps": settings.rollout_length, "n_epochs": settings.epochs, **clipping, **losses}
    buffer = {"buffer_size": settings.buffer_size, "learning_starts": settings.learning_starts, "tau": settings.tau}
    updates = {"train_freq": 1, "gradient_steps": settings.num_envs}
    if settings.agent == "dqn":
        exploration = {"exploration_fraction": settings.exploration_share, "exploration_final_eps": settings.epsilon}
        return {**common, **buffer, **updates, **exploration, "target_update_interval": 1}
    return {**common, **buffer, **updates, **(_noise(settings, action_shape[0]) if settings.agent == "td3" else {})}


def _noise(settings: Settings, action_size: int) -> dict[str, Any]:
    from stable_baselines3.common.noise import NormalActionNoise

    scale = settings.exploration_noise * np.ones(action_size)
    return {"action_noise": NormalActionNoise(np.zeros(action_size), scale), "policy_delay": POLICY_DELAY}


def learning_settings(agent: str, task: str, steps: int) -> Settings:
    """The settings of a learning curve: `Settings`, with 10,000 steps before the first update, as RL Baselines3 Zoo has
    them for these tasks; observations and rewards are normalised for PPO, as there. Networks are of (64, 64) for all
    agents: with 256 units thirty runs take two cores fifteen hours."""
    if agent == "ppo":
        return ppo_settings(task, normalize=True, normalize_rewards=True)
    if agent == "dqn":
        return Settings(agent, task, (64, 64), batch_size=64, learning_starts=1_000, buffer_size=steps)
    return Settings(agent, task, (64, 64), learning_starts=min(10_000, steps // 2), buffer_size=steps)


ActFn = Callable[[Any, Any], Any]
"""Parameters, observations `[N, O]` -> deterministic actions `[N, A]`."""


def returns(act: ActFn, params: Any, task: str, seeds: Sequence[int]) -> np.ndarray:
    """Returns `[N]` of full episodes in plain objects of Gymnasium that are reset with `seeds`."""
    import gymnasium

    environments = [gymnasium.make(task) for _ in seeds]
    observations = [env.reset(seed=seed)[0] for env, seed in zip(environments, seeds, strict=True)]
    active, totals = np.ones(len(seeds), bool), np.zeros(len(seeds))
    while active.any():
        actions = np.asarray(act(params, np.stack(observations)))
        for row in np.flatnonzero(active):
            observations[row], reward, terminated, truncated, _ = environments[row].step(actions[row])
            totals[row] += float(reward)
            active[row] = not (terminated or truncated)
    for env in environments:
        env.close()
    return totals


def scaled(act: ActFn, task: str) -> ActFn:
    """A policy with actions in [-1, 1], or with numbers of actions, as one with the actions of a task; compiled."""
    import gymnasium

    space: Any = gymnasium.make(task).action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return jax.jit(act)
    return jax.jit(partial(_act_in, act, space.low, space.high))


def _act_in(act: ActFn, low: np.ndarray, high: np.ndarray, params: Any, observations: Any) -> Any:
    return low + (act(params, observations).clip(-1.0, 1.0) + 1.0) / 2.0 * (high - low)


def train(settings: Settings, seed: int, steps: int, every: int, evaluate: Callable[[int, ActFn, Any], None]) -> float:
    """Train SBX's agent.

    Args:
      settings: of the agent.
      seed: of the run.
      steps: environment steps, a multiple of `every`.
      every: environment steps between evaluations, for PPO a multiple of the steps of a rollout.
      evaluate: is called with the steps so far, a policy and its parameters.

    Returns:
      Seconds of the training.
    """
    if settings.agent == "dqn":  # SBX takes the share of the steps of its first call
        settings = settings._replace(exploration_share=min(settings.exploration_share * steps / every, 1.0))
    model, seconds = peer("sbx", settings, seed), 0.0
    for done in range(every, steps + 1, every):
        started = time.perf_counter()
        model.learn(every, reset_num_timesteps=False)
        seconds += time.perf_counter() - started
        evaluate(done, _predict, model)
    return seconds


def _predict(model: Any, observations: np.ndarray) -> np.ndarray:
    statistics = model.get_vec_normalize_env()
    observations = observations if statistics is None else statistics.normalize_obs(observations)
    return model.predict(observations.astype(np.float32), deterministic=True)[0]
