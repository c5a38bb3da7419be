"""Separate populations of roles: matching into teams, and selection within each role.

The fitness of a member is known from its parameter alone: a walker's return is twice the parameter, a sitter's forty
times (see `tests/learners/rollouts.py`).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents import multi_agent
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.populations import role_pbt
from rookery.populations.base import Program, ProgramState
from rookery.training.generation_loop import lost, lost_kind
from tests.learners.fixed_agents import CONFIG, SPACE, spy
from tests.learners.recording import SPY_SPEC, counting
from tests.learners.rollouts import ERRAND, errand
from tests.tiny import assert_equal

SIZE = 6
WORTH = np.asarray([2.0, 40.0])  # of a parameter of 1


class CompiledRolePbt(NamedTuple):
    program: Program
    step: Callable[..., tuple[ProgramState, dict]]
    initial: ProgramState

    def with_params(self, params: np.ndarray) -> ProgramState:
        members = self.initial.members
        given = jnp.asarray(params, jnp.float32)
        return self.initial._replace(members=members._replace(state=members.state._replace(params=given)))


@cache
def compiled_roles() -> CompiledRolePbt:
    """Six of each role; the two worst are replaced by children of the two best."""
    learner = on_policy(multi_agent.independent(spy(ERRAND), ERRAND), errand(), CONFIG)
    options = {"replace_count": 2, "best_count": 2, "resample_probability": 0.0}
    program = role_pbt.pbt_roles(learner, population_size=SIZE, **options)
    return CompiledRolePbt(program, jax.jit(program.step), jax.jit(program.init)(jax.random.key(0)))


def stepped(params: np.ndarray, seed: int = 1) -> tuple[ProgramState, dict[str, np.ndarray]]:
    state, metrics = compiled_roles().step(compiled_roles().with_params(params), jax.random.key(seed))
    return state, {name: np.asarray(values) for name, values in metrics.items()}


def parents_of(state: ProgramState) -> np.ndarray:
    """`[P, I]`, counted within the role."""
    parents = np.asarray(state.shared.parents).reshape(SIZE, 2)
    np.testing.assert_array_equal(parents % 2, np.broadcast_to([0, 1], (SIZE, 2)))
    return parents // 2


WALKERS = np.asarray([0.1, 0.6, 0.2, 0.5, 0.3, 0.4])  # best 1 and 3, worst 0 and 2
SITTERS = np.asarray([0.6, 0.2, 0.5, 0.1, 0.4, 0.3])  # best 0 and 2, worst 1 and 3
PARAMS = np.stack([WALKERS, SITTERS], axis=1)


# --- matching


def test_each_role_is_matched_by_a_separate_permutation() -> None:
    for seed in range(3):
        places = np.asarray(role_pbt.match(jax.random.key(seed), 8, 3))
        assert places.shape == (8, 3)
        for role in range(3):
            assert sorted(places[:, role].tolist()) == list(range(8))
        assert len({tuple(places[:, role].tolist()) for role in range(3)}) == 3
    first, same, other = (np.asarray(role_pbt.match(jax.random.key(seed), 8, 3)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_matched_members_return_to_their_slots_and_environments_stay() -> None:
    places = role_pbt.match(jax.random.key(5), SIZE, 2)
    members = compiled_roles().with_params(PARAMS).members
    teams = role_pbt.permute_roles(members, places)
    for slot in range(SIZE):
        for role in range(2):
            assert teams.state.params[slot, role] == members.state.params[places[slot, role], role]
            assert teams.hyper.weight[slot, role] == members.hyper.weight[places[slot, role], role]
    assert_equal(teams.env_state, members.env_state)
    assert_equal(role_pbt.permute_roles(teams, jnp.argsort(places, axis=0)), members)


# --- a generation


def test_initial_members_differ_and_fitness_is_reported_by_member_and_other_metrics_by_matched_team() -> None:
    members = compiled_roles().initial.members
    for leaf in (members.state.params, members.hyper.weight):
        assert leaf.shape == (SIZE, 2)
        assert len(np.unique(leaf)) == 2 * SIZE
    np.testing.assert_array_equal(members.hyper.discount, 0.5)
    _, metrics = stepped(PARAMS)
    np.testing.assert_allclose(metrics["fitness"], (PARAMS * WORTH).ravel(), rtol=1e-5)
    np.testing.assert_array_equal(metrics["hyper/weight"], np.asarray(members.hyper.weight).ravel())
    for role, name in enumerate(("walker", "sitter")):
        of_teams = metrics[f"return/{name}"]
        assert of_teams.shape == (SIZE,)
        np.testing.assert_allclose(np.sort(of_teams), np.sort(PARAMS[:, role] * WORTH[role]), rtol=1e-5)
    pairs = np.stack([metrics["return/walker"], metrics["return/sitter"]], axis=1)
    matched = {(round(float(w), 3), round(float(s), 3)) for w, s in pairs}
    assert matched != {(round(float(w), 3), round(float(s), 3)) for w, s in PARAMS * WORTH}


def test_the_worst_inherit_from_the_best_of_the_same_role() -> None:
    state, _ = stepped(PARAMS)
    parents, params = parents_of(state), np.asarray(state.members.state.params)
    assert set(parents[[0, 2], 0].tolist()) <= {1, 3}
    assert set(parents[[1, 3], 1].tolist()) <= {0, 2}
    assert parents[[1, 3, 4, 5], 0].tolist() == [1, 3, 4, 5]
    assert parents[[0, 2, 4, 5], 1].tolist() == [0, 2, 4, 5]
    np.testing.assert_array_equal(params, np.take_along_axis(np.asarray(PARAMS, np.float32), parents, axis=0))
    assert int(state.shared.generation) == 1


def test_survivors_keep_everything_and_children_differ() -> None:
    state, _ = stepped(PARAMS)
    before, after = (np.asarray(each.members.hyper.weight) for each in (compiled_roles().initial, state))
    parents = parents_of(state)
    survives = parents == np.arange(SIZE)[:, None]
    np.testing.assert_array_equal(after[survives], before[survives])
    inherited = np.take_along_axis(before, parents, axis=0)
    ratio = (after / inherited)[~survives]
    assert len(ratio) == 4
    assert (np.abs(ratio - 1.0) > 0.01).all() or (np.isclose(after, 0.1) | np.isclose(after, 10.0)).any()
    np.testing.assert_array_equal(state.members.hyper.discount, 0.5)
    draws = set()
    for seed in range(6):
        later, _ = stepped(PARAMS, seed)
        draws.add(tuple(np.asarray(later.members.hyper.weight)[~survives].tolist()))
    assert len(draws) > 1


@pytest.mark.parametrize("role", [0, 1])
def test_a_diverged_member_is_replaced_within_its_role_and_the_other_role_is_unchanged(role: int) -> None:
    params = PARAMS.copy()
    best = int(np.argmax(PARAMS[:, role]))
    params[best, role] = np.nan
    plain, _ = stepped(PARAMS)
    state, metrics = stepped(params)
    diverged = metrics["diverged"].reshape(SIZE, 2)
    assert np.argwhere(diverged).tolist() == [[best, role]]
    assert lost_kind(compiled_roles().program, metrics) == ""
    assert np.isnan(metrics["fitness"].reshape(SIZE, 2)[best, role])
    parents = parents_of(state)
    second, third = np.argsort(-PARAMS[:, role])[1:3]
    assert parents[best, role] in (second, third)
    assert np.isfinite(np.asarray(state.members.state.params)).all()
    other = 1 - role
    np.testing.assert_array_equal(parents[:, other], parents_of(plain)[:, other])
    np.testing.assert_array_equal(state.members.hyper.weight[:, other], plain.members.hyper.weight[:, other])
    np.testing.assert_array_equal(state.members.state.params[:, other], plain.members.state.params[:, other])
    # The environments of its slot are reset; those of the other slots continue.
    begun = np.asarray(state.members.env_state.accumulated == 0.0).all(axis=(1, 2))
    assert begun.sum() == 1
    assert not np.asarray(plain.members.env_state.accumulated == 0.0).all(axis=(1, 2)).any()


@pytest.mark.parametrize("role", [0, 1])
def test_a_role_of_which_all_members_diverged_ends_the_run(role: int) -> None:
    params = PARAMS.copy()
    params[:, role] = np.nan
    _, metrics = stepped(params)
    assert (metrics["diverged"].reshape(SIZE, 2) == (np.arange(2) == role)).all(), "none of them has a parent left"
    shown = lost(1, lost_kind(compiled_roles().program, metrics), None, None)
    assert f"no member of {('walker', 'sitter')[role]} is finite any more in generation 1" in shown


def test_the_next_metrics_name_the_parents_and_evaluate_takes_the_members_of_a_slot_as_a_team() -> None:
    state, metrics = stepped(PARAMS)
    np.testing.assert_array_equal(metrics["parent"], np.arange(2 * SIZE))
    worth = np.asarray(state.members.state.params) * WORTH
    _, later = compiled_roles().step(state, jax.random.key(2))
    np.testing.assert_array_equal(later["parent"], state.shared.parents)
    np.testing.assert_array_equal(later["hyper/weight"], np.asarray(state.members.hyper.weight).ravel())
    np.testing.assert_allclose(later["fitness"].reshape(SIZE, 2), worth, rtol=1e-5)
    evaluated = jax.jit(compiled_roles().program.evaluate)(state, jax.random.key(0))
    np.testing.assert_allclose(evaluated["roles"], worth, rtol=1e-5)
    np.testing.assert_allclose(evaluated["fitness"], worth.mean(axis=1), rtol=1e-5)


def test_invalid_arguments_are_errors() -> None:
    team, alone = multi_agent.independent(spy(ERRAND), ERRAND), spy(SPY_SPEC)
    shared: Any = on_policy(multi_agent.shared(spy(ERRAND), ERRAND), errand(), CONFIG)
    single = on_policy(alone, counting(), OnPolicyConfig(2, 3))
    for learner in (shared, single):
        with pytest.raises(
            ValueError, match=r"^roles need agents with separate parameters; use rookery.agents.independent"
        ):
            role_pbt.pbt_roles(learner)
    learner = on_policy(team, errand(), CONFIG)
    assert role_pbt.pbt_roles(learner, SPACE, 4).steps_per_generation == 4 * learner.steps_per_generation
