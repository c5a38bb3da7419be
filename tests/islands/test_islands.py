"""Runs of islands in one process: the same bits after an interruption, a kill, a replay; bad input; what reads them."""

import dataclasses
import itertools
import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.distributed import layout, programs
from rookery.distributed.mesh import make_mesh
from rookery.distributed.signals import Interrupted, Requests
from rookery.experiments import parts
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.kinds import configure
from rookery.islands import engine, plan, replay, replay_island, run_islands
from rookery.islands.island import _check_repeated
from rookery.islands.migration import BATCH, Published, published_in
from rookery.islands.migration import migration as migration_of
from rookery.islands.plan import Builder
from rookery.islands.run import Follower
from rookery.islands.store import Store, StoreError
from rookery.learners.off_policy import OffPolicyConfig
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import pbt
from rookery.qd.centroids import grid
from rookery.qd.map_elites import repertoire_of
from rookery.qd.me_pbt import me_pbt
from rookery.report.page import write_report
from rookery.report.readers import open_run
from rookery.report.sections.islands import islands_chapter
from rookery.report.sections.summary import head
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import read_csv, write_table
from rookery.storage.island_files import (
    Exchange,
    Import,
    ImportJournal,
    IslandWarning,
    ancestors,
    best_of,
    island_dir,
    islands_of,
    reached,
    read_exchanges,
)
from rookery.storage.run_dir import RunFolderError, open_existing
from tests import walks
from tests.commandline import call
from tests.islands.runs import ME_PBT, PBT, contents, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Two islands after four generations."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(PBT, folder, "--generations", "4") == (0, "", "")
    return folder


def edit_config(folder: Path, **entries: object) -> None:
    record = json.loads((folder / "config.json").read_text())
    record["config"].update(entries)
    (folder / "config.json").write_text(json.dumps(record))


def config_of(folder: Path):
    return plan.resumed(open_existing(folder), None, {"quiet": True})


def test_islands_differ_exchange_and_record_it(whole, capsys):
    assert [path.name for path in islands_of(whole)] == ["0", "1"]
    configs = [open_existing(path).config for path in islands_of(whole)]
    assert [config["island"]["number"] for config in configs] == [0, 1]
    assert [config["population"] for config in configs] == [2, 2]
    assert len({config["run"]["seed"] for config in configs}) == 2
    exchanges = [read_exchanges(path / "imports.jsonl") for path in islands_of(whole)]
    assert [[exchange.generation for exchange in found] for found in exchanges] == [[1, 2, 3, 4]] * 2
    assert [[exchange.experience for exchange in found] for found in exchanges] == [[20, 40, 60, 80]] * 2
    imports = [entry for found in exchanges for exchange in found for entry in exchange.imports]
    assert imports
    for number, found in enumerate(exchanges):
        table = read_csv(island_dir(whole, number) / "lineage.csv")
        parents = table["parent"].reshape(4, 2)
        arrived = {(e.generation, i.slot) for e in found for i in e.imports if e.generation < 4}
        assert {(int(g), int(m)) for g, m in np.argwhere(parents == -1)} == arrived
        for exchange in found:
            assert all(e.island != number and e.generation <= exchange.generation for e in exchange.imports)
    shown = Follower(plan.resumed(open_existing(whole), None, {"quiet": False}), open_existing(whole), None)
    shown()
    shown.end()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("islands at generation 4, 4 of 4  best "), "it is printed once"


