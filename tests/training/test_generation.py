"""A generation in several compiled calls: their length changes no result, and a run stopped within one continues."""

import csv
import functools
import os
import shutil
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams
from rookery.distributed import signals
from rookery.distributed.mesh import make_mesh
from rookery.distributed.signals import Interrupted
from rookery.learners.base import Member
from rookery.learners.iterations import divisible, training
from rookery.populations.base import ProgramState
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import pbt
from rookery.populations.stages import StagedInit, StagedStep, staged_step
from rookery.qd.centroids import grid
from rookery.qd.me_pbt import me_pbt
from rookery.training import generation
from rookery.training.compilation import Compiler
from rookery.training.generation import Generations, Pause
from rookery.training.loop import run
from tests import tiny, walks

ITERATIONS = 12


def iterate(member, bank, key, count):
    """A twelfth of a walker's generation; reports the key's first draw and the iteration's number."""
    member, metrics = walks.learner().step(member, bank, key, jnp.zeros((), jnp.int32))
    return member, {**metrics, "count": count.astype(jnp.float32)}


def summarize(log):
    return {"stride": jnp.mean(log["stride"]), "last": log["count"][-1], "first": log["count"][0]}


def learner(descriptor=False):
    return walks.learner(descriptor)._replace(step=training(iterate, summarize, ITERATIONS))


def population():
    return pbt(learner(), population_size=4, config=PbtConfig(best_count=1, replace_count=1))


def repertoire():
    cells = grid((4, 4), walks.PLACE.lower, walks.PLACE.upper)
    return me_pbt(learner(descriptor=True), cells, population_size=4, ga_population=4)


def plain():
    program = population()
    return program._replace(step=program.step.__call__, init=program.init.__call__)


PROGRAMS = {"pbt": population, "me-pbt": repertoire, "not in stages": plain}


@functools.cache
def compiled(name):
    """A program, and its compiled stages."""
    program = PROGRAMS[name]()
    return program, Compiler(program, make_mesh(1)).compile()


@functools.cache
def whole(name):
    """The state of a program after three generations, and their metrics, by the functions that its stages compose."""
    program, _ = compiled(name)
    state, step, recorded = jax.jit(program.init)(jax.random.key(0)), jax.jit(program.step), []
    for number in range(3):
        state, metrics = step(state, jax.random.fold_in(jax.random.key(1), number))
        recorded.append(metrics)
    return state, recorded


class FixedCalls(Generations):
    """Every compiled call has `count` iterations, regardless of their duration."""

    count = 1

    def _advance(self, *args):
        self._count = self.count
        return super()._advance(*args)


def run_three(generations):
    state, recorded = generations.create(jax.random.key(0)), []
    for number in range(3):
        state, metrics = generations.run(state, jax.random.fold_in(jax.random.key(1), number))
        recorded.append(metrics)
    return state, recorded


