"""Callbacks of a run: what they are given, when they are called, and what their exceptions do."""

import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import rookery
from rookery.distributed.signals import Interrupted
from rookery.storage.csv_log import read_csv
from rookery.storage.events import Diverged, read_journal
from rookery.storage.run_dir import RunFolder, open_existing
from rookery.tracking import records as tracked
from rookery.training import CallbackError, CallbackWarning, Required, callbacks, generation_loop
from rookery.training.callbacks import Start
from rookery.training.loop import run
from tests import tiny
from tests.training.test_loop import walks

OPTIONS = {"generations": 4, "checkpoint_every": 3, "quiet": True}


class Recorder:
    """Records its calls; raises the given exception in generation 1 (counted from 0)."""

    def __init__(self, error: BaseException | None = None, at: int = 1):
        self.calls, self._error, self._at = [], error, at

    def begin(self, start):
        self.calls.append(("begin", start))

    def __call__(self, generation):
        self.calls.append((generation.number, generation))
        if generation.number >= self._at and self._error is not None:
            raise self._error

    def end(self, error):
        self.calls.append(("end", error))

    @property
    def order(self):
        return [name for name, _ in self.calls]


def test_a_callback_gets_every_generation_as_it_is_in_the_tables(tmp_path):
    path, seen, lengths = tmp_path / "run", [], []

    def record(generation):
        (path / "config.json").unlink(missing_ok=True)  # it is written again
        seen.append(generation)
        lengths.append(len(read_csv(generation.run_dir / "metrics.csv")["generation"]))

    result = run(walks(), run_dir=str(path), callbacks=[record], **OPTIONS)
    assert [generation.finished for generation in seen] == [1, 2, 3, 4] == lengths
    assert [generation.is_last for generation in seen] == [False, False, False, True]
    assert open_existing(path).config["run"]["generations"] == 4
    metrics, lineage = read_csv(path / "metrics.csv"), read_csv(path / "lineage.csv")
    for generation, history in zip(seen, result.history, strict=True):
        at = generation.number
        assert (generation.total, generation.run_dir) == (4, path)
        assert generation.metrics == {name: metrics[name][at] for name in metrics if name != "generation"}
        assert (generation.env_steps, generation.seconds) == (30 * (at + 1), metrics["seconds"][at])
        assert set(generation.members) == {"fitness", "parent", "diverged", "hyper/rate"}
        for name, values in generation.members.items():
            np.testing.assert_array_equal(values, history[name])
            assert not values.flags.writeable
            assert not np.shares_memory(values, history[name])
        np.testing.assert_array_equal(lineage["rate"][3 * at : 3 * at + 3], generation.members["hyper/rate"])
        np.testing.assert_array_equal(lineage["fitness"][3 * at : 3 * at + 3], history["fitness"])
        assert generation.metrics["best_fitness"] == history["fitness"].max()


def test_a_callback_cannot_change_the_run_nor_what_another_one_gets(tmp_path):
    def change(generation):
        generation.metrics.clear()
        generation.members.clear()

    other = Recorder()
    options = {"best_by": "mean_fitness", **OPTIONS}
    result = run(walks(), run_dir=str(tmp_path / "run"), callbacks=[change, other], **options)
    tiny.assert_equal(result.state, run(walks(), **OPTIONS).state)
    assert all(value.metrics and value.members for name, value in other.calls if isinstance(name, int))


def test_a_callback_knows_the_begin_and_the_end_of_a_run_and_of_its_continuation(tmp_path):
    path = tmp_path / "run"
    first, second, none, loaded = (Recorder() for _ in range(4))
    run(walks(), run_dir=str(path), callbacks=[first], generations=2, quiet=True)
    assert (first.order, first.calls[-1][1]) == (["begin", 0, 1, "end"], None)
    run(walks(), run_dir=str(path), resume=True, callbacks=[second], generations=3, quiet=True)
    assert second.order == ["begin", 2, "end"]
    start = second.calls[0][1]
    assert (start.finished, start.total, start.run_dir) == (2, 3, path)
    assert start.config == open_existing(path).config
    run(walks(), run_dir=str(path), resume=True, callbacks=[none], generations=3, quiet=True)
    assert not none.calls, "no generation was left to run"
    rookery.load(path, program=walks()).resume(generations=5, callbacks=[loaded], quiet=True)
    assert loaded.order == ["begin", 3, 4, "end"]