def test_an_imported_member_has_the_parameters_that_were_published(whole):
    """And hyper-parameters within the bounds, and the fitness of its source in the record of its lineage."""
    builder = Builder(config_of(whole))
    number, exchange = next(
        (number, exchange)
        for number in range(2)
        for exchange in read_exchanges(island_dir(whole, number) / "imports.jsonl")
        if exchange.imports
    )
    template = programs.template(builder.built.program, builder.built.mesh)
    checkpoints = Checkpointer(island_dir(whole, number) / "checkpoints", read_only=True)
    state, _, _ = checkpoints.restore(template, exchange.generation)
    for entry in exchange.imports:
        published = published_in(Store(whole / "publications").read(entry.file), builder.migration.template, "")
        loaded = jax.tree.map(lambda leaf, slot=entry.slot: leaf[slot], state.members)
        for left, right in zip(
            jax.tree.leaves(loaded.state.params), jax.tree.leaves(published.genotypes.params), strict=True
        ):
            assert np.asarray(left).tobytes() == np.asarray(right[0]).tobytes()
        assert float(state.shared.recent[entry.slot, 0]) == entry.fitness
        assert int(state.shared.parents[entry.slot]) == -1
        changed = [
            float(a) != float(b[0])
            for a, b in zip(jax.tree.leaves(loaded.hyper), jax.tree.leaves(published.genotypes.hyper), strict=True)
        ]
        assert any(changed)


def test_a_replay_is_equal_bit_by_bit(whole):
    code, out, err = call("replay-island", str(whole), "1")
    assert (code, err) == (0, "")
    assert "run again up to generation 4" in out
    assert "equal bit by bit" in out
    assert "12 rows of metrics.csv and lineage.csv" in out
    assert "publications  4 checksums" in out
    assert call("replay-island", str(whole), "2")[2] == "error: island 2 does not exist; choose one in 0..1.\n"
    code, _, err = call("replay-island", str(whole / "islands/0"), "0")
    assert code == 1
    assert "has no islands to replay" in err


def test_a_replay_detects_a_difference(copy):
    recorded, again = copy / "islands/1/lineage.csv", copy / "again.csv"
    again.write_bytes(recorded.read_bytes())
    assert replay._compare_tables(recorded, again, 4) == 8
    lines = again.read_text().splitlines()
    values = lines[3].split(",")
    values[3] = repr(float(values[3]) + 1e-6)
    again.write_text("\n".join([*lines[:3], ",".join(values), *lines[4:], ""]))
    with pytest.raises(ValueError, match=r"differs from .*lineage.csv in the column fitness"):
        replay._compare_tables(recorded, again, 4)
    assert replay._compare_tables(recorded, again, 1) == 2
    state = {"a": jnp.zeros(3), "key": jax.random.key(0)}
    assert len(replay._compare_states(state, state)) == 2
    for changed in ({**state, "a": -state["a"]}, {**state, "key": jax.random.key(1)}):
        with pytest.raises(ValueError, match=r"differs from the checkpoint in \['(a|key)'\] of the state"):
            replay._compare_states(state, changed)


def test_columns_that_callbacks_added_are_not_compared(tmp_path):
    recorded, again = tmp_path / "metrics.csv", tmp_path / "again.csv"
    columns = {"generation": [0, 1], "best_fitness": [1.0, 2.0]}
    write_table(again, columns)
    write_table(recorded, {**columns, "age": [3.0, 4.0], "seconds": [5.0, 6.0]})
    assert replay._compare_tables(recorded, again, 2) == 2
    write_table(again, {**columns, "best_fitness": [1.0, 3.0]})
    with pytest.raises(ValueError, match=r"differs from .*metrics\.csv in the column best_fitness"):
        replay._compare_tables(recorded, again, 2)


def test_a_replay_reads_a_column_of_names_by_those_of_the_island(copy, monkeypatch):
    edit_config(copy / "islands/1", choices={"activation": ["tanh", "relu"]})
    compared = []
    monkeypatch.setattr(replay, "_compare_tables", lambda *arguments: compared.append(arguments[3]) or 0)
    replay_island(copy, 1)
    assert compared == [{"activation": ["tanh", "relu"]}] * 2


