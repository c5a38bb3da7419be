"""The progress display of a run: a line that is updated in place on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from rookery.settings import AGENT_RETURN
from rookery.training.metrics import EVALUATION
from rookery.training.terminal import Terminal, terminal

_SHOWN = {"best_fitness": "best {:z.4g}", "median_fitness": "median {:z.4g}"}
_SPINNER = "line"  # of characters that every terminal has
_MOST_AGENTS = 4
"""Largest team whose individual returns are shown."""
_PLAIN_INTERVAL = 20.0
"""Seconds without a plain line after which the progress within a long generation is printed."""
_LARGE_SHARE = 0.1
"""Share of a generation from which the time of its evaluation is shown."""
_SHOWN_OF_A_REPERTOIRE = {
    "max_fitness": "best {:z.4g}",
    "qd_score": "QD score {:z.4g}",
    "coverage": "coverage {:.1f} %",
}


class Reporter:
    """Shows the progress of a run.

    Args:
      generations: number of generations of the whole run.
      first: generations that are finished already, greater than 0 after a resume.
      quiet: print nothing.
      console: the console to print to; standard output by default.
      untrained: generations at the start of the run without an update, whose time says nothing of the others'.
      patience: generations for which a repertoire may stay empty.
    """

    def __init__(
        self,
        generations: int,
        first: int = 0,
        quiet: bool = False,
        console: Terminal | None = None,
        untrained: int = 0,
        patience: int = 1,
    ):
        self.console = console or terminal(quiet=quiet)
        self._generations, self._first, self._untrained, self._patience = generations, first, untrained, patience
        self._done, self._since = first, time.monotonic()  # finished generations, and when the last one finished
        self.seconds_compiling = 0.0
        self._shown = self._since  # time of the last plain line
        self._display = None
        if self.console.is_terminal and not quiet:
            texts = [TextColumn("{task.fields[" + field + "]}") for field in ("done", "line", "left")]
            columns = (SpinnerColumn(_SPINNER), TextColumn("generation"), texts[0], BarColumn(bar_width=20), *texts[1:])
            self._display = Progress(*columns, console=self.console)
            self._task = self._display.add_task("run", total=generations, done="", line="compiling", left="")
            self._move(first)

    def __enter__(self) -> "Reporter":
        if self._display:
            self._display.start()
        else:
            self.console.print_line(f"generation {self._first} of {self._generations}: compiling")
        return self

    def __exit__(self, *_: object) -> None:
        if self._display:
            self._display.stop()

    def compiled(self, seconds: float) -> None:
        """Report that compilation has finished and the first generation begins."""
        self.message(f"compiled in {seconds:.1f} s")
        self.seconds_compiling = seconds
        self._since = self._shown = time.monotonic()
        if self._display:
            self._display.update(self._task, line="training")

    def progress(self, share: float, left: float) -> None:
        """Show the progress within a generation.

        Args:
          share: fraction of the generation's training that is done, in [0, 1].
          left: estimated seconds until the end of the generation.
        """
        rest = self._generations - self._done - 1
        total = (time.monotonic() - self._since) + left
        if self._display:
            self._move(self._done + share, left=f"{clock(left + rest * total)} left")
        elif time.monotonic() - self._shown > _PLAIN_INTERVAL:
            self._shown = time.monotonic()
            text = f"generation {self._done + 1} of {self._generations}: {share:.0%} trained, {clock(left)} left of it"
            self.console.print_line(f"{text}, {clock(left + rest * total)} of the run")

    def update(self, generation: int, row: Mapping[str, float], seeds: np.ndarray | None = None) -> None:
        """Show the metrics of a finished generation.

        Args:
          generation: number of finished generations.
          row: of `metrics.csv`.
          seeds: fitness of independent members, `[P]`; if given, their median and interquartile range are shown, not
            the best and the median fitness of the row.
        """
        self._done, self._since = generation, time.monotonic()
        self._shown = self._since
        seconds = row["seconds"]
        left = (self._generations - generation) * seconds  # an average would include the first one's compilation
        parts = [f"{row['steps_per_second']:,.0f} steps/s"]
        shown = _SHOWN_OF_A_REPERTOIRE if "coverage" in row else _SHOWN
        if row.get("coverage") == 0.0:
            parts.append(f"repertoire empty for {generation} of at most {self._patience} generations")
        elif seeds is None:
            parts += [text.format(row[name]) for name, text in shown.items() if name in row]
        elif np.isfinite(seeds).any():
            lower, median, upper = np.quantile(seeds[np.isfinite(seeds)], [0.25, 0.5, 0.75])
            parts.append(f"median {median:z.4g}, interquartile range {lower:z.4g} to {upper:z.4g}")
        agents = {
            name.removeprefix(AGENT_RETURN): value for name, value in row.items() if name.startswith(AGENT_RETURN)
        }
        if 1 < len(agents) <= _MOST_AGENTS:  # the common fitness of opposing agents carries little information
            parts += [f"{name} {value:z,.4g}" for name, value in agents.items()]
        if (share := row.get(EVALUATION, 0.0) / seconds) >= _LARGE_SHARE:
            parts.append(f"evaluation {share:.0%} of the time")
        if row.get("diverged"):
            parts.append(f"diverged {row['diverged']:.0f}")
        if row.get("broken_episodes"):
            parts.append(f"broken episodes {row['broken_episodes']:.0f}")
        line = "  ".join(parts)
        remaining = "warm-up" if generation <= self._untrained else f"{clock(left)} left"
        if self._display:
            self._move(generation, line=line, left=remaining)
        else:
            text = f"generation {generation} of {self._generations}  {line}  {remaining}"
            self.console.print_line(text)

    def _move(self, completed: float, **fields: Any) -> None:
        """Move the bar; the finished generations are shown as whole numbers, although it moves within a generation."""
        assert self._display
        done = f"{int(completed)}/{self._generations}"
        self._display.update(self._task, completed=completed, done=done, **fields)

    def message(self, text: str) -> None:
        """Print a line of text above the progress line."""
        self.console.print_line(text)


@contextmanager
def bar(label: str, total: int, console: Terminal | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, and nothing elsewhere; yields a function that adds finished items.

    Args:
      label: text in front of the bar.
      total: number of items.
      console: the console to print to; standard output by default.
    """
    console = console or terminal()
    columns = (
        SpinnerColumn(_SPINNER),
        TextColumn(label),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:
        yield partial(display.advance, display.add_task(label, total=total))


def clock(seconds: float) -> str:
    """Seconds as `h:mm:ss`, or `m:ss` below an hour."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
