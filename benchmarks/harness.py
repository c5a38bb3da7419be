"""How everything here is measured.

A speed is a ratio between contenders of one run on one machine. They take turns, in a new order each round, after
warm-up rounds; every call is waited for; compile time is apart. The ratio is that of the medians, with the best times
beside it: of a best time only the machine is to blame. Peak memory belongs to a process, so contenders whose memory is
compared get a process each.
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
    """Seconds of one contender, one per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds."""
        return float(np.median(self.seconds))

    @property
    def best(self) -> float:
        """Seconds."""
        return min(self.seconds)


class Compiled(NamedTuple):
    """A program ready to run, and what it took to get there."""

    call: Callable[..., Any]
    trace_seconds: float
    compile_seconds: float

    @property
    def seconds(self) -> float:
        """Of tracing, lowering and compiling."""
        return self.trace_seconds + self.compile_seconds

    @property
    def temporary_gb(self) -> float:
        """What a call needs beside its arguments and results, GB."""
        return self.call.memory_analysis().temp_size_in_bytes / 1e9  # pyright: ignore[reportFunctionMemberAccess]

    @property
    def text(self) -> str:
        """The optimised program."""
        return self.call.as_text()  # pyright: ignore[reportFunctionMemberAccess]


class Held:
    """The state that one or several contenders hand on to each other."""

    def __init__(self, state: Any):
        self.state = state


class Loop:
    """A contender that feeds its state back, as donation demands: `state, outputs = step(*first, state)`."""

    def __init__(self, step: Callable[..., tuple[Any, Any]], held: Held, *first: Any):
        self._step, self._held, self._first = step, held, first

    def __call__(self) -> None:
        self._held.state, _ = jax.block_until_ready(self._step(*self._first, self._held.state))


def compile_program(function: Callable, *arguments: Any, donate: tuple[int, ...] = ()) -> Compiled:
    """Trace, lower and compile `function` for `arguments` (arrays or shapes), timing both halves."""
    started = time.perf_counter()
    lowered = jax.jit(function, donate_argnums=donate).lower(*arguments)
    traced = time.perf_counter()
    compiled = lowered.compile()
    return Compiled(compiled, traced - started, time.perf_counter() - traced)


def interleave(contenders: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 1) -> dict[str, Times]:
    """Time contenders in turns; every round begins with another one.

    Args:
      contenders: name -> a call that does the work and waits for its result.
      rounds: timed calls of each, at least 5 where the figure matters.
      warmup: calls of each beforehand that are not timed.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            started = time.perf_counter()
            contenders[name]()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - started)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def rates(times: Times, work: float, per: str = "per_second") -> dict[str, float]:
    """Work done per second, at the median and at the best."""
    return {per: work / times.median, f"best_{per}": work / times.best}


def speedup(ours: Times, theirs: Times) -> dict[str, float]:
    """How many times faster we are: ratio of the medians, and of the best times."""
    return {"ratio": theirs.median / ours.median, "best_ratio": theirs.best / ours.best}


def peak_memory() -> float:
    """The most memory this process has ever held, in GB (10^9 bytes).

    Linux's `VmHWM`, where it exists: `ru_maxrss` of a child begins at what its parent held when it was started.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def in_process(module: str, *arguments: str, **environment: str) -> Any:
    """Run `python -m module arguments` and return what its last line says in JSON.

    Raises:
      RuntimeError: it failed; the message ends with what it wrote to standard error.
    """
    command = [sys.executable, "-m", module, *arguments]
    environ = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def parser(description: str | None, rounds: int = 7) -> argparse.ArgumentParser:
    """The flags that every benchmark has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="a smoke test: small sizes, 2 rounds, nothing to quote")
    made.add_argument("--rounds", type=int, default=rounds, help="timed calls of each contender (%(default)s)")
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags as given; `--quick` means 2 rounds."""
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds = 2
    return options


def report(name: str, options: argparse.Namespace, rows: Sequence[Mapping[str, Any]], started_load: float) -> None:
    """Print `rows` as a table and write them, with the circumstances, to `results/<name>-<date>.json`.

    Args:
      name: the benchmark's.
      options: its flags.
      rows: one dictionary per line; a value that is a dictionary or a list is written but not printed.
      started_load: the machine's load when the benchmark began, so that a reader can tell a quiet run.
    """
    show(rows)
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
    quick = "-quick" if options.quick else ""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{quick}-{datetime.date.today().isoformat()}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"load {started_load:.1f} -> {load():.1f}; written to {path.relative_to(ROOT)}")


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table; columns are all their scalar keys, in the order of appearance."""
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
    """Processes that wanted a core during the last minute."""
    return os.getloadavg()[0]


def commit() -> str:
    """The commit that is checked out, with `+` if the package differs from it; or `unknown`."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--", "rookery") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def versions() -> dict[str, str]:
    """Of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """The processor, the cores this process may use, the memory, and JAX's devices."""
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