def test_what_an_island_has_lost_is_named(copy):
    (copy / "islands/0/lineage.csv").write_text("")
    code, _, err = call("replay-island", str(copy), "0")
    assert (code, err) == (
        1,
        f"error: {copy}/islands/0/lineage.csv lacks the columns generation; put a copy of the file back.\n",
    )
    edit_config(copy / "islands/0", environment={"devices": 1})
    for words in (("replay-island", str(copy), "0"), ("resume", str(copy), "--generations", "5")):
        code, _, err = call(*words)
        assert (code, err.partition("it: ")[2].partition(";")[0]) == (1, "environment differs in env")


def test_a_replay_needs_every_publication(copy):
    """And every exchange, and it publishes what was published."""
    found = read_exchanges(copy / "islands/0/imports.jsonl")
    exchange = next(exchange for exchange in found if exchange.imports)
    file = exchange.imports[0].file
    (copy / "publications" / file).unlink()
    island = Builder(config_of(copy)).exchange(0, ImportJournal(None, found), replays=True)
    with pytest.raises(StoreError, match=f"^the publication {file} was left out"):
        island._repeat(exchange)
    with pytest.raises(StoreError, match="after generation 9 is not recorded"):
        _check_repeated(9, None, "name")
    with pytest.raises(StoreError, match="after generation 9 the island published first, and the replay second"):
        _check_repeated(9, exchange._replace(published="first"), "second")


def test_a_signal_saves_every_island_and_a_killed_one_repeats_its_exchanges(whole, tmp_path, monkeypatch):
    config = from_record(json.loads((whole / "config.json").read_text())["config"])
    folder = tmp_path / "run"
    run = dataclasses.replace(config.run, run_dir=str(folder), generations=4)
    config = plan.check(dataclasses.replace(config, run=run))
    turn = engine._turn
    count = iter(range(100))

    def interrupted(*arguments):
        if next(count) == 7:  # island 0 is one generation ahead of a further one of island 1
            interrupted.requests.signum = 2
        return turn(*arguments)

    monkeypatch.setattr(engine, "_turn", interrupted)
    monkeypatch.setattr("rookery.islands.run.Requests", lambda: interrupted.requests)
    interrupted.requests = Requests()
    with pytest.raises(Interrupted, match=r"all islands after at least \d generations.*rookery resume"):
        run_islands(config)
    monkeypatch.undo()
    # Of island 1 the newest checkpoints are lost, as by a kill before they are complete; its journal has the imports.
    island = folder / "islands/1"
    reached = Checkpointer(island / "checkpoints", read_only=True).latest()
    assert reached is not None
    assert reached > 1
    for path in [path for path in (island / "checkpoints").iterdir() if "generation_00000001" not in path.name]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert Checkpointer(island / "checkpoints", read_only=True).latest() == 1
    (island / "metrics.csv").write_bytes((island / "metrics.csv").read_bytes()[:-7])
    run_islands(config_of(folder), resume=True)
    assert contents(folder) == contents(whole)
    assert {path.name for path in (folder / "publications").iterdir()} == {
        path.name for path in (whole / "publications").iterdir()
    }


def test_training_goes_on_without_publications(copy, monkeypatch):
    """What others published is damaged, and nothing can be written."""

    def fails(self, name, content):
        raise StoreError("the disk is full.")

    monkeypatch.setattr("rookery.islands.store.Store._write", fails)
    for path in (copy / "publications").glob("0001-*"):
        path.write_bytes(path.read_bytes()[:-5])
    config = config_of(copy)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, generations=5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_islands(config, resume=True)
    sentences = [str(warning.message) for warning in caught if warning.category is IslandWarning]
    assert {"island 0: the disk is full.", "island 1: the disk is full."} <= set(sentences)
    assert any(re.match(r"island 0: the publication 0001-\S+ was left out: its checksum", text) for text in sentences)
    assert len(sentences) == len(set(sentences))
    assert [len(read_csv(path / "metrics.csv")["generation"]) for path in islands_of(copy)] == [5, 5]
    last = read_exchanges(copy / "islands/0/imports.jsonl")[-1]
    assert (last.generation, last.published, last.imports) == (5, None, ())
    assert "was left out" in last.notes[0]
    events = [json.loads(line) for line in (copy / "islands/0/journal.jsonl").read_text().splitlines()]
    assert any(event["event"] == "warned" and "was left out" in event["message"] for event in events)


