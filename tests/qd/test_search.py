"""`rookery.qd.Search`: the numbers of a run, results that are recorded as they come, and what is refused."""

import errno
import json
import os
import shutil
from functools import partial

import jax
import numpy as np
import pytest

import rookery
from rookery.distributed import mesh
from rookery.experiments import search as searches
from rookery.qd import Search, cma_mae, dominated_novelty, grid, host_scoring, iso_line, map_elites, mix
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.map_elites import repertoire_of
from rookery.qd.pbt_emitter import pbt_emitter
from rookery.storage.checkpoint import CheckpointError, CheckpointWarning
from rookery.storage.csv_log import TableWarning, read_csv
from rookery.storage.events import Diverged, read_journal
from rookery.storage.run_dir import RunFolder, RunFolderError, create
from rookery.training.run_writer import RunWriters
from tests import tiny, walks
from tests.commandline import call

LIMITS = (-1.0, -1.0), (1.0, 1.0)
PLAIN = {"lower": [-1] * 3, "upper": [1] * 3, "descriptor": [(-1, 1)] * 2, "batch_size": 6, "grid": (4, 4)}


def score(solutions, seeds=None):
    del seeds
    return -np.square(solutions).sum(axis=1), solutions[:, :2]


def advance(search, batches):
    for _ in range(batches):
        search.tell(*score(search.ask()))
    return search


def init(key):
    return jax.random.uniform(key, (3,), minval=-1.0, maxval=1.0)


SCORING = host_scoring(score, init, *LIMITS, qd_offset=-3.0, bounds=(-1.0, 1.0))
CELLS = grid((4, 4), *LIMITS)
MIXED = dominated_novelty(CELLS), mix([iso_line(SCORING, 4), cma_mae(SCORING, 4, CmaMaeConfig(emitters=2))])
CASES = {
    "cma-mae": (
        lambda: Search(**PLAIN, qd_offset=-3.0, method="cma-mae", archive_learning_rate=0.1),
        (rookery.qd.annealed(CELLS, 0.1), cma_mae(SCORING, 6, CmaMaeConfig(emitters=1))),
    ),
    "mix": (lambda: Search.of(SCORING, *MIXED), MIXED),
}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_a_run_that_scores_on_the_host(case):
    begin, arguments = CASES[case]
    search = advance(begin(), 4)
    program = map_elites(SCORING, *arguments)
    result = rookery.run(program, generations=4, seed=0, quiet=True, over=mesh.make_mesh(1))
    occupied = np.asarray(repertoire_of(result.state).occupied)
    expected = jax.tree.map(lambda leaf: np.asarray(leaf)[occupied], repertoire_of(result.state))
    tiny.assert_equal(search.elites(), expected)
    assert search.metrics["qd_score"] == result.history[-1]["qd_score"] > 0
    assert search.best().fitness == expected.fitnesses.max()


def test_a_dictionary_with_other_bounds_for_each_number():
    lower = {"angle": np.array([[-3.0, 10.0]]), "speed": 0.0}
    upper = {"angle": np.array([[3.0, 30.0]]), "speed": 1e-3}
    search = Search(lower, upper, descriptor=[(10, 30)], batch_size=6, grid=(4,), iso_sigma=0.3)
    for _ in range(3):
        solutions = search.ask()
        assert solutions["angle"].shape == (6, 1, 2)
        assert solutions["speed"].shape == (6,)
        for name, values in solutions.items():
            assert ((lower[name] <= values) & (values <= upper[name])).all()
            assert (np.ptp(values, axis=0) > 0.05 * (upper[name] - lower[name])).all(), "in proportion to each range"
        search.tell(solutions["speed"], solutions["angle"][:, 0, 1:])
    elites = search.elites()
    assert (elites.genotypes["speed"] == elites.fitnesses).all()
    assert (elites.genotypes["angle"][:, 0, 1:] == elites.descriptors).all()
    assert search.best().genotype["speed"] == search.best().fitness == elites.fitnesses.max()


