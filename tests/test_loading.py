"""A recorded run as a Python object, from the command line and from Python."""

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import running
from rookery.deploy import evaluate
from rookery.storage import manifest
from rookery.storage.checkpoint import CheckpointError
from rookery.storage.run_dir import RunFolderError
from tests import tiny
from tests.tiny import assert_equal
from tests.written_runs import MEMBERS, METRICS, write


def test_a_run_of_the_command_line(short_runs: dict[str, Path]) -> None:
    run = rookery.load(short_runs["pbt-sac"])
    assert repr(run) == f"LoadedRun({str(run.path)!r})"
    assert run.config["kind"] == "pbt-sac"
    assert run.generation == len(run.metrics["generation"]) == int(run.config["run"]["generations"])
    assert run.lineage.parents.shape == (run.generation, run.config["population"])
    state = run.state()
    assert state.members.hyper.discount.shape == (run.config["population"],)
    with pytest.raises(TypeError, match="generation must be a whole number, got 'last'"):
        run.state("last")  # pyright: ignore[reportArgumentType]

    act, genotype = run.policy(), run.best()
    assert re.fullmatch(r"Genotype\([\d,]+ parameters, discount=[\d.]+, .*tau=[\d.]+\)", repr(genotype))
    assert f"Policy({str(run.path)!r}, generation={run.generation}, member=" in repr(act)
    assert len(repr(act)) < 2_000, "a policy has the arrays of its run"
    env = rookery.make(run.config["environment"]["env"])
    agent = rookery.sac(env.spec, rookery.agents.SacConfig(tuple(run.config["agent"]["hidden_sizes"])))
    observation = jnp.linspace(-0.5, 0.5, env.spec.observation_size)
    np.testing.assert_allclose(act(observation), rookery.act(agent, genotype, observation), atol=1e-6)
    np.testing.assert_array_equal(act(observation.tolist()), act(observation))
    batch = jnp.zeros((3, env.spec.observation_size))
    with pytest.raises(ValueError, match=r"reads observations of shape \(4,\), got \(3, 4\); jax.vmap gives"):
        act(batch)
    assert jax.vmap(act)(batch).shape == (3, env.spec.action_size)
    member = run.policy(member=0)
    first = rookery.genotype(jax.tree.map(lambda leaf: leaf[0], state.members))
    np.testing.assert_allclose(member(observation), rookery.act(agent, first, observation), atol=1e-6)


def test_one_line_trains_as_the_command_line_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {"hidden_sizes": (4,), "num_envs": 2, "batch_size": 4, "buffer_size": 32, "warmup_steps": 4}
    tiny |= {"steps_per_generation": 20, "eval_episodes": 2, "start_states": 2, "episode_length": 12, "quiet": True}
    seen: list[int] = []
    callbacks = [lambda generation: seen.append(generation.finished)]
    where = str(tmp_path / "run")
    run = rookery.train("sac", "point_room", steps=30, callbacks=callbacks, run_dir=where, space={"tau": 0.1}, **tiny)
    assert seen == [1, 2], "steps are rounded up to whole generations"
    assert (run.path, run.generation, run.config["kind"]) == (tmp_path / "run", 2, "sac")
    assert run.state().members.hyper.tau == np.float32(0.1)
    assert rookery.load(where).policy()(jnp.zeros(2)).shape == (2,)
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match=r"already contains a run: continue it with rookery.load\(.*\).resume"):
        rookery.train("sac", "point_room", run_dir=where)
    with pytest.raises(TypeError, match=r"env must be the name of a task, got an object of type rookery.envs"):
        rookery.train("sac", rookery.make("point_room"))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(running, "start", lambda spec, *_: started.append(spec))
    started: list[rookery.experiments.RunSpec] = []
    rookery.train("sac", init_from=where, run_dir=where)
    assert started[0].environment.env == "point_room", "defaults are those of the other run, as on the command line"


def test_a_repertoire(short_runs: dict[str, Path]) -> None:
    run = rookery.load(short_runs["me-pbt-sac"])
    cell = rookery.qd.best(run.repertoire()).cell
    observation = jnp.asarray([0.1, 0.2])
    np.testing.assert_array_equal(run.policy()(observation), run.policy(cell=cell)(observation))
    descriptor = rookery.qd.best(run.repertoire()).descriptor
    for where in (descriptor, np.asarray(descriptor), tuple(np.asarray(descriptor).tolist())):
        np.testing.assert_array_equal(run.policy()(observation), run.policy(cell=where)(observation))


ENV = rookery.make("point_room", episode_length=10)


def program(env: rookery.Environment = ENV) -> rookery.Program:
    """The program of `tests/test_running.py`, which shares its compiled functions."""
    agent = rookery.sac(env.spec, hidden_sizes=(8,))
    return rookery.pbt(rookery.off_policy(agent, env, tiny.CONFIG), population_size=4)


@pytest.fixture(scope="module")
def made() -> rookery.Program:
    return program()