def test_generations_that_are_reached_change_nothing(whole, copy, monkeypatch):
    settings = (copy / "config.json").read_text()
    code, out, error = call("resume", str(copy), "--generations", "1")
    assert (code, error) == (0, "")
    assert "is already reached by all islands; give a larger --generations to continue." in out
    assert (copy / "config.json").read_text() == settings
    assert contents(copy) == contents(whole)
    (copy / "report.html").unlink()
    (copy / "report.html").mkdir()  # a page that cannot be written is a warning, as after any other run
    code, out, error = call("resume", str(copy), "--generations", "1")
    assert (code, error.count("\n")) == (1, 1)
    assert error.startswith("warning: no report.html was written (")
    assert f"best       {copy}" in out
    record = json.loads(settings)
    record["config"]["islands"] = None
    (copy / "config.json").write_text(json.dumps(record))
    assert call("resume", str(copy)) == (1, "", "error: config.json: islands must be a table of settings, got None.\n")
    (copy / "config.json").write_text(settings.replace('"islands": 2', '"islands": 1'))
    code, _, error = call("resume", str(copy), "--generations", "1")
    assert (code, error.count("\n")) == (1, 1)
    assert f"its number of islands is 1, but there is {copy / 'islands/1'}; put 2 islands" in error
    (copy / "config.json").write_text(settings)
    (copy / "islands/0/config.json").write_text("{")
    code, _, error = call("resume", str(copy), "--quiet")
    assert (code, error.count("\n")) == (1, 1)
    assert "islands/0/config.json is damaged (JSONDecodeError" in error
    (copy / "islands/0/config.json").unlink()  # the page does not leave out the island
    message = f"error: {copy / 'islands/0'} is not a run directory: config.json is missing in it.\n"
    assert call("report", str(copy)) == (1, "", message)
    monkeypatch.setattr("rookery.cli.app.join", None)  # an error before the processes connect
    code, _, err = call("resume", str(copy), "--distributed")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: the processes of jax.distributed cannot run islands; give --ray-address to place")


