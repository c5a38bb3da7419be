"""The progress display: plain lines, and a live line on a terminal."""

import io

import numpy as np
import pytest

from rookery.training.progress import Reporter, bar
from rookery.training.terminal import Terminal

ROW = {"steps_per_second": 12345.6, "seconds": 2.0, "best_fitness": 1047.6, "median_fitness": -0.01234, "diverged": 0.0}


def display(terminal: bool, **more: float) -> str:
    """What is shown of a generation by a reporter, of which a quiet one shows nothing."""
    for quiet in (True, False):
        console = Terminal(file=io.StringIO(), quiet=quiet, force_terminal=terminal, width=120, color_system=None)
        with Reporter(10, first=2, quiet=quiet, console=console) as reporter:
            reporter.compiled(3.21)
            reporter.update(3, ROW | more)
        assert isinstance(console.file, io.StringIO)
        assert (console.file.getvalue() == "") == quiet
    return console.file.getvalue()


def test_plain_lines_if_the_output_is_no_terminal():
    lines = display(terminal=False).splitlines()
    assert lines[:2] == ["generation 2 of 10: compiling", "compiled in 3.2 s"]
    assert lines[2] == "generation 3 of 10  12,346 steps/s  best 1048  median -0.01234  0:14 left"


def test_the_warm_up_gives_no_estimate():
    """A generation without updates takes less time than those that follow."""
    console = Terminal(file=io.StringIO(), width=120, color_system=None)
    with Reporter(10, console=console, untrained=1) as reporter:
        reporter.update(1, ROW)
        reporter.update(2, ROW)
    assert isinstance(console.file, io.StringIO)
    assert [line.rpartition("  ")[2] for line in console.file.getvalue().splitlines()[1:]] == ["warm-up", "0:16 left"]


def test_a_live_line_on_a_terminal():
    shown = display(terminal=True)
    assert all(part in shown for part in ("3/10", "12,346 steps/s", "0:14 left"))


def test_metrics_of_some_programs_are_shown_if_present():
    shown = display(terminal=False, max_fitness=7.0, qd_score=512.0, coverage=37.5, diverged=2.0, broken_episodes=3.0)
    assert "steps/s  best 7  QD score 512  coverage 37.5 %  diverged 2" in shown, "of a repertoire the best elite"
    assert "broken episodes 3" in shown
    assert "broken" not in display(terminal=False, broken_episodes=0.0)


@pytest.mark.parametrize(
    ("fitness", "expected"),
    [
        ([1.0, 2.0, 3.0, 10.0, 1000.0], "steps/s  median 3, interquartile range 2 to 10  0:14 left"),
        ([1.0, 3.0, float("nan")], "steps/s  median 2, interquartile range 1.5 to 2.5  0:14 left"),
        ([float("nan"), float("inf")], "steps/s  0:14 left"),
    ],
)
def test_of_independent_members_the_median_is_shown_instead_of_the_best(fitness: list[float], expected: str):
    console = Terminal(file=io.StringIO(), width=120, color_system=None)
    with Reporter(10, first=2, console=console) as reporter:
        reporter.update(3, ROW, np.asarray(fitness, np.float32))
    assert isinstance(console.file, io.StringIO)
    assert expected in console.file.getvalue()
    assert "best" not in console.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_counts_finished_items_on_a_terminal_only(terminal: bool):
    console = Terminal(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    with bar("updates", 12, console) as advance:
        advance(4)
        advance(5)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert ("updates" in shown) == ("9/12" in shown) == terminal
