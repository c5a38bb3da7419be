"""The contract of all environments of the registry."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import trees
from rookery.envs import base, descriptors, registry
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.host.base import HostState
from rookery.envs.wrappers import time_limit
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.types import Observation
from tests.envs import gymnasium_environments

# The other probes differ by the reward of their one step only, which `test_registry` computes.
SAME = ("probe_value", "probe_observation", "probe_action")
OWN = tuple(name for name in registry.names() if registry.find(name).suite == "rookery" and name not in SAME)
SUITES = ("hopper_uni", "CartpoleBalance")
HOST = "gym:counter"  # of the tests, which runs on the host
FIXED_START = ("probe_discount", "probe_truncation")
LENGTH = 150  # of the suites' episodes here: the clock must end within the steps below
STEPS = 200


class EnvCase(NamedTuple):
    """An environment with its compiled functions, and what came of two of it side by side."""

    env: Environment
    reset: Callable[..., Any]
    step: Callable[..., Any]
    traces: Counter[str]
    keys: jax.Array  # [2] of the resets
    step_keys: jax.Array  # [STEPS, 2]
    actions: jax.Array  # [STEPS, 2, A]
    starts: tuple[Any, Step]  # [2, ...]
    first: tuple[Any, Step]  # [2, ...] after one step
    steps: Step  # [STEPS, 2, ...]


def compiled(function: Callable[..., Any], traces: Counter[str], name: str) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        traces[name] += 1
        return function(*args)

    return jax.jit(counted)


def roll(env: Environment, keys: jax.Array, actions: jax.Array, step_keys: jax.Array) -> tuple[Any, Any, Step]:
    """Start states, what one step makes of them, and all steps."""

    def advance(state: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, tuple[Any, Step]]:
        state, step = jax.vmap(env.step)(state, *inputs)
        return state, (state, step)

    starts = jax.vmap(env.reset)(keys)
    _, (states, steps) = jax.lax.scan(advance, starts[0], (actions, step_keys))
    return starts, trees.take((states, steps), 0), steps


@pytest.fixture(scope="session", params=(*OWN, *SUITES, HOST))
def case(request: pytest.FixtureRequest) -> EnvCase:
    name = request.param
    if name == HOST:
        env = gymnasium_environments.make()
    else:
        env = registry.make(name, episode_length=LENGTH) if name in SUITES else registry.make(name)
    traces: Counter[str] = Counter()
    keys = jax.random.split(jax.random.key(0), 2)
    step_keys = jax.random.split(jax.random.key(1), (STEPS, 2))
    # Full force to and fro is what upsets physics most, and what ends episodes of robots.
    each, key = (STEPS, 2, *env.spec.agents), jax.random.key(2)
    actions = jax.random.rademacher(key, (*each, env.spec.action_size), jnp.float32)
    if env.spec.discrete:
        actions = jax.random.randint(key, each, 0, env.spec.action_size)
    reset, step = compiled(env.reset, traces, "reset"), compiled(env.step, traces, "step")
    # Of the compiled functions, so that the physics are traced once for all.
    starts, first, steps = jax.jit(partial(roll, env._replace(reset=reset, step=step)))(keys, actions, step_keys)
    return EnvCase(env, reset, step, traces, keys, step_keys, actions, starts, first, steps)


def repeatable(tree: Any) -> Any:
    """The numbers that are repeated: an episode on the host is another one each time, in another slot."""
    is_host = lambda node: isinstance(node, HostState)  # noqa: E731
    return jax.tree.map(lambda node: node.seed if is_host(node) else node, tree, is_leaf=is_host)


def assert_trees_close(one: Any, other: Any, rtol: float, atol: float) -> None:
    one, other = repeatable(one), repeatable(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def test_shapes_and_types_are_as_declared(case: EnvCase) -> None:
    spec = case.env.spec
    if spec.name in SUITES:  # `test_registry` compares the other rows
        task = registry.find(spec.name)
        assert spec[:3] == (spec.name, task.observation_size, task.action_size)
    agents = spec.agents
    expected = {
        "reward": (agents, jnp.float32),
        "terminated": (agents, jnp.bool_),
        "truncated": (agents, jnp.bool_),
        "descriptor": ((spec.descriptor_size,), jnp.float32),
        "broken": ((), jnp.bool_),
    }
    for state, step in (case.starts, case.first):
        for observation in (step.observation, step.final_observation):
            features = observation.features
            assert (features.shape[1:], features.dtype) == ((*agents, spec.observation_size), jnp.float32)
            assert observation == Observation(features)  # no other part
        assert step.episode_return is None
        measures = {name: (value.shape[1:], value.dtype) for name, value in (step.measures or {}).items()}
        assert set(measures) == set(spec.measures or {})
        assert set(measures.values()) <= {(shape, jnp.dtype("float32")) for shape in ((), agents)}
        fields = step._replace(observation=None, final_observation=None, measures=None)._asdict()
        assert {k: (v.shape[1:], v.dtype) for k, v in fields.items() if v is not None} == expected
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {jnp.dtype("float32"), jnp.dtype("int32")}


def test_a_reset_gives_nothing_and_random_steps_stay_finite(case: EnvCase) -> None:
    _, step = case.starts
    assert not np.any(step.reward)
    assert not np.any(step.ended)
    for one in (step, case.steps):  # without automatic reset the observation is the successor
        assert not np.any(one.broken)
        np.testing.assert_array_equal(one.observation.features, one.final_observation.features)
    assert bool(trees.all_finite((case.starts, case.steps)))


def test_functions_are_pure_and_starts_differ(case: EnvCase) -> None:
    assert_trees_close(case.reset(case.keys[0]), case.reset(case.keys[0]), rtol=0, atol=0)
    observation = case.starts[1].observation.features
    if case.env.spec.name not in (*FIXED_START, "probe_both"):
        assert not np.array_equal(observation[0], observation[1])
    state = trees.take(case.starts[0], 0)
    before = jax.tree.map(np.array, state)
    arguments = state, case.actions[0, 0], case.step_keys[0, 0]
    assert_trees_close(case.step(*arguments), case.step(*arguments), rtol=0, atol=0)
    jax.tree.map(np.testing.assert_array_equal, before, state)


def test_vmap_equals_a_loop(case: EnvCase) -> None:
    for i in range(2):
        state, start = case.reset(case.keys[i])
        assert_trees_close((state, start), trees.take(case.starts, i), rtol=1e-5, atol=1e-5)
        after = case.step(trees.take(case.starts[0], i), case.actions[0, i], case.step_keys[0, i])
        assert_trees_close(after, trees.take(case.first, i), rtol=1e-3, atol=1e-3)


def test_compiles_once(case: EnvCase) -> None:
    case.traces.clear()  # what was compiled before is still used, or was dropped
    state, _ = case.reset(case.keys[0])
    case.reset(case.keys[1])
    for t in range(3):  # what a step returns must fit where a reset's result went
        state, _ = case.step(state, case.actions[t, 0], case.step_keys[t, 0])
    assert max(case.traces.values(), default=0) <= 1


def test_actions_are_clipped_and_those_that_are_not_finite_break_the_episode(case: EnvCase) -> None:
    if case.env.spec.discrete:
        pytest.skip("a number names an action, and has no bounds")
    state, key, action = trees.take(case.starts[0], 1), case.step_keys[0, 0], case.actions[0, 0]
    assert_trees_close(case.step(state, 3.0 * action, key), case.step(state, action, key), rtol=0, atol=0)
    if not case.env.spec.name.startswith("probe"):
        _, step = case.step(state, action.at[..., 0].set(jnp.nan), key)
        assert bool(step.broken & trees.all_finite(step))
        assert np.all(step.terminated)


def test_descriptor_is_within_its_limits(case: EnvCase) -> None:
    spec = case.env.spec
    if spec.descriptor is None:
        assert case.steps.descriptor.shape[-1] == 0
        return
    descriptors_seen = np.concatenate([case.starts[1].descriptor[None], case.steps.descriptor])
    assert (descriptors_seen >= np.asarray(spec.descriptor.lower)).all()
    assert (descriptors_seen <= np.asarray(spec.descriptor.upper)).all()


def test_the_clock_truncates_and_never_terminates(case: EnvCase) -> None:
    late = np.arange(1, STEPS + 1)[:, None] >= case.env.spec.episode_length
    terminated, truncated = np.asarray(case.steps.terminated), np.asarray(case.steps.truncated)
    late = late[..., None] if case.env.spec.team else late
    if case.env.host is not None:  # the steps of an episode that is over are truncated
        late = late | np.cumsum(terminated, axis=0).astype(bool)
    np.testing.assert_array_equal(truncated, late & ~terminated)
    if case.env.spec.name == "hopper_uni":
        assert terminated.any(), "full force to and fro topples a hopper"


def fragile(value: float) -> Environment:
    """An environment whose numbers are `value` wherever the action is above 0."""

    def reset(key: jax.Array) -> tuple[jax.Array, Step]:
        return jnp.zeros(()), base.first_step(jnp.zeros(2), jnp.zeros(1))

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        number = jnp.where(action[0] > 0, value, 1.0)
        return state, base.next_step(jnp.stack([number, 2.0]), number, jnp.asarray(False), number[None])

    spec = EnvSpec("fragile", 2, 1, 1, descriptor=base.descriptor_spec("a number", "mean", (0.0,), (1.0,)))
    return Environment(reset, step, spec)


def test_a_time_limit_keeps_the_truncations_of_the_environment() -> None:
    """A limit of `limit_episode` is replaced by another; the rules of the environment itself are not."""
    room, limit = registry.make("point_room", episode_length=2), time_limit.limit_episode
    in_three = limit(of_three_steps(room), 5)
    for environment, length, end in (
        (room, 4, 4),
        (stack_frames(room, 2), 4, 4),
        (limit(limit(room, 3), 1), 4, 4),
        (of_three_steps(room), 4, 3),
        (of_three_steps(room), 1, 1),
        (in_three, 4, 3),
        (time_limit.guard_physics(in_three), 9, 3),
        (stack_frames(in_three, 2), 9, 3),
        (in_three, 2, 2),
    ):
        env = limit(environment, length)
        assert env.spec.episode_length == length
        state, step = env.reset(jax.random.key(0))
        truncated = []
        for key in jax.random.split(jax.random.key(1), end):
            state, step = env.step(state, jnp.zeros(2), key)
            truncated.append(bool(step.truncated))
        assert truncated == [False] * (end - 1) + [True]


def of_three_steps(environment: Environment) -> Environment:
    """The environment with a truncation of its own in the third step."""

    def step(state: tuple, action: jax.Array, key: jax.Array) -> tuple:
        inner, taken = environment.step(state[0], action, key)
        return (inner, state[1] + 1), taken._replace(truncated=state[1] == 2)

    def reset(key: jax.Array) -> tuple:
        state, first = environment.reset(key)
        return (state, jnp.zeros((), jnp.int32)), first

    return environment._replace(reset=reset, step=step)


def test_a_step_that_terminates_is_not_truncated() -> None:
    ends = changed(registry.make("point_room"), terminated=jnp.asarray(True), truncated=jnp.asarray(True))
    env = time_limit.limit_episode(ends, 4)
    _, taken = env.step(env.reset(jax.random.key(0))[0], jnp.zeros(2), jax.random.key(1))
    assert (bool(taken.terminated), bool(taken.truncated)) == (True, False)


def changed(environment: Environment, **parts: Any) -> Environment:
    """The environment with other parts of each step."""

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple:
        state, taken = environment.step(state, action, key)
        return state, taken._replace(**{name: part(action) if callable(part) else part for name, part in parts.items()})

    return environment._replace(step=step)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e37])
def test_broken_physics_end_the_episode(value: float) -> None:
    env = time_limit.limit_episode(time_limit.guard_physics(fragile(value)), 1)
    state, _ = env.reset(jax.random.key(0))
    _, sound = env.step(state, -jnp.ones(1), jax.random.key(1))
    assert (float(sound.reward), bool(sound.terminated), bool(sound.truncated), bool(sound.broken)) == (1, 0, 1, 0)
    _, broken = env.step(state, jnp.ones(1), jax.random.key(1))
    assert (float(broken.reward), bool(broken.terminated), bool(broken.truncated), bool(broken.broken)) == (0, 1, 0, 1)
    kept = value if np.isfinite(value) else 0.0  # a reward whose sums overflow may stand beside sound numbers
    np.testing.assert_array_equal(broken.observation.features, np.asarray([kept, 2.0], np.float32))
    np.testing.assert_array_equal(broken.final_observation.features, np.asarray([kept, 2.0], np.float32))
    np.testing.assert_array_equal(broken.descriptor, np.asarray([kept], np.float32))


@pytest.mark.parametrize("cause", ["the physics", "the user's step"])
def test_a_guard_inside_of_a_step_that_a_user_has_replaced_is_not_enough(cause: str) -> None:
    guarded = stack_frames(time_limit.limit_episode(time_limit.guard_physics(fragile(np.nan)), 5), 2)
    assert time_limit.guard_physics(guarded) is guarded

    parts = {} if cause == "the physics" else {"reward": lambda action: jnp.log(-action[0])}
    env = time_limit.guard_physics(changed(guarded, **parts))
    for action, breaks in ((-1.0, False), (1.0, True)):
        _, taken = env.step(env.reset(jax.random.key(0))[0], jnp.full(1, action), jax.random.key(1))
        assert (bool(taken.broken), bool(taken.terminated)) == (breaks, breaks)
        assert bool(trees.all_finite(taken))


@pytest.mark.parametrize(("kind", "expected"), [("mean", [4.0 / 3.0, 1.0]), ("final", [0.0, 3.0])])  # all kinds
def test_streaming_descriptors_by_hand(kind: str, expected: list[float]) -> None:
    descriptor = descriptors.KINDS[kind]
    summary = descriptor.init(2)
    unknown = descriptor.accumulate(summary, jnp.full((2,), jnp.nan), jnp.asarray(False))
    for nothing in (summary, unknown):
        np.testing.assert_array_equal(descriptor.finish(nothing), [0.0, 0.0])
    rows = [([1.0, 0.0], True), ([3.0, 0.0], True), ([0.0, 3.0], True), ([9.0, 9.0], False), ([np.nan, 9.0], False)]
    for row, alive in rows:
        summary = descriptor.accumulate(summary, jnp.asarray(row), jnp.asarray(alive))
    np.testing.assert_allclose(descriptor.finish(summary), expected, rtol=1e-6)


def test_limits_of_a_descriptor_may_be_numbers_of_numpy() -> None:
    limits: Any = np.zeros(1, np.float32), (np.int64(1),)
    spec = base.descriptor_spec("p", "final", *limits, cell=float(np.float32(0.5)))
    assert json.loads(json.dumps(spec._asdict()))["upper"] == [1.0]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (("nothing", "mean", (), ()), "size >= 1"),
        ((("x", "y"), "mean", (0.0,), (1.0,)), "descriptor 'x, y' has 2 names for 1 dimensions"),
        (("a point", "final", (1.0,), (1.0,)), "lower < upper"),
        (("a share", "median", (0.0,), (1.0,)), "'median' is unknown"),
        (("p", "final", (0.0,), (1e39,)), "needs finite limits"),
        (("p", "final", (0.0, 0.0), (1e-19, 1e-20)), r"limits 1e-19 apart, .* limits 1e-15 to 1e\+18 apart"),
        (("p", "final", (-3e38,), (3e38,)), r"limits 6e\+38 apart"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(declared: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        base.descriptor_spec(*declared)


def test_a_measure_that_is_not_finite_breaks_no_physics() -> None:
    measured = changed(fragile(0.0), measures=lambda action: {"height": jnp.log(-action[0])})
    env = time_limit.guard_physics(measured)
    _, taken = env.step(env.reset(jax.random.key(0))[0], jnp.ones(1), jax.random.key(1))
    assert not bool(taken.broken | taken.terminated)
    assert taken.measures is not None
    assert np.isnan(taken.measures["height"])


def test_first_episodes_of_many_environments_are_staggered_without_overflow() -> None:
    state = time_limit.TimeLimitState(inner=jnp.zeros(4096), time=jnp.zeros(4096, jnp.int32))
    times = np.asarray(time_limit.stagger(state, 4096, 1_000_000)[0].time)
    assert (np.diff(times) > 0).all()
    assert (times[0], times[-1]) == (0, 999_755)
    state, whole = time_limit.stagger((), 3, 10)  # without a state there is nothing to stagger
    assert (state, whole.tolist()) == ((), [True] * 3)