def test_islands_are_added(copy):
    assert call("resume", str(copy), "--islands", "3", "--quiet") == (0, "", "")
    assert [path.name for path in islands_of(copy)] == ["0", "1", "2"]
    config = open_existing(copy).config
    assert (config["population"], config["islands"]["islands"]) == (6, 3)
    assert [len(read_csv(path / "metrics.csv")["generation"]) for path in islands_of(copy)] == [4, 4, 4]
    assert open_run(copy).metrics["env_steps"].tolist() == [120, 240, 360, 480]
    for exchange in read_exchanges(copy / "islands/2/imports.jsonl"):
        assert all(entry.generation <= exchange.generation for entry in exchange.imports)
    code, _, err = call("resume", str(copy), "--islands", "2")
    assert code == 1
    assert err == f"error: {copy} has 3 islands, got 2; give 3 or more, which adds islands.\n"
    lost = copy / "islands/1"
    lost.rename(copy / "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_islands(plan.resumed(open_existing(copy), None, {"quiet": True, "generations": 5}), resume=True)
    first = f"island 1 begins with its first generation, since there is no {lost / 'config.json'}; if it was removed,"
    assert [str(warning.message).startswith(first) for warning in caught if "begins" in str(warning.message)] == [True]


def test_the_best_of_all_islands(whole, copy):
    best = [read_csv(path / "metrics.csv")["best_fitness"][-1] for path in islands_of(whole)]
    assert best_of(whole) == island_dir(whole, int(np.argmax(best)))
    assert best_of(whole / "islands/0") == whole / "islands/0"
    loaded = rookery.load(whole)
    assert loaded.path == best_of(whole)
    assert loaded.generation == 4
    assert np.array_equal(rookery.experiments.lineage(whole).parents, loaded.lineage.parents)
    code, out, err = call("evaluate", str(whole), "--episodes", "2")
    assert (code, err) == (0, "")
    assert str(best_of(whole)) in out.replace("\n", "")
    exported = rookery.export(copy)
    assert exported.path == copy / "policy"
    with pytest.raises(RunFolderError, match="is an island of"):
        loaded.resume(5)
    code, _, err = call("resume", str(whole / "islands/1"))
    assert (code, err) == (
        1,
        f"error: {whole}/islands/1 is an island of {whole}; continue all of its islands: rookery resume {whole}\n",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", r"^\S+/islands/1 has lost all rows of metrics\.csv; "),
        ("generation,best_fitness\nx,1\n", r"^\S+/metrics\.csv is damaged in its last line: .*'x'; correct or"),
        ("generation,fitness\n3,1\n", r"^\S+/metrics\.csv lacks the columns best_fitness; "),
    ],
)
def test_an_island_whose_table_is_damaged_is_not_taken_for_a_worse_one(copy, content, problem):
    (copy / "islands/1/metrics.csv").write_text(content)
    with pytest.raises(ValueError, match=problem):
        best_of(copy)
    with pytest.raises(ValueError, match=r"/islands/1(/metrics\.csv.*| has lost all rows of metrics\.csv); "):
        write_report([copy])
    assert reached(island_dir(copy, 1))[1] == -np.inf


def test_the_report_shows_all_islands(copy):
    record = open_run(copy)
    assert [island.name for island in record.islands] == ["run, island 0", "run, island 1"]
    assert record.metrics["env_steps"].tolist() == [80.0, 160.0, 240.0, 320.0]
    tables = [island.metrics["best_fitness"] for island in record.islands]
    assert np.array_equal(record.metrics["best_fitness"], np.maximum(*tables))
    chapter = islands_chapter(record)
    assert chapter is not None
    assert [curve["number"] for curve in chapter["curves"]] == [0, 1]
    imports = [e.imports for path in islands_of(copy) for e in read_exchanges(path / "imports.jsonl")]
    assert chapter["moves"]["to"]["shape"] == [sum(map(len, imports))]
    assert islands_chapter(record.islands[0]) is None
    page = write_report([copy]).read_text()
    for text in ("run, island 1", "islandsSection", '"islands":{'):
        assert text in page
    config = json.loads((copy / "islands/1/config.json").read_text())
    config["config"]["island"] = None
    (copy / "islands/1/config.json").write_text(json.dumps(config))
    exchange = {"generation": 9, "experience": 1, "published": None, "imports": []}
    entry = {"island": 1, "generation": "x", "file": "", "slot": 0, "fitness": 1.0}
    with open(copy / "islands/0/imports.jsonl", "a") as file:
        for damage in ({"generation": "9"}, {"imports": [entry]}, {"notes": 1}):
            file.write(f"{json.dumps(exchange | damage)}\n")
    assert islands_chapter(open_run(copy)) == chapter


@pytest.mark.parametrize(("rows", "steps"), [(1, [80, 120, 160, 200]), (0, [40, 80, 120, 160])])
def test_the_curve_of_a_run_is_that_of_its_longest_island(copy, rows, steps):
    """Island 1 was added later; before its first generation it counts for nothing."""
    table = copy / "islands/1/metrics.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[: 1 + rows]))
    (copy / "islands/1/journal.jsonl").unlink()
    shutil.rmtree(copy / "islands/1/checkpoints")
    curve = open_run(copy).learning_curve()
    assert curve.env_steps.tolist() == steps
    first = read_csv(copy / "islands/0/metrics.csv")["best_fitness"]
    other = read_csv(table)["best_fitness"] if rows else np.full(1, -np.inf)
    assert curve.best_fitness.tolist() == np.maximum(first, other).tolist()
    assert head(open_run(copy))["state"] == {"text": f"running, or killed, {rows} to 4 of 4 generations", "over": False}
    assert call("compare", str(copy), "--picture", str(copy / "picture.png"))[0] == 0


