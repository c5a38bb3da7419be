"""The training loop, with a program of two lines in place of a population."""

import csv
import dataclasses
import re
import shutil
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.distributed import mesh
from rookery.envs.base import first_step
from rookery.hyperparams import defaults
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import StagedInit
from rookery.report.sections.summary import problems
from rookery.storage import manifest, record
from rookery.storage.checkpoint import Checkpointer, CheckpointError
from rookery.storage.csv_log import read_csv
from rookery.storage.events import Diverged, Journal, read_journal
from rookery.storage.record import key_implementation
from rookery.storage.run_dir import create, open_existing
from rookery.training import generation_loop, loop, run_writer
from rookery.training.config import RunConfig
from rookery.training.loop import run
from rookery.training.metrics import WallTimes, summarize
from rookery.training.progress import clock
from tests import tiny


class Shared(NamedTuple):
    generation: jax.Array
    parents: jax.Array


def init(key):
    return ProgramState(jax.random.normal(key, (3,)), Shared(jnp.zeros((), jnp.int32), jnp.arange(3)))


def step(diverge_at, state, key):
    """Members are random walks; their fitness is their position, or NaN from a given generation on."""
    members = state.members + jax.random.normal(key, (3,))
    generation = state.shared.generation + 1
    fitness = jnp.where(generation > diverge_at, jnp.nan, members)
    metrics = {"fitness": fitness, "parent": state.shared.parents, "diverged": ~jnp.isfinite(fitness)}
    return ProgramState(members, Shared(generation, state.shared.parents)), metrics | {"hyper/rate": members * 2}


def evaluate(state, key):
    return {"fitness": state.members + jax.random.normal(key, (3,))}


