"""What the documented methods of `IPPOBase` return; the results of those that a subclass replaces are checked."""

import functools
import reprlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.records import check
from rookery.types import PyTree


class Result(NamedTuple):
    """What a method returns."""

    meaning: str
    """The end of the sentence `return ...`."""
    fits: Callable[[PyTree, PyTree], bool]
    """Whether a result is that, given the result and the first argument."""


def _tuple(size: int) -> Callable[[PyTree, PyTree], bool]:
    return lambda result, _: isinstance(result, tuple) and len(result) == size


def _with(*names: str) -> Callable[[PyTree, PyTree], bool]:
    return lambda result, _: all(hasattr(result, name) for name in names)


def _is_loss(result: PyTree, _: PyTree) -> bool:
    is_float = isinstance(result, float) or jnp.issubdtype(getattr(result, "dtype", int), jnp.floating)
    return is_float and jnp.shape(result) == ()


def _is_loss_and_divergence(result: PyTree, first: PyTree) -> bool:
    return _tuple(2)(result, first) and _is_loss(result[0], first)


def _is_next_twice(result: PyTree, first: PyTree) -> bool:
    return _tuple(2)(result, first) and all(getattr(one, "shape", None) == jnp.shape(first) for one in result)


def _are_minibatches(result: PyTree, _: PyTree) -> bool:
    leaves = jax.tree.leaves(result[:-1]) if isinstance(result, tuple) else []
    return bool(leaves) and len({jnp.shape(leaf)[:1] for leaf in leaves} | {()}) == 2


def _is_update(result: PyTree, first: PyTree) -> bool:
    return _tuple(2)(result, first) and jnp.size(result[1]) == 1


_METHODS = {
    ("env_reset",): Result("the key, the observation and the state", _tuple(3)),
    ("env_step",): Result("the key, the observation, the state, the rewards, done and info", _tuple(6)),
    ("policy", "_sample_actions", "_advantages"): Result("an array", _with("shape")),
    ("_trajectory_returns", "_trajectory_advantages"): Result(
        "the next result twice, of the same shape", _is_next_twice
    ),
    ("_actor_loss",): Result("the loss, a number, and the divergence from the old policy", _is_loss_and_divergence),
    ("_critic_loss",): Result("the loss, a number", _is_loss),
    ("_actor_loss_input", "_critic_loss_input"): Result(
        "arrays with one row for each minibatch, and the hyper-parameters", _are_minibatches
    ),
    ("_actor_update", "_critic_update"): Result("the training state and the loss, a number", _is_update),
    ("_make_transition",): Result("rookery.compat.jaxagents.Transition", _with("truncated", "terminated")),
    ("_process_trajectory", "_add_next_values", "_add_advantages"): Result("transitions", _with("truncated", "reward")),
    ("_update_step", "_create_update_runner"): Result("a Runner", _with("actor_training", "rng")),
    ("_training_step",): Result("the Runner and the metrics", _tuple(2)),
    ("_init_optimizer",): Result("an optimizer of optax", _with("init", "update")),
    ("_init_network",): Result("the network and its parameters", _tuple(2)),
    ("_create_training",): Result("a TrainState", _with("params", "opt_state")),
    ("_eval_metrics", "_eval_agent", "_generate_metrics"): Result("a dictionary of arrays", _with("items")),
}
RESULTS = {name: result for names, result in _METHODS.items() for name in names}


def checked(name: str, method: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """A method that raises a `ValueError` where its result is not as documented."""

    @functools.wraps(method)
    def call(self: object, *given: PyTree, **named: PyTree) -> PyTree:
        result, documented = method(self, *given, **named), RESULTS[name]
        found = jax.tree.map(lambda leaf: getattr(leaf, "shape", type(leaf).__name__), result)
        wrong = f"{name} of {type(self).__name__} returns {reprlib.repr(found)}; return {documented.meaning}."
        check(documented.fits(result, given[0] if given else None), wrong)
        return result

    return call