@pytest.mark.parametrize("damage", [{"generation": 2}, {"generation": 0}, {"member": 2}, {"member": -1}, {"island": 1}])
def test_an_import_that_cannot_be_ends_a_lineage(damage):
    imported = Import(0, 1, "", 0, 1.0, 1)
    for entry, line in ((imported, [(0, 1, 1), (0, 2, 0)]), (imported._replace(**damage), [(0, 2, 0)])):
        exchanges = {0: [Exchange(1, 9, None, (entry,))]}
        assert ancestors({0: np.array([[0, 1], [-1, 1]])}, exchanges, (0, 2, 0)) == line


def test_the_lineage_crosses_islands(copy):
    record = open_run(copy)
    islands = dict(enumerate(record.islands))
    exchanges = {number: read_exchanges(island_dir(copy, number) / "imports.jsonl") for number in islands}
    chapter = islands_chapter(record)
    assert chapter is not None
    line = [tuple(step) for step in chapter["line"]]
    schedule = rookery.experiments.lineage(copy).schedule()
    for name, values in schedule.values.items():
        assert values.tolist() == [islands[i].lineage.hyper[name][g - 1, m] for i, g, m in line]
    assert np.array_equal(rookery.load(copy).lineage.schedule().values["discount"], schedule.values["discount"])
    assert line[0][1] == 1
    assert line[-1][:2] == (int(best_of(copy).name), 4)
    assert len({island for island, _, _ in line}) == 2
    for source, (island, generation, member) in itertools.pairwise(line):
        parent = islands[island].lineage.parents[generation - 1, member]
        if parent >= 0:
            assert source == (island, generation - 1, parent)
            continue
        arrived = (e for x in exchanges[island] if x.generation == generation - 1 for e in x.imports)
        entry = next(entry for entry in arrived if entry.slot == member)
        assert source == (entry.island, entry.generation, entry.member)
        assert islands[entry.island].lineage.fitness[entry.generation - 1, entry.member] == np.float32(entry.fitness)


def test_two_drivers_on_one_folder(copy):
    with open_existing(copy, write=True), pytest.raises(RunFolderError, match="is in use"):
        run_islands(config_of(copy), resume=True)
    config = config_of(copy)
    longer = dataclasses.replace(config, run=dataclasses.replace(config.run, generations=config.run.generations + 1))
    with open_existing(copy / "islands/0", write=True), pytest.raises(RunFolderError, match="islands/0 is in use"):
        run_islands(longer, resume=True)


