"""Checks of user-defined environments: each mistake is reported in one sentence."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.agents.ppo import ppo
from rookery.agents.sac import sac
from rookery.agents.td3 import td3
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec, Step, Team, first_step, next_step
from rookery.envs.check import EnvironmentWarning, check_environment, check_interface
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.envs.wrappers.time_limit import guard_physics, limit_episode
from rookery.learners.off_policy import off_policy
from rookery.learners.on_policy import on_policy
from rookery.types import Observation

LENGTH = 6
WRONG = r"^the environment line is wrong, see docs/guides/own_environment\.md: "


def start(mistake: str, state: jax.Array) -> Step:
    """The first step of an episode with one mistake."""
    first, pixels = first_step(state, jnp.zeros(0)), jnp.zeros(2, jnp.uint8)
    wrong = {
        "reward at start": first._replace(reward=jnp.ones(())),
        "other final observation": first._replace(final_observation=Observation(state + 1.0)),
        "skill at start": first._replace(observation=Observation(state, jnp.zeros(1))),
        "pixels at start": first_step(pixels, jnp.zeros(0)),
        "no measure at start": first._replace(measures={"height": None}),
    }
    return wrong.get(mistake, first)


def line(mistake: str = "", **spec: Any) -> Environment:
    """A point on a line with one mistake."""
    described = EnvSpec(**{"name": "line", "observation_size": 2, "action_size": 1, "episode_length": LENGTH, **spec})

    def reset(key: jax.Array) -> Any:
        state = jnp.zeros(2) if mistake == "same start" else jax.random.uniform(key, (2,))
        first = start(mistake, state)
        return first if mistake == "no pair" else (state, first)

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        state = state + (action if mistake != "needs two actions" else action[1:] + action[:1] @ jnp.ones((2, 1)))
        if mistake == "branches in Python" and state[0] > 0.5:
            state = -state
        if mistake == "growing state":
            state = jnp.concatenate([state, state])
        reward = {
            "long reward": jnp.ones(1),
            "nan": jnp.float32(jnp.nan),
            "overflow": jnp.float32(1e37),
            "int reward": jnp.int32(1),
        }.get(mistake, jnp.ones(()))
        shown = state[:2] if mistake != "huge" else jnp.full(2, 1e20)
        return state, next_step(shown, jnp.ones(()), jnp.asarray(False), jnp.zeros(0))._replace(reward=reward)

    environment = Environment(reset, step, described)
    return environment if mistake in ("no time limit", "no pair") else limit_episode(environment, LENGTH)


def test_what_is_right_is_accepted() -> None:
    """A shipped environment, one that always terminates and needs no time limit, and broken physics that end it."""

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        return state, next_step(state, jnp.ones(()), jnp.asarray(True), jnp.zeros(0))

    rookery.check_environment(registry.make("probe_both", episode_length=LENGTH))
    check_environment(line("no time limit")._replace(step=step))
    check_environment(limit_episode(guard_physics(line("nan")), LENGTH))


def test_actions_that_a_mask_forbids_are_not_tried() -> None:
    allowed = jnp.asarray([False, True, False])

    def reset(key: jax.Array) -> tuple:
        place = jax.random.uniform(key, (2,))
        return place, first_step(place, jnp.zeros(0), allowed)

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple:
        reward = jnp.where(action == 1, 1.0, jnp.nan)
        return state, next_step(state, reward, jnp.asarray(False), jnp.zeros(0), allowed)

    spec = EnvSpec("masked", 2, 3, LENGTH, discrete=True, masked=True)
    check_environment(limit_episode(Environment(reset, step, spec), LENGTH))


def masked(none_from: int, ends: bool = False, names: tuple[str, ...] = ()) -> Environment:
    """Steps are counted; from `none_from` on the mask of the last agent of a team, or the only one, allows nothing."""
    team = Team(names, (2,) * len(names), (3,) * len(names)) if names else None
    # Of a single agent the actions have two parts, and it is the second that the mask allows nothing of.
    parts = () if names else (1, 2)
    spec = EnvSpec("masked", 2, 3, LENGTH, discrete=True, categories=parts, masked=True, team=team)

    def observed(state: jax.Array) -> tuple[jax.Array, jax.Array]:
        allowed = jnp.broadcast_to(state[0] < none_from, (*spec.agents, 3))
        allowed = allowed if names else allowed.at[0].set(True)
        return jnp.broadcast_to(state, (*spec.agents, 2)), allowed.at[:-1].set(True) if names else allowed

    def reset(key: jax.Array) -> tuple:
        state = jnp.asarray([0.0, jax.random.uniform(key)])
        features, mask = observed(state)
        return state, first_step(features, jnp.zeros(0), mask)

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple:
        state = state.at[0].add(1.0)
        features, mask = observed(state)
        over = jnp.broadcast_to((state[0] >= none_from) & ends, spec.agents)
        return state, next_step(features, jnp.ones(spec.agents), over, jnp.zeros(0), mask)

    return limit_episode(Environment(reset, step, spec), LENGTH)


@pytest.mark.parametrize("names", [(), ("predator", "prey")])
class TestAMaskWithoutAnAllowedAction:
    """A forbidden action would be taken without a word."""

    @pytest.mark.parametrize(("none_from", "place"), [(0, "reset"), (3, "step 3")])
    def test_is_an_error_of_the_check(self, names: tuple[str, ...], none_from: int, place: str) -> None:
        whose = " of the agent prey" if names else ""
        message = (
            rf": {place} gives an action mask{whose} that allows no action, so that a forbidden one would be taken"
        )
        for check in (check_interface, check_environment) if place == "reset" else (check_environment,):
            with pytest.raises(ValueError, match=message) as caught:
                check(masked(none_from, names=names))
            assert "\n" not in str(caught.value)

    def test_of_a_step_breaks_the_episode_of_a_run(self, names: tuple[str, ...]) -> None:
        environment = masked(3, names=names)
        state, _ = environment.reset(jax.random.key(0))
        found = []
        for _ in range(3):
            action = jnp.zeros(environment.spec.action_shape, jnp.int32)
            state, step = environment.step(state, action, jax.random.key(1))
            found.append((bool(step.broken), bool(step.over), float(jnp.sum(step.reward))))
        assert found == [(False, False, max(len(names), 1))] * 2 + [(True, True, 0.0)]

    def test_at_the_end_of_an_episode_is_accepted(self, names: tuple[str, ...]) -> None:
        none_from = 2 if names else LENGTH  # also where the time limit ends it
        environment = masked(none_from, ends=none_from < LENGTH, names=names)
        check_environment(environment)
        state, _ = environment.reset(jax.random.key(0))
        for _ in range(none_from):
            action = jnp.zeros(environment.spec.action_shape, jnp.int32)
            state, step = environment.step(state, action, jax.random.key(1))
        assert (bool(step.over), bool(step.broken)) == (True, False)


@pytest.mark.parametrize("name", ["point_room", "probe_value"])
def test_the_zeros_of_a_reset_may_have_double_precision(name: str) -> None:
    with jax.enable_x64(True):
        check_interface(registry.make(name))


@pytest.mark.parametrize(
    ("mistake", "spec", "message"),
    [
        ("no pair", {}, r"reset\(key\) must return \(state, step\), with step from .*\.first_step, got Step"),
        ("", {"observation_size": 3}, r"reset gives observation\.features of shape \(2,\) instead of \(3,\)\. \(spec"),
        ("", {"qd_offset": math.nan}, r"spec\.qd_offset must be a finite number, got nan\.$"),
        ("", {"discrete": True, "categories": (2, 2)}, r"spec\.categories is \(2, 2\).*action_size, which is 1\."),
        ("", {"team": Team(("a", "a"), (2, 2), (1, 1))}, r"the agent of the team 'a' is there twice"),
        ("", {"measures": {"return": "text"}}, r"the measure 'return' needs another name, since rookery uses it"),
        ("", {"observation_size": 10**9}, r"spec\.observation_size is 1,000,000,000 numbers, 4 GB, and networks and"),
        ("", {"descriptor": "x, y"}, r"spec\.descriptor must be a DescriptorSpec or None, got 'x, y'\.$"),
        ("no measure at start", {"measures": {"height": "m"}}, r"reset gives the measure height as None instead of fl"),
        ("", {"masked": True}, r"reset gives no mask, but spec\.masked is True\."),
        ("needs two actions", {}, r"step\(state, action, key\) raised TypeError for an action of shape \(1,\)"),
        ("branches in Python", {}, r".*raised TracerBoolConversionError .*test_check\.py, line \d+\); compute with"),
        ("growing state", {}, r"\.inner of the state is float32 \(2,\) after reset and float32 \(4,\) after step\.$"),
        ("long reward", {}, r"step gives reward of shape \(1,\) instead of \(\)\.$"),
        ("int reward", {}, r"step gives reward of type int32 instead of float32\.$"),
        ("pixels at start", {}, r"step gives observation.* and final_.* of type float32, reset of type uint8; give"),
        ("skill at start", {}, r"step returns a Step with other parts than that of reset; give the same parts in"),
        ("no time limit", {}, r"an episode did not end within spec\.episode_length = 6 steps; .*limit_episode\("),
    ],
)
def test_a_wrong_interface_is_an_error_of_the_check_and_of_learners(mistake: str, spec: dict, message: str) -> None:
    environment = line(mistake, **spec)
    learners = (lambda e: off_policy(sac(line().spec), e), lambda e: on_policy(ppo(line().spec), e))
    for check in (check_interface, *(learners if mistake == "long reward" else (check_environment,))):
        with pytest.raises(ValueError, match=WRONG + message):
            check(environment)


def test_a_name_that_is_no_text_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^the environment 3 is wrong, .*: spec\.name must be a text, got 3\.$"):
        check_interface(line(name=3))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("reward at start", r"reset gives a reward or sets a flag; the first step of an episode has reward 0 and no"),
        ("other final observation", r"reset gives a final_observation that differs from its observation; build"),
        ("nan", r"step 1 gives reward that is not finite, or beyond 1e\+15; rookery\.envs\.guard_physics"),
        ("overflow", r"step 1 gives reward that is not finite, or beyond 1e\+15; rookery\.envs\.guard_physics"),
    ],
)
def test_wrong_behaviour_is_an_error(mistake: str, message: str) -> None:
    with pytest.raises(ValueError, match=WRONG + message):
        check_environment(line(mistake))


def test_an_impure_reset_is_an_error() -> None:
    calls = []

    def reset(key: jax.Array) -> Any:
        calls.append(0)
        start = jax.random.uniform(key, (2,)) + len(calls)
        return start, first_step(start, jnp.zeros(0))

    impure = limit_episode(line("no time limit")._replace(reset=reset), LENGTH)
    with pytest.raises(ValueError, match=r"the same key gives different start states; reset must be a pure function"):
        check_environment(impure)


def test_an_impure_step_is_an_error_also_where_the_user_compiled_it() -> None:
    plain, calls = line("no time limit"), []

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        calls.append(0)
        return plain.step(state + len(calls), action, key)

    compiled = jax.jit(step)
    compiled(jnp.zeros(2), jnp.zeros(1), jax.random.key(0))
    environment = limit_episode(plain._replace(step=compiled), LENGTH)
    for _ in range(2):  # also a second time, when each pass finds what it traced the first time
        with pytest.raises(ValueError, match=r"the same states, actions and keys give different steps; step must be a"):
            check_environment(environment)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("same start", r"^reset of line ignores its key: every episode starts in the same state$"),
        ("huge", r"^line gives observations up to 1e\+20: members diverge that do not normalize them$"),
    ],
)
def test_what_is_rarely_intended_is_a_warning(mistake: str, message: str) -> None:
    with pytest.warns(EnvironmentWarning, match=message):
        check_environment(line(mistake))


def test_swapped_arguments_are_errors_that_name_the_order() -> None:
    environment = line()
    for build in (sac, ppo, rookery.qd.policy, partial(rookery.agents.shared, ppo(environment.spec))):
        with pytest.raises(ValueError, match=r" is built from an EnvSpec, got Environment; pass its spec:"):
            build(environment)  # pyright: ignore[reportArgumentType]
    for learner, agent in ((off_policy, sac), (on_policy, ppo)):
        with pytest.raises(
            ValueError, match=rf"^{learner.__name__} takes the agent first, then the environment; got an"
        ):
            learner(environment, agent(environment.spec))  # pyright: ignore
        with pytest.raises(ValueError, match=r"^an environment must be a rookery\.Environment, got EnvSpec; "):
            learner(agent(environment.spec), environment.spec)  # pyright: ignore
    with pytest.raises(ValueError, match=r"spec\.categories must be a tuple, such as \(2, 3\), got array"):
        ppo(line().spec._replace(categories=np.array([2, 3]), discrete=True, action_size=5))


def test_an_agent_of_another_environment_is_an_error() -> None:
    environment = line()
    stacked = stack_frames(environment, 4)
    pairs: tuple[Any, ...] = (off_policy, sac), (off_policy, td3), (on_policy, ppo)
    for learner, agent in pairs:
        learner(agent(stacked.spec), stacked)
        with pytest.raises(ValueError, match=r"was built for \d+ numbers of an observation and .*; build it from the"):
            learner(agent(environment.spec), stacked)
