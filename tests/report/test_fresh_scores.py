"""Scores on fresh episodes: the scored member, the keys, and notes on scores that were selected."""

import dataclasses
import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents.sac import SacConfig
from rookery.deploy.evaluate import _mean, evaluate, evaluation_key, fresh, fresh_fitness
from rookery.experiments import build
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.config_io import to_record
from rookery.experiments.kinds import configure
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.on_policy import OnPolicyConfig
from rookery.qd.map_elites import repertoire_of
from rookery.report.compare import compare
from rookery.storage import run_dir
from rookery.storage.checkpoint import Checkpointer, CheckpointError
from rookery.storage.csv_log import RunLog
from rookery.training.config import RunConfig
from rookery.training.loop import run
from rookery.types import Evaluation
from tests.commandline import call
from tests.training.test_loop import walks

LEARNER = OffPolicyConfig(num_envs=4, steps_per_generation=40, batch_size=8, buffer_size=64, warmup_steps=8)
LEARNER = dataclasses.replace(LEARNER, eval_episodes=3, start_states=4)
PARTS: dict[str, Any] = {
    "environment": EnvironmentConfig(env="point_maze", episode_length=10, devices=1),
    "learner": LEARNER,
    "agent": SacConfig(hidden_sizes=(8,)),
}
BEST = 1  # the member with the highest fitness in the written evaluations
GENERATION = 1


def write(path, config, fitness=(1.0, 9.0, 2.0), save=True):
    """The folder of a run whose only checkpoint is its initial state, with the given fitness in its tables."""
    config = dataclasses.replace(config, run=RunConfig(seed=config.run.seed, generations=1, run_dir=str(path)))
    program = build.build(config).program
    with run_dir.create(path, to_record(config)) as opened, RunLog(opened) as log:
        if save:
            with Checkpointer(opened.checkpoints, keep=1) as checkpoints:
                checkpoints.save(GENERATION, jax.jit(program.init)(jax.random.key(config.run.seed)), {})
        steps = {"env_steps": program.steps_per_generation, "best_fitness": max(fitness)}
        if program.table is not None:
            log.write(0, {**steps, "max_fitness": max(fitness)}, {})
        else:
            members = {"parent": np.arange(len(fitness)), "fitness": np.asarray(fitness)}
            log.write(0, steps, members)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Name -> folder."""
    path = tmp_path_factory.mktemp("runs")
    return {
        "seeds": write(path / "seeds", configure("sac", population=3, **PARTS)),
        "drawn": write(path / "drawn", configure("sac", population=3, draw_hyper=True, **PARTS), save=False),
        "pbt": write(path / "pbt", configure("pbt-sac", population=3, **PARTS)),
    }


@pytest.fixture(scope="module")
def known():
    """Programs that have been evaluated."""
    return {}


@pytest.fixture(scope="module")
def scores(runs, known):
    """Name -> the fitness on three fresh episodes."""
    return {name: fresh_fitness(runs[name], 3, seed=2, known=known)[1] for name in ("seeds", "pbt")}


class TestKeys:
    def test_an_evaluation_shares_no_key_with_a_run_of_its_seed(self):
        def bits(keys):
            return {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}

        def descendants(key):
            """The key, what programs split and fold it into, and what they split and fold these into."""
            made = [key]
            for _ in range(2):
                made += list(itertools.chain(*(jax.random.split(one, 8) for one in made)))
            return bits(made)

        key = jax.random.key(7)  # `training.loop.run` splits it, and folds each generation into the second half
        assert bits([key]) <= descendants(key)
        assert not descendants(key) & descendants(evaluation_key(7))

    def test_evaluate_uses_that_key(self, tmp_path):
        def drawn(_, key):
            returns = jax.random.normal(key, (3, 2))
            return {"fitness": returns.mean(axis=1), "returns": returns, "lengths": jnp.ones((3, 2), int)}

        program = walks()._replace(evaluate=drawn)
        run(program, generations=1, run_dir=tmp_path / "run", quiet=True)
        _, metrics = evaluate(tmp_path / "run", seed=5, program=program)
        np.testing.assert_array_equal(metrics["returns"], jax.random.normal(evaluation_key(5), (3, 2)))
        table = tmp_path / "run/lineage.csv"
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:2]))
        assert metrics.keys() - evaluate(tmp_path / "run", program=program)[1].keys() == {"best_member"}, (
            "rows are lost"
        )

    @pytest.mark.parametrize("seed", [-1, 2**32])
    def test_a_seed_outside_of_its_range_is_an_error(self, seed):
        with pytest.raises(ValueError, match=r"^seed must lie in \[0, 4294967295\], got "):
            evaluation_key(seed)


class TestScoredMember:
    def test_each_independent_member_or_the_best_of_the_training_evaluation(self, runs, scores):
        for kind, independent in (("seeds", True), ("pbt", False)):
            fitness = scores[kind]
            generation, metrics = evaluate(runs[kind], episodes=3, seed=2)
            assert (generation, fitness.dtype, bool(metrics["independent"])) == (GENERATION, np.float64, independent)
            if independent:
                np.testing.assert_allclose(fitness, metrics["fitness"], rtol=1e-5)
                assert len(set(fitness.tolist())) == 3
            else:
                assert int(metrics["best_member"]) == BEST
                assert np.argmax(metrics["fitness"]) != BEST, "otherwise the test has no effect"
                np.testing.assert_allclose(fitness, metrics["fitness"][[BEST]], rtol=1e-5)

    def test_runs_that_differ_only_in_the_seed_share_a_program(self, known, scores, tmp_path):
        config = configure("pbt-sac", population=3, **PARTS)
        other = write(tmp_path / "other", dataclasses.replace(config, run=RunConfig(seed=1)))
        found = fresh_fitness(other, 3, seed=2, known=known)[1]
        assert len(known) == 2, "that of `sac` and that of `pbt-sac`"
        assert np.array_equal(found, fresh_fitness(other, 3, seed=2)[1])
        assert not np.array_equal(found, scores["pbt"])

    def test_the_best_elite_of_a_repertoire(self, tmp_path):
        config = configure(
            "map-elites", batch_size=8, environment=EnvironmentConfig(env="sphere"), cells=CellsConfig(grid=(3, 3))
        )
        path = tmp_path / "run"
        config = dataclasses.replace(config, run=RunConfig(generations=1, run_dir=str(path)))
        program = build.build(config).program
        state, _ = jax.jit(lambda key: program.step(program.init(key), key))(jax.random.key(0))
        best = float(np.asarray(repertoire_of(state).fitnesses).max())
        with run_dir.create(path, to_record(config)) as opened, Checkpointer(opened.checkpoints, keep=1) as checkpoints:
            checkpoints.save(GENERATION, state, {})
        assert fresh_fitness(path, episodes=1)[1].tolist() == [pytest.approx(best, rel=1e-5)]


class TestComparison:
    def test_fresh_scores_replace_the_recorded_ones(self, runs, scores, tmp_path):
        found = compare([runs["seeds"], runs["pbt"]], tmp_path / "a.png", 50, fresh=fresh(3, seed=2))
        seeds, pbt = found.rows
        np.testing.assert_array_equal(seeds.scores, scores["seeds"])
        np.testing.assert_array_equal(pbt.scores, scores["pbt"])
        assert (seeds.env_steps, pbt.env_steps) == (40.0, 120.0)
        (setting,) = found.settings.values()
        assert (setting.fresh, setting.unequal) == (3, True)
        text = " ".join(found.notes)
        assert "of unequal environment steps (sac: 40; pbt-sac: 120): fresh episodes compare the performance" in text
        assert "optimistic" not in text
        assert "9" not in {f"{score:g}" for row in found.rows for score in row.scores}
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


class TestErrors:
    def test_a_run_without_a_checkpoint_before_any_is_evaluated(self, runs, tmp_path, monkeypatch):
        path = write(tmp_path / "young", configure("sac", population=3, **PARTS), save=False)
        monkeypatch.setattr("rookery.deploy.evaluate.open_with_episodes", None)  # any evaluation would fail by this
        with pytest.raises(CheckpointError, match=r"young has no checkpoint yet, so that no fresh episodes [^\n]*\.$"):
            compare([runs["seeds"], path], fresh=fresh(2))
        content = json.loads((path / "config.json").read_text())
        content["config"]["kind"] = "python"
        (path / "config.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"young was started from Python, so that its program [^\n]*\.$"):
            fresh_fitness(path)

    def test_roles_that_evolve_separately(self, tmp_path):
        config = configure(
            "pbt-ippo", population=4, member="agent", learner=OnPolicyConfig(num_envs=4, rollout_length=6)
        )
        with run_dir.create(tmp_path / "roles", to_record(config)):
            pass
        with pytest.raises(ValueError, match=r"evolves the roles of a team separately, .* such as --score"):
            fresh_fitness(tmp_path / "roles")

    def test_what_fresh_episodes_cannot_score(self, runs):
        with pytest.raises(ValueError, match=r"^checkpoint needs best_by, without which .* was trained, got 'best'"):
            compare([runs["seeds"]], fresh=fresh(2, checkpoint="best"))
        with pytest.raises(ValueError, match=r"^score has no effect with fresh, which gives a fitness, got 'coverage'"):
            compare([runs["pbt"]], score="coverage", fresh=fresh(2))
        with pytest.raises(ValueError, match=r"^fresh must be at least 1 episode, got 0\.$"):
            compare([runs["pbt"]], fresh=fresh(0))


@pytest.fixture
def command(monkeypatch, tmp_path):
    """`rookery` with these words, on a wide terminal, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    return lambda *words: call(*map(str, words))