def test_without_a_run_dir_a_callback_gets_the_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder = Recorder()
    run(walks(), callbacks=[recorder], seed=7, **OPTIONS)
    start = recorder.calls[0][1]
    assert (start.config["run"]["seed"], start.config["kind"], start.run_dir) == (7, "python", None)
    assert recorder.calls[1][1].run_dir is None
    assert not list(tmp_path.iterdir())


def test_an_exception_becomes_one_warning_for_each_callback(tmp_path):
    first, second = Recorder(OSError("the disk is full")), Recorder()

    def lacking(generation):
        return generation.metrics["no_such_column"]

    def leaving(_):
        sys.exit(0)

    with pytest.warns(CallbackWarning) as caught:
        result = run(walks(), run_dir=str(tmp_path / "run"), callbacks=[first, lacking, leaving, second], **OPTIONS)
    texts = sorted(str(warning.message) for warning in caught)
    assert len(texts) == 3
    line = lacking.__code__.co_firstlineno + 1
    assert "the callback Recorder failed with OSError: the disk is full (" in texts[0]
    assert f"lacking failed with KeyError: 'no_such_column' ({__file__}, line {line}); the run continues" in texts[1]
    assert f"leaving failed with SystemExit: 0 ({__file__}, line {line + 3}); the run continues, calls it" in texts[2]
    assert first.order == second.order == ["begin", 0, 1, 2, 3, "end"]
    tiny.assert_equal(result.state, run(walks(), **OPTIONS).state)


def test_a_required_callback_ends_the_run_after_its_generation_is_saved(tmp_path):
    path, recorder = tmp_path / "run", Recorder(OSError("no quota"))
    message = rf"Recorder failed with OSError: no quota \(.*\), and ended the run after generation 2, .* in {path}; "
    with pytest.raises(CallbackError, match=message + ".*resume=True") as caught:
        run(walks(), run_dir=str(path), callbacks=[Required(recorder)], **OPTIONS)
    assert isinstance(caught.value.__cause__, OSError)
    assert recorder.order == ["begin", 0, 1, "end"]
    assert recorder.calls[-1][1] is caught.value
    assert read_journal(RunFolder(path))[-1]["why"].startswith("failed: CallbackError: the callback Recorder")
    resumed = run(walks(), run_dir=str(path), resume=True, callbacks=[Required(Recorder())], **OPTIONS)
    assert len(resumed.history) == 2, "generation 2 was saved although no checkpoint was due"
    tiny.assert_equal(resumed.state, run(walks(), **OPTIONS).state)
    with pytest.raises(CallbackError, match="after generation 2, of which nothing is saved, since the run has no run_"):
        run(walks(), callbacks=[Required(Recorder(OSError("no quota")))], **OPTIONS)


def test_an_exception_in_begin_ends_the_run_before_it_trains(tmp_path):
    class Refusing(Recorder):
        def begin(self, start):
            raise ConnectionError(f"no server for {start.total} generations")

    class Leaving(Recorder):
        def begin(self, start):
            sys.exit(0)

    other, refusing = Recorder(), Refusing()
    with pytest.raises(ConnectionError, match="no server for 4 generations"):
        run(walks(), run_dir=str(tmp_path / "run"), callbacks=[other, refusing], **OPTIONS)
    assert other.order == ["begin", "end"]
    assert isinstance(other.calls[-1][1], ConnectionError)
    assert not refusing.calls, "it has not begun"
    message = r"Leaving failed with SystemExit: 0 \(.*test_callbacks\.py, line \d+\), before the first generation\.$"
    with pytest.raises(CallbackError, match=message):
        run(walks(), run_dir=str(tmp_path / "run"), callbacks=[Leaving()], overwrite=True, **OPTIONS)
    assert not (tmp_path / "run/metrics.csv").exists()


def test_an_exception_in_end_is_a_warning_and_the_end_of_a_diverged_run_has_its_reason(tmp_path):
    class Failing(Recorder):
        def end(self, error):
            super().end(error)
            raise OSError("cannot close")

    recorder = Failing()
    message = r"Failing failed with OSError: cannot close \(.*, line \d+\); the run itself has ended"
    with pytest.warns(CallbackWarning, match=message), pytest.raises(Diverged) as caught:
        run(walks(2), run_dir=str(tmp_path / "run"), callbacks=[recorder], **OPTIONS)
    assert recorder.order == ["begin", 0, 1, 2, "end"]
    assert recorder.calls[-1][1] is caught.value


