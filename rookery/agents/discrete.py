"""Values of discrete actions: the greedy action, exploration by random actions, and its schedule."""

import jax
import jax.numpy as jnp

from rookery import distributions
from rookery.envs.base import EnvSpec
from rookery.types import Array, Key, Scalar


def check_discrete(spec: EnvSpec, agent: str) -> None:
    """Check that the spec is one of an environment with discrete actions, without skills or a memory.

    Raises:
      ValueError: it is not; the message names the agent and the environment.
    """
    if not spec.discrete:
        raise ValueError(f"{agent} needs discrete actions, but {spec.name} has continuous ones; use ppo, sac or td3.")
    if spec.categories:
        raise ValueError(
            f"{agent} needs actions that are one number, but those of {spec.name} have {len(spec.categories)} parts; "
            "use ppo."
        )
    if spec.skill is not None or spec.recurrent:
        raise ValueError(
            f"{agent} supports no environment with skills or a memory, but {spec.name} has one; use the environment "
            "without these wrappers."
        )


def available(values: Array, action_mask: Array | None) -> Array:
    """Values `[..., A]`, those of actions outside of the mask so low that none of them is the greatest."""
    return values if action_mask is None else distributions.masked_logits(values, action_mask)


def of_action(values: Array, action: Array) -> Array:
    """The values `[...]` of actions `[...]` int32 among `[..., A]`."""
    chosen = jax.nn.one_hot(action, values.shape[-1], dtype=bool)  # a gather has a scatter as gradient, slow on a CPU
    return jnp.sum(values, axis=-1, where=chosen)


def greedy(values: Array, action_mask: Array | None, categories: tuple[int, ...] = ()) -> Array:
    """The available action `[...]` int32 with the greatest value among `[..., A]`, or with `categories` that of each
    part, `[..., K]`; -1 if a value is not finite."""
    action = jnp.argmax(distributions.by_part(available(values, action_mask), categories), axis=-1)
    finite = jnp.isfinite(values).all(axis=-1, keepdims=bool(categories))
    return jnp.where(finite, action, -1).astype(jnp.int32)


def random(action_size: int, action_mask: Array | None, key: Key) -> Array:
    """Draw a uniformly random available action, `[]` int32, among A; the key is consumed."""
    return jax.random.categorical(key, available(jnp.zeros(action_size), action_mask)).astype(jnp.int32)


def epsilon_greedy(values: Array, action_mask: Array | None, epsilon: Scalar, key: Key) -> tuple[Array, Array]:
    """Draw a uniformly random available action with probability `epsilon`, else the greedy one; the key is consumed.

    Args:
      values: `[A]`.
      action_mask: `[A]` bool, the available actions; None: all.
      epsilon: `[]`, in [0, 1].

    Returns:
      The action, `[]` int32, and the log of its probability, `[]`, in nats.
    """
    draw_key, choose_key = jax.random.split(key)
    best = jnp.argmax(available(values, action_mask)).astype(jnp.int32)
    drawn = random(values.shape[-1], action_mask, draw_key)
    action = jnp.where(jax.random.uniform(choose_key) < epsilon, drawn, best)
    count = values.shape[-1] if action_mask is None else jnp.sum(action_mask, dtype=jnp.float32)
    return action, jnp.log(epsilon / count + jnp.where(action == best, 1.0 - epsilon, 0.0))


def exploration(epsilon: Scalar, updates: Array, over: int | None) -> Array:
    """The share of random actions `[]` after `updates` `[]` int32 updates: it falls linearly from 1 to `epsilon` over
    the first `over` of them, and stays there; without `over` it is `epsilon`."""
    if not over:
        return jnp.asarray(epsilon)
    return 1.0 - (1.0 - epsilon) * jnp.minimum(updates / over, 1.0)
