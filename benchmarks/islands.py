"""Islands: the time of an exchange, throughput, a straggler, kills, and learning beside one population.

    python -m benchmarks.islands arithmetic
    python -m benchmarks.islands exchange throughput straggler kills learning --runs /tmp/islands
    python -m benchmarks.islands exchange throughput straggler kills learning --runs /tmp/islands --quick

Each part writes `<part>.json` into the folder of the runs and is not repeated where that file exists; a run of
`learning` that was interrupted is resumed. `throughput`, `straggler` and `kills` need the extra `ray`. Runs are started
by the command line.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import rookery
from benchmarks import harness
from rookery.islands import island
from rookery.islands.migration import Published, arrays_of
from rookery.islands.store import Header, Publication, encode
from rookery.report.statistics import estimate, over_runs, probability_of_improvement
from rookery.storage.csv_log import read_csv, read_table
from rookery.storage.island_files import island_dir, islands_of, read_exchanges
from rookery.storage.run_dir import RunFolder

TINY = (
    "--env point_maze --hidden-sizes 32 32 --num-envs 10 --batch-size 32 --buffer-size 20000 --warmup-steps 200 "
    "--steps-per-generation 500 --exploit-interval 500 --eval-episodes 4 --devices 1 --checkpoint-every 5 --quiet"
)
harness.PACKAGES = (*harness.PACKAGES, "ray")
ISLANDS = 4
MINUTE = 60.0


def train(run_dir: Path, *flags: str) -> subprocess.Popen:
    """Start `rookery train pbt-sac`, or `rookery resume` where the run exists."""
    begun = (run_dir / "config.json").is_file()
    ray = [*flags[flags.index("--ray-address") :][:2]] if "--ray-address" in flags else []
    words = (
        ["resume", str(run_dir), "--quiet", *ray] if begun else ["train", "pbt-sac", "--run-dir", str(run_dir), *flags]
    )
    return subprocess.Popen([sys.executable, "-m", "rookery", *words])


def finished(process: subprocess.Popen) -> None:
    if process.wait() != 0:
        raise SystemExit(f"the command ended with {process.returncode}: {process.args}")


def islands_in(run_dir: Path, count: int = ISLANDS) -> list[Path]:
    """Run folders of the islands, whether they exist yet or not."""
    return [island_dir(run_dir, number) for number in range(count)]


def generations_of(folders: Sequence[Path]) -> list[int]:
    """Finished generations of each run; 0 of one that is not there yet."""
    return [len(read_table(folder / "metrics.csv").get("generation", ())) for folder in folders]


def pid_of(run_dir: Path) -> int | None:
    """The process that runs an island; None while it is not running: a process that was killed leaves its file."""
    file = RunFolder(run_dir).owner_file
    pid = json.loads(file.read_text())["pid"] if file.is_file() else None
    return pid if pid is not None and Path(f"/proc/{pid}").exists() else None


def new(run_dir: Path) -> Path:
    """The run directory, without an earlier run."""
    shutil.rmtree(run_dir, ignore_errors=True)
    return run_dir


def wait_for(process: subprocess.Popen, folders: Sequence[Path], condition: Callable[[list[int]], bool]) -> None:
    while process.poll() is None and not condition(generations_of(folders)):
        time.sleep(0.1)


def rates_of(processes: Sequence[subprocess.Popen], folders: Sequence[Path], seconds: float) -> list[float]:
    """Generations per second of each run over `seconds`, after three of each; then end the processes by Ctrl-C."""
    for process in processes:
        wait_for(process, folders, lambda found: min(found) >= 3)
    before, started = generations_of(folders), time.monotonic()
    time.sleep(seconds)
    after, passed = generations_of(folders), time.monotonic() - started
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        process.wait()
    return [(b - a) / passed for a, b in zip(before, after, strict=True)]


def exchange(runs: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of an exchange, publication and loading included, of all islands in this process."""
    from rookery.cli import app

    seconds: list[float] = []
    call = island.Island.__call__

    def timed(self: island.Island, generation: int, state: Any) -> Any:
        started = time.perf_counter()
        result = jax.block_until_ready(call(self, generation, state))
        seconds.append(time.perf_counter() - started)
        return result

    island.Island.__call__ = timed  # pyright: ignore[reportAttributeAccessIssue]
    generations = 6 if options.quick else 40
    flags = f"--population 16 --islands {ISLANDS} --migrate-every 1 --generations {generations}".split()
    sys.argv = ["rookery", "train", "pbt-sac", "--run-dir", str(new(runs / "exchange")), *flags, *TINY.split()]
    app.main()
    kept = np.array(seconds[2 * ISLANDS :])  # the first ones compile the loading of members
    sizes = [path.stat().st_size for path in (runs / "exchange/publications").iterdir()]
    return {
        "exchanges": len(kept),
        "median_seconds": float(np.median(kept)),
        "greatest_seconds": float(kept.max()),
        "share_at_one_a_minute": float(kept.mean() / MINUTE),
        "publication_bytes": int(np.median(sizes)),
    }


