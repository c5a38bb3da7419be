"""Tables and TensorBoard events of a run: exact numbers, and no row lost or repeated by a resume."""

import contextlib
import csv
import errno
import json
import resource
import struct
import time
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.report.serve import Pages
from rookery.storage import csv_log as logs
from rookery.storage.csv_log import RunLog, TableWarning, read_csv, read_last, read_table, write_table
from rookery.storage.run_dir import OutputWarning, RunFolder

NAN = float("nan")
MEMBERS = {
    "hyper/rate": np.array([1e-4, 3e-4], np.float32),
    "fitness": np.array([1.5, np.nan], np.float32),
    "parent": np.array([0, 0], np.int32),
}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def write(run: RunFolder, generations: range, resume: int = 0, offset: float = 0.0) -> None:
    with RunLog(run, resume) as log:
        for generation in generations:
            log.write(generation, {"best": generation + offset, "steps": 100}, MEMBERS)


def events(run: RunFolder) -> list:
    """All events of all files, in the order in which TensorBoard reads the files."""
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    found = []
    for path in sorted(run.events.iterdir()):
        content = path.read_bytes()
        while len(content) >= 16:  # length (8 bytes), its checksum (4), the event, its checksum (4)
            (length,) = struct.unpack("<Q", content[:8])
            found.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    return found


def test_contents_of_the_tables(run):
    write(run, range(2))
    assert run.metrics_file.read_text() == "generation,best,steps\n0,0.0,100.0\n1,1.0,100.0\n"
    first, second = float(np.float32(1e-4)), float(np.float32(3e-4))
    assert run.lineage_file.read_text() == (
        "generation,member,parent,fitness,hyper/rate\n"
        f"0,0,0,1.5,{first!r}\n0,1,0,nan,{second!r}\n1,0,0,1.5,{first!r}\n1,1,0,nan,{second!r}\n"
    )


def test_floats_are_read_back_bit_equal(run):
    bits = np.random.default_rng(0).integers(0, 2**32, 500, dtype=np.uint32)
    single = bits.view(np.float32)
    single = single[np.isfinite(single)]
    double = np.array([1 / 3, 5e-324, -0.0, np.inf, -np.inf, np.nan, 1e308, 2**53, 0.1])
    with RunLog(run) as log:
        for generation, value in enumerate(double):
            log.write(generation, {"x": value}, {"parent": np.zeros(len(single), int), "fitness": jnp.asarray(single)})
    metrics, lineage = read_csv(run.metrics_file), read_csv(run.lineage_file)
    assert metrics["x"].tobytes() == double.tobytes()
    assert lineage["fitness"][: len(single)].astype(np.float32).tobytes() == single.tobytes()
    assert [lineage[name].dtype for name in ("generation", "member", "parent", "fitness")] == [np.int64] * 3 + [
        np.float64
    ]
    assert lineage["member"][:3].tolist() == [0, 1, 2]


def test_each_generation_is_flushed(run):
    with RunLog(run) as log:
        for generation in range(3):
            log.write(generation, {"best": 0.5}, MEMBERS)
            assert read_csv(run.metrics_file)["generation"].tolist() == list(range(generation + 1))
            assert len(read_csv(run.lineage_file)["generation"]) == 2 * (generation + 1)
        deadline = time.monotonic() + 10
        while not any(event.step == 2 for event in events(run)):
            assert time.monotonic() < deadline, "TensorBoard's events are not flushed"
            time.sleep(0.05)


def test_a_table_is_read_while_a_run_removes_it_to_begin_anew(run, monkeypatch):
    def removing(ask):
        def answer(path, **options):
            found = ask(path, **options)
            if path == run.metrics_file:
                path.unlink(missing_ok=True)
            return found

        return answer

    run.versions = {"rookery": "0"}
    run.reconfigure({})
    for name in ("is_file", "exists"):
        monkeypatch.setattr(Path, name, removing(getattr(Path, name)))
    for read in (read_table, read_last, lambda path: Pages([path.parent]).version()):
        run.metrics_file.write_text("generation,best\n0,0.5\n")
        assert read(run.metrics_file)
    run.metrics_file.unlink()
    assert read_table(run.metrics_file) == read_last(run.metrics_file) == {}


