"""Size of the report page of a large run, and the time to write and to open it.

    python -m benchmarks.report [--quick] [--rounds 5] [--keep FOLDER]

The run is synthetic: 1,000 generations of 64 members with a repertoire of 1,024 cells, of which four fifths are
occupied, a checkpoint every 5 generations, and 32 episodes of 250 frames of a robot with 9 bodies. It is written by the
same functions as a real run. The page is opened in Chromium if playwright and Chromium are installed: `opened_s` is the
time until its header and sections are shown, `drawn_s` the time until every figure has been scrolled to and drawn.
"""

import dataclasses
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from rookery.experiments.config_io import to_record
from rookery.experiments.kinds import configure
from rookery.report.page import write_report
from rookery.storage import csv_log, run_dir
from rookery.storage.played import FORMAT, Episodes, write_episodes
from rookery.storage.record import DESCRIPTOR

SAVED_EVERY = 5  # generations
HYPER = ("policy_lr", "critic_lr", "alpha_lr", "discount", "tau", "reward_scale", "target_entropy", "noise")
FOUND = 0.8  # share of occupied cells
SIDE = 1280, 900  # pixels of the browser's window


def write_run(path: Path, generations: int, population: int, cells: int, episodes: int = 32) -> Path:
    """Write a run directory like that of `rookery train me-pbt-sac`, without checkpoints and events.

    Args:
      path: path of the new directory.
      generations: number of generations, at least 1.
      population: number of members, at least 4.
      cells: number of cells of the repertoire, at least 4.
      episodes: number of recorded episodes; 0 for none.
    """
    random = np.random.default_rng(0)
    config = configure("me-pbt-sac", population=population)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, generations=generations))
    limits = {
        "meaning": "share of steps with a foot on the ground (left, right)",
        "lower": [0.0] * 2,
        "upper": [1.0] * 2,
    }
    run = run_dir.create(path, to_record(config) | {DESCRIPTOR: {**limits, "kind": "mean"}})
    best = _write_members(run, random, generations, population)
    coverage = _write_cells(run, random, generations, population, cells)
    _write_metrics(run, generations, population, {"coverage": coverage, "max_fitness": best, "qd_score": 50 * coverage})
    run.journal_file.write_text("".join(json.dumps(event) + "\n" for event in _journal(generations)))
    run.release()
    if episodes:
        write_episodes(path, _robots(random, episodes))
    return path


def _write_members(
    run: run_dir.RunFolder, random: np.random.Generator, generations: int, population: int
) -> np.ndarray:
    """Write the lineage of truncation selection of the best quarter; return the best fitness `[G]`."""
    replaced = population // 4
    parents = np.tile(np.arange(population), (generations, 1))
    fitness = np.empty((generations, population), np.float32)
    hyper = np.empty((len(HYPER), generations, population), np.float32)
    now = 10 ** random.uniform(-5, -2, (len(HYPER), population))
    for generation in range(generations):
        if generation:
            order = np.argsort(fitness[generation - 1])
            parents[generation, order[:replaced]] = random.permutation(order[-replaced:])
            now = now[:, parents[generation]]
            now[:, order[:replaced]] *= random.choice([0.8, 1.25], (len(HYPER), replaced))
        hyper[:, generation] = now
        fitness[generation] = random.normal(3000 * (1 - np.exp(-3 * generation / generations)), 200, population)
    columns = {
        "generation": np.repeat(np.arange(generations), population),
        "member": np.tile(np.arange(population), generations),
        "parent": parents.ravel(),
        "fitness": fitness.ravel(),
    }
    csv_log.write_table(
        run.lineage_file, columns | {name: values.ravel() for name, values in zip(HYPER, hyper, strict=True)}
    )
    return np.maximum.accumulate(fitness.max(axis=1))


def _write_cells(
    run: run_dir.RunFolder, random: np.random.Generator, generations: int, population: int, cells: int
) -> np.ndarray:
    """Write new and improved elites, which become rarer over time; return the coverage in % `[G]`."""
    reachable = random.permutation(cells)[: int(FOUND * cells)]
    elite_fitness, saved_fitness = np.full(cells, -np.inf), np.full(cells, -np.inf)
    rows: dict[str, list[np.ndarray]] = {"generation": [], "cell": [], "fitness": []}
    coverage = np.empty(generations)
    for generation in range(generations):
        tried = random.choice(reachable, population + 30)
        np.maximum.at(
            elite_fitness, tried, random.normal(3000 * (1 - np.exp(-3 * generation / generations)), 400, len(tried))
        )
        coverage[generation] = 100 * np.isfinite(elite_fitness).mean()
        if (generation + 1) % SAVED_EVERY == 0 or generation + 1 == generations:
            changed = np.flatnonzero(elite_fitness != saved_fitness)
            rows["generation"].append(np.full(len(changed), generation))
            rows["cell"].append(changed)
            rows["fitness"].append(elite_fitness[changed].astype(np.float32))
            saved_fitness = elite_fitness.copy()
    csv_log.write_table(run.cells_file, {name: np.concatenate(parts) for name, parts in rows.items()})
    centroids = random.uniform(0, 1, (cells, 2)).astype(np.float32)
    descriptors = np.where(np.isfinite(elite_fitness)[:, None], centroids + random.normal(0, 0.005, (cells, 2)), np.nan)
    table = {"cell": np.arange(cells), "fitness": elite_fitness.astype(np.float32)}
    for name, values in (("descriptor", descriptors.astype(np.float32)), ("centroid", centroids)):
        table |= {f"{name}/{axis}": values[:, axis] for axis in range(2)}
    csv_log.write_table(run.repertoire_file, table)
    return coverage


