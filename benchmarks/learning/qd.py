"""Methods of quality diversity for equal numbers of evaluations, beside QDax's PGA-ME and DCRL-ME.

    python -m benchmarks.learning.qd --picture docs/evidence/qd.png
    python -m benchmarks.learning.qd --tasks point_trap --contenders pga-me qdax-pga-me

Every contender evaluates the same number of policies, one episode each, from new start states in each generation, and
has the same networks and cells (`benchmarks.peers_policy_gradient.Settings`). ME-PBT's members learn from episodes of
their own beside the evaluations, which no other contender has; its environment steps are reported. At the end all
elites are evaluated again in new episodes and put into an empty repertoire: `fresh` scores have no selection bias.

The scores of a finished run are kept in `benchmarks/results/curves/qd`, and these runs are not repeated, so the
benchmark can be stopped and continued, and processes can share the tasks, contenders or seeds; `--only-report` makes
the table and the figure of what there is. QDax's contenders need the environment of `benchmarks/peers.sh`. On a GPU
`--together` trains the seeds of a contender in one vectorized program: one run alone is too small for it.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness, peers_policy_gradient
from benchmarks.peers_policy_gradient import Settings, cells, dcrl_settings
from rookery.learners.base import EvaluationConfig
from rookery.qd import repertoire as repertoires
from rookery.qd.scoring import worst_return
from rookery.report import statistics
from rookery.report.figures import style
from rookery.types import Array, Key

EPISODE_LENGTHS = {"point_trap": 200, "walker2d_uni": 250, "ant_omni": 100}
EVALUATIONS = {"point_trap": 12_800, "walker2d_uni": 12_800, "ant_omni": 12_800}
CONTENDERS = ("map-elites", "dominated-novelty", "me-pbt", "pga-me", "dcrl-me", "qdax-pga-me", "qdax-dcrl-me")
MEMBERS, VARIATIONS = 8, 24
"""Of ME-PBT; a generation evaluates both."""
MEMBER_ENVS, MEMBER_STEPS = 10, 200
"""Environments of each member of ME-PBT, and its steps and updates in a generation."""
FRESH = 8
"""Episodes of the final evaluation of an elite."""
SCORES = ("coverage", "qd_score", "max_fitness")
REFERENCES = {"pga-me": "qdax-pga-me", "dcrl-me": "qdax-dcrl-me"}
"""QDax's contender of the same method."""


def main() -> None:
    made = harness.learning_parser(__doc__, "qd")
    made.add_argument("--tasks", nargs="+", default=list(EVALUATIONS), choices=list(EVALUATIONS))
    made.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    made.add_argument("--together", action="store_true", help="train the seeds of a contender in one program")
    options = harness.parse(made)
    load, kept = harness.load(), Path("runs/qd-quick" if options.quick else options.curves)
    kept.mkdir(parents=True, exist_ok=True)
    groups = [options.seeds] if options.together else [[seed] for seed in options.seeds]
    for seeds, task, contender in itertools.product(groups, options.tasks, options.contenders):
        paths = {seed: kept / f"{task}-{contender}-{seed}.json" for seed in seeds}
        missing = [seed for seed, path in paths.items() if not path.exists()]
        if missing and not options.only_report:
            for seed, row in zip(missing, train(contender, task, missing, options.quick), strict=True):
                described = {"task": task, "contender": contender, "seed": seed}
                paths[seed].write_text(json.dumps({**described, **row}) + "\n")
                print(*described.values(), {name: round(row[f"fresh_{name}"], 2) for name in SCORES}, flush=True)
    rows = [json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))]
    rows = [row for row in rows if row["task"] in options.tasks and row["contender"] in options.contenders]
    harness.report("learning_qd", options, table(rows), load)
    if options.picture:
        draw(rows, options.picture)


def settings_of(contender: str, task: str, quick: bool) -> tuple[Settings, int]:
    """The settings of a contender, and the number of its evaluations."""
    common: dict[str, Any] = {"task": task, "episode_length": EPISODE_LENGTHS[task]}
    if quick:
        common |= {"batch_size": 32, "critic_steps": 10, "policy_gradient_steps": 4, "hidden_sizes": (8,)}
    settings = dcrl_settings(**common) if "dcrl" in contender else Settings(**common)
    return settings, 128 if quick else EVALUATIONS[task]