class TestCommands:
    def test_compare_prints_that_the_episodes_are_fresh(self, command, runs, tmp_path, monkeypatch):
        monkeypatch.setattr("rookery.deploy.evaluate.fresh_fitness", lambda _, *asked: (1, np.asarray(asked[:2]) / 8))
        code, out, err = command("compare", runs["pbt"], "--fresh", 4, "--seed", 2, "--resamples", 50)
        assert (code, err) == (0, "")
        assert "point_maze, episode_length=10 over 4 fresh episodes" in out
        assert "gap to 0.5" in out, "of the given number of episodes"
        assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
        code, _, err = command("compare", runs["pbt"], "--seed", 3)
        assert (code, "--seed has an effect only with --fresh; give it, or leave this out" in err) == (2, True)

    def test_evaluate_prints_that_the_best_is_optimistic(self, command, runs):
        code, out, err = command("evaluate", runs["pbt"], "--episodes", 3)
        assert (code, err) == (0, "")
        assert "the first row is the best of 3 on these same episodes, which is optimistic; member 1 ranked" in out


def test_a_measure_of_a_policy_that_diverged_is_unknown():
    shared: Any = {"descriptor": jnp.zeros((2, 0)), "lengths": jnp.ones((2, 1), int), "broken": jnp.zeros(2, int)}
    fitness, returns = jnp.asarray([1.0, jnp.nan]), jnp.asarray([[4.0], [5.0]])
    np.testing.assert_array_equal(_mean(Evaluation(fitness, returns=returns, **shared), "return"), [4.0, np.nan])
