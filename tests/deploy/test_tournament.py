"""Tournaments of untrained agents, compared with one evaluation after the other; and which member is the best."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import rookery
from rookery.agents.ppo import PpoConfig
from rookery.cli.commands import Evaluate, evaluator
from rookery.deploy import policy
from rookery.deploy import tournament as tournaments
from rookery.deploy.evaluate import evaluation_key, open_with_episodes
from rookery.deploy.tournament import tournament
from rookery.distributed.mesh import here
from rookery.experiments import warm_start
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.kinds import configure
from rookery.learners.base import genotype
from rookery.populations.base import ProgramState
from rookery.populations.ratings import rating_of
from rookery.report import tables
from rookery.report.figures.tournament import draw_tournament, members_by_rating, opponents_by_strength
from rookery.storage.csv_log import read_csv
from rookery.storage.lineage import lineage
from rookery.storage.played import Tournament, write_tournament
from rookery.storage.run_dir import OutputWarning, create, open_existing
from rookery.types import Genotype
from tests.deploy.untrained_runs import ROLES_RUN, TEAM_LEARNER, save_run, unchanged

ENVIRONMENT = EnvironmentConfig(
    env="pursuit_continuous", episode_length=24, option=("predator_speed=8", "prey_speed=1")
)
RUN: Any = ROLES_RUN.replace(environment=ENVIRONMENT, select_by="rating")
FITNESS, RATING = (9.0, 1.0, 2.0, 8.0), (-50.0, 70.0, 50.0, -70.0)  # of predator and prey in slot 0, and in slot 1
EPISODES = 8
TEAM_RUN: Any = configure(  # a member is a team; its optimisers differ, its policies have the same shapes
    "ippo",
    population=3,
    environment=ENVIRONMENT,
    learner=TEAM_LEARNER,
    agent=PpoConfig(hidden_sizes=(4,), minibatches=1),
)


def varied(state: ProgramState) -> ProgramState:
    """Every member acts differently, by larger weights than initial ones."""
    return state._replace(members=state.members._replace(state=jax.tree.map(_random, state.members.state)))


def _random(leaf: jax.Array) -> jax.Array:
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    return 0.5 * jax.random.normal(jax.random.key(leaf.size), leaf.shape) if is_float else leaf


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(RUN, tmp_path_factory.mktemp("tournament") / "roles", FITNESS, varied, RATING)


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(TEAM_RUN, tmp_path_factory.mktemp("tournament") / "teams", (1.0, 2.0, 3.0), varied)


@pytest.fixture(scope="module")
def result(run: Path) -> Tournament:
    return tournament(run, episodes=EPISODES)


@functools.cache
def opened(path: Path) -> tuple[Any, Any, Any]:
    """The genotypes of a run, its start states, and a function that evaluates a team of it."""
    read = open_with_episodes(open_existing(path), EPISODES, "last", here())
    learner = read.built.learner
    assert learner is not None
    bank = learner.start_states(jax.random.split(evaluation_key(0))[0])
    return jax.device_get(genotype(read.state.members)), bank, jax.jit(learner.evaluate)


def in_turn(run: Path, opponents: Path) -> np.ndarray:
    """`[I, P, Q]`, by one evaluation after the other."""
    (members, bank, evaluate), opposing = opened(run), opened(opponents)[0]
    key = jax.random.split(evaluation_key(0))[1]
    sizes = [len(jax.tree.leaves(each.params)[0]) for each in (members, opposing)]
    returns = np.empty((2, *sizes))
    for role, member, opponent in np.ndindex(*returns.shape):

        def seated(own: np.ndarray, its: np.ndarray, at: tuple[int, ...] = (role, member, opponent)) -> np.ndarray:
            team = its[at[2]].copy()
            team[at[0]] = own[at[1], at[0]]
            return team

        params = jax.tree.map(seated, members.params, opposing.params)
        hyper = jax.tree.map(lambda leaf, slot=member: leaf[slot], members.hyper)
        returns[role, member, opponent] = evaluate(Genotype(params, hyper, None), bank, key).roles[role]
    return returns


def test_the_returns_are_those_of_a_loop_over_all_pairs(run: Path, result: Tournament) -> None:
    assert result.agents == ("predator", "prey")
    np.testing.assert_allclose(result.returns, in_turn(run, run), rtol=1e-5)
    assert len(np.unique(result.returns)) > 2
    np.testing.assert_allclose(result.returns[0], -result.returns[1].T, rtol=1e-5)  # zero-sum
    for role in range(2):
        np.testing.assert_allclose(
            result.ratings[role], rating_of(jnp.asarray(result.returns[role].T, jnp.float32)), rtol=1e-5
        )
    table = read_csv(open_existing(run).tournament_file)
    assert table["member"].tolist() == [0, 0, 1, 1]
    assert table["opponent"].tolist() == [0, 1, 0, 1]
    assert table["opponent"].dtype == np.int64
    for role, name in enumerate(result.agents):
        np.testing.assert_array_equal(table[f"return/{name}"], result.returns[role].ravel())


def test_members_of_one_run_play_those_of_another(run: Path, teams: Path) -> None:
    found = rookery.load(run).tournament(rookery.load(teams), episodes=EPISODES)
    assert found.returns.shape == (2, 2, 3)
    np.testing.assert_allclose(found.returns, in_turn(run, teams), rtol=1e-5)


RESULT = Tournament(
    agents=("predator", "prey"),
    returns=np.asarray([[[1.0, 5.0], [2.0, 9.0], [np.nan, 4.0]], [[-1.0, -2.0], [-5.0, -9.0], [-4.0, np.nan]]]),
    ratings=np.asarray([[-10.4, 381.7, np.nan], [100.0, -100.0, 0.0]]),
    generation=3,
)


def test_the_printed_tables() -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        for part in tables.tournament(RESULT):
            console.print(part)
    words = [line.replace("│", " ").replace("┃", " ").split() for line in capture.get().splitlines()]
    assert ["1", "1", "+382", "5.50", "1", "0"] in words
    assert ["2", "0", "-10", "3.00", "1", "0"] in words
    assert ["3", "2", "+nan", "4.00", "1", "1"] in words
    assert ["predator/prey", "0", "1"] in words
    assert ["2", "nan", "4.00"] in words


def test_the_picture(tmp_path: Path) -> None:
    assert members_by_rating(RESULT, 0).tolist() == [1, 0, 2]
    assert opponents_by_strength(RESULT, 0).tolist() == [0, 1]
    assert opponents_by_strength(RESULT, 1).tolist() == [1, 0]
    path = draw_tournament(RESULT, tmp_path / "tournament.png", "runs/pbt")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_results_that_cannot_be_written_are_returned_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with create(tmp_path / "run", {"kind": "pbt-ippo"}) as folder:
        for path in (folder.tournament_file, folder.tournament_picture_file):
            path.mkdir()
    with pytest.warns(OutputWarning, match=r"tournament\.csv cannot be written \(Is a directory\)") as caught:
        write_tournament(folder, RESULT)
    assert len(caught) == 1
    monkeypatch.setattr(tournaments, "tournament", lambda *_: RESULT)
    with pytest.warns(OutputWarning, match=r"tournament\.png cannot be written \(Is a directory\)") as caught:
        evaluator(Evaluate(run=folder.path, tournament=True))
    assert len(caught) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder.path}, generation 3, 100 episodes per pair"
    assert not [line for line in lines if line.startswith(("table ", "picture "))]


def test_the_best_member_is_the_one_with_the_highest_rating(run: Path) -> None:
    read = warm_start.restore_run(run)
    assert warm_start.best_slots(read).tolist() == [1, 0]
    best = warm_start.best_genotype(read)[1]
    for chosen, every in zip(
        jax.tree.leaves(best.params), jax.tree.leaves(genotype(read.state.members).params), strict=True
    ):
        np.testing.assert_array_equal(chosen, np.stack([every[1, 0], every[0, 1]]))
    assert policy.select(read).fitness == (2.0, 1.0)  # of these members, not the highest
    found = lineage(run, separate_roles=True)
    assert found.best_member == 1
    np.testing.assert_array_equal(found.rating, [RATING])
    assert "rating" not in found.hyper


def test_runs_that_cannot_play_are_refused(run: Path, tmp_path: Path) -> None:
    wide = TEAM_RUN.replace(population=1, agent=PpoConfig(hidden_sizes=(5,), minibatches=1))
    other = save_run(wide, tmp_path / "wide", (1.0,), unchanged)
    with pytest.raises(ValueError, match=r"has other networks than .*; give a run with the same agent, hidden_sizes"):
        tournament(run, other, episodes=1)
    with pytest.raises(ValueError, match=r"has a single member, which has no other opponents; give another run, --ag"):
        tournament(other, episodes=1)

    read = warm_start.restore_run(run)
    learner = read.built.learner
    assert learner is not None
    spec = learner.spec._replace(name="elsewhere")
    elsewhere = read._replace(built=read.built._replace(learner=learner._replace(spec=spec)))
    with pytest.raises(ValueError, match=r"trained in elsewhere with the agents predator, prey, but .* same environme"):
        tournaments._check_alike(read, elsewhere, (), ())
    assert spec.team is not None
    cooperative = spec._replace(team=spec.team._replace(competitive=False))
    together = read._replace(built=read.built._replace(learner=learner._replace(spec=cooperative)))
    with pytest.raises(ValueError, match=r"compete, and elsewhere lets its agents cooperate; leave --tournament"):
        tournaments._learner(together)
    with pytest.raises(ValueError, match=r"trains no agents that could play a tournament; leave --tournament out\.$"):
        tournaments._learner(read._replace(built=read.built._replace(learner=None)))