def _write_metrics(run: run_dir.RunFolder, generations: int, population: int, more: dict[str, np.ndarray]) -> None:
    steps = 1_000 * population
    columns = {
        "generation": np.arange(generations),
        "env_steps": steps * np.arange(1, generations + 1),
        "best_fitness": more["max_fitness"],
        "median_fitness": more["max_fitness"] - 400,
        "worst_fitness": more["max_fitness"] - 900,
        "diverged": np.zeros(generations),
        **more,
        **{name: np.geomspace(1, 0.01, generations) for name in ("critic_loss", "policy_loss", "entropy", "alpha")},
        "seconds": np.full(generations, 4.0),
        "steps_per_second": np.full(generations, steps / 4),
        "seconds_tables": np.full(generations, 0.02),
        "seconds_checkpoint": np.full(generations, 0.1),
    }
    csv_log.write_table(run.metrics_file, columns)


def _journal(generations: int) -> list[dict[str, Any]]:
    hardware = {"devices": "1 cpu device", "kind": "cpu", "cpu": "made up", "cores": 2, "memory": 2**33}
    start_event = {"command": ["rookery", "train", "me-pbt-sac"], "versions": {"rookery": "0"}, "hardware": hardware}
    end = {"generation": generations, "why": "finished", "memory": {"planned": 2**28, "peak": 2**29, "used": None}}
    return [
        {"event": "began", "at": "2026-01-01T00:00:00+00:00", "generation": 0, **start_event},
        {"event": "compiled", "seconds": 20.0},
        {"event": "ended", "at": "2026-01-01T01:10:00+00:00", **end},
    ]


def _robots(random: np.random.Generator, episodes: int, frames: int = 250, bodies: int = 9) -> Episodes:
    """Episodes of moving robots with smooth random paths, which compress as badly as those of real robots."""
    turn = np.cumsum(random.normal(0, 0.1, (episodes, frames, bodies, 4)), axis=1)
    turn += np.array([1.0, 0.0, 0.0, 0.0])
    arrays = {
        "step": np.tile(4 * np.arange(frames, dtype=np.int32), (episodes, 1)),
        "frames": np.full(episodes, frames, np.int32),
        "reward": np.cumsum(random.uniform(0, 2, (episodes, frames, 1)), axis=1).astype(np.float32),
        "position": np.cumsum(random.normal(0.02, 0.02, (episodes, frames, bodies, 3)), axis=1).astype(np.float32),
        "rotation": (turn / np.linalg.norm(turn, axis=-1, keepdims=True)).astype(np.float32),
    }
    solid = {"kind": "capsule", "size": [0.05, 0.2], "position": [0, 0, 0], "rotation": [1, 0, 0, 0]}
    shapes = [{"link": link, **solid, "colour": None, "role": "body"} for link in range(bodies)]
    episode_records = [
        {
            "label": f"cell {cell}",
            "cell": cell,
            "steps": 4 * frames,
            "ended": "cut by the clock",
            "returns": {"return": 1.0},
        }
        for cell in range(episodes)
    ]
    header = {"format": FORMAT, "generation": 1, "seed": 0, "task": "made up", "kind": "bodies", "names": ["return"]}
    return Episodes({**header, "seconds_per_step": 0.05, "shapes": shapes, "episodes": episode_records}, arrays)


def open_page(page: Path) -> dict[str, float]:
    """Seconds until a page is open, and until all of its figures are drawn; {} if no browser is installed."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        return {}
    flags = [
        "--no-sandbox",
        "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader",
    ]  # works as root and without a GPU
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=flags)
        tab = browser.new_page(viewport={"width": SIDE[0], "height": SIDE[1]})
        failures: list[str] = []
        tab.on("pageerror", lambda error: failures.append(str(error)))
        started = time.perf_counter()
        tab.goto(page.absolute().as_uri())
        tab.wait_for_selector("#page[data-ready]")
        opened = time.perf_counter() - started
        for picture in tab.query_selector_all(".chart, canvas.lineage"):
            picture.scroll_into_view_if_needed()
            tab.wait_for_function("picture => picture.dataset.drawn", arg=picture)
        drawn = time.perf_counter() - started
        browser.close()
    if failures:
        raise RuntimeError(f"the page failed: {failures[0]}")
    return {"opened_s": opened, "drawn_s": drawn}


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--keep", help="new folder to copy the run and its page to")
    options = harness.parse(made)
    started_load = harness.load()
    sizes = {"generations": 20, "population": 8, "cells": 64} if options.quick else {}
    sizes = sizes or {"generations": 1_000, "population": 64, "cells": 1_024}
    place = Path(tempfile.mkdtemp(dir=harness.ROOT / "benchmarks"))
    try:
        run = write_run(place / "run", **sizes)
        seconds, opened = [], []
        for _ in range(options.rounds):
            started = time.perf_counter()
            page = write_report([run])
            seconds.append(time.perf_counter() - started)
            opened.append(open_page(page))
        row: dict[str, float] = {**sizes, "episodes": 32, "written_s": harness.Times(tuple(seconds)).median}
        row["page_mb"] = page.stat().st_size / 1e6
        for name in opened[0]:
            row[name] = harness.Times(tuple(times[name] for times in opened)).median
        if options.keep:
            shutil.copytree(run, options.keep)
        harness.report("report", options, [row | {"seconds": seconds, "opened": opened}], started_load)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
