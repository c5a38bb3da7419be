"""Environment objects of other suites: shipped ones equal their tasks, user-defined ones can be trained."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import Descriptor, registry
from rookery.envs.base import Environment, Step, descriptor_spec
from rookery.envs.check import check_interface
from rookery.envs.suites import third_party
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax.adapter import from_brax
from rookery.envs.suites.gymnax import from_gymnax
from rookery.envs.suites.gymnax import load as load_gymnax
from rookery.envs.suites.jaxmarl.adapter import from_jaxmarl
from rookery.envs.suites.playground.adapter import from_playground
from rookery.envs.wrappers.frame_stack import stack_frames

STEPS = 3


def rolling(environment: Environment) -> Callable[[], Step]:
    """The function of the steps `[STEPS + 1, ...]` of an episode with random actions, the first one from the reset."""
    spec = environment.spec
    shape = spec.agents if spec.discrete else (*spec.agents, spec.action_size)

    def advance(state: Any, key: jax.Array) -> Any:
        if spec.discrete:
            return environment.step(state, jax.random.randint(key, shape, 0, spec.action_size), key)
        return environment.step(state, jax.random.uniform(key, shape, minval=-1.0, maxval=1.0), key)

    def roll() -> Step:
        state, first = environment.reset(jax.random.key(0))
        steps = jax.lax.scan(advance, state, jax.random.split(jax.random.key(1), STEPS))[1]
        return jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, steps)

    return roll


def jaxmarl_object(name: str) -> Any:
    with third_party.quiet_import():
        import jaxmarl

        return jaxmarl.make(name)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("CartPole-v1", lambda: from_gymnax(load_gymnax("CartPole-v1").env)),
        ("MPE_simple_crypto_v3", lambda: from_jaxmarl(jaxmarl_object("MPE_simple_crypto_v3"))),  # masked actions
        ("inverted_pendulum", lambda: from_brax(brax.load("inverted_pendulum", "spring"))),
    ],
)
def test_an_object_of_a_suite_equals_its_task(name: str, build: Any) -> None:
    task, environment = registry.make(name), build()
    assert environment.spec._replace(name=name) == task.spec
    assert (environment.picture is None) == (task.picture is None)
    programs = [jax.jit(rolling(one)).lower().as_text() for one in (task, environment)]
    assert programs[0] == re.sub("(reset|step)_object", r"\1", programs[1])  # the names of functions of `from_brax`


class Counting:
    """A user-defined environment in the format of Brax, whose info and metrics it reads and writes in every step."""

    action_size = 1

    def reset(self, rng: jax.Array) -> Any:
        from brax.envs import State

        start, zero = jax.random.uniform(rng, (2,)), jnp.zeros(())
        return State(None, {"position": start}, zero, zero, {"steps": zero}, {"rng": rng})

    def step(self, state: Any, action: jax.Array) -> Any:
        state.metrics["steps"] = state.metrics["steps"] + 1.0
        state.info["rng"], key = jax.random.split(state.info["rng"])
        position = state.obs["position"] + 0.1 * action + 0.01 * jax.random.normal(key, (2,))
        return state.replace(obs={"position": position}, reward=-position[0], done=jnp.float32(position[0] > 2.0))


def test_an_environment_of_ones_own_in_the_format_of_brax_keeps_its_info_and_metrics() -> None:
    place = Descriptor(
        descriptor_spec("position", "final", (-2.0, -2.0), (2.0, 2.0)), lambda state: state.obs["position"]
    )
    environment = from_brax(Counting(), episode_length=5, descriptor=place)
    assert environment.spec.name == "counting"
    assert environment.spec.observation_shape == {"position": (2,)}
    check_interface(environment)
    state, _ = environment.reset(jax.random.key(0))
    before = jax.device_get((state.inner.metrics["steps"], jax.random.key_data(state.inner.info["rng"])))
    after, step = environment.step(state, jnp.zeros(1), jax.random.key(0))
    assert float(after.inner.metrics["steps"]) == 1.0
    np.testing.assert_array_equal(step.descriptor, after.inner.obs["position"])
    again = state.inner.metrics["steps"], jax.random.key_data(state.inner.info["rng"])
    np.testing.assert_array_equal(again[0], before[0])  # the caller's state is not changed
    np.testing.assert_array_equal(again[1], before[1])


def test_images_of_an_object_can_be_stacked() -> None:
    environment = stack_frames(from_gymnax(load_gymnax("Breakout-MinAtar").env, episode_length=5), 2)
    assert environment.spec.observation_shape == (10, 10, 8)


class Nothing:
    """An object that is no environment."""

    name = "nothing"
    default_params = ()


@pytest.mark.parametrize(
    ("adapt", "suite"),
    [(from_brax, "Brax"), (from_gymnax, "gymnax"), (from_jaxmarl, "JaxMARL"), (from_playground, "MuJoCo Playground")],
)
def test_another_object_is_an_error(adapt: Any, suite: str) -> None:
    with pytest.raises(ValueError, match=f"from_.* takes an environment of {suite}, got Nothing; for a task use make"):
        adapt(Nothing())


@pytest.mark.filterwarnings("ignore:Brax System")
def test_an_object_with_wrappers_for_training_is_an_error() -> None:
    from brax import envs
    from brax.envs.wrappers import training

    wrapped = envs.create("inverted_pendulum", backend="spring")
    with pytest.raises(ValueError, match="from_brax adds the time limit and the resets itself; give the environment"):
        from_brax(wrapped)
    own = type("Own", (training.Wrapper,), {})(wrapped)
    own.__class__.__module__ = "own"
    with pytest.raises(ValueError, match=r"without its AutoResetWrapper, such as env\.unwrapped"):
        from_brax(own)


def test_available_actions_are_reported_and_an_agent_without_any_breaks_the_episode() -> None:
    """By agents of different action sizes: the last action alone, and none of the second agent from step 2 on."""
    speaking = jaxmarl_object("MPE_simple_speaker_listener_v4")
    sizes = {agent: speaking.action_space(agent).n for agent in speaking.agents}
    assert len(set(sizes.values())) > 1
    speaking.get_avail_actions = lambda state: {
        agent: (jnp.arange(size) == size - 1) & ((state.step < 2) | (agent == speaking.agents[0]))
        for agent, size in sizes.items()
    }
    steps: Any = jax.jit(rolling(from_jaxmarl(speaking)))()
    mask = steps.observation.action_mask
    assert mask[0].argmax(axis=1).tolist() == [size - 1 for size in sizes.values()]
    assert mask[0].sum(axis=1).tolist() == [1, 1]
    assert (steps.broken.tolist()[1:3], steps.ended[2].tolist()) == ([False, True], [True, True])


def test_actions_of_several_parts_reach_the_agents() -> None:
    """The five actions of a task as one of 2 x 3: the sum of both parts, at most 3."""
    from jaxmarl.environments.spaces import MultiDiscrete

    simple, taken = jaxmarl_object("MPE_simple_v3"), []
    step = simple.step_env

    def step_env(key: Any, state: Any, actions: dict[str, Any]) -> Any:
        taken.append({agent: action.shape for agent, action in actions.items()})
        return step(key, state, {agent: action.sum() for agent, action in actions.items()})

    simple.action_space = lambda _: MultiDiscrete([2, 3])
    simple.step_env = step_env
    env = from_jaxmarl(simple)
    assert (env.spec.categories, env.spec.action_size, env.spec.action_shape) == ((2, 3), 5, (1, 2))
    check_interface(env)
    assert taken[0] == {"agent_0": (2,)}
    simple.agents = ["agent_0", "agent_1"]
    simple.action_space = lambda agent: MultiDiscrete([2, 3] if agent == "agent_0" else [3, 2])
    with pytest.raises(ValueError, match="have actions of different parts; give all the same categories"):
        from_jaxmarl(simple)


def test_an_object_needs_a_time_limit_and_actions_with_bounds() -> None:
    unbounded, endless = (jaxmarl_object("MPE_simple_v3") for _ in range(2))
    unbounded.action_space = lambda _: SimpleNamespace(low=0.0, high=jnp.inf, shape=(2,))
    endless.max_steps = None
    pendulum, cartpole = (load_gymnax(name).env for name in ("Pendulum-v1", "CartPole-v1"))
    pendulum.action_space = lambda _: SimpleNamespace(low=-jnp.inf, high=1.0, shape=(1,))
    no_limit = cartpole.default_params.replace(max_steps_in_episode=None)
    for adapt, message in (
        (lambda: from_gymnax(pendulum), "the action space of Pendulum-v1 is not bounded; give every dimension finite"),
        (lambda: from_jaxmarl(unbounded), "an action space of SimpleMPE is not bounded; give every"),
        (
            lambda: from_gymnax(cartpole, params=no_limit),
            "CartPole-v1 has no time limit of its own; give episode_length",
        ),
        (lambda: from_jaxmarl(endless), "has no attribute max_steps; give episode_length"),
    ):
        with pytest.raises(ValueError, match=message):
            adapt()
