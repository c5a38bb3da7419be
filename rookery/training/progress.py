"""The line that one watches: live on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_SHOWN = {"best_fitness": "best {:.4g}", "median_fitness": "median {:.4g}"}
_AGENT, _MOST_AGENTS = "return/", 4  # whose columns are shown, of so small a team
_SILENCE = 20.0  # seconds without a plain line, after which a long generation shows how far it has come
_SHOWN_OF_A_REPERTOIRE = {"max_fitness": "best {:.4g}", "qd_score": "QD score {:.4g}", "coverage": "coverage {:.1f} %"}


class Reporter:
    """Tells how a run goes, one generation at a time.

    Args:
      generations: the last one.
      first: the first one, greater than 0 after a resume.
      quiet: say nothing.
      console: where to print; standard output by default.
    """

    def __init__(self, generations: int, first: int = 0, quiet: bool = False, console: Console | None = None):
        self.console = console or Console(quiet=quiet)
        self._generations, self._first = generations, first
        self._done, self._since = first, time.monotonic()  # generations, and when the last of them was finished
        self.seconds_compiling = 0.0
        self._shown = self._since  # when the last plain line was printed
        self._live = None
        if self.console.is_terminal and not quiet:
            columns = (SpinnerColumn(), TextColumn("generation"), _Done(), BarColumn(bar_width=20))
            self._live = Progress(*columns, TextColumn("{task.fields[line]}"), _TimeLeft(), console=self.console)
            self._task = self._live.add_task("run", total=generations, completed=first, line="compiling", left=None)

    def __enter__(self) -> "Reporter":
        if self._live:
            self._live.start()
        else:
            self.console.print(f"generation {self._first} of {self._generations}: compiling", highlight=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def compiled(self, seconds: float) -> None:
        """Say that compiling is over and the first generation under way."""
        self.say(f"compiled in {seconds:.1f} s")
        self.seconds_compiling = seconds
        self._since = self._shown = time.monotonic()
        if self._live:
            self._live.update(self._task, line="training")

    def progress(self, share: float, left: float) -> None:
        """Show how far a generation has come.

        Args:
          share: of its training that is done, in [0, 1].
          left: seconds that the rest of it will take.
        """
        rest = self._generations - self._done - 1
        total = (time.monotonic() - self._since) + left
        if self._live:
            self._live.update(self._task, completed=self._done + share, left=left + rest * total)
        elif time.monotonic() - self._shown > _SILENCE:
            self._shown = time.monotonic()
            text = f"generation {self._done + 1} of {self._generations}: {share:.0%} trained, {clock(left)} left of it"
            self.console.print(f"{text}, {clock(left + rest * total)} of the run", highlight=False, soft_wrap=True)

    def update(self, generation: int, row: Mapping[str, float], seeds: np.ndarray | None = None) -> None:
        """Show a finished generation (counted from 1) by what `metrics.csv` says of it.

        Args:
          generation: that is finished.
          row: of `metrics.csv`.
          seeds: fitness of independent members `[P]`, whose median and middle half take the place of the best member's.
        """
        self._done, self._since = generation, time.monotonic()
        self._shown = self._since
        seconds = row["seconds"]
        left = (self._generations - generation) * seconds
        parts = [f"{row['steps_per_second']:,.0f} steps/s"]
        shown = _SHOWN_OF_A_REPERTOIRE if "coverage" in row else _SHOWN
        if seeds is None:
            parts += [text.format(row[name]) for name, text in shown.items() if name in row]
        elif np.isfinite(seeds).any():
            lower, median, upper = np.quantile(seeds[np.isfinite(seeds)], [0.25, 0.5, 0.75])
            parts.append(f"median {median:.4g}, middle half {lower:.4g} to {upper:.4g}")
        agents = {name.removeprefix(_AGENT): value for name, value in row.items() if name.startswith(_AGENT)}
        if 1 < len(agents) <= _MOST_AGENTS:  # who plays against each other has no common fitness that tells much
            parts += [f"{name} {value:,.4g}" for name, value in agents.items()]
        if row.get("diverged"):
            parts.append(f"diverged {row['diverged']:.0f}")
        if row.get("broken_episodes"):
            parts.append(f"broken episodes {row['broken_episodes']:.0f}")
        line = "  ".join(parts)
        if self._live:
            self._live.update(self._task, completed=generation, line=line, left=left)
        else:
            text = f"generation {generation} of {self._generations}  {line}  {clock(left)} left"
            self.console.print(text, highlight=False, soft_wrap=True)

    def say(self, message: str) -> None:
        """Print a message above the line."""
        self.console.print(message, highlight=False, soft_wrap=True)


@contextmanager
def bar(what: str, total: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` are done; yields a function that adds some. Only a terminal is shown anything."""
    console = console or Console()
    columns = (SpinnerColumn(), TextColumn(what), MofNCompleteColumn(), BarColumn(bar_width=20), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as live:
        yield partial(live.advance, live.add_task(what, total=total))


class _Done(ProgressColumn):
    """Finished generations of all: whole numbers, though the bar moves within a generation."""

    def render(self, task: Task) -> Text:
        return Text(f"{int(task.completed)}/{int(task.total or 0)}")


class _TimeLeft(ProgressColumn):
    """Time left, from the duration of the last generation: the first one's compile time would mislead an average."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return Text("" if left is None else f"{clock(left)} left")


def clock(seconds: float) -> str:
    """Seconds as `h:mm:ss`, or `m:ss` below an hour."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