def test_a_column_is_unknown_in_the_rows_that_lack_it(run):
    of_members = {**MEMBERS, "callback/age": [4.0, 5.0]}
    with RunLog(run) as log:
        log.write(0, {"a": 1.0, "b": 2.0}, MEMBERS)
        log.write(1, {"a": 3.0, "c": 4.0}, of_members)
        log.write(2, {"b": 5.0, "a": 6.0}, MEMBERS)
    with RunLog(run, 2) as log:  # a resumed run has another
        log.write(2, {"a": 7.0, "d": 8.0}, MEMBERS)
    metrics, lineage = read_csv(run.metrics_file), read_csv(run.lineage_file)
    assert list(metrics) == ["generation", "a", "b", "c", "d"]
    np.testing.assert_array_equal(
        np.stack([*metrics.values()]).T[:, 1:], [[1, 2, NAN, NAN], [3, NAN, 4, NAN], [7, NAN, NAN, 8]]
    )
    np.testing.assert_array_equal(lineage["callback/age"], [NAN, NAN, 4.0, 5.0, NAN, NAN])
    assert lineage["parent"].dtype == np.int64


@pytest.mark.parametrize("lost", [False, True])
def test_columns_that_are_added_to_the_last_rows(run, lost):
    if lost:  # the rows of generation 0, whose checkpoint is complete
        write(run, range(1))
        run.metrics_file.unlink()
    with pytest.warns(TableWarning) if lost else contextlib.nullcontext(), RunLog(run, int(lost)) as log:
        for generation in range(int(lost), 3):
            log.write(generation, {"a": float(generation)}, MEMBERS)
            if generation != 1:
                log.add(generation, {"b": 10.0 * generation, "age": 4.5}, {"callback/age": [4, 5]})
    metrics, lineage = read_csv(run.metrics_file), read_csv(run.lineage_file)
    assert metrics["generation"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(metrics["a"], [NAN if lost else 0.0, 1.0, 2.0])
    np.testing.assert_array_equal(metrics["b"], [NAN if lost else 0.0, NAN, 20.0])
    np.testing.assert_array_equal(lineage["callback/age"], [*([NAN] * 2 if lost else [4, 5]), NAN, NAN, 4, 5])
    tags = {value.tag: value.simple_value for event in events(run) if event.step == 2 for value in event.summary.value}
    assert (tags["a"], tags["b"], tags["members/median_callback/age"]) == (2.0, 20.0, 4.5)


def test_columns_of_names(run):
    """Names are written for their places, also after a resume, in added columns, and nan where they are unknown."""
    run.config["choices"] = names = {"layer": ["tanh", "relu"]}
    for first in (0, 2):
        with pytest.warns(TableWarning) if first else contextlib.nullcontext(), RunLog(run, first) as log:
            log.write(first, {"a": 0.0}, {"parent": [0, 1], "fitness": [1.0, 2.0], "layer": [1.0, 0.0]})
            log.add(first, {}, {"callback/age": [4, 5]})
    rows = list(csv.reader(run.lineage_file.read_text().splitlines()))
    assert [row[rows[0].index("layer")] for row in rows] == ["layer", "relu", "tanh", "nan", "nan", "relu", "tanh"]
    np.testing.assert_array_equal(read_csv(run.lineage_file, names)["layer"], [1.0, 0.0, NAN, NAN, 1.0, 0.0])
    tags = {value.tag: value.simple_value for event in events(run) for value in event.summary.value}
    assert (tags["members/share_layer/tanh"], tags["members/share_layer/relu"]) == (0.5, 0.5)
    assert "members/median_layer" not in tags


def test_a_generation_far_beyond_the_rows_is_refused_before_rows_are_filled_in(run):
    with pytest.raises(ValueError, match="has 0 rows, but the checkpoint is of generation 2000000000; put"):
        RunLog(run, 2_000_000_000)


def test_every_name_of_a_column_is_read_back(run):
    names = ["a,b", 'a "quoted" one', "two\nlines", "ä"]
    for resume in (0, 1):
        with RunLog(run, resume) as log:
            log.write(resume, dict.fromkeys(names, 0.1), {"parent": [0], "fitness": [1.0], "x,y": [0.5]})
    assert list(read_csv(run.metrics_file)) == ["generation", *names]
    assert read_csv(run.metrics_file)["a,b"].tolist() == [0.1, 0.1]
    assert read_last(run.lineage_file)["x,y"] == 0.5
    write_table(run.skills_file, {"x,y": [1.5, 2.5]})
    assert read_csv(run.skills_file)["x,y"].tolist() == [1.5, 2.5]


def test_invalid_rows_are_rejected(run):
    with RunLog(run) as log:
        with pytest.raises(ValueError, match="need `parent` and `fitness`"):
            log.write(0, {"a": 1.0}, {"parent": np.zeros(2)})
        with pytest.raises(ValueError, match=r"must all be \[P\].*\(3,\)"):
            log.write(0, {"a": 1.0}, {"parent": np.zeros(2), "fitness": np.zeros(3)})
        log.write(0, {"a": 1.0}, {})
        with pytest.raises(ValueError, match="ends at generation 0, so generation 0 cannot be appended"):
            log.write(0, {"a": 1.0}, {})
    assert run.metrics_file.read_text() == "generation,a\n0,1.0\n"
    assert not run.lineage_file.exists(), "a program without members has no lineage"


def test_tables_of_a_resumed_run_equal_those_of_an_uninterrupted_one(tmp_path):
    uninterrupted = RunFolder(tmp_path / "uninterrupted")
    write(uninterrupted, range(6))
    for reached, half in ((5, "5,0.123"), (3, "3")):  # killed in the middle of a line
        stopped = RunFolder(tmp_path / f"stopped {reached}")
        write(stopped, range(reached))
        for path in (stopped.metrics_file, stopped.lineage_file):
            with open(path, "a") as file:
                file.write(half)
        write(stopped, range(3, 6), resume=3)
        assert stopped.metrics_file.read_bytes() == uninterrupted.metrics_file.read_bytes()
        assert stopped.lineage_file.read_bytes() == uninterrupted.lineage_file.read_bytes()
        assert not list(stopped.path.glob("*rookery-tmp"))


LOSSES = {
    "the end": lambda text: text[:-20],
    # As a run that was resumed by an earlier version after it had lost the end.
    "the middle": lambda text: b"".join(line for line in text.splitlines(True) if not line.startswith(b"3,")),
    "all": lambda _: b"",
    "zeros": lambda text: text[:-20] + b"\0\xff" * 10,  # as a file system after a loss of power
    "the file": None,
}


@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("name", ["metrics.csv", "lineage.csv"])
def test_rows_that_a_resumed_run_has_lost_are_unknown(tmp_path, name, lost):
    """Each generation has its place in both tables, so that the page, the lineage and trackers can be made."""

    def train(folder: RunFolder, generations: range) -> None:
        with RunLog(folder, generations[0]) as log:
            for generation in generations:
                row = {"best": generation / 3, "env_steps": 30 * generation + 30, "replaced": 0.0}
                log.write(generation, row, MEMBERS)

    whole, torn = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "torn")
    for folder in (whole, torn):
        train(folder, range(5))
    table, lose = torn.path / name, LOSSES[lost]
    table.write_bytes(lose(table.read_bytes())) if lose else table.unlink()
    train(whole, range(5, 7))
    with pytest.warns(TableWarning, match=name):
        train(torn, range(5, 7))
    for path in ("metrics.csv", "lineage.csv"):
        expected, found = read_csv(whole.path / path), read_csv(torn.path / path)
        assert [*found] == [*expected]
        unknown = np.isnan(found["best" if path == "metrics.csv" else "hyper/rate"]) & (expected["generation"] < 5)
        assert unknown.any() == (path == name)
        if lost in ("the end", "the middle"):
            assert set(expected["generation"][unknown]) <= {3, 4}
        for column, values in found.items():
            if column in ("generation", "member", "env_steps"):
                assert values.tolist() == expected[column].tolist()
            elif column == "parent":
                assert (values[unknown] == -1).all()
            np.testing.assert_array_equal(values[~unknown], expected[column][~unknown])


