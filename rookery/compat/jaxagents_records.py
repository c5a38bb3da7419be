"""The records of jaxagents' IPPO by their documented names, and the clock that its environments are given."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rookery.envs.suites import firm
from rookery.records import Record, check, static
from rookery.types import Array, Key, PyTree

ObsType = Array
ActionType = Array
EnvState = PyTree
MODES = ("off", "minimal", "full")


class OptimizerParams(NamedTuple):
    """What the optimiser's factory is called with, and the limit of the gradient's global norm before it."""

    learning_rate: Any = 1e-3
    eps: Any = 1e-8
    grad_clip: Any = 10.0


class HyperParameters(NamedTuple):
    """Numbers `[]`; `jax.vmap(agent.train, in_axes=(None, 0))` trains sets of them, `[sets]` each."""

    gamma: Any
    gae_lambda: Any
    eps_clip: Any
    ent_coeff: Any
    kl_threshold: Any  # in nats, of an epoch's mean; the epoch that is above it is the actors' last
    actor_optimizer_params: Any
    critic_optimizer_params: Any
    vf_coeff: Any = 1.0


class AgentConfig(NamedTuple):
    """What decides shapes and trip counts, see `check_config` for errors."""

    n_steps: int  # updates of a training
    batch_size: int  # environments
    minibatch_size: int  # environments whose whole rollouts a minibatch has
    rollout_length: int
    actor_epochs: int
    critic_epochs: int
    actor_network: Callable[..., Any]  # a flax module's class, called with this configuration
    critic_network: Callable[..., Any]
    optimizer: Callable[..., optax.GradientTransformation]
    eval_frequency: int = 1  # updates between evaluations
    eval_rng: Any = None  # the key of every evaluation while training
    n_evals: int | None = None
    checkpoint_dir: Any = None
    restore_agent: bool = False
    max_episode_steps: int = 9999
    deterministic_mode: str = "off"  # "minimal" and "full" are understood, and change nothing


class Transition(NamedTuple):
    """Steps of rollouts, `[E, T, ...]`."""

    obs: Array
    action: Array
    value: Array  # [E, T, I], as the next four that have numbers
    log_prob: Array
    reward: Array
    next_obs: Array  # the true successor's
    terminated: Array  # [E, T] bool
    next_value: Any = None
    advantage: Any = None
    truncated: Any = None  # [E, T] bool


class MetricStats(Record):
    """A metric `[..., N]`, and what it is over its last axis, `[...]` each."""

    episode_metric: Array
    mean: Array
    var: Array
    std: Array
    min: Array
    max: Array
    median: Array
    has_nans: Array


class TrainState(Record):
    """One network as it is learned; its optimiser is built from the hyper-parameters whenever it is needed."""

    params: PyTree
    opt_state: PyTree
    step: Array  # [] int32, optimiser's steps
    apply_fn: Callable[..., Array] = static()


class Runner(Record):
    """A training in flight."""

    actor_training: Any
    critic_training: Any
    envstate: Any  # [E, ...]
    obs: Any  # [E, ...]
    rng: Any  # one typed key for all
    hyperparams: Any
    actor_loss: Any  # [1], mean over the updates since the last evaluation
    critic_loss: Any


class TruncationEnvState(Record):
    """An environment's state beside its clock."""

    envstate: EnvState
    step: Array  # [] int32


class TruncationWrapper:
    """Ends episodes after `max_steps`; `info` tells which end it was. A step that also terminates is not truncated."""

    def __init__(self, env: Any, max_steps: int = 500):
        self._env, self.max_steps = env, max_steps

    def reset(self, rng: Key, params: Any) -> tuple[Array, TruncationEnvState]:
        """The first observation and state of an episode."""
        obs, envstate = self._env.reset_env(rng, params)
        return obs, TruncationEnvState(firm(envstate), jnp.zeros((), jnp.int32))

    reset_env = reset

    def step_env(self, rng: Key, envstate: TruncationEnvState, action: Array, params: Any) -> tuple:
        """One step without a reset: observation, state, reward, done, info."""
        obs, inner, reward, terminated, info = self._env.step_env(rng, envstate.envstate, action, params)
        time, terminated = envstate.step + 1, jnp.asarray(terminated, bool).reshape(())
        truncated = (time >= self.max_steps) & ~terminated
        info = {**info, "terminated": terminated, "truncated": truncated}
        return obs, TruncationEnvState(firm(inner), time), reward, terminated | truncated, info

    def step(self, rng: Key, envstate: TruncationEnvState, action: Array, params: Any) -> tuple:
        """One step, and the beginning of the next episode if this one ended with it."""
        step_rng, reset_rng = jax.random.split(rng)
        obs, envstate, reward, done, info = self.step_env(step_rng, envstate, action, params)
        fresh = self.reset(reset_rng, params)
        obs, envstate = jax.tree.map(partial(jnp.where, done), fresh, (obs, envstate))
        return obs, envstate, reward, done, info


def check_config(config: AgentConfig, judged: bool) -> None:
    """Refuse a configuration that cannot be trained by.

    Args:
      config: any.
      judged: whether there are to be evaluations while training.

    Raises:
      ValueError: a count is below 1, the minibatches do not divide the batch or have one step, what evaluations need is
        missing, or the mode is unknown.
    """
    counts = ("n_steps", "batch_size", "minibatch_size", "rollout_length", "actor_epochs", "critic_epochs")
    for name in (*counts, "eval_frequency", "max_episode_steps"):
        value = getattr(config, name)
        check(value >= 1, f"{name} must be at least 1, got {value}.")
    batch, minibatch = config.batch_size, config.minibatch_size
    check(batch % minibatch == 0, f"minibatch_size must divide batch_size ({batch}), got {minibatch}.")
    steps = minibatch * config.rollout_length
    check(steps > 1, "a minibatch of one step has no spread to normalise by; make minibatch_size or rollout_length 2.")
    missing = [name for name in ("eval_rng", "n_evals") if getattr(config, name) is None]
    check(
        not judged or not missing,
        f"evaluations while training need {' and '.join(missing)}; give them, or eval_during_training=False.",
    )
    check(not judged or (config.n_evals or 0) >= 1, f"n_evals must be at least 1, got {config.n_evals}.")
    mode = config.deterministic_mode
    check(mode in MODES, f"deterministic_mode must be one of {MODES}, got {mode!r}.")


def listed(title: str, fields: Any) -> str:
    """The fields of a NamedTuple, one a line, under a title."""
    return "\n".join([title, *(f"{name}: {' '.join(str(value).split())}" for name, value in fields._asdict().items())])