def test_the_numbers_that_a_callback_returns_are_columns(tmp_path):
    path, other = tmp_path / "run", Recorder()

    def count(generation):
        return {"seen": generation.finished} if generation.finished != 2 else None

    def age(generation):
        return {"age": np.arange(3.0) + generation.finished, "twice": 2 * generation.metrics.get("seen", 0)}

    run(walks(), run_dir=str(path), callbacks=[count], generations=3, quiet=True)
    run(walks(), run_dir=str(path), callbacks=[count, age, other], generations=4, resume=True, quiet=True)
    metrics, lineage = read_csv(path / "metrics.csv"), rookery.experiments.lineage(path)
    np.testing.assert_array_equal(metrics["seen"], [1.0, np.nan, 3.0, 4.0])
    np.testing.assert_array_equal(metrics["age"], [np.nan, np.nan, np.nan, 5.0])
    np.testing.assert_array_equal(metrics["twice"], [np.nan, np.nan, np.nan, 8.0])
    np.testing.assert_array_equal(lineage.reported["callback/age"][-1], [4.0, 5.0, 6.0])
    assert np.isnan(lineage.reported["callback/age"][:-1]).all()
    assert list(lineage.hyper) == ["rate"]
    last = other.calls[1][1]
    assert (last.metrics["age"], last.members["age"].tolist()) == (5.0, [4.0, 5.0, 6.0])
    sent = tracked.values(last)
    assert (sent["seen"], sent["member/2/age"], sent["member/2/hyper/rate"]) == (
        4.0,
        6.0,
        last.members["hyper/rate"][2],
    )
    start = Start({}, path, finished=4, total=5)
    again = [generation.members for generation in tracked.recorded(start, 3)]
    assert [set(members) for members in again] == [{"fitness", "parent", "age", "hyper/rate"}]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"fitness": 1.0}, "the number of a callback 'fitness' needs another name, since rookery uses it itself"),
        ({"measure/x": 1.0}, "the number of a callback 'measure/x' needs another name"),
        ({"a\nb": 1.0}, r"the number of a callback 'a\\nb' needs another name: letters"),
        ({"ages": [1.0, 2.0]}, r"it returned ages with the shape \[2\]; return a number, or one for each of the 3 mem"),
        ({"name": "x"}, "it returned name as 'x'; return a number, or one for each of the 3 members"),
    ],
)
def test_what_is_no_number_of_a_callback_is_its_failure(returned, message):
    with pytest.warns(CallbackWarning, match=message) as caught:
        run(walks(), callbacks=[lambda _: returned], **OPTIONS)
    assert len(caught) == 1


@pytest.mark.parametrize("by_signal", [False, True])
def test_ctrl_c_in_a_callback_stops_the_run_and_saves_it(tmp_path, by_signal):
    path, other = str(tmp_path / "run"), Recorder()

    def stop(generation):
        if generation.number == 1:
            if not by_signal:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped after generation 2, which is saved"):
        run(walks(), run_dir=path, callbacks=[stop, other], **OPTIONS)
    assert other.order == ["begin", 0, 1, "end"]
    assert isinstance(other.calls[-1][1], Interrupted)
    resumed = run(walks(), run_dir=path, resume=True, **OPTIONS)
    assert len(resumed.history) == 2
    tiny.assert_equal(resumed.state, run(walks(), **OPTIONS).state)


def test_a_second_ctrl_c_in_a_callback_stops_at_once(tmp_path):
    def stop(generation):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(walks(), run_dir=str(tmp_path / "run"), callbacks=[stop], **OPTIONS)
    assert not isinstance(caught.value, Interrupted)


def test_the_time_of_callbacks_is_in_no_column(tmp_path, monkeypatch):
    late = [0.0]  # seconds that the clocks are ahead
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0])
    for module in (generation_loop, callbacks):
        monkeypatch.setattr(module, "time", clock)

    def wait(_):
        late[0] += 1000.0

    run(walks(), run_dir=str(tmp_path / "run"), callbacks=[wait], **OPTIONS)
    table = read_csv(tmp_path / "run/metrics.csv")
    for name in ("seconds", "seconds_tables", "seconds_checkpoint"):
        assert np.all(np.abs(table[name]) < 500.0), name


def test_what_cannot_be_called_is_refused_before_anything_is_written(tmp_path):
    not_a_list: Any = print
    for given, message in (
        (not_a_list, r"callbacks is a list of functions; write callbacks=\[f\]"),
        ([Required(cast(Any, None))], "the callback Required.callback=None. cannot be called"),
    ):
        with pytest.raises(TypeError, match=message):
            run(walks(), run_dir=str(tmp_path / "run"), callbacks=given, **OPTIONS)
    assert not (tmp_path / "run").exists()
