"""Repertoires of walkers for equal environment steps: Rookery's ME-PBT against QDax's.

    python -m benchmarks.learning.walker --contenders rookery qdax --runs runs/walker --picture docs/evidence/walker.png

The reference setting of ME-PBT scaled to two cores: 10 members with 25 environments each, 40 steps of each environment
per generation, one update per environment step, 30 variations, 128 cells, one episode per evaluation, networks
(64, 64), batch size 64.

QDax's foot contacts are NaN for every policy that falls, so that all these policies share cell 0. `qdax` therefore is
QDax with Rookery's descriptor in its evaluation; `qdax-own` is unmodified QDax. In addition to the scores of each
library, Rookery evaluates the policies of all final repertoires again, over new episodes and with the same cells.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import rookery
from benchmarks import harness, peers_me_pbt
from benchmarks.learning.qd import SCORES
from benchmarks.qdax_me_pbt import Settings
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.qd import repertoire as repertoires
from rookery.qd.scoring import worst_return
from rookery.report import statistics
from rookery.report.figures import style

SETTINGS = Settings(iterations=40, descriptor="ours")
CONTENDERS = {"rookery": SETTINGS, "qdax": SETTINGS, "qdax-own": SETTINGS._replace(descriptor="own")}
ENV = rookery.make(SETTINGS.task, episode_length=SETTINGS.episode_length)
FRESH = 8  # episodes of the final evaluation of a policy


def main() -> None:
    made = harness.learning_parser(__doc__)
    made.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    made.add_argument("--generations", type=int, default=60)
    made.add_argument("--runs", default="runs/walker")
    options = harness.parse(made)
    jax.config.update("jax_compilation_cache_dir", f"{options.runs}/cache")
    for seed in [] if options.only_report else options.seeds:
        for contender in options.contenders:
            path = Path(options.runs) / f"{contender}-{seed}.json"
            if not path.exists():
                train = rookery_run if contender == "rookery" else qdax_run
                row = {"contender": contender, "seed": seed, **train(CONTENDERS[contender], seed, options.generations)}
                path.write_text(json.dumps(row) + "\n")
                print(contender, seed, {name: row[f"fresh_{name}"] for name in SCORES}, flush=True)
    report(options)


def rookery_run(settings: Settings, seed: int, generations: int) -> dict[str, Any]:
    """Rookery's curves, and the final evaluation of its repertoire."""
    result = rookery.run(program(settings, 1), seed=seed, generations=generations, quiet=True)
    curves = {name: [float(metrics[name]) for metrics in result.history] for name in SCORES}
    evaluated = jax.jit(program(settings, FRESH).evaluate)(result.state, jax.random.key(10_000 + seed))
    fresh = score(settings, evaluated["fitness"], evaluated["descriptor"])
    return {**curves, **fresh, "occupied": int(np.isfinite(evaluated["stored_fitness"]).sum())}


def program(settings: Settings, episodes: int, placement: Placement = ONE_DEVICE) -> rookery.Program:
    """Rookery's ME-PBT with QDax's settings."""
    env = rookery.make(settings.task, episode_length=settings.episode_length)
    agent = rookery.sac(env.spec, rookery.agents.SacConfig(settings.hidden_sizes))
    learner_config = rookery.learners.OffPolicyConfig(
        num_envs=settings.num_envs,
        steps_per_generation=settings.num_envs * settings.iterations,
        updates_per_step=settings.updates_per_step,
        batch_size=settings.batch_size,
        buffer_size=settings.buffer_size,
        warmup_steps=0,
        eval_episodes=episodes,
    )
    learner = rookery.off_policy(agent, env, learner_config)
    sizes = {"population_size": settings.pg_population, "ga_population": settings.ga_population}
    return rookery.me_pbt(learner, cells(settings), **sizes, placement=placement)


def cells(settings: Settings) -> jax.Array:
    """Centroids of Rookery's repertoire, and of the final evaluation of all contenders."""
    assert ENV.spec.descriptor is not None
    return rookery.experiments.cvt(settings.cells, ENV.spec.descriptor.lower, ENV.spec.descriptor.upper, settings.draws)


def score(settings: Settings, fitness: npt.ArrayLike, descriptor: npt.ArrayLike) -> dict[str, float]:
    """Scores of policies in an empty repertoire, of fitness `[C]`, not finite for none, and descriptors `[C, D]`."""
    empty = repertoires.empty((), cells(settings))
    filled, _ = repertoires.add(empty, (), jnp.asarray(fitness, jnp.float32), jnp.asarray(descriptor, jnp.float32))
    found = repertoires.metrics(filled, worst_return(ENV.spec))
    return {f"fresh_{name}": float(found[name]) for name in SCORES}


def qdax_run(settings: Settings, seed: int, generations: int) -> dict[str, Any]:
    """QDax's curves by its evaluation, and the final evaluation of its repertoire by Rookery."""
    rows, elites = peers_me_pbt.learn(settings, seed, generations, settings.offset)
    names = {"coverage": "coverage_percent", "qd_score": "qd_score", "max_fitness": "max_fitness"}
    curves = {name: [float(row[theirs]) for row in rows[1:]] for name, theirs in names.items()}
    fitness, descriptor = peers_me_pbt.reevaluate(settings, elites, FRESH, 10_000 + seed)
    return {
        **curves,
        **score(settings, fitness, descriptor),
        "occupied": rows[-1]["cells"],
        "invalid": rows[-1]["invalid"],
    }


def report(options: argparse.Namespace) -> None:
    """Report the table: interquartile means with confidence intervals, of the runs and of the final evaluation."""
    rows = [json.loads(path.read_text()) for path in sorted(Path(options.runs).glob("*.json"))]
    lines = []
    for contender in CONTENDERS:
        mine = [row for row in rows if row["contender"] == contender]
        if mine:
            lines.append(summary(contender, mine))
    harness.report("learning_walker", options, lines, harness.load())
    if options.picture:
        draw(rows, options.picture)


def summary(contender: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table."""
    generations = len(rows[0]["coverage"])
    line: dict[str, Any] = {"contender": contender, "runs": len(rows), "generations": generations}
    for name in (*SCORES, *(f"fresh_{name}" for name in SCORES)):
        values = np.array([row[name][-1] if isinstance(row[name], list) else row[name] for row in rows])
        middle = statistics.estimate(statistics.interquartile_mean, values)
        line |= {name: middle.value, f"{name} interval": f"{middle.low:.6g} to {middle.high:.6g}"}
        line[f"{name} of seeds"] = values.tolist()
    return line


def draw(rows: list[dict[str, Any]], picture: str) -> None:
    """Plot the curves of the runs: a thin line for each seed, a thick line for their mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    steps_per_generation = SETTINGS.steps_per_generation / 1e3
    for axes, name in zip(figure.subplots(1, len(SCORES)), SCORES, strict=True):
        for colour, contender in enumerate(CONTENDERS):
            mine = np.array([row[name] for row in rows if row["contender"] == contender])
            if len(mine):
                steps = (1 + np.arange(mine.shape[1])) * steps_per_generation
                axes.plot(steps, mine.T, color=style.PALETTE[colour], linewidth=0.7, alpha=0.5)
                label = f"{contender} ({len(mine)} seeds)"
                axes.plot(steps, mine.mean(axis=0), color=style.PALETTE[colour], linewidth=2.2, label=label)
        axes.set_title(name.replace("_", " "), fontsize=10, color=style.INK, loc="left")
        axes.set_xlabel("thousand environment steps learned from", fontsize=8)
        style.tidy(axes)
        if name == "coverage":
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
