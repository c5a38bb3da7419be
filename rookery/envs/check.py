"""Checks of user-defined environments, which report what is wrong in sentences."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from rookery import distributions, hyperparams, trees
from rookery.envs.base import DescriptorSpec, Environment, EnvSpec, EnvState, SkillSpec, Step, Team, check_categories
from rookery.envs.host.base import LARGEST_REWARD, first_line
from rookery.factories import OWN_ENVIRONMENT, RAISED, place_of
from rookery.features import Shape, feature_size, is_shape
from rookery.settings import MEASURE_NAMES, Within, check_counts, check_names, check_numbers, type_of
from rookery.types import Array, Key, Observation, PyTree

ResultT = TypeVar("ResultT")
_IN_A_TEAM = (
    "Every agent of a team needs one in every step, and the flags of an agent that ends before the others must "
    "stay set until the episode is over."
)
_NOT_PURE_RESET = "the same key gives different start states; reset must be a pure function of its key."
_NOT_PURE = "the same states, actions and keys give different steps; step must be a pure function."
_NOT_SEEDED = (
    "two episodes with the same seed and the same actions differ, so that no run can be repeated; let the environment "
    "draw all random numbers from self.np_random, which super().reset(seed=seed) sets."
)
_NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Raised by Python and NumPy code that needs the values of arrays, which a compiled program does not have."""
_pass = jax.make_user_context(0)
"""A number of each pass: JAX traces all functions again in another one, also those that the user compiled, so that a
function that is not pure differs."""
LARGEST = 2**24  # largest size of observations and actions: a layer of 256 units on them has 17 GB of weights
_RECORDS = {
    "name": str,
    "descriptor": DescriptorSpec,
    "team": Team,
    "skill": SkillSpec,
    "parameters": hyperparams.Space,
}
_FLOAT_MAX = np.finfo(np.float32).max
_LARGEST_OBSERVATION = 1e15  # the squares of the gradients of a layer that reads it are finite up to it
_FIRST = 3  # steps that are compared; later ones may differ by rounding in a chaotic simulation
SEEDS = 3  # episodes that `check_environment` runs at once


class EnvironmentWarning(UserWarning):
    """An environment can be trained, but has a property that is rarely intended."""


def check_environment(environment: Environment, seed: int = 0) -> None:
    """Check that an environment can be trained: its shapes and types, time limit, start states, numbers, and whether
    each of its parameters has an effect.

    It is reset and stepped under `jit` and `vmap` with random actions, for the length of an episode, in two passes that
    must agree. Each pass traces all functions, also those that are compiled by `jax.jit` already.

    Args:
      environment: the environment, without automatic resets.
      seed: seed of the start states and the actions.

    Raises:
      ValueError: something is wrong; one sentence for each problem, each on its own line. For an environment on the
        host also if it raised an exception, did not return in time, or is not determined by its seed and the actions.

    Warns:
      EnvironmentWarning: every episode starts in the same state, which may be intended; or observations are so large
        that only agents that normalize them can learn.

    Example:
      >>> rookery.check_environment(rookery.make("point_room", episode_length=5))
    """
    check_interface(environment)
    _forget_failure(environment)
    try:
        _report(environment.spec, _behaviour(environment, jax.random.key(seed)))
    finally:
        _forget_failure(environment)  # it was reported, and would end a training