def throughput(runs: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Generations per second of two islands, and of two separate runs with as many members at the same time."""
    seconds = 10.0 if options.quick else 120.0
    found: dict[str, list[float]] = {"two runs": [], "two islands": []}
    for number in range(options.rounds):
        folders = [new(runs / f"throughput-{number}-{seed}") for seed in range(2)]
        flags = f"--population 4 --generations 100000 {TINY}".split()
        processes = [train(folder, *flags, "--seed", str(seed)) for seed, folder in enumerate(folders)]
        found["two runs"].append(sum(rates_of(processes, folders, seconds)))
        run_dir = new(runs / f"throughput-{number}")
        flags = f"--population 8 --islands 2 --generations 100000 --ray-address local {TINY}".split()
        process = train(run_dir, *flags)
        found["two islands"].append(sum(rates_of([process], islands_in(run_dir, 2), seconds)))
    ratios = [islands / alone for alone, islands in zip(*found.values(), strict=True)]
    return {"generations_per_second": found, "ratios": ratios, "median_ratio": float(np.median(ratios))}


def straggler(runs: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Generations per second of islands 1 to 3, alone and while island 0 is stopped for 4 of 5 tenths of a second."""
    seconds = 10.0 if options.quick else 120.0
    rates: dict[str, list[float]] = {}
    for name, slowed in (("alone", False), ("beside a straggler", True)):
        run_dir, stop = new(runs / f"straggler-{int(slowed)}"), threading.Event()
        flags = f"--population 8 --islands {ISLANDS} --migrate-every 5 --generations 100000".split()
        process = train(run_dir, *flags, *TINY.split(), "--ray-address", "local")
        wait_for(process, islands_in(run_dir), lambda found: min(found) >= 3)
        throttle = threading.Thread(target=_slow, args=(pid_of(islands_in(run_dir)[0]), stop), daemon=True)
        if slowed:
            throttle.start()
        rates[name] = rates_of([process], islands_in(run_dir), seconds)
        stop.set()
    others = {name: float(np.mean(values[1:])) for name, values in rates.items()}
    return {"generations_per_second": rates, "ratio_of_the_others": others["beside a straggler"] / others["alone"]}


def _slow(pid: int | None, stop: threading.Event) -> None:
    """Stop a process for four fifths of the time."""
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):  # its run has ended
        while not stop.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.1)