def test_of_repeated_rows_the_last_one_counts():
    table = {
        "generation": np.asarray([1, 0, 0, 1, 1, 1]),  # in any order
        "member": np.asarray([0, 0, 1, 1, 0, 1]),
        "fitness": np.arange(6.0),
    }
    found, lost = logs.filled(table, 2)
    assert (found["fitness"].tolist(), found["generation"].tolist(), lost) == ([1, 2, 4, 5], [0, 0, 1, 1], [])


def test_rows_of_a_table_that_is_gone_are_written_where_it_is_put_back(run):
    with RunLog(run) as log:
        log.write(0, {"a": 0.0}, {})
        aside = run.metrics_file.rename(run.path / "aside")
        with pytest.warns(
            OutputWarning, match=r"metrics\.csv cannot be written \(No such file or directory\); the rest"
        ):
            log.write(1, {"a": 1.0}, {})
        log.sync()  # there is one warning
        log.write(2, {"a": 2.0}, {})
        run.metrics_file.write_bytes(aside.read_bytes())  # another file
        log.write(3, {"a": 3.0}, {})
    assert read_csv(run.metrics_file)["a"].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.fixture
def nearly_full(run, monkeypatch):
    """A block in which only a few bytes can be added to the table of metrics."""
    monkeypatch.setattr(logs.Events, "_write", lambda *_: None)

    @contextlib.contextmanager
    def limited():
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (run.metrics_file.stat().st_size + 3, limits[1]))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return limited