def check_interface(environment: Environment) -> None:
    """The cheap part of `check_environment`, which learners run: shapes, types, and whether episodes end.

    The environment is traced only, unless no step can set `truncated`: then random episodes show whether they end.
    One start state shows an action mask; one on the host that is new takes one step.

    Raises:
      ValueError: the environment cannot be trained; the message names every problem that shows.
    """
    if not isinstance(environment, Environment):
        raise ValueError(
            f"an environment must be a rookery.Environment, got {type(environment).__name__}; the agent is built from "
            "environment.spec, and the learner from the agent and the environment: off_policy(sac(env.spec), env)."
        )
    spec = environment.spec
    if not isinstance(spec, EnvSpec):
        raise ValueError(f"environment.spec must be a rookery.envs.EnvSpec, got {type(spec).__name__}.")
    _report(spec, _size_problems(spec))
    if environment.host is not None:
        _report(spec, filter(None, [environment.host.try_step()]))
    # A reset, then a step: as shapes, without running them.
    state, first = _traced(spec, "reset(key)", "first_step", environment.reset, jax.random.key(0))
    _report(spec, [*_step_problems(spec, "reset", first), *_measure_problems(spec, "reset", first.measures)])
    action = jax.ShapeDtypeStruct(spec.action_shape, spec.action_type)
    inputs = state, action, jax.random.key(0)
    after, step = _traced(spec, "step(state, action, key)", "next_step", environment.step, *inputs)
    measures = _measure_problems(spec, "step", step.measures)
    _report(spec, [*_step_problems(spec, "step", step), *_state_problems(state, after), *measures])
    _report(spec, _difference_problems(first, step))
    _report(spec, _declaration_problems(environment, (after, step), inputs))
    # What only values show.
    if spec.masked:
        mask = _computed(lambda key: environment.reset(key)[1].observation.action_mask)
        _report(spec, _mask_problems(spec, ["reset"], np.asarray(mask)[None], np.asarray(False)))
    if not _may_truncate(environment, *inputs):
        _report(spec, _time_limit_problems(spec, _computed(partial(_random_episodes, environment))))


def _computed(function: Callable[[Key], ResultT]) -> ResultT:
    """The result of a function of a key, on the host, also where a learner is built in a traced function.

    It is compiled as one program: with `jax.ensure_compile_time_eval` every operation on constants would be a program.
    """
    with jax.ensure_compile_time_eval():
        key = jax.random.key(0)
    return jax.device_get(jax.jit(function).lower(key).compile()(key))


def _report(spec: EnvSpec, problems: Iterable[str]) -> None:
    if found := list(dict.fromkeys(problems)):
        raise ValueError(f"the environment {spec.name} is wrong, see {OWN_ENVIRONMENT}: " + "\n".join(found))


def _size_problems(spec: EnvSpec) -> Iterator[str]:
    for name, kind in _RECORDS.items():
        value = getattr(spec, name)
        if not isinstance(value, kind) and (value is not None or kind is str):
            yield f"spec.{name} must be {'a text' if kind is str else f'a {kind.__name__} or None'}, got {value!r:.80}."
            return
    try:
        check_categories(spec)
        check_numbers(Within(), **{"spec.qd_offset": spec.qd_offset})
    except (TypeError, ValueError) as error:
        yield str(error)
        return
    for name in ("observation_size", "action_size", "episode_length"):
        value = getattr(spec, name)
        try:
            check_counts(**{f"spec.{name}": value})
        except (TypeError, ValueError) as error:
            yield str(error)
            return
        if name != "episode_length" and value > LARGEST:
            yield (
                f"spec.{name} is {value:,} numbers, {4e-9 * value:.2g} GB, and networks and buffers take at most "
                f"{LARGEST:,}; a Discrete space has one for each value, so give it as a few numbers instead."
            )
            return
    if spec.categories and (not spec.discrete or min(spec.categories) < 1 or sum(spec.categories) != spec.action_size):
        yield (
            f"spec.categories is {spec.categories}; give the parts of a discrete action at least one category each, "
            f"spec.discrete True and their sum as spec.action_size, which is {spec.action_size}."
        )
    agents = spec.team.names if spec.team else ()
    for what, names, taken in (("agent of the team", agents, ()), ("measure", spec.measures or (), MEASURE_NAMES)):
        try:
            check_names(what, names, taken)
        except ValueError as error:
            yield str(error)
    yield from _observation_shape_problems(spec)