@pytest.mark.parametrize("name", PROGRAMS)
def test_stages_equal_the_functions_that_they_compose(name):
    program, stages = compiled(name)
    state, recorded = run_three(Generations(program, stages, lambda: None, lambda *_: None))
    whole_state, whole_metrics = whole("pbt" if name == "not in stages" else name)
    for metrics, found in zip(whole_metrics, recorded, strict=True):
        assert metrics.keys() == found.keys()
        for metric, values in metrics.items():
            np.testing.assert_allclose(values, found[metric], rtol=1e-5, err_msg=metric)
    assert type(whole_state) is type(state) is ProgramState
    for leaf, part in zip(jax.tree.leaves(whole_state), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(leaf, part, rtol=1e-5)
    for number, metrics in enumerate(recorded):  # iterations are counted over the whole run
        if "first" in metrics:
            assert metrics["first"].tolist() == [12.0 * number] * 4
            assert metrics["last"].tolist() == [12.0 * number + 11] * 4


def test_results_do_not_depend_on_the_length_of_the_calls():
    results, (program, stages) = [], compiled("me-pbt")
    for iterations in (1, 5, 12):
        fixed = FixedCalls(program, stages, lambda: None, lambda *_: None)
        fixed.count = iterations
        results.append(run_three(fixed))
    tiny.assert_equal(*results[:2])
    tiny.assert_equal(*results[1:])


def test_each_iteration_has_a_separate_key():
    def keep(member, bank, key, count):
        return member, jax.random.uniform(key)

    composed = training(keep, lambda log: log, 5)
    member = Member(walks.State(jnp.zeros(3), jnp.zeros(3)), walks.Hyper(), (), (), ())
    log = composed(member, (), jax.random.key(3), jnp.zeros((), jnp.int32))[1]
    strides = np.asarray(log).tolist()
    assert len(set(strides)) == 5
    assert strides == [float(jax.random.uniform(key)) for key in jax.random.split(jax.random.key(3), 5)]


def test_a_step_without_iterations_counts_as_one():
    step = walks.learner().step
    member = walks.learner().init(jax.random.key(0), hyperparams.defaults(walks.SPACE), jnp.ones((4,)))
    composed = divisible(step)
    assert composed.iterations == 1
    assert divisible(composed) is composed
    arguments = (member, jnp.ones((4,)), jax.random.key(1), jnp.zeros((), jnp.int32))
    tiny.assert_equal(step(*arguments), composed(*arguments))


def test_start_states_of_init_and_step_are_one_compiled_program():
    program, stages = compiled("pbt")
    assert stages.first_states is stages.start_states
    assert isinstance(program.init, StagedInit)
    assert isinstance(program.step, StagedStep)
    assert staged_step(program.step) is program.step


def test_each_generation_begins_with_a_short_call_regardless_of_the_previous_one():
    """Iterations during warm-up make no updates, so their duration does not predict that of later ones."""
    shares, (program, stages) = [], compiled("me-pbt")
    run_three(Generations(program, stages, lambda: None, lambda share, _: shares.append(share)))
    begun = [share for before, share in zip([1.0, *shares], shares, strict=False) if before == 1.0]
    assert begun == [1 / staged_step(program.step).iterations] * 3


@pytest.fixture
def one_by_one(monkeypatch):
    """Compiled calls of one iteration; no generation is short enough to be finished when a signal comes."""
    monkeypatch.setattr(generation, "_MAX_GROWTH", 1)
    monkeypatch.setattr(generation, "_FINISH_SECONDS", -1.0)


def stop_after(calls, monkeypatch):
    """Send SIGTERM to this process after a number of compiled calls."""
    shown = []

    def show(*_):
        shown.append(1)
        if len(shown) == calls:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("rookery.training.progress.Reporter.progress", show)


def table(run_dir, name):
    """A table of a run without the columns of wall times."""
    rows = csv.DictReader((run_dir / name).read_text().splitlines())
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def train(run_dir, **options):
    return run(population(), generations=3, run_dir=str(run_dir), quiet=True, checkpoint_every=1, **options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A finished run: its folder and its final state."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return folder, jax.device_get(train(folder).state)


@pytest.mark.parametrize("calls", [7, 12 + 5])
def test_a_run_stopped_within_a_generation_continues_bit_equal(calls, tmp_path, undisturbed, monkeypatch, one_by_one):
    stop_after(calls, monkeypatch)
    stopped, damaged = tmp_path / "stopped", tmp_path / "damaged"
    with pytest.raises(Interrupted, match=f"stopped within generation {1 + calls // 12}, .* rookery resume .*stopped"):
        train(stopped)
    kept = Path(shutil.copytree(stopped / "interrupted", tmp_path / "kept"))
    shutil.copytree(stopped, damaged)
    assert len(table(stopped, "metrics.csv")) == calls // 12 if calls > 12 else True
    resumed = train(stopped, resume=True)
    tiny.assert_equal(jax.device_get(resumed.state), undisturbed[1])
    for name in ("metrics.csv", "lineage.csv"):
        assert table(stopped, name) == table(undisturbed[0], name)
    assert not (stopped / "interrupted").exists(), "a later checkpoint replaces it"
    shutil.copytree(kept, stopped / "interrupted")
    assert train(stopped, resume=True).history == [], "it is older than the checkpoint, and not used"
    if calls > 12:
        for file in (damaged / "interrupted").rglob("*"):
            if file.is_file() and "manifest" not in file.name and file.suffix != ".json":
                file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
        again = train(damaged, resume=True)
        tiny.assert_equal(jax.device_get(again.state), undisturbed[1])
        assert len(again.history) == 2, "the damaged generation is trained again"


def test_a_nearly_finished_generation_is_finished_first(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "_MAX_GROWTH", 1)
    stop_after(3, monkeypatch)
    with pytest.raises(Interrupted, match="stopped after generation 1, which is saved"):
        train(tmp_path / "run")


def test_a_stop_within_a_generation_without_a_run_dir_reports_that_nothing_was_saved(monkeypatch, one_by_one):
    stop_after(2, monkeypatch)
    with pytest.raises(Interrupted, match="stopped within generation 1; nothing was saved"):
        run(population(), generations=3, quiet=True)


def test_a_pause_records_the_finished_iterations(monkeypatch):
    paused = Generations(*compiled("pbt"), lambda: signal.SIGTERM, lambda *_: None)
    monkeypatch.setattr(paused, "_seconds_left", lambda *_: 1e9)
    state = paused.create(jax.random.key(0))
    reached = paused.run(state, jax.random.key(1))
    assert isinstance(reached, Pause)
    assert (reached.signum, reached.done) == (signal.SIGTERM, 1)


def test_no_message_goes_to_a_file_in_the_place_of_closed_errors(monkeypatch):
    written = []
    monkeypatch.setattr(signals.os, "write", lambda *content: written.append(content))
    monkeypatch.setattr(signals.sys, "__stderr__", None)
    with signals.Requests() as requests:
        signal.raise_signal(signal.SIGTERM)
        assert requests.signum == signal.SIGTERM
    assert not written
