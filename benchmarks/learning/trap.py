"""Escape from a trap: PBT, which selects by fitness, against ME-PBT, which evolves a repertoire.

    python -m benchmarks.learning.trap --agents td3 sac --runs runs/trap --picture docs/evidence/trap.png

`PBT` and `ME-PBT` train the same number of members with the same training configuration on `point_trap`; `ME-PBT` also
evaluates 30 variations of its elites. Environment steps include training and evaluation; PBT gets more generations to
compensate. PBT has no repertoire, so its evaluated members are added to a passive one for comparison. At the end the
elites of both are evaluated again on new start states, so that the scores have no selection bias. Existing runs are not
repeated, so the benchmark can be stopped and continued.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from rookery.qd import repertoire as repertoires
from rookery.qd.scoring import worst_return
from rookery.report import statistics
from rookery.report.figures import style

ENV = rookery.make("point_trap")
P, VARIATIONS, GRID = 10, 30, (16, 16)
GENERATIONS = {"PBT": 150, "ME-PBT": 100}  # of about 12 and 18 thousand steps
AGENTS = {"sac": (rookery.sac, rookery.agents.SacConfig), "td3": (rookery.td3, rookery.agents.Td3Config)}
LEARNER_CONFIG = rookery.learners.OffPolicyConfig(
    num_envs=10, steps_per_generation=1_000, batch_size=64, buffer_size=150_000, warmup_steps=200, eval_episodes=1
)
FRESH = 32  # episodes of the final evaluation of an elite
ESCAPED = -150.0
"""A return that cannot be reached inside the trap: moving straight to its end wall and staying there, 0.75 from the
goal, returns -156 (-155 from the best start state). Escaping returns about -45."""
PANELS = {"max_fitness": "best return", "coverage": "coverage, % of the cells", "qd_score": "QD score"}


def main() -> None:
    made = harness.learning_parser(__doc__)
    made.add_argument("--agents", nargs="+", default=list(AGENTS))
    made.add_argument("--contenders", nargs="+", default=list(GENERATIONS), choices=list(GENERATIONS))
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    made.add_argument("--runs", default="runs/trap")
    options = harness.parse(made)
    jax.config.update("jax_compilation_cache_dir", f"{options.runs}/cache")
    for seed in [] if options.only_report else options.seeds:
        for agent in options.agents:
            for contender in options.contenders:
                path = Path(options.runs) / f"{contender.lower()}-{agent}-{seed}.json"
                if not path.exists():
                    row = train(agent, contender, seed)
                    path.write_text(json.dumps(row) + "\n")
                    print(agent, contender, seed, {name: row[name][-1] for name in PANELS}, flush=True)
    report(options)


def train(agent: str, contender: str, seed: int) -> dict[str, Any]:
    """Train one run; return its curves and its scores on new start states."""
    program = build_program(agent, contender, LEARNER_CONFIG)
    result = rookery.run(program, seed=seed, generations=GENERATIONS[contender], quiet=True)
    steps = np.cumsum([program.steps_per_generation + evaluation_steps(metrics) for metrics in result.history])
    curves = passive(result.history) if contender == "PBT" else result.history
    row: dict[str, Any] = {"agent": agent, "contender": contender, "seed": seed, "env_steps": steps.tolist()}
    row |= {name: [float(metrics[name]) for metrics in curves] for name in PANELS}
    evaluator = build_program(agent, contender, dataclasses.replace(LEARNER_CONFIG, eval_episodes=FRESH))
    fresh = jax.jit(evaluator.evaluate)(result.state, jax.random.key(10_000 + seed))
    row["fresh_best"] = float(np.nanmax(fresh["fitness"]))
    return row | {name: float(value) for name, value in fresh.items() if name.startswith("corrected/")}


def build_program(agent: str, contender: str, learner_config: rookery.learners.OffPolicyConfig) -> Any:
    """Program of a contender."""
    make, config = AGENTS[agent]
    learner = rookery.off_policy(make(ENV.spec, config(hidden_sizes=(64, 64))), ENV, learner_config)
    if contender == "PBT":
        return rookery.pbt(learner, population_size=P)
    return rookery.me_pbt(learner, cells(), population_size=P, ga_population=VARIATIONS)


def cells() -> jax.Array:
    """The repertoire's cells."""
    assert ENV.spec.descriptor is not None
    return rookery.qd.grid(GRID, ENV.spec.descriptor.lower, ENV.spec.descriptor.upper)