def train(contender: str, task: str, seeds: Sequence[int], quick: bool) -> list[dict[str, Any]]:
    """A run for each seed: the curves over evaluations, and the scores of its elites in new episodes."""
    settings, evaluations = settings_of(contender, task, quick)
    batch = MEMBERS + VARIATIONS if contender == "me-pbt" else settings.batch_size
    generations = evaluations // batch
    learn = qdax_runs if contender.startswith("qdax") else rookery_run if len(seeds) == 1 else rookery_runs
    rows = learn(contender, settings, seeds, generations)
    learning_steps = MEMBERS * MEMBER_STEPS * generations if contender == "me-pbt" else 0
    common = {
        "evaluations": [batch * (i + 1) for i in range(generations)],
        "environment steps of learning": learning_steps,
    }
    return [{**common, **row} for row in rows]


def rookery_run(contender: str, settings: Settings, seeds: Sequence[int], generations: int) -> list[dict[str, Any]]:
    """A run of Rookery."""
    result = rookery.run(program(contender, settings, 1), seed=seeds[0], generations=generations, quiet=True)
    evaluated = jax.jit(program(contender, settings, FRESH).evaluate)(result.state, evaluation_key(seeds[0]))
    fresh = scorer(settings)(evaluated["fitness"], evaluated["descriptor"])
    curves = {name: [float(metrics[name]) for metrics in result.history] for name in SCORES}
    return [{**curves, **{f"fresh_{name}": float(fresh[name]) for name in SCORES}}]


def rookery_runs(contender: str, settings: Settings, seeds: Sequence[int], generations: int) -> list[dict[str, Any]]:
    """Runs of Rookery in one vectorized program, with the keys of `rookery.run`."""
    made, evaluate = program(contender, settings, 1), program(contender, settings, FRESH).evaluate
    keys = jax.vmap(jax.random.split)(jnp.stack([jax.random.key(seed) for seed in seeds]))
    step = jax.jit(
        jax.vmap(lambda state, key, generation: made.step(state, jax.random.fold_in(key, generation)), (0, 0, None)),
        donate_argnums=0,
    )
    state = jax.jit(jax.vmap(made.init))(keys[:, 0])
    history = []
    for generation in range(generations):
        state, metrics = step(state, keys[:, 1], generation)
        history.append({name: metrics[name] for name in SCORES})
    evaluated = jax.jit(jax.vmap(evaluate))(state, jnp.stack([evaluation_key(seed) for seed in seeds]))
    return of_seeds(history, jax.vmap(scorer(settings))(evaluated["fitness"], evaluated["descriptor"]))


def program(contender: str, settings: Settings, episodes: int) -> rookery.Program:
    """Rookery's program of a contender."""
    if contender in peers_policy_gradient.METHODS:
        return peers_policy_gradient.program(settings, episodes)
    env = settings.environment
    if contender == "me-pbt":
        agent = rookery.sac(env.spec, rookery.agents.SacConfig(settings.hidden_sizes))
        config = rookery.learners.OffPolicyConfig(
            num_envs=MEMBER_ENVS,
            steps_per_generation=MEMBER_STEPS,
            batch_size=64,
            buffer_size=100_000,
            warmup_steps=0,
            eval_episodes=episodes,
        )
        sizes = {"population_size": MEMBERS, "ga_population": VARIATIONS}
        return rookery.me_pbt(rookery.off_policy(agent, env, config), cells(settings, env), **sizes)
    scoring = rookery.qd.policy_scoring(env, settings.policy, EvaluationConfig(eval_episodes=episodes))
    centroids = cells(settings, env)
    archive = centroids if contender == "map-elites" else rookery.qd.dominated_novelty(centroids)
    return rookery.map_elites(scoring, archive, rookery.qd.iso_line(scoring, settings.batch_size))


def qdax_runs(_: str, settings: Settings, seeds: Sequence[int], generations: int) -> list[dict[str, Any]]:
    """Runs of QDax in one vectorized program, on the same task and evaluated alike."""
    peer, env = peers_policy_gradient.qdax(settings, len(seeds)), settings.environment
    scores = jax.vmap(scorer(settings))
    scored = jax.jit(lambda found: scores(found.fitnesses.reshape(len(seeds), -1), found.descriptors))
    carry = peer.begin(jnp.stack([jax.random.key(seed) for seed in seeds]))
    history = []
    for _ in range(generations):
        carry = peer.generation(carry)
        history.append(scored(carry[0]))
    repertoire, keys = carry[0], jnp.stack([evaluation_key(seed) for seed in seeds])
    evaluated = jax.jit(jax.vmap(peers_policy_gradient.evaluator_of(settings, env, FRESH)))(repertoire.genotypes, keys)
    filled = jnp.isfinite(repertoire.fitnesses.reshape(len(seeds), -1))
    fitness = jnp.where(filled, evaluated.fitness, -jnp.inf)
    return of_seeds(history, scores(fitness, evaluated.descriptor))