def _observation_shape_problems(spec: EnvSpec) -> Iterator[str]:
    shape: Shape = spec.observation_shape
    leaves = jax.tree.leaves(shape, is_leaf=is_shape)
    if not all(is_shape(leaf) and all(size >= 1 for size in leaf) for leaf in leaves):
        yield f"spec.observation_shape must be a tuple of whole numbers above 0, or a pytree of tuples, got {shape}."
    elif shape is not None and feature_size(shape) != spec.observation_size:
        yield (
            f"spec.observation_shape {shape} has {feature_size(shape)} numbers, but spec.observation_size is "
            f"{spec.observation_size}; use observation_size=rookery.envs.feature_size(shape)."
        )


def _traced(
    spec: EnvSpec, call: str, builder: str, function: Callable[..., PyTree], *inputs: PyTree
) -> tuple[PyTree, Step]:
    """Shapes of the state and the step that `reset` or `step` returns."""
    try:
        result = jax.eval_shape(function, *inputs)
    except RAISED as error:
        shape = f" for an action of shape {inputs[1].shape} and type {inputs[1].dtype}" if len(inputs) > 1 else ""
        remedy = "; compute with jax.numpy, jnp.where in place of if" if isinstance(error, _NOT_TRACEABLE) else ""
        _report(spec, [f"{call} raised {type(error).__name__}{shape}: {first_line(error)}{place_of(error)}{remedy}."])
        raise
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Step)):
        text = f"{call} must return (state, step), with step from rookery.envs.{builder}, got {_kind(result)}."
        _report(spec, [text])
    return result


def _step_problems(spec: EnvSpec, where: str, step: Step) -> Iterator[str]:
    """Wrong shapes and types of one step, as shapes."""
    for name in ("observation", "final_observation"):
        observation = getattr(step, name)
        if not isinstance(observation, Observation):
            yield f"{where} gives {name} as {_kind(observation)}; build steps by first_step and next_step."
            continue
        if found := list(_features_problems(spec, f"{where} gives {name}.features", observation.features)):
            yield from found
            return
        mask = observation.action_mask
        if (mask is not None) != spec.masked:
            yield f"{where} gives {'no' if mask is None else 'a'} mask, but spec.masked is {spec.masked}."
        elif mask is not None:
            expected = (*spec.agents, spec.action_size)
            yield from _array_problems(f"{where} gives {name}.action_mask", mask, expected, jnp.bool_)
    own = [("reward", jnp.floating), ("terminated", jnp.bool_), ("truncated", jnp.bool_)]
    for name, kind in own:
        for problem in _array_problems(f"{where} gives {name}", getattr(step, name), spec.agents, kind):
            yield problem if spec.team is None else f"{problem} {_IN_A_TEAM}"
    yield from _array_problems(f"{where} gives broken", step.broken, (), jnp.bool_)
    yield from _array_problems(f"{where} gives descriptor", step.descriptor, (spec.descriptor_size,), jnp.floating)


def _features_problems(spec: EnvSpec, what: str, features: PyTree) -> Iterator[str]:
    expected, remedy = (*spec.agents, spec.observation_size), ""
    if spec.observation_shape is not None:
        remedy = f"; flatten them: rookery.envs.flatten_features(features{', leading=1' if spec.team else ''})"
    if not hasattr(features, "shape"):
        yield f"{what} as {_kind(features)} instead of an array of shape {expected}{remedy}."
        return
    kind = jnp.uint8 if features.dtype == jnp.uint8 else jnp.floating
    for problem in _array_problems(what, features, expected, kind):
        yield f"{problem} (spec.observation_size is {spec.observation_size}{remedy})"


def _array_problems(what: str, array: Array, shape: tuple[int, ...], kind: DTypeLike) -> Iterator[str]:
    found = getattr(array, "shape", None)
    if found != shape:
        yield f"{what} of shape {found} instead of {shape}."
    elif not _has_type(array, kind):
        yield f"{what} of type {array.dtype} instead of {'bool' if kind is jnp.bool_ else 'float32'}."