def test_what_tell_refuses_changes_nothing():
    search = Search(**PLAIN)
    with pytest.raises(ValueError, match=r"nothing is asked; call ask"):
        search.tell(np.zeros(6), np.zeros((6, 2)))
    fitness, descriptors = score(search.ask())
    for given, named in (
        ((fitness[:5], descriptors), r"fitness \[6\].*got the shapes \[5\] and \[6, 2\]"),
        ((fitness, descriptors[:, :1]), r"descriptors \[6, 2\].*got the shapes \[6\] and \[6, 1\]"),
        ((np.where(np.arange(6) == 4, -np.inf, fitness), descriptors), "solution 4 is infinite"),
        (
            (fitness, np.where(np.arange(6)[:, None] == 2, 1e39, descriptors.astype(float))),
            "solution 2 is infinite in float32",
        ),
    ):
        with pytest.raises(ValueError, match=named):
            search.tell(*given)
    assert search.generation == 0
    search.tell(np.ma.array(fitness, mask=np.arange(6) == 1), np.where(np.arange(6)[:, None] == 0, np.nan, descriptors))
    assert search.metrics["rejected"] == 2
    with pytest.raises(ValueError, match=r"batch 1 has its results already; call ask"):
        search.tell(fitness, descriptors)
    assert search.generation == 1
    with pytest.raises(ValueError, match=r"a report needs results that are recorded; give a run_dir"):
        search.report()


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"method": "cma-me"}, ValueError, r"no method of a Search named 'cma-me'; did you mean cma-mae"),
        ({"iso_sgma": 0.1}, TypeError, r"no setting iso_sgma; did you mean iso_sigma"),
        ({"emitters": 2}, TypeError, r"a Search by map-elites has no setting emitters"),
        ({"lower": [1] * 3}, ValueError, "lower must be finite and below upper"),
        ({"lower": np.ma.array([-1.0] * 3, mask=[True, False, False])}, ValueError, "lower must be finite"),
        ({"lower": [-1] * 4}, ValueError, "lower must be numbers of the same shapes as upper"),
        ({"lower": ([-1, -1], [-1])}, ValueError, "lower must be an array of numbers or a dictionary of arrays"),
        ({"lower": {0: [-1]}, "upper": {0: [1]}}, ValueError, "lower has the key 0; name each part of a solution by"),
        ({"descriptor": [-1, 1]}, ValueError, "descriptor needs a lower and an upper limit"),
        ({"descriptor": np.ma.array([[0.0, 1.0]], mask=[[True, False]])}, ValueError, "needs finite limits"),
        ({"qd_offset": np.nan}, ValueError, "qd_offset must be a finite number, got nan"),
        ({"qd_offset": None}, TypeError, "qd_offset must be a number"),
        ({"descriptor": ((-1, 1) for _ in range(2))}, TypeError, "a Search takes .*, got an object of type generator"),
        ({"patience": 0}, ValueError, "patience must be at least 1"),
    ],
)
def test_arguments_that_are_refused(changed, error, named):
    with pytest.raises(error, match=named):
        Search(**{**PLAIN, **changed})


