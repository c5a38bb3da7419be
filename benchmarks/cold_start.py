"""Time from the shell to the end of the first generation: Rookery against a QDax script with the same work.

    python -m benchmarks.cold_start [--quick]

    rookery train pbt-sac --env hopper --population 8 --hidden-sizes 64 64 --batch-size 64 --generations 1 \
      --steps-per-generation 5000 --exploit-interval 0 --buffer-size 100000

The script (`qdax_script.py`) does the same work as that command: 8 members with 25 environments, 1,000 random steps and
4,000 updates each, 10 evaluation episodes per member, one exploit. The script writes no files; Rookery writes a run
directory with a checkpoint and a figure. Each run is a separate process, timed from its start to the line that reports
the generation. `cold`: no compilation cache, or an empty one. `warm`: a cache filled by an earlier run; Rookery enables
its cache by default, for QDax's script the benchmark sets JAX's environment variable.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness

MARK = "generation 1 of 1"
SIZES = ("--env", "hopper", "--population", "8", "--hidden-sizes", "64", "64", "--batch-size", "64")
NAMES = ("ours cold", "ours warm", "qdax cold", "qdax warm")


def main() -> None:
    options = harness.parse(harness.parser(__doc__, rounds=5))
    load = harness.load()
    steps = "1500" if options.quick else "5000"
    with tempfile.TemporaryDirectory() as folder:
        times, ends = measure(Path(folder), steps, 1 if options.quick else options.rounds)
    rows = [
        {
            "run": name,
            "first_generation_s": times[name].median,
            "best_s": times[name].best,
            "exit_s": ends[name].median,
            "ratio_to_qdax_cold": times[name].median / times["qdax cold"].median,
            "ratio_to_qdax_warm": times[name].median / times["qdax warm"].median,
            "seconds": list(times[name].seconds),
        }
        for name in NAMES
    ]
    harness.report("cold_start", options, rows, load)


def measure(folder: Path, steps: str, rounds: int) -> tuple[dict[str, harness.Times], dict[str, harness.Times]]:
    """Seconds to the first generation and to the end of the process; an untimed run fills each cache."""
    runs = {
        "ours cold": partial(ours, folder, steps, None),
        "ours warm": partial(ours, folder, steps, folder / "ours"),
        "qdax cold": partial(qdax, steps, None),
        "qdax warm": partial(qdax, steps, folder / "qdax"),
    }
    marks: dict[str, list[float]] = {name: [] for name in NAMES}
    ends: dict[str, list[float]] = {name: [] for name in NAMES}
    for name in ("ours warm", "qdax warm"):
        runs[name]()
    for _ in range(rounds):
        for name in NAMES:
            mark, end = runs[name]()
            marks[name].append(mark)
            ends[name].append(end)
    return ({name: harness.Times(tuple(values)) for name, values in made.items()} for made in (marks, ends))


def ours(folder: Path, steps: str, cache: Path | None) -> tuple[float, float]:
    """A run of the command line; without `cache` it uses a new, empty cache."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        command = [str(Path(sys.executable).with_name("rookery")), "train", "pbt-sac", *SIZES, "--generations", "1"]
        command += ["--steps-per-generation", steps, "--exploit-interval", "0", "--buffer-size", "100000"]
        command += ["--run-dir", f"{temporary}/run"]
        return wait_for_generation(command, {"XDG_CACHE_HOME": str(cache or f"{temporary}/cache")})


def qdax(steps: str, cache: Path | None) -> tuple[float, float]:
    """A run of QDax's script."""
    chosen = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}
    return wait_for_generation([sys.executable, "-m", "benchmarks.qdax_script", *SIZES, steps], chosen if cache else {})


def wait_for_generation(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Start a process and read its output.

    Returns:
      Seconds until the line that reports the generation, and until the process ended.

    Raises:
      RuntimeError: the process failed, or reported no generation.
    """
    inherited: dict[str, Any] = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    environ = {**inherited, **environment, "PYTHONUNBUFFERED": "1"}
    mark, lines, started = None, [], time.perf_counter()
    with subprocess.Popen(
        command, cwd=harness.ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if mark is None and line.startswith(MARK):
                mark = time.perf_counter() - started
    if process.returncode or mark is None:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(lines[-20:])}")
    return mark, time.perf_counter() - started


if __name__ == "__main__":
    main()