def evaluation_steps(metrics: dict[str, np.ndarray]) -> float:
    """Environment steps of a generation's evaluations."""
    if "evaluation_steps" in metrics:
        return float(metrics["evaluation_steps"])
    return float(metrics["episode_length"].sum()) * LEARNER_CONFIG.eval_episodes


def passive(history: list[dict[str, np.ndarray]]) -> list[dict[str, Any]]:
    """Metrics of a passive repertoire of all evaluated members, which does not affect the training."""
    kept = repertoires.empty((), cells())
    curves = []
    for metrics in history:
        descriptor = jnp.stack([metrics["descriptor/0"], metrics["descriptor/1"]], axis=1)
        kept, _ = repertoires.add(kept, (), jnp.asarray(metrics["fitness"]), descriptor)
        curves.append(repertoires.metrics(kept, worst_return(ENV.spec)))
    return curves


def report(options: argparse.Namespace) -> None:
    """Report the table: interquartile means with confidence intervals, and the number of seeds that escaped."""
    rows = [json.loads(path.read_text()) for path in sorted(Path(options.runs).glob("*.json"))]
    lines = []
    for agent in options.agents:
        for contender in GENERATIONS:
            mine = [row for row in rows if (row["agent"], row["contender"]) == (agent, contender)]
            if mine:
                lines.append(summary(agent, contender, mine))
    harness.report("learning_trap", options, lines, harness.load())
    if options.picture:
        draw(rows, options)


def summary(agent: str, contender: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table."""
    line: dict[str, Any] = {"agent": agent, "contender": contender, "runs": len(rows)}
    line["steps"] = min(row["env_steps"][-1] for row in rows)
    line["out"] = sum(row["fresh_best"] > ESCAPED for row in rows)
    for name in ("max_fitness", "coverage", "qd_score"):
        values = np.array([row[name][-1] for row in rows])
        middle = statistics.estimate(statistics.interquartile_mean, values)
        line |= {name: middle.value, f"{name} low": middle.low, f"{name} high": middle.high}
    line["fresh_best"] = [round(row["fresh_best"], 1) for row in rows]
    return line


def draw(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Curves of all seeds over environment steps: a thin line each, their mean thick; one row of panels per agent."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1 * len(options.agents)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(options.agents), len(PANELS), squeeze=False)
    for agent, line in zip(options.agents, panels, strict=True):
        for (name, label), axes in zip(PANELS.items(), line, strict=True):
            for colour, contender in enumerate(GENERATIONS):
                mine = [row for row in rows if (row["agent"], row["contender"]) == (agent, contender)]
                draw_contender(axes, mine, name, style.PALETTE[colour], contender)
            if name == "max_fitness":
                axes.axhline(ESCAPED, color=style.QUIET, linewidth=1.0, linestyle="--")
                note = {"ha": "right", "va": "bottom", "fontsize": 8, "transform": axes.get_yaxis_transform()}
                axes.text(0.94, ESCAPED, "highest return inside the trap", **note)
                axes.set_ylabel(agent.upper(), color=style.INK)
            axes.set_title(label, fontsize=10, color=style.INK, loc="left")
            axes.set_xlabel("million environment steps, including evaluation", fontsize=8)
            style.tidy(axes)
    panels[0][1].legend(frameon=False, loc="upper left", fontsize=9)
    figure.savefig(options.picture, dpi=130)


def draw_contender(axes: Any, rows: list[dict[str, Any]], name: str, colour: str, label: str) -> None:
    if not rows:
        return
    rows = [{**row, "env_steps": np.asarray(row["env_steps"]) / 1e6} for row in rows]
    for row in rows:
        axes.plot(row["env_steps"], row[name], color=colour, linewidth=0.7, alpha=0.5)
    grid = np.linspace(max(r["env_steps"][0] for r in rows), min(r["env_steps"][-1] for r in rows), 200)
    mean = np.mean([np.interp(grid, row["env_steps"], row[name]) for row in rows], axis=0)
    axes.plot(grid, mean, color=colour, linewidth=2.2, label=f"{label} ({len(rows)} seeds)")


if __name__ == "__main__":
    main()