def _state_problems(before: PyTree, after: PyTree) -> Iterator[str]:
    """Differences of shape or type between the state of a reset and that of a step."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        yield "step returns a state of another structure than reset; both must return the same containers."
        return
    for (path, old), new in zip(jax.tree_util.tree_flatten_with_path(before)[0], jax.tree.leaves(after), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            name = jax.tree_util.keystr(path) or "the state"
            yield f"{name} of the state is {old.dtype} {old.shape} after reset and {new.dtype} {new.shape} after step."


def _mask_problems(spec: EnvSpec, calls: Sequence[str], mask: PyTree, ended: np.ndarray) -> Iterator[str]:
    """The first mask of `[T, ..., A]` that allows no action though the agent's episode has not `ended`, `[T, ...]`."""
    for first, *_, agent in np.argwhere(np.atleast_2d(~spec.allows_action(mask) & ~ended))[:1]:
        where = calls[first]
        whose = f" of the agent {spec.team.names[agent]}" if spec.team else ""
        yield (
            f"{where} gives an action mask{whose} that allows no action, so that a forbidden one would be taken; allow "
            "one that does nothing, or end the episode in that step."
        )


def _difference_problems(first: Step, step: Step) -> Iterator[str]:
    """Differences of shape or type between the step of a reset and that of a step, one sentence for each kind.

    float32 and float64 are the same type here, since zeros of a reset have the other one under `jax_enable_x64`.
    """
    if jax.tree.structure(first) != jax.tree.structure(step):
        yield "step returns a Step with other parts than that of reset; give the same parts in both."
        return
    found: dict[tuple[object, ...], list[str]] = {}
    for (path, old), new in zip(jax.tree_util.tree_flatten_with_path(first)[0], jax.tree.leaves(step), strict=True):
        for kind, one, other in (("shape", new.shape, old.shape), ("type", new.dtype, old.dtype)):
            if one != other and not {one, other} <= {jnp.dtype("float32"), jnp.dtype("float64")}:
                name = jax.tree_util.keystr(path).removeprefix(".")
                found.setdefault((kind, one, other), []).append(name)
    for (kind, one, other), names in found.items():
        yield f"step gives {' and '.join(names)} of {kind} {one}, reset of {kind} {other}; give both the same {kind}."


def _may_truncate(environment: Environment, *inputs: PyTree) -> bool:
    """Whether `truncated` depends on the inputs of a step, so that a time limit may exist."""

    def truncated(state: EnvState, action: Array, key: Key) -> Array:
        return environment.step(state, action, key)[1].truncated

    return _depends(jax.make_jaxpr(truncated)(*inputs).jaxpr)[0]


def _depends(jaxpr: jax.extend.core.Jaxpr) -> list[bool]:
    """Whether each output of a jaxpr depends on its inputs; the bodies of jitted functions are followed."""
    dependent = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit") and inner is not None:
            outputs = _depends(inner.jaxpr)
        else:
            outputs = [True] * len(equation.outvars)
        if any(not isinstance(atom, jax.extend.core.Literal) and atom in dependent for atom in equation.invars):
            dependent.update(out for out, depends in zip(equation.outvars, outputs, strict=True) if depends)
    return [not isinstance(out, jax.extend.core.Literal) and out in dependent for out in jaxpr.outvars]