@pytest.mark.parametrize("has_room_later", [True, False])
def test_a_row_that_cannot_be_written_is_written_with_the_next(run, nearly_full, has_room_later):
    with RunLog(run) as log:
        log.write(0, {"best": 0.0}, {})
        with nearly_full(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", OutputWarning)
            log.write(1, {"best": 1.0}, {})
            log.write(2, {"best": 2.0}, {})
            found = [str(warning.message) for warning in caught]
            assert found == [f"{run.metrics_file} cannot be written (File too large); the rest continues"]
            assert read_csv(run.metrics_file)["generation"].tolist() == [0], "no part of a line is left"
        if has_room_later:
            log.write(3, {"best": 3.0}, {})
    assert read_csv(run.metrics_file)["generation"].tolist() == list(range(3 + has_room_later))


def test_a_column_that_is_new_while_the_disk_is_full(run, nearly_full):
    with RunLog(run) as log:
        log.write(0, {"best": 0.0}, {})
        with nearly_full():
            with pytest.warns(OutputWarning, match="File too large"):
                log.write(1, {"best": 1.25}, {})
            log.write(2, {"best": 2.25}, {})
            log.add(2, {"mine": 1.0}, {})
        log.write(3, {"best": 3.0}, {})
        log.add(3, {"mine": 2.0}, {})
        content = run.metrics_file.read_text()
        run.metrics_file.write_text(content.replace("1.25", "1,25"))  # edited during the run
        with pytest.warns(OutputWarning, match="line 3 has 4 fields"):
            log.write(4, {"other": 3.0}, {})
    assert content == "generation,best,mine\n0,0.0,nan\n1,1.25,nan\n2,2.25,nan\n3,3.0,2.0\n"


@pytest.mark.parametrize("content", ["", "generation,be", "generation,best\n0,1"])
def test_resume_at_zero_starts_new_tables_with_any_columns(run, content):
    write(run, range(2))
    run.metrics_file.write_text(content)
    with RunLog(run, 0) as log:
        log.write(0, {"other": 1.0}, {"parent": [0], "fitness": [2.0]})
    assert run.metrics_file.read_text() == "generation,other\n0,1.0\n"
    assert run.lineage_file.read_text() == "generation,member,parent,fitness\n0,0,0,2.0\n"


def test_truncation_is_atomic(run, monkeypatch):
    write(run, range(4))
    before = run.metrics_file.read_bytes()
    paths = []
    monkeypatch.setattr(logs, "write_atomically", lambda path, text: paths.append((path, text)))
    RunLog(run, 2).close()
    assert run.metrics_file.read_bytes() == before, "it was changed in place"
    assert paths[0] == (run.metrics_file, "generation,best,steps\n0,0.0,100.0\n1,1.0,100.0\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "lacks the columns generation"),
        (f"generation,a\n0,{chr(0) * 200_000}\n", "field larger than field limit"),
        (f"generation,a\n{10**30},1.0\n", "column generation is damaged"),
        ("generation,a\nx,1.0\n", "column generation is damaged"),
    ],
)
@pytest.mark.parametrize("name", ["metrics.csv", "lineage.csv", "cells.csv"])
@pytest.mark.filterwarnings("ignore:.*metrics.csv has lost the rows")
def test_whatever_a_table_holds_it_is_named_before_a_run_goes_on(run, name, content, message):
    (run.path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        RunLog(run, 1)


def test_a_damaged_table_is_named(run):
    run.metrics_file.write_text("generation,best\n0,1.0\n\nx,2.0\n1,3.0,4.0\n")
    for read in (lambda: read_csv(run.metrics_file), lambda: RunLog(run, 1)):
        with pytest.raises(ValueError, match=r"metrics\.csv, line 5 has 3 fields instead of 2"):
            read()


def test_reading_a_growing_or_empty_table(run):
    run.metrics_file.write_text("generation,best\n0,1.0\n1,2.")
    found = {name: column.tolist() for name, column in read_csv(run.metrics_file).items()}
    assert found == {"generation": [0], "best": [1.0]}
    run.metrics_file.write_text("generation,best\n0,1.0\n\n1,2.0\r\n\r\n\n")
    assert read_csv(run.metrics_file)["best"].tolist() == [1.0, 2.0]
    assert read_last(run.metrics_file) == {"generation": 1, "best": 2}
    run.metrics_file.write_text("\ufeffgeneration,best\n1,2\n")  # a mark in front of the first line
    assert read_last(run.metrics_file) == {"generation": 1, "best": 2} == read_csv(run.metrics_file)
    run.metrics_file.write_text("generation,best\n1,2\n1\n")
    with pytest.raises(ValueError, match=r"^\S+/metrics\.csv is damaged in its last line: .*; correct or delete"):
        read_last(run.metrics_file)
    run.metrics_file.write_text("generation,best\n")
    empty = [(name, column.dtype, column.size) for name, column in read_csv(run.metrics_file).items()]
    assert empty == [("generation", np.int64, 0), ("best", np.float64, 0)]
    run.metrics_file.write_text("")
    assert read_csv(run.metrics_file) == {}
    run.evaluation_file.write_text("generation,episode\n900000000,0\n")  # a few rows of a very long run
    assert read_csv(run.evaluation_file)["generation"].tolist() == [900000000]


def test_tensorboard_has_the_finite_numbers_also_where_the_clock_went_back(run, caplog, monkeypatch):
    hours = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(hours)))
    write(run, range(3))
    write(run, range(2, 4), resume=2, offset=0.25)
    with RunLog(run, 4) as log:
        log.write(4, {"best": np.nan, "steps": 1.0}, {})
    found = events(run)
    values = [(e.step, v.tag, v.simple_value) for e in found if e.HasField("summary") for v in e.summary.value]
    best = [(step, value) for step, tag, value in values if tag == "best"]
    assert best == [(0, 0.0), (1, 1.0), (2, 2.0), (2, 2.25), (3, 3.25)]
    assert [value for value in values if value[0] == 4] == [(4, "steps", 1.0)]
    assert (3, "members/median_fitness", 1.5) in values, "a NaN fitness is not part of the median"
    assert {tag for _, tag, _ in values} == {"best", "steps", "members/median_fitness", "members/median_hyper/rate"}
    purges = [event.step for event in found if event.HasField("session_log")]
    assert purges == [2, 4], json.dumps(purges)
    assert not caplog.records
    assert np.isnan(read_csv(run.metrics_file)["best"]).tolist() == [False] * 4 + [True]


