"""Documented records of IPPO: configuration, hyper-parameters, training states, rollouts and metrics."""

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from rookery.compat.jaxagents.environment import TruncationEnvState
from rookery.compat.records import Record, check, static_field, typed_key
from rookery.settings import FRACTION, Within, check_counts
from rookery.types import Array, Key, PyTree, Scalar


class Network(Protocol):
    """A network such as a flax module."""

    def init(self, key: Key, observation: Array, /) -> PyTree: ...
    def apply(self, params: PyTree, observation: Array, /) -> PyTree: ...


class OptimizerParams(NamedTuple):
    """Arguments of an optimizer factory, and `grad_clip`, the limit of the gradient's global norm."""

    learning_rate: Scalar = 1e-3
    eps: Scalar = 1e-8
    grad_clip: Scalar = 10.0


class HyperParameters(NamedTuple):
    """Scalars `[]`; `jax.vmap(agent.train, in_axes=(None, 0))` trains with several sets, leaves `[sets]`."""

    gamma: Scalar
    gae_lambda: Scalar
    eps_clip: Scalar
    ent_coeff: Scalar
    kl_threshold: Scalar
    """Limit of an epoch's mean divergence, in nats; the first epoch that exceeds it is the last actor epoch."""
    actor_optimizer_params: OptimizerParams
    critic_optimizer_params: OptimizerParams
    vf_coeff: Scalar = 1.0


class AgentConfig(NamedTuple):
    """Static configuration: array shapes, loop lengths, networks, evaluation and checkpoints."""

    n_steps: int
    """Number of updates."""
    batch_size: int
    """E, number of parallel environments."""
    minibatch_size: int
    """Number of environments in a minibatch, each with its whole rollout."""
    rollout_length: int
    """T, steps of each environment per update."""
    actor_epochs: int
    """Passes over each rollout for the actors."""
    critic_epochs: int
    """Passes over each rollout for the critics."""
    actor_network: Callable[..., Network]
    """Class of a flax module, called with this configuration."""
    critic_network: Callable[..., Network]
    """Class of a flax module, called with this configuration."""
    optimizer: Callable[..., optax.GradientTransformation]
    """Factory of an optax optimizer."""
    eval_frequency: int = 1
    """Updates between evaluations."""
    eval_rng: Key | None = None
    """Key of every evaluation during training."""
    n_evals: int | None = None
    """N, episodes of each evaluation during training."""
    checkpoint_dir: str | os.PathLike[str] | None = None
    """Checkpoint directory; None writes no checkpoints."""
    restore_agent: bool = False
    """Allow a `checkpoint_dir` that contains checkpoints, to `restore` from it."""
    max_episode_steps: int = 9999
    """Steps until truncation."""
    deterministic_mode: str = "off"
    """"off", "minimal" or "full"; accepted for compatibility, without effect."""


class TrainState(Record):
    """Training state of one network; the optimizer is rebuilt from the hyper-parameters whenever it is needed."""

    params: PyTree
    opt_state: PyTree
    step: Array
    """`[]` int32, number of optimizer steps."""
    apply_fn: Callable[..., Array] = static_field()

    @classmethod
    def create(
        cls, *, apply_fn: Callable[..., Array], params: PyTree, tx: optax.GradientTransformation
    ) -> "TrainState":
        """The training state of a new network."""
        return cls(params, tx.init(params), jnp.zeros((), jnp.int32), apply_fn)


class Runner(Record):
    """State of training between updates, which can be inspected, stored and continued from."""

    actor_training: TrainState
    critic_training: TrainState
    envstate: TruncationEnvState
    """`[E, ...]`."""
    obs: Array
    """`[E, ...]`."""
    rng: Key
    """One typed key for all environments."""
    hyperparams: HyperParameters
    actor_loss: Array
    """`[1]`, mean over the updates since the last evaluation."""
    critic_loss: Array
    """`[1]`, mean over the updates since the last evaluation."""


class Transition(NamedTuple):
    """Steps of rollouts, `[E, T, ...]`."""

    obs: Array
    action: Array
    value: Array
    """`[E, T, I]`."""
    log_prob: Array
    """`[E, T, I]`."""
    reward: Array
    """`[E, T, I]`."""
    next_obs: Array
    """Observation of the true successor, also at the end of an episode."""
    terminated: Array
    """`[E, T]` bool."""
    next_value: PyTree = None
    """`[E, T, I]`."""
    advantage: PyTree = None
    """`[E, T, I]`."""
    truncated: PyTree = None
    """`[E, T]` bool."""


class MetricStats(Record):
    """Statistics `[...]` of a metric `episode_metric` `[..., N]` over its last axis."""

    episode_metric: Array
    mean: Array
    var: Array
    std: Array
    min: Array
    max: Array
    median: Array
    has_nans: Array


_RANGES = dict.fromkeys((*HyperParameters._fields, *OptimizerParams._fields), Within(0))
_RANGES |= dict.fromkeys(("gamma", "gae_lambda"), FRACTION)


def check_hyperparams(hyperparams: HyperParameters) -> None:
    """Raise a `ValueError` for a documented hyper-parameter that is no number, or out of range and not traced."""
    found = jax.tree_util.tree_leaves_with_path(hyperparams, is_leaf=lambda node: not hasattr(node, "_fields"))
    for path, value in found:
        name = jax.tree_util.keystr(path).removeprefix(".")
        within = _RANGES.get(name.rpartition(".")[2])
        own = within is None or name.endswith("_params")  # of the user, or for an optimizer of the user
        numbers = jax.tree.leaves(value) if own else [value]
        check(all(map(_is_number, numbers)), f"{name} must be a number, got {value!r}.")
        inside = own or isinstance(value, Tracer) or all(item in within for item in np.ravel(value).tolist())
        check(inside, f"{name} must be {within}, got {value}.")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) or getattr(getattr(value, "dtype", None), "kind", "") in (*"fiu",)


def check_config(config: AgentConfig, evaluated: bool) -> None:
    """Raise a `ValueError` for an invalid or missing setting; `evaluated` is `eval_during_training`."""
    counts = ("n_steps", "batch_size", "minibatch_size", "rollout_length", "actor_epochs", "critic_epochs")
    check_counts(**{name: getattr(config, name) for name in (*counts, "eval_frequency", "max_episode_steps")})
    for name in ("actor_network", "critic_network", "optimizer"):
        made = getattr(config, name)
        check(callable(made), f"{name} must be a class or a function that makes it, such as optax.adam, got {made!r}.")
    batch, minibatch, mode = config.batch_size, config.minibatch_size, config.deterministic_mode
    check(batch % minibatch == 0, f"minibatch_size must divide batch_size ({batch}), got {minibatch}.")
    remedy = "make minibatch_size or rollout_length 2."
    check(
        minibatch * config.rollout_length > 1, f"advantages of a minibatch of one step cannot be normalised; {remedy}"
    )
    missing = " and ".join(name for name in ("eval_rng", "n_evals") if evaluated and getattr(config, name) is None)
    check(not missing, f"evaluations during training need {missing}; set them, or eval_during_training=False.")
    if evaluated:
        check_counts(n_evals=config.n_evals)
    if config.eval_rng is not None:
        typed_key(config.eval_rng)
    modes = ("off", "minimal", "full")
    check(mode in modes, f"deterministic_mode must be one of {modes}, got {mode!r}.")