def walks(diverge_at: int = 1000) -> Program:
    return Program(init, partial(step, diverge_at), evaluate, population_size=3, steps_per_generation=30)


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("name", ["generation", "seconds", "step", "a,b"])
def test_a_metric_of_an_agent_and_of_a_program_keeps_the_one_rule_for_names(name, tmp_path):
    environment = rookery.make("point_room", episode_length=10)
    for make, learner in ((rookery.sac, rookery.off_policy), (rookery.ppo, rookery.on_policy)):
        agent: Any = make(environment.spec, hidden_sizes=(8,))
        agent = agent._replace(update=lambda *inputs: (inputs[0], {name: jnp.zeros(())}))
        with pytest.raises(ValueError, match=f"^the metric of the agent {re.escape(repr(name))} needs another name"):
            run(rookery.pbt(learner(agent, environment), population_size=2), generations=1, quiet=True)

    def own_step(state, key):
        state, metrics = step(1000, state, key)
        return state, {**metrics, name: jnp.zeros(())}

    with pytest.raises(ValueError, match=f"^the metric of the program {re.escape(repr(name))} needs another name"):
        run(walks()._replace(step=own_step), generations=1, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_metric_of_an_agent_is_a_number():
    environment = rookery.make("point_room", episode_length=10)
    agent = rookery.sac(environment.spec, hidden_sizes=(8,))
    agent = agent._replace(update=lambda *inputs: (inputs[0], cast("Any", {"mine": None})))
    with pytest.raises(ValueError, match=r"^the metric mine must be a number"):
        run(rookery.pbt(rookery.off_policy(agent, environment), population_size=2), generations=1, quiet=True)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("loss", jnp.zeros((3, 2)), "[] or [3], but it is an array [3, 2]"),
        ("fitness", None, "[3], but it is no array"),
    ],
)
def test_a_metric_of_a_program_has_one_number_or_one_of_each_member(name, value, problem, tmp_path):
    def own_step(state, key):
        state, metrics = step(1000, state, key)
        return state, {**metrics, name: value}

    with pytest.raises(ValueError, match=f"^the metric {name} of the program's step must be.*{re.escape(problem)}"):
        run(walks()._replace(step=own_step), generations=1, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_parents_each_member_continues_itself(tmp_path):
    def own_step(state, key):
        state, metrics = step(1000, state, key)
        return state, {"fitness": metrics["fitness"]}

    run(walks()._replace(step=own_step), generations=2, run_dir=tmp_path / "run")
    assert [row["parent"] for row in rows(tmp_path / "run" / "lineage.csv")] == ["0", "1", "2"] * 2
    assert [row["replaced"] for row in rows(tmp_path / "run" / "metrics.csv")] == ["0.0", "0.0"]


def arm():
    scoring = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
    return rookery.map_elites(scoring, rookery.qd.grid((4, 4), (0.0, 0.0), (1.0, 1.0)), rookery.qd.iso_line(scoring, 4))


def test_healthy_runs_work_under_the_debug_flag_for_nan(tmp_path):
    """Episodes of their policies under this flag are played by `tests/deploy/test_episodes.py`."""
    learner = tiny.learner(config=dataclasses.replace(tiny.CONFIG, warmup_steps=40))

    @jax.jit
    def first_step_of_a_member(key):
        bank = learner.start_states(key)
        return learner.step(learner.init(key, defaults(learner.space), bank), bank, key, jnp.int32(0))[1]

    with jax.debug_nans(True):
        first, second = run(rookery.seeds(learner), generations=2, quiet=True).history
        run(arm(), generations=2, run_dir=tmp_path / "arm", quiet=True)
        rookery.load(tmp_path / "arm", arm()).evaluate()
        own = first_step_of_a_member(jax.random.key(0))
    assert np.isnan(first["critic_loss"]).all(), "an average of nothing stays NaN in the tables"
    assert np.isfinite(second["critic_loss"]).all()
    assert (own["critic_loss"] == 0).all(), "the flag takes every NaN in a result for an error"
    columns = read_csv(tmp_path / "arm/repertoire.csv")
    assert (np.isnan(columns["descriptor/0"]) == ~np.isfinite(columns["fitness"])).all()


@pytest.mark.parametrize(
    ("switch", "message"),
    [
        (jax.disable_jit, "^jax_disable_jit is on, but a program is compiled before it runs"),
        (partial(jax.debug_infs, True), "^jax_debug_infs is on, but the fitness of empty cells is -inf"),
        (
            partial(jax.transfer_guard, "disallow"),
            "^jax_transfer_guard is disallow, but constants and results are copied",
        ),
        (partial(jax.enable_x64, True), "^jax_enable_x64 is on, but everything is computed in float32"),
    ],
)
def test_switches_of_jax_with_which_nothing_can_run_are_one_sentence(switch, message, tmp_path):
    program = arm()
    with switch():
        with pytest.raises(ValueError, match=message):
            run(program, generations=1, run_dir=tmp_path / "run", quiet=True)
        if "debug_infs" not in message:
            with pytest.raises(ValueError, match=message):
                rookery.train("sac", "point_room", run_dir=tmp_path / "run", quiet=True)  # before its agent is built
        assert not (tmp_path / "run").exists()
        if "x64" in message:
            with jax.enable_x64(False):
                assert len(run(program, generations=1, run_dir=tmp_path / "run", quiet=True).history) == 1


def test_a_platform_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda *_: (_ for _ in ()).throw(AssertionError()))
    with pytest.raises(
        ValueError, match=r"^JAX finds no device of the platform 'cpu'; unset JAX_PLATFORMS, or install"
    ):
        mesh.make_mesh(1)


