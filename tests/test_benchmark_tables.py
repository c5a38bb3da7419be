"""Recorded tables of learning benchmarks: their estimates follow from their scores, by the programs that made them."""

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.report import statistics

Row = dict[str, Any]
RESULTS = Path(__file__).parents[1] / "benchmarks/results"


def cartpole(program: Any, rows: list[Row]) -> Iterator[Row]:
    return (program.line(row["steps"], np.array(row["returns"])) for row in rows)


def gymnasium(program: Any, rows: list[Row]) -> Iterator[Row]:
    kept = [
        {**row, **curve, "seed": seed, "seconds": row["seconds of all"]}
        for row in rows
        for seed, curve in row["curves"].items()
    ]
    for row in rows:
        case = row["agent"], row["task"]
        scores = {name: program.final(kept, name, *case) for name in ("rookery", "sbx")}
        made = program.line(kept, row["contender"], *case, scores, "sbx")
        yield {name: made[name] for name in made if name not in ("curves", "seconds of all")}


def population(program: Any, rows: list[Row]) -> Iterator[Row]:
    for row in rows:
        case = row["agent"], row["env"]
        scores = {r["contender"]: np.array(r["scores"]) for r in rows if (r["agent"], r["env"]) == case}
        yield program.summary(*case, row["contender"], scores)


def pursuit(program: Any, rows: list[Row]) -> Iterator[Row]:
    return (
        program.line(row["regime"], row["when"], np.array(row["returns"]), np.array(row["share caught"]))
        for row in rows
    )


def qd(program: Any, rows: list[Row]) -> Iterator[Row]:
    kept = [
        {"task": row["task"], "contender": row["contender"], "evaluations": [row["evaluations"]]}
        | {"environment steps of learning": row["steps"]}
        | {name: [row[f"recorded {name} of all"][place]] for name in program.SCORES}
        | {f"fresh_{name}": row[f"{name} of all"][place] for name in program.SCORES}
        for row in rows
        for place in range(row["runs"])
    ]
    return iter(program.table(kept))


def ratings(program: Any, rows: list[Row]) -> Iterator[Row]:
    scores = {row["selection by"]: np.array(row["ratings"]) for row in rows}
    return (program.summary(name, scores) for name in scores)


def skills(program: Any, rows: list[Row]) -> Iterator[Row]:
    for row in rows:
        samples = np.array_split(row["values"], len(row["values"]) // row["runs"])
        statistic = [statistics.interquartile_mean, statistics.probability_of_improvement][len(samples) - 1]
        yield program.line(row["experiment"], row["contender"], row["measure"], statistic, *samples)


def teams(program: Any, rows: list[Row]) -> Iterator[Row]:
    return (program.line(row["experiment"], row["contender"], row["measure"], *row["values"]) for row in rows)


def walker(program: Any, rows: list[Row]) -> Iterator[Row]:
    for row in rows:
        names = [name.removesuffix(" of seeds") for name in row if name.endswith(" of seeds")]
        kept = [{name: row[f"{name} of seeds"][place] for name in names} for place in range(row["runs"])]
        kept[0]["coverage"] = [kept[0]["coverage"]] * row["generations"]
        yield program.summary(row["contender"], kept)


@pytest.mark.parametrize(
    ("table", "result"),
    [
        (cartpole, "cartpole-2026-11-21"),
        (cartpole, "cartpole_pqn-2026-11-29"),
        (gymnasium, "gymnasium-2026-11-26"),
        (population, "population-2026-11-20"),
        (pursuit, "pursuit_continuous-2026-11-21"),
        (qd, "qd-2026-11-28"),
        (ratings, "ratings-simple_tag-2026-11-27"),
        (skills, "skills-2026-11-20"),
        (teams, "teams-2026-11-21"),
        (walker, "walker-2026-11-20"),
    ],
)
def test_estimates_of_a_recorded_table_follow_from_its_scores(table: Callable[..., Iterator[Row]], result: str) -> None:
    rows = json.loads((RESULTS / f"learning_{result}.json").read_text())["rows"]
    made = list(table(import_module(f"benchmarks.learning.{table.__name__}"), rows))
    assert len(made) == len(rows)
    for row, again in zip(rows, json.loads(json.dumps(made)), strict=True):
        for name, value in again.items():
            if isinstance(value, float):
                assert value == pytest.approx(row[name], rel=1e-9, nan_ok=True), name
            else:
                assert (name, value) == (name, row[name])