@pytest.fixture(scope="module")
def python_run(made: rookery.Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("python") / "run"
    rookery.run(made, seed=7, generations=2, run_dir=path, quiet=True)
    return path


def test_a_run_from_python_has_its_seed_and_settings_and_resumes(
    made: rookery.Program, python_run: Path, tmp_path: Path
) -> None:
    run = rookery.load(shutil.copytree(python_run, tmp_path / "run"), made)
    assert (run.config["run"]["seed"], run.config["run"]["generations"]) == (7, 2)
    assert run.generation == 2
    again = run.resume(3, quiet=True)
    assert_equal(rookery.load(run.path, made).state(), again.state)
    assert Path(run.report()).is_file()
    assert not (run.path / "episodes.npz").exists()
    run.report(rollouts=1)
    assert (run.path / "episodes.npz").is_file()
    without = rookery.load(run.path)
    record = partial(without.report, rollouts=1)
    opening = without.policy, without.best, without.evaluate, without.export, without.render, without.state, record
    for method in opening:
        with pytest.raises(ValueError, match=r"started from Python, and its record cannot build its program; give it"):
            method()


def test_an_evaluation_with_as_many_episodes_is_not_traced_again(python_run: Path) -> None:
    traced: list[Any] = []

    def step(*arguments: Any) -> Any:
        traced.append(arguments)
        return ENV.step(*arguments)

    run = rookery.load(python_run, program(ENV._replace(step=step)))
    first = run.evaluate(episodes=3)
    once = len(traced)
    other = run.evaluate(episodes=3, seed=1)
    assert len(traced) == once
    assert not np.array_equal(first["returns"], other["returns"])
    assert run.evaluate(episodes=5)["returns"].shape == (4, 5)
    assert len(traced) > once


def test_a_policy_reads_features_in_their_own_shape(python_run: Path) -> None:
    shaped = ENV._replace(spec=ENV.spec._replace(observation_shape={"at": (1, 2)}))
    act, vector = rookery.load(python_run, program(shaped)).policy(), jnp.asarray([0.1, 0.2])
    np.testing.assert_array_equal(act({"at": vector[None]}), act(vector))
    assert jax.vmap(act)({"at": jnp.zeros((3, 1, 2))}).shape == (3, 2)
    with pytest.raises(ValueError, match=r"^the observation has no entry 'at', which the policy reads"):
        act(jnp.zeros(3))


def test_a_run_from_python_gives_its_policies_by_its_program(
    made: rookery.Program, python_run: Path, tmp_path: Path
) -> None:
    run = rookery.load(python_run, made)
    observation = jnp.zeros(2)
    assert made.learner is not None
    assert made.learner.evaluator is not None
    first = rookery.genotype(jax.tree.map(lambda leaf: leaf[0], run.state().members))
    expected = rookery.act(made.learner.evaluator, first, observation)
    np.testing.assert_allclose(run.policy(member=0)(observation), expected, atol=1e-6)
    found = run.evaluate(episodes=3, seed=1)
    assert found["returns"].shape == (4, 3)
    assert float(run.best().hyper.discount) in found["hyper/discount"]
    assert run.render().stat().st_size > 0
    exported = run.export(tmp_path / "policy")
    assert exported.differences["policy.stablehlo"] < 1e-5
    assert '"hidden_sizes": [\n    8\n  ]' in (exported.path / "policy.json").read_text()


def start_from_absent(run: Path) -> None:
    """Let a run record that it started from another one, which is gone."""
    record = json.loads((run / "config.json").read_text())
    record["config"]["init_from"] = str(run.with_name("absent"))
    (run / "config.json").write_text(json.dumps(record))


def test_a_run_of_the_command_line_resumes(short_runs: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(short_runs["diayn"], tmp_path / "copy")
    start_from_absent(copy)  # which a run with a checkpoint does not need
    run = rookery.load(copy)
    before = run.generation
    assert len(run.metrics["generation"]) == before
    with pytest.raises(ValueError, match=r"^seed must be that of the run in .* \(0\), got 5; "):
        run.resume(before + 1, seed=5)
    options: Any = {"generatoins": 5}
    with pytest.raises(TypeError, match="generatoins"):
        run.resume(before + 1, **options)
    for rollouts in (-1, 0.5):
        with pytest.raises(ValueError, match=r"^rollouts must be "):
            run.report(rollouts=cast(Any, rollouts))
    assert_equal(run.evaluate(episodes=3, seed=3), evaluate.evaluate(copy, 3, 3)[1])
    result = run.resume(before + 1, quiet=True)
    assert len(result.history) == 1
    for opened in (run, rookery.load(copy)):
        assert opened.generation == len(opened.metrics["generation"]) == before + 1
        assert opened.config["run"]["generations"] == before + 1
    assert_equal(run.best(before), rookery.load(short_runs["diayn"]).best())


def test_a_run_without_a_checkpoint_begins_again_from_its_origin(short_runs: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(short_runs["pbt-sac"], tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    start_from_absent(copy)
    with pytest.raises(ValueError, match="absent is not a run directory"):
        rookery.load(copy).resume(1, quiet=True)


def test_a_checkpoint_is_read_once(short_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    verified = manifest.verified
    monkeypatch.setattr(manifest, "verified", lambda folder, number: read.append(number) or verified(folder, number))
    run = rookery.load(short_runs["pbt-sac"])
    for member in range(2):
        run.policy(member=member)
    run.best(checkpoint=run.generation)
    assert read == [run.generation]
    with pytest.raises(CheckpointError, match="The checkpoint of generation 0 cannot be used"):
        run.policy(checkpoint=0)


def test_what_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is (no|not a) run"):
        rookery.load(tmp_path)


def test_a_run_whose_folder_was_moved_is_said_to_be_gone(tmp_path: Path) -> None:
    run = rookery.load(write(tmp_path / "run", {"kind": "pbt-sac"}, METRICS, MEMBERS))
    with pytest.raises(ValueError, match="has no complete checkpoint;"):
        run.generation  # noqa: B018
    (tmp_path / "run").rename(tmp_path / "other")
    for use in ("metrics", "lineage", "generation", "policy", "state", "report"):
        with pytest.raises(RunFolderError, match=r"run is not a run directory: .*; runs near it are .*other\.$"):
            getattr(run, use)()
    assert run.config["kind"] == "pbt-sac"


def test_tables_convert_to_pandas(short_runs: dict[str, Path]) -> None:
    pandas = pytest.importorskip("pandas")
    metrics = rookery.load(short_runs["pbt-sac"]).metrics
    table = metrics.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == list(metrics)