def test_double_precision_and_an_emitter_that_trains_agents_are_refused():
    with jax.enable_x64(True), pytest.raises(ValueError, match="jax_enable_x64 is on"):
        Search(**PLAIN, method="cma-mae")
    learner = walks.learner(descriptor=True)
    scoring = rookery.qd.learner_scoring(learner)
    emitter = pbt_emitter(learner, scoring, population_size=2, ga_population=2)
    with pytest.raises(ValueError, match=r"cannot use an emitter that trains agents"):
        Search.of(scoring, CELLS, emitter)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A search without interruption, the folder as it was after 3 batches and the next `ask`, and that batch."""
    folder = tmp_path_factory.mktemp("search")
    with Search(**PLAIN, qd_offset=-3.0, seed=4, run_dir=folder / "whole", checkpoint_every=2) as search:
        advance(search, 3)
        asked = search.ask()
        search._writers.wait()
        shutil.copytree(folder / "whole", folder / "killed")
        with pytest.raises(RunFolderError, match=r"is in use: process \d+"):
            Search.load(folder / "whole")
        advance(search, 3)
        return search, folder, asked


class TestRecorded:
    def test_a_killed_search_asks_the_same_batch_and_continues_bit_for_bit(self, killed, tmp_path, monkeypatch):
        whole, folder, asked = killed
        again = shutil.copytree(folder / "killed", tmp_path / "again")
        for name in ("config.json", "results.jsonl", "journal.jsonl"):  # as some editors save them
            (again / name).write_text((again / name).read_text(), encoding="utf-8-sig")
        with Search.load(again, keep=1) as search:
            assert search.generation == 3
            search.tell(*score(asked))  # the batch that was asked before
            advance(search, 2)
            tiny.assert_equal(search.elites(), whole.elites())
            tiny.assert_equal(search.ask(), whole.ask())
            assert search.report().name == "report.html"
        tables = [read_csv(path / "metrics.csv") for path in (folder / "whole", again)]
        assert tables[0]["generation"].tolist() == list(range(6))
        for name in set(tables[0]) - {"seconds", "steps_per_second", "seconds_tables", "seconds_checkpoint"}:
            np.testing.assert_array_equal(tables[1][name], tables[0][name], name)
        with Search.load(again) as search:  # closed by itself: from the last checkpoint alone
            assert search.generation == 6
            assert search.metrics["qd_score"] == tables[0]["qd_score"][-1]
            tiny.assert_equal(search.elites(), whole.elites())
        monkeypatch.chdir(tmp_path)
        code, shown, _ = call("compare", str(folder / "whole"), str(again))
        assert (code, "search at 36 environment steps" in shown) == (0, True), shown
        code, _, errors = call("report", str(again))
        assert code == 0, errors
        others = ("render",), ("report", "--rollouts", "1"), ("export", "--to", "x"), ("resume", "--generations", "9")
        for command, *flags in others:
            _, out, errors = call(command, str(again), *flags)
            assert "open it in Python: rookery.qd.Search.load" in " ".join((out + errors).split()), command
        assert [event["why"] for event in read_journal(RunFolder(again)) if event["event"] == "ended"] == [
            "finished"
        ] * 2

    def test_another_computation_of_the_solutions_is_detected(self, killed, tmp_path):
        shutil.copytree(killed[1] / "killed", tmp_path / "other")
        results = tmp_path / "other" / "results.jsonl"
        lines = results.read_text().splitlines()
        results.write_text("\n".join([*lines[:-1], lines[-1].replace('"asked": "', '"asked": "0')]) + "\n")
        with pytest.raises(ValueError, match=r"other solutions in generation \d+"):
            Search.load(tmp_path / "other")
        assert not (tmp_path / "other" / ".owner.json").exists(), "the lock is released"

    @pytest.mark.parametrize("damage", [{"fitness": [0.0]}, {"fitness": ["a"] * 6}])
    def test_results_that_were_edited_are_missing_or_must_be_given_again(self, killed, tmp_path, damage):
        shutil.copytree(killed[1] / "killed", tmp_path / "edited")
        results = tmp_path / "edited" / "results.jsonl"
        *lines, last, asked = results.read_text().splitlines()
        edited = json.dumps({**json.loads(last), **damage})
        results.write_text("\n".join([*lines, edited, asked]) + "\n")
        with pytest.raises(ValueError, match=r"lacks the results of generation 3; put a copy of it back"):
            Search.load(tmp_path / "edited")
        results.write_text("\n".join([*lines, edited]) + "\n")
        with pytest.warns(TableWarning, match=r"last line of .*results\.jsonl is damaged"):
            search = Search.load(tmp_path / "edited")
        with search:
            assert search.generation == 2

    @pytest.mark.parametrize(
        ("part", "changed"),
        [
            ("search", {"lower": [-2] * 3}),  # elites would be read on another scale
            ("search", {"upper": "x"}),
            ("run", {"seed": 5}),
        ],
    )
    def test_arguments_that_were_edited_are_refused(self, killed, tmp_path, part, changed):
        path = shutil.copytree(killed[1] / "killed", tmp_path / "edited") / "config.json"
        content = json.loads(path.read_text())
        content["config"][part].update(changed)
        path.write_text(json.dumps(content))
        (path.parent / "results.jsonl").unlink()  # of which the solutions would show another seed
        with pytest.raises(ValueError, match=r"edited began with other arguments or another seed .*; put a copy of"):
            Search.load(path.parent)

    def test_a_full_disk_loses_no_result(self, killed, tmp_path, monkeypatch):
        shutil.copytree(killed[1] / "killed", tmp_path / "full")
        search = Search.load(tmp_path / "full", checkpoint_every=1)

        def no_space(path, content):
            with open(path, "a") as file:
                file.write('{"generation": 3, "asked')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        results = score(search.ask())
        with monkeypatch.context() as patched:
            patched.setattr(searches, "append_line", no_space)
            with pytest.raises(OSError, match=r"results\.jsonl cannot be written \(No space left on device\)"):
                search.tell(*results)
            assert search.generation == 3
        with monkeypatch.context() as patched:
            patched.setattr(RunWriters, "save", lambda *_: (_ for _ in ()).throw(CheckpointError("the disk is full.")))
            with pytest.warns(CheckpointWarning, match=r"the disk is full\. No result is lost"):
                search.tell(*results)
        before = search.elites()
        search._stack.close()  # the process ends without another checkpoint
        with Search.load(tmp_path / "full") as search:
            assert search.generation == 4
            tiny.assert_equal(search.elites(), before)

    @pytest.mark.parametrize("place", ["summarize", "bool"])
    def test_ctrl_c_while_a_result_is_computed_loses_no_row(self, killed, tmp_path, monkeypatch, place):
        shutil.copytree(killed[1] / "killed", tmp_path / "stopped")
        with Search.load(tmp_path / "stopped") as search:
            for batches in (1, 0):  # with another batch after it, and at once before the end
                search._is_empty = True
                with monkeypatch.context() as patched:
                    patched.setattr(searches, place, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt), raising=False)
                    with pytest.raises(KeyboardInterrupt):
                        advance(search, 1)
                advance(search, batches)
            assert search.generation == 6
            tiny.assert_equal(search.elites(), killed[0].elites())
        table = read_csv(tmp_path / "stopped" / "metrics.csv")
        assert table["generation"].tolist() == list(range(6))
        assert np.isfinite(table["max_fitness"]).all()

    def test_a_run_of_another_kind(self, tmp_path):
        create(tmp_path / "run", {"kind": "pbt-sac"}).release()
        with pytest.raises(ValueError, match=r"a run of pbt-sac, not a Search; continue it with `rookery resume`"):
            Search.load(tmp_path / "run")


def test_while_nothing_is_feasible_it_asks_for_initial_solutions(tmp_path):
    search = Search(**PLAIN, run_dir=tmp_path / "run", patience=3)
    failed, batches = np.full(6, np.nan), []
    for _ in range(2):
        batches.append(search.ask())
        search.tell(failed, batches[-1][:, :2])
    batches.append(search.ask())
    with pytest.raises(Diverged, match="nothing was finite in 3 generations"):
        search.tell(failed, batches[-1][:, :2])
    assert not np.array_equal(batches[0], batches[1])
    assert all(np.ptp(batch) > 1 for batch in batches), "drawn from the whole space"
    assert search.elites().fitnesses.shape == (0,)
    with pytest.raises(ValueError, match="the repertoire is empty"):
        search.best()
    asked = search.ask()
    search.close()
    for call_it in (partial(search.tell, *score(asked)), search.report):  # results would be lost
        with pytest.raises(ValueError, match=r"run is closed, .*rookery\.qd\.Search\.load\('.*run'\), which asks for"):
            call_it()
    with pytest.raises(RunFolderError, match=r"continue it with rookery\.qd\.Search\.load, replace it"):
        Search(**PLAIN, run_dir=tmp_path / "run")
    with Search.load(tmp_path / "run", patience=9) as search:
        assert search.generation == 3
        tiny.assert_equal(search.ask(), asked)
        assert advance(search, 1).metrics["coverage"] > 0