def test_a_run_continues_with_its_own_implementation_of_random_keys(tmp_path, monkeypatch):
    options = {"run_dir": tmp_path / "run", "quiet": True}
    run(walks(), generations=1, **options)
    assert open_existing(tmp_path / "run").config["keys"] == "threefry2x32"
    message = "was run with the random keys threefry2x32, but JAX now has "
    with jax.threefry_partitionable(False):
        assert key_implementation() == "threefry2x32, not partitionable"
        with pytest.raises(ValueError, match=message + "threefry2x32, not"):
            run(walks(), generations=2, resume=True, **options)
    jax.config.update("jax_random_seed_offset", 5)
    try:
        with pytest.raises(ValueError, match=message + "threefry2x32, offset 5"):
            run(walks(), generations=2, resume=True, **options)
    finally:
        jax.config.update("jax_random_seed_offset", 0)
    monkeypatch.setattr(record, "key_implementation", lambda: "rbg")
    with pytest.raises(ValueError, match=message + "rbg"):
        run(walks(), generations=2, resume=True, **options)


def test_the_keys_of_a_generation_depend_only_on_its_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(walks(), generations=5, quiet=True, seed=4)
    assert repr(result) == "Result(5 generations, run_dir=None)"
    assert (len(result.history), result.run_dir, list(tmp_path.iterdir())) == (5, None, []), "nothing is written"
    state = run(walks(), generations=2, quiet=True, seed=4).state
    run_key = jax.random.split(jax.random.key(4))[1]
    for generation in range(2, 5):
        state, _ = step(1000, state, jax.random.fold_in(run_key, generation))
    np.testing.assert_allclose(state.members, result.state.members, rtol=1e-6)
    assert not jnp.array_equal(result.state.members, run(walks(), generations=5, quiet=True, seed=5).state.members)


def test_the_phases_add_up_to_the_wall_time(tmp_path, monkeypatch):
    now = [0.0]  # only the functions below and reading the clock take time

    def taking(seconds, function):
        def call(*arguments):
            now[0] += seconds
            return function(*arguments)

        return call

    for module in (loop, generation_loop, run_writer):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=taking(1.0, lambda: now[0])))
    unhurried = SimpleNamespace(is_due=lambda: False, saved=lambda _: None)
    monkeypatch.setattr(loop, "Pace", lambda _: unhurried)
    monkeypatch.setattr(run_writer.RunWriters, "write", taking(10.0, run_writer.RunWriters.write))
    monkeypatch.setattr(Checkpointer, "save", taking(100.0, Checkpointer.save))
    folder = str(tmp_path / "run")
    for generations in (5, 7):
        run(walks(), generations=generations, checkpoint_every=2, run_dir=folder, resume=generations > 5, quiet=True)
    table = rows(tmp_path / "run/metrics.csv")
    assert {row["seconds"] for row in table} == {"1.0"}
    assert [float(row["seconds_checkpoint"]) for row in table] == [0, 0, 101, 0, 101, 0, 101]
    assert [float(row["seconds_tables"]) for row in table] == [0, 11, 12, 11, 12, 0, 12]


def test_the_cells_of_a_repertoire_are_written_before_its_checkpoint(tmp_path):
    order = []
    double: Any = SimpleNamespace(
        save=lambda *_: order.append("checkpoint"),
        write_cells=lambda *arguments: order.append(arguments),
        sync=lambda: order.append("sync"),
    )
    state, folder = ProgramState(None, jnp.zeros(1)), create(tmp_path / "run", {})
    out = run_writer.RunWriters(Journal(), checkpoints=double, log=double, folder=folder)
    out.save(3, state, lambda state: {"fitness": state.shared})
    assert order == [(2, np.zeros(1)), "sync", "checkpoint"]