def _behaviour(environment: Environment, key: Key) -> Iterator[str]:
    """Problems that show in episodes with random actions."""
    spec, length = environment.spec, environment.spec.episode_length
    yield from _start_problems(environment, key)
    if _failed(environment):
        return
    # Both begin at new start states: an episode on the host exists once.
    steps, again = _twice(lambda: jax.device_get(_random_episodes(environment, key)))
    if failure := _failed(environment):
        yield failure
        return
    if not trees.same_numbers(steps, again):
        yield _NOT_SEEDED if environment.host else _NOT_PURE
    active = np.concatenate([np.ones((1, SEEDS), bool), ~np.cumsum(_over(spec, steps), axis=0).astype(bool)[:-1]])
    if environment.host is not None and (broken := (steps.broken & active).any(axis=1)).any():
        yield (
            f"step {int(np.argmax(broken)) + 1} gives an observation, reward or descriptor that is not finite, or "
            f"a reward beyond {LARGEST_REWARD:.0e}; such a step ends its episode with reward 0."
        )
    numbers = ("reward", steps.reward, LARGEST_REWARD), ("observation", steps.final_observation.features, _FLOAT_MAX)
    for name, values, most in numbers:
        finite = (np.abs(np.asarray(values)) <= most).reshape(length, SEEDS, -1).all(axis=-1) | ~active
        if not finite.all():
            when = int(np.argmax(~finite.all(axis=1))) + 1
            yield (
                f"step {when} gives {name} that is not finite, or beyond {most:.0e}; "
                "rookery.envs.guard_physics(environment) ends such an episode."
            )
    seen = np.abs(np.asarray(steps.final_observation.features)).reshape(length, SEEDS, -1)[active]
    if _LARGEST_OBSERVATION < np.max(seen) <= _FLOAT_MAX:
        text = f"{spec.name} gives observations up to {np.max(seen):.0e}: members diverge that do not normalize them"
        warnings.warn(text, EnvironmentWarning, stacklevel=4)
    if spec.masked:
        broken, started = (np.expand_dims(flag, [*range(2, steps.ended.ndim)]) for flag in (steps.broken, active))
        ended = (steps.ended & ~broken) | ~started  # `limit_episode` has ended such an episode as broken
        calls = [f"step {time}" for time in range(1, length + 1)]
        yield from _mask_problems(spec, calls, steps.observation.action_mask, ended)
    yield from _time_limit_problems(spec, steps)
    yield from _behaviour_problems(environment, partial(_random_episodes, key=key), steps)


def _twice(function: Callable[[], ResultT]) -> tuple[ResultT, ResultT]:
    """The results of two calls, in each of which all functions are traced."""
    with _pass(1):
        one = function()
    with _pass(2):
        return one, function()


def _failed(environment: Environment) -> str:
    """What an environment on the host did wrong, as a sentence; empty if nothing."""
    failure = None if environment.host is None else environment.host.failure
    return f"it {failure.text}." if failure else ""


def _forget_failure(environment: Environment) -> None:
    if environment.host is not None:
        environment.host.failure = None


def _time_limit_problems(spec: EnvSpec, steps: Step) -> Iterator[str]:
    if not _over(spec, steps).any(axis=0).all():
        length = spec.episode_length
        yield (
            f"an episode did not end within spec.episode_length = {length} steps; wrap the environment: "
            f"rookery.envs.limit_episode(environment, {length})."
        )


def _start_problems(environment: Environment, key: Key) -> Iterator[str]:
    keys = jax.random.split(key, SEEDS)
    (state, first), again = _twice(lambda: jax.block_until_ready(jax.jit(jax.vmap(environment.reset))(keys)))
    if failure := _failed(environment):
        yield failure
        return
    if not trees.same_numbers((state, first), again):
        yield _NOT_SEEDED if environment.host else _NOT_PURE_RESET
    starts = first if environment.host else (state, first)  # on the host a state holds the seed, which always differs
    if trees.same_numbers(trees.take(starts, 0), trees.take(starts, 1)):
        text = f"reset of {environment.spec.name} ignores its key: every episode starts in the same state"
        warnings.warn(text, EnvironmentWarning, stacklevel=5)
    if np.any(first.reward) or np.any(first.terminated) or np.any(first.truncated):
        yield "reset gives a reward or sets a flag; the first step of an episode has reward 0 and no flag."
    if environment.spec.masked:
        shown = np.asarray(first.observation.action_mask)
        yield from _mask_problems(environment.spec, ["reset"] * SEEDS, shown, np.asarray(False))
    if not trees.all_finite((state, first)):
        yield "reset gives numbers that are not finite."
    if not trees.same_numbers(first.observation, first.final_observation):
        yield "reset gives a final_observation that differs from its observation; build the step by first_step."


