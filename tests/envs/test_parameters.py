"""Parameters of environments: bound through every wrapper, and checked."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import ActionWithCarry, Environment
from rookery.envs.check import check_environment, check_interface
from rookery.envs.wrappers.auto_reset import auto_reset, start_bank
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.envs.wrappers.recurrence import with_carry
from rookery.envs.wrappers.skills import skills
from rookery.envs.wrappers.teams import as_team, identify
from rookery.hyperparams import defaults
from tests.envs.parameterized import Prices, levelled, priced, unlimited

WRAPPED: dict[str, Callable[[], Any]] = {
    "time limit and guard": priced,
    "frames": lambda: stack_frames(priced(), 3),
    "skills": lambda: skills(priced(), 2),
    "carry": lambda: with_carry(priced(), 3),
    "team of one": lambda: as_team(priced()),
    "identified team": lambda: identify(priced(team=True)),
    "automatic reset": lambda: auto_reset(priced(), start_bank(priced(), jax.random.key(1), 2)),
}


def rewards(environment: Environment) -> np.ndarray:
    """Rewards of the first two steps, `[2]`."""
    state, step = environment.reset(jax.random.key(0))
    action: Any = jnp.zeros((*environment.spec.agents, 1))
    action = ActionWithCarry(action, step.observation.carry) if environment.spec.recurrent else action
    found = []
    for _ in range(2):
        state, step = environment.step(state, action, jax.random.key(0))
        found.append(np.ravel(step.reward)[0])
    return np.asarray(found)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_wrappers_pass_parameters_through(wrapped: str) -> None:
    environment = WRAPPED[wrapped]()
    assert rewards(environment).tolist() == [1.0, 2.0]  # bonus 0, pace 1
    bound = environment.parameterize(Prices(bonus=jnp.float32(10.0), pace=jnp.float32(2.0)))
    assert rewards(bound).tolist() == [12.0, 14.0]
    state = jax.eval_shape(environment.reset, jax.random.key(0))
    assert jax.tree.structure(jax.eval_shape(bound.reset, jax.random.key(0))) == jax.tree.structure(state)


def test_measures_pass_through_a_wrapped_environment() -> None:
    environment: Any = identify(stack_frames(priced(team=True), 2))
    state, step = environment.reset(jax.random.key(0))
    assert {name: np.asarray(value).tolist() for name, value in step.measures.items()} == {"steps": 0.0, "each": [0, 0]}
    _, step = environment.step(state, jnp.zeros((2, 1)), jax.random.key(0))
    assert {name: np.asarray(value).tolist() for name, value in step.measures.items()} == {"steps": 1.0, "each": [3, 5]}


class TestAssignment:
    """An environment whose start depends on a parameter, which skills are added to."""

    def test_skills_begin_at_the_start_that_the_environment_assigns(self) -> None:
        environment: Any = skills(levelled(), 2, balanced=True)
        start = environment.reset(jax.random.key(0))
        assert float(start[0].inner.inner[1]) == 0.0
        state, step = environment.assignment.first(start, jnp.int32(1), None)
        assert (float(state.inner.inner[1]), state.skill.tolist()) == (7.0, [0.0, 1.0])
        assert (float(step.observation.features[1]), step.observation.skill.tolist()) == (7.0, [0.0, 1.0])
        state, step = environment.assignment.next(start, state, jax.random.key(0))
        assert (float(state.inner.inner[1]), state.skill.tolist()) == (14.0, [1.0, 0.0])

    def test_a_parameter_of_the_start_is_bound_in_the_assignment(self) -> None:
        environment: Any = skills(levelled(), 2)
        bound = environment.parameterize(Prices(bonus=jnp.float32(3.0)))
        state, _ = bound.assignment.first(environment.reset(jax.random.key(0)), jnp.int32(0), jax.random.key(1))
        assert float(state.inner.inner[1]) == 3.0

    @pytest.mark.parametrize(
        ("wrap", "message"),
        [
            (partial(stack_frames, count=2), "apply stack_frames before adding them"),
            (partial(with_carry, carry_sizes=3), r"priced has an assignment already"),
        ],
    )
    def test_other_wrappers_are_applied_before(self, wrap: Callable, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            wrap(levelled())


def _with_measure(value: jax.Array) -> Callable[[Environment], Environment]:
    return _changed(lambda step: step._replace(measures={"steps": value}))


def _changed(change: Callable) -> Callable[[Environment], Environment]:
    """Change what each step of an environment returns."""

    def wrap(environment: Environment) -> Environment:
        def step(state: Any, action: jax.Array, key: jax.Array) -> tuple:
            state, taken = environment.step(state, action, key)
            return state, change(taken)

        return environment._replace(step=step)

    return wrap


def _declaring_gain(env: Environment) -> Environment:
    return env._replace(spec=env.spec._replace(measures={"gain": "of weight"}))


def _without_bonus(env: Any) -> Environment:
    return env._replace(parameterize=lambda prices: env.parameterize(Prices(pace=prices.pace)))


_doubled = _changed(lambda step: step._replace(reward=2.0 * step.reward))


class TestCheck:
    def test_declarations_that_are_right_pass(self) -> None:
        check_environment(registry.make("pursuit_discrete", episode_length=40))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda env: env._replace(parameterize=None), r"spec declares parameters, but .* no parameterize, which"),
            (lambda env: env._replace(parameterize=unlimited().parameterize), r".* whose step raised TypeError: .*set"),
            (lambda env: env._replace(parameterize=partial(priced, True)), r".* step gives other shapes, types or "),
            (_declaring_gain, r"reset gives the measures steps, but spec\.measures has gain; pass measures to"),
            (_with_measure(jnp.zeros((3,))), r"step gives the measure steps as float32 \(3,\) instead of float32 "),
        ],
    )
    def test_mistakes_that_show_without_a_step(self, change: Callable, message: str) -> None:
        with pytest.raises(ValueError, match=f"^the environment priced is wrong, see [a-z_./]+: {message}"):
            check_interface(change(priced()))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (_doubled, r"parameterize with the default values gives other steps than the environment; set it before"),
            (_without_bonus, r"the parameter bonus changes no step of an episode with random actions; use it in step"),
            (_with_measure(jnp.float32(jnp.inf)), r"the measure steps is not finite in an episode with random "),
        ],
    )
    def test_mistakes_that_show_in_an_episode(self, change: Callable, message: str) -> None:
        with pytest.raises(ValueError, match=f"^the environment priced is wrong, see [a-z_./]+: {message}"):
            check_environment(change(priced()))


def test_the_defaults_of_a_task_are_its_options() -> None:
    declared: Any = registry.make("pursuit_discrete", prey_speed=0.0).spec.parameters
    assert {name: float(value) for name, value in defaults(declared)._asdict().items()} == {
        "predator_speed": 1.0,
        "prey_speed": 0.0,
        "capture_radius": pytest.approx(0.2),
    }