def test_checkpoints_by_the_clock_change_no_table(tmp_path, monkeypatch):
    now = iter(range(0, 10**6, 60))  # each reading of the clock takes a minute
    monkeypatch.setattr(generation_loop, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    saved, cells = {}, {}
    for seconds in (0.0, 300.0):
        path = tmp_path / f"{seconds}"
        options = {"generations": 8, "checkpoint_every": 5, "checkpoint_seconds": seconds, "keep": 9, "quiet": True}
        run(arm(), run_dir=path, **options)
        saved[seconds] = [int(one.stem[-8:]) for one in sorted((path / "checkpoints").glob("*.json"))]
        cells[seconds] = (path / "cells.csv").read_text()
    assert saved[0.0] == [5, 8]
    assert len(saved[300.0]) > 3
    assert set(saved[300.0]) > {5, 8}
    assert cells[0.0] == cells[300.0]


def test_the_clock_asks_for_a_checkpoint_only_if_saving_is_cheap(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(generation_loop.time, "monotonic", lambda: now[0])
    pace = generation_loop.Pace(100.0)
    for at, cost, due in ((99.0, None, False), (100.0, 1.0, True), (199.0, None, False), (200.0, 9.0, True)):
        now[0] = at
        assert pace.is_due() == due
        if cost is not None:
            pace.saved(cost)
    now[0] = 379.0
    assert not pace.is_due(), "9 s are more than 5 % of 179"
    now[0] = 380.0
    assert pace.is_due()
    assert not generation_loop.Pace(0.0).is_due()


def test_after_save_is_called_after_each_save_and_its_error_does_not_end_the_run(tmp_path):
    lengths = []

    def fail(run_dir):
        lengths.append(len(rows(run_dir / "metrics.csv")))
        raise OSError("no page")

    options = {"generations": 5, "checkpoint_every": 2, "quiet": True}
    with pytest.warns(
        run_writer.AfterSaveWarning, match=r"failed with OSError: no page \(.*, line \d+\); the run continues"
    ) as caught:
        result = run(walks(), run_dir=str(tmp_path / "run"), after_save=fail, **options)
    assert (len(caught), lengths) == (1, [2, 4, 5]), "one warning, and called again"
    tiny.assert_equal(result.state, run(walks(), after_save=fail, **options).state)
    assert len(lengths) == 3, "without a run_dir nothing is saved"


def test_a_continued_run_keeps_its_seed_and_its_settings(tmp_path):
    uninterrupted = run(walks(), seed=7, generations=6, quiet=True)
    settings = {"checkpoint_every": 2, "keep": 9, "best_by": "worst_fitness"}
    path = str(tmp_path / "run")
    run(walks(), seed=7, generations=4, run_dir=path, quiet=True, **settings)
    resumed = run(walks(), generations=6, run_dir=path, resume=True, quiet=True)
    tiny.assert_equal(resumed.state, uninterrupted.state)
    recorded = open_existing(path).config["run"]
    assert recorded == recorded | settings | {"seed": 7, "generations": 6}
    manifests = {path.stem for path in (tmp_path / "run/checkpoints").glob("*.json")}
    assert {"2", "4", "6"} <= {name.removeprefix("generation_").lstrip("0") for name in manifests}
    scores = [manifest.read(tmp_path / "run/checkpoints", number)["metadata"]["worst_fitness"] for number in (2, 4, 6)]
    assert scores == read_csv(tmp_path / "run/metrics.csv")["worst_fitness"][1::2].tolist()
    assert run(walks(), run_dir=path, resume=True, quiet=True).history == []  # generation 6 is recorded, not 50
    run(walks(), generations=7, keep=1, run_dir=path, resume=True, quiet=True)
    assert open_existing(path).config["run"]["keep"] == 1
    for settings in ({"seed": 0}, {"config": RunConfig(run_dir=path, quiet=True)}):
        extra = {} if "config" in settings else {"run_dir": path, "quiet": True}
        with pytest.raises(ValueError, match=r"^seed must be that of the run in .* \(7\), got 0; leave it out"):
            run(walks(), resume=True, **settings, **extra)


def test_a_run_killed_or_stopped_before_its_first_checkpoint_starts_from_the_beginning(tmp_path, capsys, monkeypatch):
    uninterrupted = run(walks(), generations=4, run_dir=str(tmp_path / "run"), quiet=True)
    for path in (tmp_path / "run/checkpoints").glob("*.json"):
        path.unlink()  # what a kill before the first manifest leaves
    journal = tmp_path / "run/journal.jsonl"
    journal.write_text("".join(line for line in journal.read_text().splitlines(True) if '"ended"' not in line))
    capsys.readouterr()
    resumed = run(walks(), generations=4, run_dir=str(tmp_path / "run"), resume=True)
    tiny.assert_equal(resumed.state, uninterrupted.state)
    assert "has no complete checkpoint, so the run starts from the beginning" in " ".join(
        capsys.readouterr().out.split()
    )
    assert len(rows(tmp_path / "run/metrics.csv")) == 4

    def stop(*_, **__):
        raise KeyboardInterrupt  # the second Ctrl-C

    with monkeypatch.context() as patched:
        patched.setattr(Checkpointer, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            run(walks(), generations=4, run_dir=str(tmp_path / "stopped"), quiet=True)
    resumed = run(walks(), generations=4, run_dir=str(tmp_path / "stopped"), resume=True, quiet=True)
    tiny.assert_equal(resumed.state, uninterrupted.state)


def test_a_run_whose_checkpoints_are_missing_keeps_its_tables(tmp_path):
    run(walks(), generations=4, run_dir=str(tmp_path / "run"), quiet=True)
    tables = (tmp_path / "run/metrics.csv").read_text(), (tmp_path / "run/lineage.csv").read_text()
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(CheckpointError, match=r"generation 4 was saved, but there is no checkpoint.* `--overwrite`"):
        run(walks(), generations=8, run_dir=str(tmp_path / "run"), resume=True)
    assert ((tmp_path / "run/metrics.csv").read_text(), (tmp_path / "run/lineage.csv").read_text()) == tables


def test_a_diverged_population_stops_the_run_and_the_last_good_checkpoint_is_named(tmp_path):
    with pytest.raises(Diverged, match=r"generation 4; the last good checkpoint is that of generation 2, in .*run"):
        run(walks(diverge_at=3), generations=9, checkpoint_every=2, run_dir=str(tmp_path / "run"), quiet=True)
    with pytest.raises(Diverged, match="generation 1, and no checkpoint was saved before"):
        run(walks(diverge_at=0), generations=9, run_dir=str(tmp_path / "other"), quiet=True)


def test_start_states_that_are_not_finite_are_an_error_before_training():
    first = jax.tree.map(lambda leaf: leaf[None], first_step(jnp.full(2, jnp.nan), jnp.zeros(0)))
    staged = StagedInit(lambda key: (key, first), lambda keys, _: init(keys[0]), keys=1)
    with pytest.raises(
        ValueError, match=r"^the environment line is wrong, .*: every start state has an observation or"
    ):
        run(walks()._replace(init=staged, task="line"), generations=1, quiet=True)


def test_a_full_disk_stops_the_run_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    free = [0, 10**12, 10**12]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free.pop() if len(free) > 1 else free[0]))
    with pytest.raises(CheckpointError, match=r"generation 3 .* the newest complete one is of generation 2"):
        run(walks(), generations=9, checkpoint_every=1, run_dir=str(tmp_path / "run"), quiet=True)
    monkeypatch.undo()
    resumed = run(walks(), generations=5, run_dir=str(tmp_path / "run"), resume=True, quiet=True)
    tiny.assert_equal(resumed.state, run(walks(), generations=5, quiet=True).state)


def test_a_summary_includes_only_finite_values_and_seconds_as_clock_time():
    metrics = {
        "fitness": np.asarray([1.0, np.nan, 4.0, 3.0]),
        "parent": np.asarray([0, 0, 2, 2]),
        "diverged": np.asarray([False, True, False, False]),
        "critic_loss": np.asarray([1.0, np.nan, 2.0, 3.0]),
        "coverage": np.asarray(12.5),
        "hyper/rate": np.ones(4),
        "return": np.asarray([5.0, 9.0, 6.0, 1.0]),
        "measure/success": np.asarray([0.5, 1.0, 0.25, np.nan]),
        "all_members": np.asarray(np.inf),
        "measure/of the repertoire": np.asarray([1.0, np.nan]),
    }
    row = summarize(walks(), 9, metrics, WallTimes(2.0, 0.5, 0.25))
    expected = {"env_steps": 300, "best_fitness": 4, "median_fitness": 3, "worst_fitness": 1, "diverged": 1}
    expected |= {"replaced": 2, "critic_loss": 2, "coverage": 12.5, "seconds": 2, "steps_per_second": 15}
    expected |= {"seconds_tables": 0.5, "seconds_checkpoint": 0.25}
    expected |= {"return": 4, "best/return": 6, "best/measure/success": 0.25, "measure/of the repertoire": 1}
    expected |= {"measure/success": 0.375, "all_members": np.inf}  # without what is not finite of one member
    assert {name: row[name] for name in expected} == expected
    lost = summarize(walks(), 9, metrics | {"fitness": np.full(4, np.nan)}, WallTimes(2.0))
    assert np.isnan([lost["best_fitness"], lost["best/return"], lost["best/measure/success"]]).all()
    assert "best/measure/of the repertoire" not in row
    assert row["mean_fitness"] == pytest.approx(8 / 3)
    assert "hyper/rate" not in row
    large = np.full(4, 3e38, np.float32)
    row = summarize(walks(), 0, {"fitness": large, "return": large, "actor_loss": -large}, WallTimes(1.0))
    expected = dict.fromkeys(("mean_fitness", "median_fitness", "return"), large[0]) | {"actor_loss": -large[0]}
    assert {name: row[name] for name in expected} == expected
    assert [clock(seconds) for seconds in (0, 61.4, 3725, -3)] == ["0:00", "1:01", "1:02:05", "0:00"]


@pytest.mark.parametrize(("after", "noted"), [(5, True), (4, False)])
def test_a_run_whose_fitnesses_are_all_equal_says_so_once(after, noted, tmp_path, capsys):
    def own_step(state, key):
        state, metrics = step(1000, state, key)
        equal = jnp.where(state.shared.generation <= after, 0.25, metrics["fitness"])
        return state, {**metrics, "fitness": jnp.broadcast_to(equal, metrics["fitness"].shape)}

    path = tmp_path / "run"
    run(walks()._replace(step=own_step), generations=7, run_dir=str(path))
    text = "every fitness of the first 5 generations is 0.25, so that no member can be selected by it"
    assert " ".join(capsys.readouterr().out.split()).count(f"note: {text}") == noted
    messages = [event["message"] for event in read_journal(open_existing(path)) if event["event"] == "noted"]
    assert len(messages) == noted
    assert all(word in message for word in ("--objective", "evolve", "own_environment.md") for message in messages)
    found = [
        problem["meaning"] for problem in problems(read_csv(path / "metrics.csv"), read_journal(open_existing(path)))
    ]
    assert [meaning for meaning in found if str(meaning).startswith("every fitness")] == messages


@pytest.mark.parametrize(("broken", "noted"), [(1, True), (0, False)])
def test_a_run_whose_evaluations_all_broke_says_so_once(broken, noted):
    history = [{"fitness": np.full(3, np.nan), "broken_episodes": np.full(3, broken)}] * 6
    notes = [generation_loop._no_selection(walks(), 0, history[:count]) for count in range(1, 7)]
    assert [note.startswith("no fitness of the first 5 generations is finite") for note in notes] == [
        noted and count == 5 for count in range(1, 7)
    ]


def test_options_and_config_exclude_each_other():
    with pytest.raises(TypeError, match="either config or the keywords"):
        run(walks(), RunConfig(), generations=3)
    with pytest.raises(ValueError, match=r"^run_dir is needed to resume; give the directory"):
        run(walks(), resume=True)
    program = rookery.pbt(tiny.learner(), population_size=2)  # int32 counts the iterations of a run
    with pytest.raises(ValueError, match=r"^generations must be at most 214748364 with 10 iterations each"):
        run(program, generations=2**28, quiet=True)
