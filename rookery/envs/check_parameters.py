"""Checks of an environment's parameters and measures, which report what is wrong in sentences."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams, trees
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.host.base import first_line
from rookery.factories import RAISED, place_of
from rookery.types import Array, PyTree

_FIRST = 3  # steps that are compared; later ones may differ by rounding in a chaotic simulation


def declaration_problems(environment: Environment, shapes: PyTree, inputs: tuple[Any, ...]) -> Iterator[str]:
    """Problems of the declared parameters that show without a step.

    Args:
      environment: the environment.
      shapes: of the state and the step that `step` returns.
      inputs: shapes of the arguments of `step`.
    """
    declared, parameterize = environment.spec.parameters, environment.parameterize
    if declared is None:
        return
    if parameterize is None:
        yield "spec declares parameters, but the environment has no parameterize, which returns it with other values."
        return

    def step(values: Any, *arguments: Any) -> Any:
        return parameterize(values).step(*arguments)

    remedy = "set it before the environment is wrapped, by functions that pass it on"
    try:
        bound = jax.eval_shape(step, hyperparams.defaults(declared), *inputs)
    except RAISED as error:
        yield (
            f"parameterize returns an environment whose step raised {type(error).__name__}: {first_line(error)}"
            f"{place_of(error)}; {remedy}."
        )
        return
    if jax.tree.structure(bound) != jax.tree.structure(shapes) or jax.tree.leaves(bound) != jax.tree.leaves(shapes):
        yield f"parameterize returns an environment whose step gives other shapes, types or containers; {remedy}."


def has_type(array: Array, kind: Any) -> bool:
    """Whether a leaf of a step, as a shape, has a type: `jnp.floating` is float32, or float64, which exists only with
    `jax_enable_x64`."""
    return array.dtype in (jnp.float32, jnp.float64) if kind is jnp.floating else array.dtype == kind


def measure_problems(spec: EnvSpec, where: str, measures: Mapping[str, Array] | None) -> Iterator[str]:
    """Wrong names, shapes and types of a step's measures, as shapes."""
    if set(measures or {}) != set(spec.measures or {}):
        yield (
            f"{where} gives the measures {', '.join(measures or {}) or 'none'}, but spec.measures has "
            f"{', '.join(spec.measures or {}) or 'none'}; pass measures to rookery.envs.first_step and next_step."
        )
    for name, value in (measures or {}).items():
        if value.shape not in ((), spec.agents) or not has_type(value, jnp.floating):
            shapes = " or ".join(map(str, dict.fromkeys([(), spec.agents])))
            yield f"{where} gives the measure {name} as {value.dtype} {value.shape} instead of float32 {shapes}."


def behaviour_problems(environment: Environment, run: Callable[[Environment], Step], steps: Step) -> Iterator[str]:
    """Problems that show in episodes with random actions.

    Args:
      environment: the environment.
      run: gives the steps of episodes with the same keys and actions in an environment.
      steps: of the environment itself.
    """
    for name, values in (steps.measures or {}).items():
        if not np.isfinite(np.asarray(values)).all():
            yield f"the measure {name} is not finite in an episode with random actions."
    declared, parameterize = environment.spec.parameters, environment.parameterize
    if declared is None or parameterize is None:
        return
    with_values = jax.jit(lambda values: run(parameterize(values)))
    defaults = hyperparams.defaults(declared)
    same = jax.device_get(with_values(defaults))
    if not _close(*(jax.tree.map(lambda leaf: leaf[:_FIRST], one) for one in (steps, same))):
        yield (
            "parameterize with the default values gives other steps than the environment; set it before the "
            "environment is wrapped, by functions that pass it on."
        )
    for name in declared.fields or declared.defaults._fields:
        others = (defaults._replace(**{name: jnp.float32(value)}) for value in hyperparams.other_values(declared, name))
        if all(trees.same_numbers(same, jax.device_get(with_values(values))) for values in others):
            yield f"the parameter {name} changes no step of an episode with random actions; use it in step, or drop it."


def _close(one: PyTree, other: PyTree) -> bool:
    """Whether numbers are equal but for rounding, which may differ where values are not constants of the program."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True) for a, b in pairs)
