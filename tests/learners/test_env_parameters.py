"""A member trains with its values of the environment's parameters, and is evaluated with the task's."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams
from rookery.agents import multi_agent
from rookery.agents.sac import SacConfig, sac
from rookery.envs import registry
from rookery.learners.base import Learner, genotype
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.learners.on_policy import on_policy
from rookery.populations.role_pbt import pbt_roles
from tests.envs.parameterized import LENGTH, priced
from tests.learners.fixed_agents import CONFIG, SPACE, spy
from tests.tiny import assert_equal

RETURN = 1.0 + 2.0 + 3.0 + 4.0  # of an episode with bonus 0 and pace 1
OFF_POLICY = OffPolicyConfig(
    num_envs=4, steps_per_generation=4, updates_per_step=0.25, batch_size=4, buffer_size=8, warmup_steps=0,
    eval_episodes=2, start_states=2,
)  # fmt: skip


def on(objective: str | None = None, team: bool = False, fitness: str | None = None) -> Learner:
    environment = priced(team)
    agent = spy(environment.spec)
    agent = multi_agent.independent(agent, environment.spec) if team else agent
    config = CONFIG.__class__(**{**vars(CONFIG), "objective": objective, "fitness": fitness})
    return on_policy(agent, environment, config)


def off() -> Learner:
    environment = priced()
    return off_policy(sac(environment.spec, SacConfig(hidden_sizes=(4,))), environment, OFF_POLICY)


def room(config: OffPolicyConfig | None = None) -> Learner:
    """A learner on a task without parameters and measures."""
    environment = registry.make("point_room")
    return off_policy(sac(environment.spec), environment, config)


class Trained(NamedTuple):
    member: Any
    metrics: Any
    evaluation: Any


def trained(learner: Learner, hyper: Any) -> Trained:
    """One generation of a member with each row of `hyper`."""

    def one(hyper: Any) -> Trained:
        key = jax.random.key(0)
        bank = learner.start_states(key)
        member, metrics = learner.step(learner.init(key, hyper, bank), bank, key, jnp.int32(0))
        return Trained(member, metrics, learner.evaluate(genotype(member), bank, key))

    return jax.jit(jax.vmap(one))(hyper)


def with_bonus(learner: Learner, *values: float) -> Any:
    """A row of hyper-parameters for each value."""
    hyper = hyperparams.defaults(hyperparams.choose(learner.space, env_bonus="evolve"))
    rows = jax.tree.map(lambda leaf: jnp.full((len(values),), leaf), hyper)
    return rows._replace(env_bonus=jnp.asarray(values, jnp.float32))


@pytest.mark.parametrize("build", [on, off])
def test_each_member_trains_with_its_value_and_is_evaluated_on_the_task(build: Any) -> None:
    learner = build()
    found = trained(learner, with_bonus(learner, 0.0, 8.0, 0.5))
    reward = np.asarray(found.metrics["reward"])
    np.testing.assert_allclose(reward - reward[0], [0.0, 8.0, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(found.evaluation.fitness, [RETURN] * 3)
    assert found.member.hyper.env_bonus.tolist() == [0.0, 8.0, 0.5]  # the member keeps it
    changed = [np.asarray(leaf) for leaf in jax.tree.leaves(found.member.state)]
    assert any((leaf[0] != leaf[1]).any() for leaf in changed)  # it changes the update
    if build is on:  # without a choice nothing is bound
        hyper = hyperparams.defaults(learner.space)
        plain = trained(learner, jax.tree.map(lambda leaf: leaf[None], hyper)).member
        assert_equal(plain.state, jax.tree.map(lambda leaf: leaf[:1], found.member.state))
        assert type(plain.hyper) is type(hyper)
        assert not any(name.startswith("env_") for name in hyper._fields)


def test_separate_roles_have_no_parameters_of_the_environment() -> None:
    learner = on(team=True)
    pbt_roles(learner, population_size=2)
    space = hyperparams.choose(learner.space, env_bonus=(1.0, 2.0))
    with pytest.raises(ValueError, match=r"^env_bonus belongs to the environment of a whole team, but each role has"):
        pbt_roles(learner, space, population_size=2)


class TestSpace:
    def test_fields_join_when_they_are_chosen(self) -> None:
        space = on().space
        chosen = hyperparams.choose(space, env_pace=(0.5, 2.0), weight="fixed", env_bonus="fixed")
        assert chosen.defaults._asdict() == {"discount": 0.5, "weight": 1.0, "env_pace": 1.0}
        assert dict(chosen.domains) == {"env_pace": hyperparams.LogUniform(0.5, 2.0)}
        both = hyperparams.choose(space, env_pace=3.0, env_bonus="evolve")
        assert both.defaults._asdict() == {"discount": 0.5, "weight": 1.0, "env_bonus": 0.0, "env_pace": 3.0}
        assert both.domains["env_bonus"] == hyperparams.Uniform(0.0, 4.0)
        assert type(hyperparams.choose(space, env_pace=1.0).defaults) is type(chosen.defaults)
        assert hyperparams.choose(space, weight="fixed").defaults == SPACE.defaults

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            ({"env_bonos": 1.0}, r"^there is no hyper-parameter here named 'env_bonos'; did you mean env_bonus\?$"),
            ({"env_pace": "evolve"}, r"^env_pace must be two bounds, one value, a domain or 'fixed', got 'evolve'\.$"),
        ],
    )
    def test_invalid_choices_are_errors(self, choice: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            hyperparams.choose(on().space, **choice)


class TestObjective:
    def fitness(self, learner: Learner) -> Any:
        def one(key: jax.Array) -> Any:
            bank = learner.start_states(key)
            return learner.evaluate(genotype(learner.init(key, hyperparams.defaults(learner.space), bank)), bank, key)

        return jax.jit(one)(jax.random.key(0))

    def test_the_fitness_is_the_sum_of_the_measure(self) -> None:
        evaluation = self.fitness(on("steps"))
        assert (float(evaluation.fitness), evaluation.returns.tolist()) == (LENGTH, [RETURN, RETURN])
        assert evaluation.episodes["measure/steps"].tolist() == [LENGTH, LENGTH]

    @pytest.mark.parametrize(
        ("objective", "fitness", "expected", "roles"),
        [("each", "right", 5.0, (3.0, 5.0)), ("each", None, 4.0, (3.0, 5.0)), ("steps", None, 1.0, (1.0, 1.0))],
    )
    def test_a_measure_of_each_agent_or_of_the_episode(
        self, objective: str, fitness: str | None, expected: float, roles: tuple[float, float]
    ) -> None:
        evaluation = self.fitness(on(objective, True, fitness))
        assert float(evaluation.fitness) == LENGTH * expected
        assert evaluation.roles.tolist() == [LENGTH * role for role in roles]
        assert evaluation.returns.tolist() == [RETURN, RETURN]
        sums = {"steps": 1.0, "each": 4.0, "each/left": 3.0, "each/right": 5.0}
        found = {name: values.tolist() for name, values in evaluation.episodes.items() if "measure" in name}
        assert found == {f"measure/{name}": [LENGTH * value] * 2 for name, value in sums.items()}

    @pytest.mark.parametrize("objective", [None, "steps"])
    def test_a_measure_that_is_not_finite_spoils_what_it_is_used_for(self, objective: str | None) -> None:
        environment = priced()

        def step(state: Any, action: jax.Array, key: jax.Array) -> tuple:
            state, taken = environment.step(state, action, key)
            return state, taken._replace(measures={"steps": cast(Any, taken.measures)["steps"] * jnp.inf})

        config = CONFIG.__class__(**{**vars(CONFIG), "objective": objective})
        evaluation = self.fitness(on_policy(spy(environment.spec), environment._replace(step=step), config))
        assert evaluation.returns.tolist() == [RETURN, RETURN]
        assert not np.isfinite(evaluation.episodes["measure/steps"]).any()
        assert (float(evaluation.fitness) == RETURN) == (objective is None)
        assert int(evaluation.broken) == (0 if objective is None else 2), "the member has not diverged"

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: on("step"), r"^there is no measure of priced named 'step'; did you mean steps\?$"),
            (lambda: on("steps", True, "left"), r"^fitness names an agent, but objective steps is a "),
            (lambda: room(OffPolicyConfig(objective="x")), r"^objective has no effect on point_room, .*, got 'x'; "),
            (lambda: hyperparams.choose(room().space, env_bonus=1.0), r" no hyper-parameter here named 'env_bonus'; "),
        ],
    )
    def test_what_a_task_does_not_have_is_an_error(self, build: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            build()