def _inputs(spec: EnvSpec, mask: Array | None, action_key: Key, step_key: Key) -> tuple[Array, Key]:
    """Random actions, of those that the mask allows, and keys of one step of all episodes."""
    shape = (SEEDS, *spec.action_shape)
    keys = jax.random.split(step_key, SEEDS)
    if not spec.discrete:
        return jax.random.uniform(action_key, shape, minval=-1.0, maxval=1.0), keys
    if mask is None:
        count = jnp.broadcast_to(jnp.asarray(spec.categories or spec.action_size), shape)
        return jax.random.randint(action_key, shape, 0, count), keys
    logits = distributions.by_part(distributions.masked_logits(jnp.zeros(mask.shape), mask), spec.categories)
    return jax.random.categorical(action_key, logits).astype(jnp.int32), keys


def _random_episodes(environment: Environment, key: Key) -> Step:
    """The steps `[T, SEEDS, ...]` of episodes with random actions, of the spec's length and without resets."""
    reset_key, action_key, step_key = jax.random.split(key, 3)
    start = jax.jit(jax.vmap(environment.reset))(jax.random.split(reset_key, SEEDS))
    if environment.spec.parameters is not None and environment.assignment is not None:
        keys = jax.random.split(jax.random.fold_in(reset_key, SEEDS), SEEDS)
        start = jax.vmap(environment.assignment.first)(start, jnp.arange(SEEDS), keys)

    def advance(before: tuple[PyTree, Array | None], time: Array) -> tuple[tuple[PyTree, Array | None], Step]:
        state, mask = before
        keys = jax.random.fold_in(action_key, time), jax.random.fold_in(step_key, time)
        state, step = jax.vmap(environment.step)(state, *_inputs(environment.spec, mask, *keys))
        return (state, step.observation.action_mask), step

    times = jnp.arange(environment.spec.episode_length)
    first = start[0], start[1].observation.action_mask
    return jax.jit(partial(jax.lax.scan, advance))(first, times)[1]


def _over(spec: EnvSpec, steps: Step) -> np.ndarray:
    """Whether episodes are over in each step, `[T, SEEDS]`."""
    ended = np.asarray(steps.terminated | steps.truncated)
    return np.all(ended, axis=-1) if spec.team else ended


def _kind(value: object) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return f"a tuple of {len(value)}"
    return f"{type(value).__name__}"


def _declaration_problems(environment: Environment, shapes: PyTree, inputs: tuple[PyTree, ...]) -> Iterator[str]:
    """Problems of the declared parameters that show without a step; `shapes` are those of the state and the step that
    `step` returns, `inputs` those of its arguments."""
    declared, parameterize = environment.spec.parameters, environment.parameterize
    if declared is None:
        return
    if parameterize is None:
        yield "spec declares parameters, but the environment has no parameterize, which returns it with other values."
        return

    def step(values: PyTree, *arguments: PyTree) -> PyTree:
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


def _has_type(array: Array, kind: DTypeLike) -> bool:
    """Whether a leaf of a step, as a shape, has a type: `jnp.floating` is float32, or float64, which exists only with
    `jax_enable_x64`."""
    return array.dtype in (jnp.float32, jnp.float64) if kind is jnp.floating else array.dtype == kind


def _measure_problems(spec: EnvSpec, where: str, measures: Mapping[str, Array] | None) -> Iterator[str]:
    """Wrong names, shapes and types of a step's measures, as shapes."""
    if set(measures or {}) != set(spec.measures or {}):
        yield (
            f"{where} gives the measures {', '.join(measures or {}) or 'none'}, but spec.measures has "
            f"{', '.join(spec.measures or {}) or 'none'}; pass measures to rookery.envs.first_step and next_step."
        )
    for name, value in (measures or {}).items():
        is_array = hasattr(value, "dtype")
        if not (is_array and value.shape in ((), spec.agents) and _has_type(value, jnp.floating)):
            shapes = " or ".join(map(str, dict.fromkeys([(), spec.agents])))
            got = f"{value.dtype} {value.shape}" if is_array else type_of(value)
            yield f"{where} gives the measure {name} as {got} instead of float32 {shapes}."


def _behaviour_problems(environment: Environment, run: Callable[[Environment], Step], steps: Step) -> Iterator[str]:
    """Problems that show in `steps`, episodes with random actions; `run` gives those of another environment with the
    same keys and actions."""
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