DIVIDED = "error: --islands gives each {}: "
QUARTERS = (
    "--population must be a multiple of 4 from 16 on, 4 members for each of --frequencies, got {}; give --population "
)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--population 5 --islands 2", "--population cannot be divided evenly into 2 --islands, got 5; use 4 or 6"),
        ("--population 2 --islands 4", "--population cannot be divided evenly into 4 --islands, got 2; use 4, or "),
        ("--ray-address auto", "--ray-address has an effect only with --islands; give it, or leave this out."),
        ("--islands 2 --distributed", "the processes of jax.distributed cannot run islands; give --ray-address to"),
        ("--islands 2 --wandb team/", "the W&B project 'team/' has no name; give PROJECT or ENTITY/PROJECT."),
        ("--islands 2 --env point_rom", "there is no task 'point_rom'"),
        (
            "--islands 2 --env point_room --population 4 --replace-count 2",
            DIVIDED.format("2 members") + "--replace-count replaces 2 members, which with the 1 best exceed the "
            "population of 2, got 2; give --population 6, or leave it out.\n",
        ),
        (
            "--islands 2 --exploit multi-frequency --population 16",
            DIVIDED.format("8 members") + QUARTERS.format(2) + "32, or leave it out.\n",
        ),
        (
            "--islands 4 --exploit multi-frequency --population 72",
            DIVIDED.format("18 members") + QUARTERS.format(4) + "80, or give 3.\n",
        ),
        (
            "--islands 2 --exploit tournament --population 2",
            DIVIDED.format("1 member") + "--population must be at least 2 with --exploit tournament",
        ),
        (
            "--islands 2 --population 8 --replace-count 12 --best-count 2",
            DIVIDED.format("4 members") + "--replace-count replaces 12 members, which with the 2 best exceed the "
            "population of 4, got 2; give --population 28.\n",
        ),
        (
            "--islands 2 --population 6 --devices 2",
            DIVIDED.format("3 members")
            + "they cannot be divided evenly over 2 devices, got 2; give --population 8, or "
            "leave it out.\n",
        ),
    ],
)
def test_bad_input_is_one_sentence(flags, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("train", "pbt-sac", *flags.split())
    assert code in (1, 2)
    assert out == "" or not message.startswith("error: each of")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_plan_is_that_of_one_island(tmp_path):
    code, out, err = call("train", *PBT.replace("--quiet", "--plan").split(), "--run-dir", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    assert out.startswith("one of 2 islands; a process with several holds the state of each")
    assert "pbt-sac on point_room: population 2 on 1 of 2 cpu devices" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("sac", {}, "islands has no effect on a run of kind sac"),
        ("pbt-ippo", {"member": "agent"}, "islands exchanges whole teams"),
        ("pbt-ippo", {"select_by": "rating"}, "islands cannot exchange by ratings"),
        ("me-pbt-sac", {"cells": CellsConfig(survival="dominated-novelty")}, "islands merges repertoires cell by cell"),
    ],
)
def test_what_islands_cannot_exchange(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        plan.check(configure(kind, **settings))


def test_without_ray_or_a_store_that_can_be_used_the_command_ends_with_one_sentence(tmp_path, monkeypatch):
    def check(self):
        raise StoreError(f"{self.folder} cannot be used by islands (no); give another --run-dir.")

    monkeypatch.setattr(Store, "check", check)
    message = f"error: {tmp_path}/run/publications cannot be used by islands (no); give another --run-dir.\n"
    code, _, err = train(PBT, tmp_path / "run")
    assert (code, err) == (1, message)
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    code, _, err = train(PBT, tmp_path / "other", "--ray-address", "local")
    assert code == 1
    assert err.startswith('error: ray_address needs Ray: pip install "rookery[ray]"')


def test_islands_of_one_process_share_the_memory_for_their_buffers(whole, tmp_path, monkeypatch):
    """An island that is built again, by a replay or another process, has the buffers that it recorded."""

    def rows(run_dir: Path, islands: int) -> int:
        config = config_of(whole)
        learner = dataclasses.replace(cast(OffPolicyConfig, config.learner), buffer_size=None)
        config = plan.as_recorded(config.replace(learner=learner).with_run(run_dir=str(run_dir)), 0)
        builder = Builder(config, together=islands)
        assert builder.built.spec is not None
        return cast(OffPolicyConfig, builder.built.spec.learner).buffer_size or 0

    monkeypatch.setattr(parts, "available", lambda _: 2**20)
    assert rows(tmp_path, islands=1) // 2 == rows(tmp_path, islands=2) > 32
    assert rows(whole, islands=2) == 32


def test_seeds_of_islands_and_settings_of_older_runs_without_any():
    assert [plan.seed_of(0, island) for island in range(2)] == [1427366890, 2839049726]
    assert len({plan.seed_of(seed, island) for seed in range(-50, 50) for island in range(50)}) == 5000
    record = to_record(configure("pbt-sac"))
    del record["islands"]
    assert from_record(record).method.islands.islands == 1


@pytest.mark.parametrize("repertoire", [False, True])
def test_an_exchange_on_two_devices_is_compiled_once(repertoire):
    mesh, learner, cells = make_mesh(2), walks.learner(repertoire), grid((4, 4), (-4, -4), (4, 4))
    program = me_pbt(learner, cells, population_size=4, ga_population=4) if repertoire else pbt(learner, None, 4)
    program = layout.place(program, mesh)
    migration = migration_of(program, mesh, 1.0, PbtConfig())
    compiled = programs.compile_program(program, mesh)
    state, keys = compiled.init(jax.random.key(0)), jax.random.split(jax.random.key(1), 4)
    compiling = []

    def listen(event: str, duration_secs: float, **more: Any) -> None:
        del duration_secs, more
        compiling.extend([event] if "backend_compile" in event else [])

    counts, sizes = [], []
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for key in keys:
            state, _ = compiled.step(state, key)
            before = len(compiling)
            found = migration.publish(state, key)
            counts.append(len(compiling) - before)
            assert found is not None
            sizes.append(len(found.fitness))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert counts[0] > 0
    assert counts[1:] == [0] * 3
    assert sizes == ([1] * 4 if not repertoire else sorted(sizes))


def test_repertoires_are_merged_exactly(tmp_path):
    """One winner per cell, which a plain Python dictionary finds too; and the run can be replayed."""
    folder = tmp_path / "run"
    assert train(ME_PBT, folder, "--generations", "2") == (0, "", "")
    builder = Builder(config_of(folder))
    template = programs.template(builder.built.program, builder.built.mesh)
    checkpoints = Checkpointer(islands_of(folder)[0] / "checkpoints", read_only=True)
    state = checkpoints.restore(template)[0]
    before = repertoire_of(state)
    fitnesses, descriptors = np.asarray(before.fitnesses), np.asarray(before.descriptors)
    random = np.random.default_rng(0)
    count, best = BATCH + 6, int(np.argmax(fitnesses))
    genotypes = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[best : best + 1], count, axis=0), state.cells)
    fitness = random.normal(size=count).astype(np.float32)
    fitness[::9] = np.nan
    points = random.uniform(-1.2, 1.2, (count, 2)).astype(np.float32)
    cells = np.asarray(builder.built.program.archive.find(jnp.clip(points, -1, 1), before.centroids))
    winners = dict(enumerate(zip(fitnesses.tolist(), descriptors.tolist(), strict=True)))
    for cell, value, point in zip(cells.tolist(), fitness.tolist(), points.tolist(), strict=True):
        if np.isfinite(value) and value > winners[cell][0]:
            winners[cell] = (value, point)
    limits = builder.built.program.scoring.descriptor
    assert (limits.lower, limits.upper) == ((-1.0, -1.0), (1.0, 1.0))
    merged = repertoire_of(
        builder.migration.load(state, {-1: Published(genotypes, fitness, points)}, jax.random.key(0))
    )
    assert np.asarray(merged.fitnesses).tolist() == [winners[cell][0] for cell in range(16)]
    assert np.asarray(merged.descriptors).tolist() == [winners[cell][1] for cell in range(16)]
    assert sum(np.asarray(merged.fitnesses) > fitnesses) > 8
    exchanges = [read_exchanges(path / "imports.jsonl") for path in islands_of(folder)]
    files = [entry.file for found in exchanges for exchange in found for entry in exchange.imports]
    assert files
    assert len(set(files)) == len(files)
    assert all(entry.slot is None for found in exchanges for exchange in found for entry in exchange.imports)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert replay_island(folder, 1).imports == sum(len(exchange.imports) for exchange in exchanges[1])
    assert write_report([folder]).exists()
