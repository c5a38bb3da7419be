"""Randomised physics: parameters of the model, such as masses and friction, that differ between episodes.

Playground draws the parameters of each environment once per training; here each episode draws its own, in training and
in evaluation (Tobin 2017, arXiv:1703.06907).
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from rookery.types import Array, PyTree

RandomizeFn = Callable[[PyTree, Array], tuple[PyTree, PyTree]]
"""Playground's randomisation function: model, keys `[B, 2]` -> model whose randomised leaves are `[B, ...]`, and a
model that contains 0 in place of those leaves and None elsewhere."""

_TRACING = threading.RLock()


class Randomization(NamedTuple):
    """Draws the random parameters of an environment's model, and applies them."""

    env: Any  # Playground's environment
    function: RandomizeFn  # its randomisation function
    randomized: tuple[bool, ...]  # which leaves of the model are randomised

    def draw(self, key: Array) -> tuple[Array, ...]:
        """Draw the parameters of one episode: the randomised leaves of the model, without a batch dimension."""
        model, _ = self.function(self.env.mjx_model, key[None])
        leaves = zip(jax.tree.leaves(model), self.randomized, strict=True)
        return tuple(leaf[0] for leaf, randomized in leaves if randomized)

    @contextlib.contextmanager
    def applied(self, parameters: tuple[Array, ...]) -> Iterator[None]:
        """Trace the environment's functions with the given parameters, `draw`'s result."""
        given = iter(parameters)
        with _TRACING:
            original = self.env._mjx_model
            leaves, treedef = jax.tree.flatten(original)
            chosen = zip(leaves, self.randomized, strict=True)
            leaves = [next(given) if randomized else leaf for leaf, randomized in chosen]
            self.env._mjx_model = jax.tree.unflatten(treedef, leaves)
            try:
                yield
            finally:
                self.env._mjx_model = original


def randomization(env: Any, function: RandomizeFn) -> Randomization:
    """Prepare the randomisation of the model of an environment of Playground; a ValueError if it is not in
    `_mjx_model`, as Playground's wrappers require."""
    if not hasattr(env, "_mjx_model"):
        raise ValueError(f"the model of {type(env).__name__} cannot be randomised: it has no attribute _mjx_model.")
    _, axes = function(env.mjx_model, jax.random.key_data(jax.random.key(0))[None])
    axes = jax.tree.structure(env.mjx_model).flatten_up_to(axes)
    return Randomization(env, function, tuple(axis is not None for axis in axes))