def save_cells(run: RunFolder, fitness: dict[int, list[float]], resume: int = 0) -> str:
    with RunLog(run, resume) as log:
        for generation, values in fitness.items():
            log.write_cells(generation, np.asarray(values, np.float32))
    return run.cells_file.read_text()


EMPTY = -np.inf
SAVED = {
    1: [EMPTY, 0.1, EMPTY],
    3: [EMPTY, 0.1, EMPTY],
    5: [2.0, 0.1, EMPTY],
    7: [3.0, 0.5, np.nan],
    8: [3.0, 0.75, -1.0],
}


@pytest.mark.filterwarnings("ignore::rookery.storage.csv_log.TableWarning")
def test_cells_are_written_when_their_elite_changes(run):
    with RunLog(run) as log:
        log.write_cells(0, [EMPTY, np.nan])
    assert not run.cells_file.exists()
    tenth = float(np.float32(0.1))
    assert save_cells(run, SAVED) == (
        f"generation,cell,fitness\n1,1,{tenth!r}\n5,0,2.0\n7,0,3.0\n7,1,0.5\n8,1,0.75\n8,2,-1.0\n"
    )
    message = r"cells\.csv ends at generation 8, so generation 8 cannot be appended"
    with RunLog(run, 9) as log, pytest.raises(ValueError, match=message):
        log.write_cells(8, [4.0, 0.75, -1.0])


