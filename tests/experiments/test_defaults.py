"""Defaults of a run: when it selects, and the size of its replay buffer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.distributed.mesh import make_mesh
from rookery.envs import registry
from rookery.experiments import build, parts
from rookery.experiments.config import EnvironmentConfig, IslandsConfig
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.kinds import configure
from rookery.islands import plan
from rookery.learners.off_policy import BUFFER_SIZE, OffPolicyConfig
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.config import PbtConfig, Timing, timing
from rookery.populations.pbt import pbt
from rookery.qd.centroids import grid
from rookery.qd.me_pbt import me_pbt
from tests import pixel_walk, tiny, walks

EVERY, EVERY_10 = "selects in every generation", "selects every 10 generations, first in generation"


@pytest.mark.parametrize(
    ("interval", "burn_in", "steps", "untrained", "expected", "words"),
    [
        (0, None, 1_000, 0, Timing(0, 1, 2), EVERY),
        (10_000, None, 1_000, 1, Timing(1, 10, 2), f"{EVERY_10} 10"),
        (10_000, None, 12_500, 0, Timing(0, 1, 2), EVERY),
        (10_000, None, 10_000, 1, Timing(1, 1, 2), f"{EVERY} from generation 2 on"),
        (10_000, 25, 1_000, 1, Timing(25, 10, 2), f"{EVERY_10} 30"),
        (10_001, 0, 5_000, 3, Timing(0, 3, 2), "selects every 3 generations, first in generation 3"),
    ],
)
def test_first_selection_and_interval(interval, burn_in, steps, untrained, expected, words):
    result = timing(PbtConfig(exploit_interval=interval, burn_in=burn_in), 8, steps, untrained)
    assert result == expected
    assert type(result) is Timing
    assert str(result) == f"{words}, replaces 2 members"
    assert str(timing(PbtConfig(), 4, 1, 0)) == f"{EVERY}, replaces 1 member"
    for exploit in ("tournament", "threshold"):
        said = str(timing(PbtConfig(exploit=exploit), 4, 1, 0))
        assert said == f"{EVERY}, replaces as many members as the fitnesses decide"


def test_untrained_generations_of_a_warm_up():
    expected = {0: 0, 975: 0, 1_000: 1, 1_025: 1, 2_500: 2}
    assert {steps: OffPolicyConfig(warmup_steps=steps).untrained_generations for steps in expected} == expected


def replaced(program, generations: int) -> list[int]:
    """Number of members replaced in each generation; in an additional one a member has diverged, and is replaced."""
    state, step = jax.jit(program.init)(jax.random.key(0)), jax.jit(program.step)
    counts = []
    for generation in range(generations):
        state, _ = step(state, jax.random.key(generation))
        counts.append(int(jnp.sum(state.shared.parents != jnp.arange(4))))
    state, _ = step(walks.poison(state, 2), jax.random.key(9))
    assert state.shared.parents[2] != 2
    return counts


def test_a_population_selects_by_steps():
    learner = walks.learner()  # of 10 steps a generation
    assert replaced(pbt(learner, population_size=4, exploit_interval=30), 7) == [0, 0, 1, 0, 0, 1, 0]


def test_no_selection_in_a_generation_without_an_update():
    learner = walks.learner()._replace(untrained_generations=2)
    assert replaced(pbt(learner, population_size=4), 4) == [0, 0, 1, 1]


def test_me_pbt_replaces_no_member_before_the_first_update():
    learner = walks.learner(True)._replace(untrained_generations=2)
    program = me_pbt(learner, grid((4, 4), (-4, -4), (4, 4)), population_size=10, ga_population=4)
    state, step = jax.jit(program.init)(jax.random.key(0)), jax.jit(program.step)
    changed = []
    for generation in range(4):
        state, metrics = step(state, jax.random.key(generation))
        changed.append(bool((np.asarray(metrics["parent"]) != np.arange(10)).any()))
    assert changed == [False, False, False, True]


@pytest.mark.parametrize(
    ("memory", "chosen", "rows"),
    [
        (None, None, BUFFER_SIZE),
        (10**12, None, BUFFER_SIZE),
        (2**20, None, 2**20 // (6 * 4 * (2 * 2 + 2 + 2) * 2)),
        (1, None, 4),
        (1, 50, 50),
    ],
)
def test_a_replay_buffer_has_a_million_rows_or_as_many_as_fit_in_memory(memory, chosen, rows, monkeypatch):
    monkeypatch.setattr(parts, "available", lambda _: memory)
    learner = OffPolicyConfig(num_envs=2, batch_size=4, eval_episodes=2, start_states=2, buffer_size=chosen)
    environment = EnvironmentConfig(env="point_room", devices=1)
    built = build.build(configure("pbt-sac", population=2, environment=environment, learner=learner))
    assert built.spec is not None
    assert isinstance(built.spec.learner, OffPolicyConfig)
    assert built.spec.learner.buffer_size == rows
    state = jax.eval_shape(built.program.init, jax.random.key(0))
    assert state.members.buffer.rows.reward.shape == (2, rows)
    assert from_record(to_record(built.spec)) == built.spec, "the chosen size is recorded"


def test_a_buffer_of_pixels_counts_their_bytes(monkeypatch):
    monkeypatch.setattr(parts, "available", lambda _: 2**24)
    pixels = registry.make(pixel_walk.ID)
    rows = parts._buffer_size(OffPolicyConfig(), pixels, 2, make_mesh(1))
    assert rows == 2**24 // (6 * 2 * (2 * pixel_walk.SIZE**2 + 4 * (1 + 2)))  # an index, the reward, the end


def test_from_python_a_buffer_has_a_million_rows():
    learner = tiny.learner(config=dataclasses.replace(tiny.CONFIG, buffer_size=None))
    program = pbt(learner, population_size=2)
    assert jax.eval_shape(program.init, jax.random.key(0)).members.buffer.rows.reward.shape == (2, BUFFER_SIZE)


def test_a_run_recorded_without_an_exploit_interval_selects_in_every_generation():
    record = to_record(configure("pbt-sac"))
    del record["pbt"]["exploit_interval"]
    record["pbt"]["burn_in"] = 0
    config = from_record(record)
    assert timing(config.method.pbt, 8, 1_000, 1) == Timing(0, 1, 2)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, ("rating", 4)),
        ({"population": 3}, ("rating", 3)),
        ({"rating_opponents": 2}, ("rating", 2)),
        ({"select_by": "rating", "member": "agent"}, ("rating", 4)),
        ({"member": "agent"}, ("fitness", None)),
        ({"fitness": "prey"}, ("fitness", None)),
        ({"pbt": PbtConfig(exploit="none")}, ("fitness", None)),
        ({"env": "point_goal"}, ("fitness", None)),
    ],
)
def test_teams_whose_agents_compete_are_selected_by_rating(chosen, expected):
    options = {"population": 8, "env": "pursuit_continuous", "fitness": None, **chosen}
    environment = EnvironmentConfig(env=options.pop("env"), devices=1)
    learner = OnPolicyConfig(num_envs=2, rollout_length=16, fitness=options.pop("fitness"))
    built = build.build(configure("pbt-ippo", environment=environment, learner=learner, **options))
    assert built.spec is not None
    assert (built.spec.method.select_by, built.spec.method.rating_opponents) == expected
    assert built.program.settings.get("rating_opponents") == expected[1]


@pytest.mark.parametrize("chosen", [{"parameters": "shared"}, {"select_by": "fitness"}])
def test_competing_teams_that_ratings_do_not_rank_need_a_choice(chosen):
    config = configure("pbt-ippo", environment=EnvironmentConfig(env="pursuit_continuous", devices=1), **chosen)
    with pytest.raises(ValueError, match=r"select_by cannot be by the mean return of a team: .* give fitness"):
        build.build(config)


def test_islands_of_competing_teams_do_not_select_by_rating():
    config = configure("pbt-ippo", population=8, islands=IslandsConfig(islands=2))
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, run_dir="runs/teams"))
    assert plan.config_of(plan.check(config), 1).method.select_by == "fitness"