def kills(runs: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Kill a random island at random moments; no island may lose a generation, and all reach the end."""
    count, generations, chance = (2, 60, random.Random(0)) if options.quick else (10, 400, random.Random(0))
    run_dir = new(runs / "kills")
    flags = f"--population 8 --islands {ISLANDS} --migrate-every 5 --generations {generations}".split()
    process = train(run_dir, *flags, *TINY.split(), "--ray-address", "local")
    killed = []
    for number in range(count):
        wanted = generations * (number + chance.random()) / (count + 1)
        wait_for(process, islands_in(run_dir), lambda found, wanted=wanted: max(found) >= wanted)
        running = {pid: number for number, path in enumerate(islands_in(run_dir)) if (pid := pid_of(path))}
        if running and process.poll() is None:
            pid = chance.choice(sorted(running))
            victim = running[pid]
            killed.append((victim, generations_of(islands_in(run_dir))))
            os.kill(pid, signal.SIGKILL)
    finished(process)
    tables = [read_csv(path / "metrics.csv")["generation"].tolist() for path in islands_of(run_dir)]
    started = [(path / "journal.jsonl").read_text().count('"began"') for path in islands_of(run_dir)]
    return {
        "killed": killed,
        "complete": [table == list(range(generations)) for table in tables],
        "starts": started,
        "imports": sum(len(e.imports) for path in islands_of(run_dir) for e in read_exchanges(path / "imports.jsonl")),
    }


def learning(runs: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The best fitness at equal environment steps of 4 islands of 4, and of one population of 16.

    At the end, and as the mean over all generations, which is higher the sooner a population learns.
    """
    seeds, generations = (2, 6) if options.quick else (5, 300)
    contenders = {"one population of 16": [], "4 islands of 4": ["--islands", str(ISLANDS), "--migrate-every", "10"]}
    curves: dict[str, list[np.ndarray]] = {name: [] for name in contenders}
    for name, flags in contenders.items():
        for seed in range(seeds):
            run_dir = runs / f"learning-{len(flags)}-{seed}"
            settings = f"--population 16 --seed {seed} --generations {generations}".split()
            finished(train(run_dir, *settings, *flags, *TINY.split()))
            tables = [read_csv(path / "metrics.csv")["best_fitness"] for path in islands_of(run_dir) or [run_dir]]
            curves[name].append(np.max(tables, axis=0))
    scores = {
        "at the end": {name: [float(curve[-1]) for curve in found] for name, found in curves.items()},
        "mean over the generations": {name: [float(curve.mean()) for curve in found] for name, found in curves.items()},
    }
    return {measure: {"scores": found, **compared(found)} for measure, found in scores.items()}


def compared(scores: Mapping[str, list[float]]) -> dict[str, Any]:
    """Interquartile means, and the probability that a run with islands is better than one without; with intervals."""
    one, islands = scores.values()
    better = estimate(probability_of_improvement, islands, one)
    means = {name: floats(over_runs(values)) for name, values in scores.items()}
    return {"interquartile_mean": means, "islands_are_better": floats(better)}


def floats(found: NamedTuple) -> dict[str, float]:
    """An estimate as numbers that can be written."""
    return {name: float(value) for name, value in found._asdict().items()}


def arithmetic(islands: int = 64, members: int = 256, cells: int = 1024, fraction: float = 0.25) -> None:
    """Bytes and operations of a store at one exchange a minute: SAC with two layers of 256 on walker2d."""
    env = rookery.make("walker2d_uni")
    learner = rookery.off_policy(rookery.sac(env.spec), env)
    key = jax.random.key(0)
    bank = jax.eval_shape(learner.start_states, key)
    hyper = rookery.hyperparams.defaults(learner.space)
    member = jax.eval_shape(lambda key, bank: learner.init(key, hyper, bank), key, bank)
    shapes = rookery.genotype(member)
    for what, count in (
        ("the best member", 1),
        (f"{fraction:.0%} of {cells} elites", round(fraction * cells)),
        ("1 % of them", 10),
    ):
        genotypes = jax.tree.map(lambda leaf, count=count: np.zeros((count, *leaf.shape), leaf.dtype), shapes)
        published = Published(genotypes, np.zeros(count, np.float32), np.zeros((count, 2), np.float32))
        size = len(encode(Publication(Header(0, 1, 1, 0.0, {}), arrays_of(published))))
        readers = min(islands - 1, round(fraction * members)) if count == 1 else islands - 1
        written, read = islands * size, islands * readers * size
        print(
            f"{what}: {size:,} bytes; written {written / MINUTE / 1e6:,.2f} MB/s, read at most "
            f"{read / MINUTE / 1e6:,.1f} MB/s; {islands * 5 / MINUTE:.1f} writing and "
            f"{islands * (islands + readers) / MINUTE:.0f} reading operations/s; "
            f"{islands * 24 * 60:,} files and {written * 24 * 60 / 1e9:,.0f} GB a day"
        )


PARTS = {"exchange": exchange, "throughput": throughput, "straggler": straggler, "kills": kills, "learning": learning}


def main() -> None:
    made = harness.parser(__doc__, rounds=3)
    made.add_argument("parts", nargs="+", choices=[*PARTS, "arithmetic"])
    made.add_argument("--runs", default="/tmp/rookery-islands", help="folder of the runs (%(default)s)")
    options = harness.parse(made)
    if "arithmetic" in options.parts:
        arithmetic()
    load, runs = harness.load(), Path(options.runs)
    runs.mkdir(parents=True, exist_ok=True)
    for name in [name for name in options.parts if name in PARTS and not (runs / f"{name}.json").exists()]:
        (runs / f"{name}.json").write_text(json.dumps(PARTS[name](runs, options), indent=1))
    found = {name: runs / f"{name}.json" for name in PARTS}
    rows = [{"part": name, **json.loads(path.read_text())} for name, path in found.items() if path.exists()]
    if rows:
        harness.report("islands", options, rows, load)


if __name__ == "__main__":
    main()
