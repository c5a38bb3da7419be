"""Measurement method of the benchmarks.

Speeds are compared between contenders in one run on one machine. After warm-up rounds, the contenders alternate, in a
different order each round; every call is awaited; compile time is measured separately. The ratio is that of the
medians; the ratio of the best times, which contain the least noise of the machine, is also reported. Peak memory is
measured per process, so contenders whose memory is compared run in separate processes.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("rookery", "jax", "jaxlib", "flax", "optax", "numpy", "brax", "qdax", "ribs")


class Times(NamedTuple):
    """Seconds per round of one contender."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()
    """Processor time of all threads of this process, which other processes disturb less."""

    @property
    def median(self) -> float:
        """Median seconds."""
        return float(np.median(self.seconds))

    @property
    def best(self) -> float:
        """Least seconds."""
        return min(self.seconds)


class Compiled(NamedTuple):
    """A compiled program with its trace and compile times."""

    call: Callable[..., Any]
    trace_seconds: float
    compile_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds for tracing, lowering and compiling."""
        return self.trace_seconds + self.compile_seconds

    @property
    def temporary_gb(self) -> float:
        """Memory of a call besides its arguments and results, GB."""
        return self.call.memory_analysis().temp_size_in_bytes / 1e9  # pyright: ignore[reportFunctionMemberAccess]

    @property
    def text(self) -> str:
        """Text of the optimised program."""
        return self.call.as_text()  # pyright: ignore[reportFunctionMemberAccess]


class Held:
    """A state that one or several contenders replace in each call."""

    def __init__(self, state: Any):
        self.state = state


class Loop:
    """A contender that passes its result state to the next call, as donation requires.

    Each call is `state, outputs = step(*first, state)`.
    """

    def __init__(self, step: Callable[..., tuple[Any, Any]], held: Held, *first: Any):
        self._step, self.held, self._first = step, held, first

    def __call__(self) -> None:
        self.held.state, _ = jax.block_until_ready(self._step(*self._first, self.held.state))


def compile_program(function: Callable, *arguments: Any, donate: tuple[int, ...] = ()) -> Compiled:
    """Trace, lower and compile `function` for `arguments` (arrays or shapes); time tracing and compiling separately."""
    started = time.perf_counter()
    lowered = jax.jit(function, donate_argnums=donate).lower(*arguments)
    traced = time.perf_counter()
    compiled = lowered.compile()
    return Compiled(compiled, traced - started, time.perf_counter() - traced)


def interleave(contenders: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 1) -> dict[str, Times]:
    """Time contenders alternately; each round starts with another contender.

    Args:
      contenders: name -> a call that does the work and awaits its result.
      rounds: timed calls of each contender, at least 5 for results to report.
      warmup: untimed calls of each contender before the timed ones.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            started, cpu_started = time.perf_counter(), time.process_time()
            contenders[name]()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - started)
                cpu[name].append(time.process_time() - cpu_started)
    return {name: Times(tuple(seconds[name]), tuple(cpu[name])) for name in names}


def rates(times: Times, work: float, per: str = "per_second") -> dict[str, float]:
    """Work per second, by the median and by the best time."""
    return {per: work / times.median, f"best_{per}": work / times.best}


def speedup(ours: Times, theirs: Times) -> dict[str, float]:
    """Speedup of `ours` over `theirs`: ratio of the medians, and of the best times."""
    return {"ratio": theirs.median / ours.median, "best_ratio": theirs.best / ours.best}


def peak_memory() -> float:
    """Peak memory of this process, in GB (10^9 bytes).

    `VmHWM` on Linux; otherwise `ru_maxrss`, which in a child process includes the parent's memory at its start.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def in_process(module: str, *arguments: str, **environment: str) -> Any:
    """Run `python -m module arguments` and return the JSON value of its last line.

    Raises:
      RuntimeError: the process failed; the message ends with its standard error.
    """
    command = [sys.executable, "-m", module, *arguments]
    environ = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def parser(description: str | None, rounds: int = 7) -> argparse.ArgumentParser:
    """Create a parser with the flags of all benchmarks."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="smoke test: small sizes, 2 rounds, no valid measurement")
    made.add_argument("--rounds", type=int, default=rounds, help="timed calls of each contender (%(default)s)")
    return made


def learning_parser(description: str | None, kept: str | None = None) -> argparse.ArgumentParser:
    """Create a parser with the flags of the benchmarks that train.

    Args:
      description: as for `parser`.
      kept: folder, within that of all curves, for what the report needs of a finished run; None for a benchmark that
        reports from the folder of its runs.
    """
    made = parser(description)
    made.add_argument("--only-report", action="store_true", help="report the existing runs without making new ones")
    made.add_argument("--picture", help="output file of the figure of the learning curves")
    if kept is not None:
        folder = (RESULTS / "curves" / kept).relative_to(ROOT)
        made.add_argument("--curves", default=str(folder), help="folder of what the report needs (%(default)s)")
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the flags; `--quick` sets 2 rounds."""
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds = 2
    return options


def report(name: str, options: argparse.Namespace, rows: Sequence[Mapping[str, Any]], started_load: float) -> None:
    """Print `rows` as a table and write them, see `write`; values that are dictionaries or lists are not printed."""
    show(rows)
    path = write(name, options, rows, started_load)
    print(f"load {started_load:.1f} -> {load():.1f}; written to {path.relative_to(ROOT)}")


def write(name: str, options: argparse.Namespace, rows: Sequence[Mapping[str, Any]], started_load: float) -> Path:
    """Write `rows`, with the conditions of the run, to `results/<name>-<date>.json`, and return its path.

    Args:
      name: name of the benchmark.
      options: flags of the benchmark.
      rows: one dictionary per row.
      started_load: load of the machine at the start, which shows whether other processes were active.
    """
    record = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "options": vars(options),
        "versions": versions(),
        "hardware": hardware(),
        "load": {"at_start": started_load, "at_end": load()},
        "rows": list(rows),
    }
    RESULTS.mkdir(exist_ok=True)
    path = path_of(name, options.quick)
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def path_of(name: str, quick: bool) -> Path:
    """The file that `write` writes today."""
    return RESULTS / f"{name}{'-quick' if quick else ''}-{datetime.date.today().isoformat()}.json"


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table; the columns are all keys with scalar values, in the order of appearance."""
    shown = [{key: value for key, value in row.items() if not isinstance(value, dict | list)} for row in rows]
    columns = list(dict.fromkeys(key for row in shown for key in row))
    table = Table(*columns)
    for row in shown:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def load() -> float:
    """Load average of the machine over the last minute, in processes."""
    return os.getloadavg()[0]


def commit() -> str:
    """The checked-out commit, with `+` if the package has uncommitted changes; or `unknown`."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--", "rookery") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages in `PACKAGES`."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """The processor, the cores available to this process, the memory, and JAX's devices."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    devices = sorted({device.device_kind for device in jax.devices()})
    return {"cpu": _cpu_model(), "cores": cores, "memory_gb": round(memory, 1), "devices": devices}


def _cpu_model() -> str:
    """The processor's name, family and model, since a virtual machine may hide the name."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in info.read_text().split("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"