def evaluation_key(seed: int) -> Key:
    """The key of a run's final evaluation."""
    return jax.random.key(10_000 + seed)


def scorer(settings: Settings) -> Callable[[Array, Array], dict[str, Array]]:
    """Scores of policies in an empty repertoire, of fitness `[C]`, not finite for none, and descriptors `[C, D]`."""
    env = settings.environment
    empty, worst = repertoires.empty((), cells(settings, env)), worst_return(env.spec)

    def scores(fitness: Array, descriptor: Array) -> dict[str, Array]:
        filled, _ = repertoires.add(empty, (), fitness.astype(jnp.float32), descriptor.astype(jnp.float32))
        found = repertoires.metrics(filled, worst)
        return {name: found[name] for name in SCORES}

    return scores


def of_seeds(history: list[dict[str, Array]], fresh: dict[str, Array]) -> list[dict[str, Any]]:
    """One row of each seed: the scores of all generations, and those of the final evaluation, each `[seeds]`."""
    curves = {name: np.asarray([scores[name] for scores in history]).T.tolist() for name in SCORES}
    last = {f"fresh_{name}": np.asarray(fresh[name]).tolist() for name in SCORES}
    return [{name: values[i] for name, values in (curves | last).items()} for i in range(len(last["fresh_coverage"]))]


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table: interquartile means over the seeds with intervals, as recorded and of new episodes."""
    lines = []
    for task, contender in itertools.product(EVALUATIONS, CONTENDERS):
        mine = runs_of(rows, task, contender)
        if mine:
            references = {"above MAP-Elites": "map-elites", "above QDax's": REFERENCES.get(contender, contender)}
            pairs = {column: runs_of(rows, task, name) for column, name in references.items() if name != contender}
            lines.append(summary(task, contender, mine) | compared(mine, pairs))
    return lines


def runs_of(rows: list[dict[str, Any]], task: str, contender: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["task"], row["contender"]) == (task, contender)]


def compared(rows: list[dict[str, Any]], pairs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """For each column the probability that a run has a higher fresh QD score than one of others, with its interval."""
    line = {}
    for column, others in pairs.items():
        if others:
            ours, theirs = ([row["fresh_qd_score"] for row in side] for side in (rows, others))
            better = statistics.estimate(statistics.probability_of_improvement, ours, theirs).item()
            line |= {column: better.value, f"{column} low": better.low, f"{column} high": better.high}
    return line


def summary(task: str, contender: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table."""
    line: dict[str, Any] = {"task": task, "contender": contender, "runs": len(rows)}
    line |= {"evaluations": rows[0]["evaluations"][-1], "steps": rows[0]["environment steps of learning"]}
    for name in SCORES:
        recorded, fresh = np.array([row[name][-1] for row in rows]), np.array([row[f"fresh_{name}"] for row in rows])
        middle = statistics.estimate(statistics.interquartile_mean, fresh)
        line[f"recorded {name}"] = float(statistics.interquartile_mean(recorded))
        line |= {name: float(middle.value), f"{name} low": float(middle.low), f"{name} high": float(middle.high)}
        line |= {f"recorded {name} of all": recorded.tolist(), f"{name} of all": fresh.tolist()}
    return line


def draw(rows: list[dict[str, Any]], picture: str) -> None:
    """QD score and best return over evaluations: the interquartile mean over the runs of each contender."""
    tasks = [task for task in EVALUATIONS if any(row["task"] == task for row in rows)]
    figure = style.new_figure((4.2 * len(tasks), 5.6))
    for j, task in enumerate(tasks):
        for i, (name, label) in enumerate((("qd_score", "QD score"), ("max_fitness", "best return"))):
            axes = figure.add_subplot(2, len(tasks), i * len(tasks) + j + 1)
            for colour, contender in enumerate(CONTENDERS):
                draw_contender(axes, runs_of(rows, task, contender), name, contender, style.colour_of(colour))
            style.title_axes(axes, task)
            style.label_axes(axes, "evaluations", label if j == 0 else None)
            style.count_steps(axes)
            if i == j == 0:
                axes.legend(frameon=False, fontsize=7, loc="lower right")
    style.save_figure(figure, Path(picture))


def draw_contender(axes: Any, rows: list[dict[str, Any]], name: str, label: str, colour: str) -> None:
    """The curve of one contender, by the evaluations of its runs."""
    if not rows:
        return
    middle = statistics.over_runs(np.asarray([row[name] for row in rows]).T)
    dashed = "--" if label.startswith("qdax") else "-"
    style.draw_estimate(axes, np.asarray(rows[0]["evaluations"]), middle, colour, linestyle=dashed, label=label)


if __name__ == "__main__":
    main()