@pytest.mark.filterwarnings("ignore::rookery.storage.csv_log.TableWarning")  # there is no metrics.csv
@pytest.mark.parametrize("resume", [0, 5, 8])
def test_cells_of_a_resumed_run_equal_those_of_an_uninterrupted_one(tmp_path, resume):
    uninterrupted, stopped = RunFolder(tmp_path / "uninterrupted"), RunFolder(tmp_path / "stopped")
    for folder in (uninterrupted, stopped):
        folder.path.mkdir()
    save_cells(uninterrupted, SAVED)
    save_cells(stopped, SAVED | {7: [9.0, 9.0, 9.0], 8: [9.0, 9.5, 9.0]} if resume < 8 else SAVED)
    with open(stopped.cells_file, "a") as file:
        file.write("9,0,1")  # killed in the middle of a line
    save_cells(stopped, {generation: values for generation, values in SAVED.items() if generation >= resume}, resume)
    assert stopped.cells_file.read_bytes() == uninterrupted.cells_file.read_bytes()


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_cells_that_are_gone_are_noted_once_a_checkpoint_had_them(run, lose, recwarn):
    run.config = {"run": {"checkpoint_every": 3}}
    with RunLog(run) as log:
        for generation in range(4):
            log.write(generation, {"coverage": 25.0}, {})
    RunLog(run, 2).close()  # interrupted before the first planned checkpoint
    with RunLog(run, 2) as log:
        log.write(2, {"coverage": 25.0}, {})
        log.write_cells(2, [1.0, np.nan])
        log.write(3, {"coverage": 25.0}, {})
    assert not recwarn.list
    lose(run.cells_file)
    with pytest.warns(TableWarning, match=r"cells\.csv has lost the rows of 4 generations between 0 and 3"):
        RunLog(run, 4).close()


def test_a_full_disk_ends_the_events_and_not_the_run(run, monkeypatch):
    from tensorboardX.event_file_writer import EventsWriter

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunLog(run) as log:
        log.write(0, {"best": 0.0}, {})
        monkeypatch.setattr(EventsWriter, "write_event", full)
        with pytest.warns(
            UserWarning, match=r"no more TensorBoard events .*: No space left on device; the run continues"
        ):
            log.write(1, {"best": 1.0}, {})
        log.write(2, {"best": 2.0}, {})  # without another warning
    assert read_csv(run.metrics_file)["best"].tolist() == [0.0, 1.0, 2.0]
    assert [event.step for event in events(run) if event.summary.value] == [0]
    monkeypatch.setattr(Path, "mkdir", full)  # from the start
    with pytest.warns(UserWarning, match="No space left on device; the run continues"), RunLog(run, 0) as log:
        log.write(0, {"best": 3.0}, {})
    assert read_csv(run.metrics_file)["best"].tolist() == [3.0]
