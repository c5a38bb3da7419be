"""Opponents of the past: what the final agents of a run have forgotten, with and without a league.

    nice -n 10 python -m benchmarks.learning.league

All runs evolve each role as a separate population, select by ratings, and have the same settings and the same number of
training steps. With a league a quarter of the environments have opponents from the pool of earlier members, and the
agents learn from fewer steps in them: where one agent learns, the steps of the others are not theirs.

During a run the best member of each role is kept at regular intervals: the snapshots. At the end the last one of each
role plays against snapshots of the other roles, in full deterministic episodes from the same start states. `own`: the
earlier snapshots of the agent's own run; `all`: those of the runs of both contenders with the same seed, the same
opponents for both. The score against a snapshot is the mean return of the role; `lowest` is the least over snapshots
and `mean` the mean. The table has the interquartile mean over seeds with its 95 % interval, and the probability that a
run with a league has a higher score than one without (`better`).

The snapshots of a finished run are kept in `benchmarks/results/curves/league`, and such a run is not repeated, so that
the benchmark can be stopped and continued; `--only-report` makes the table of what there is.
"""

import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from benchmarks.learning.ratings import ENVIRONMENTS, OPPONENTS, learner_of, policies_of
from rookery.learners.evaluation import with_episodes
from rookery.populations.config import LeagueConfig
from rookery.populations.ratings import cross_play, played
from rookery.populations.sharding import ONE_DEVICE
from rookery.report import statistics

CONTENDERS: Mapping[str, LeagueConfig | None] = {"current": None, "league": LeagueConfig()}


class Sizes(NamedTuple):
    """The sizes of all runs."""

    population: int = 4
    generations: int = 40
    snapshots: int = 10
    episodes: int = 64
    """Of each pair of agents."""
    quick: bool = False


def main() -> None:
    made = harness.learning_parser(__doc__, "league")
    made.add_argument("--env", default="pursuit_continuous", choices=list(ENVIRONMENTS))
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = harness.parse(made)
    sizes = Sizes(2, 2, 2, 4, True) if options.quick else Sizes()
    load, kept = harness.load(), Path("runs/league-quick" if options.quick else options.curves)
    kept.mkdir(parents=True, exist_ok=True)
    paths = {(name, seed): kept / f"{options.env}-{name}-{seed}.npz" for seed in options.seeds for name in CONTENDERS}
    for (name, seed), path in paths.items():
        if not path.exists() and not options.only_report:
            train(path, options.env, name, seed, sizes)
    finished = [seed for seed in options.seeds if all(paths[name, seed].exists() for name in CONTENDERS)]
    runs = {name: [dict(np.load(paths[name, seed])) for seed in finished] for name in CONTENDERS}
    harness.report(f"learning_league-{options.env}", options, compare(options.env, runs, sizes), load)


@cache
def compiled(env: str, name: str, sizes: Sizes) -> tuple[Any, Any, rookery.Program]:
    """The compiled `init` and `step` of a contender, and its program."""
    learner, league = learner_of(env, False, sizes.quick), CONTENDERS[name]
    opponents = min(OPPONENTS, sizes.population)
    if sizes.quick and league:
        league = LeagueConfig(league_size=2, league_share=1.0, league_every=1)
    method = rookery.populations.pbt_roles
    program = method(learner, None, sizes.population, rating_opponents=opponents, league=league)
    return jax.jit(program.init), jax.jit(program.step, donate_argnums=0), program


def train(path: Path, env: str, name: str, seed: int, sizes: Sizes) -> None:
    """Train a run, and keep the leaves of the policies of its snapshots `[S, I, ...]`, its steps and its times."""
    init, step, program = compiled(env, name, sizes)
    init_key, run_key = jax.random.split(jax.random.key(seed))
    started, state, snapshots = time.process_time(), init(init_key), []
    for generation in range(sizes.generations):
        state, metrics = step(state, jax.random.fold_in(run_key, generation))
        if (generation + 1) % (sizes.generations // sizes.snapshots) == 0:
            # The best members are not replaced, so their slots have the policies that were rated.
            rating = np.asarray(metrics["rating"]).reshape(sizes.population, -1)
            best = np.nan_to_num(rating, nan=-np.inf).argmax(axis=0)
            each = np.arange(len(best))
            policies = played(rookery.genotype(state.members))
            snapshots.append(jax.tree.map(lambda leaf, best=best, each=each: np.asarray(leaf)[best, each], policies))
    leaves = [np.stack(rows) for rows in zip(*map(jax.tree.leaves, snapshots), strict=True)]
    steps, seconds = sizes.generations * program.steps_per_generation, time.process_time() - started
    np.savez_compressed(path, *leaves, env_steps=steps, cpu_seconds=seconds)
    print(f"{path.stem}: {steps:,} steps, {seconds:.0f} processor seconds", flush=True)


def compare(env: str, runs: Mapping[str, list[dict[str, np.ndarray]]], sizes: Sizes) -> list[dict[str, Any]]:
    """The rows of the table, for each role, set of opponents and score."""
    learner = with_episodes(learner_of(env, False, sizes.quick), sizes.episodes)
    assert learner.spec.team is not None
    roles = learner.spec.team.names
    play = jax.jit(partial(cross_play, ONE_DEVICE, learner))
    pairs = [[of_name[index] for of_name in runs.values()] for index in range(len(runs["league"]))]
    found = np.asarray([scored(play, learner, pair) for pair in pairs])  # [seeds, I, snapshots of both, contenders]
    count, rows = found.shape[2] // len(CONTENDERS), []
    for role, opponents in ((role, opponents) for role in range(len(roles)) for opponents in ("own", "all")):
        for reduced, reduce in {"lowest": np.min, "mean": np.mean}.items():
            of = {}
            for place, name in enumerate(CONTENDERS):
                own = found[:, role, place * count : (place + 1) * count - 1, place]
                of[name] = reduce(own if opponents == "own" else found[:, role, :, place], axis=1).astype(float)
            better = statistics.estimate(statistics.probability_of_improvement, of["league"], of["current"]).item()
            row = {"env": env, "role": roles[role], "opponents": opponents, "score": reduced}
            for name, values in of.items():
                middle = statistics.estimate(statistics.interquartile_mean, values).item()
                row |= {name: middle.value, f"{name} low": middle.low, f"{name} high": middle.high}
            row |= {"better": better.value, "better low": better.low, "better high": better.high}
            rows.append(row | {f"{name} of seeds": values.tolist() for name, values in of.items()})
    used = {name: float(np.median([run["cpu_seconds"] for run in of_name])) for name, of_name in runs.items()}
    steps = int(runs["league"][0]["env_steps"])
    return [row | {"env_steps": steps} | {f"{name} cpu_seconds": used[name] for name in used} for row in rows]


def scored(play: Any, learner: rookery.Learner, runs: list[dict[str, np.ndarray]]) -> np.ndarray:
    """`[I, snapshots of all runs, runs]`: the mean return of each role's last snapshot against every snapshot."""
    params, statistics_of = jax.tree.map(
        lambda *rows: jnp.concatenate(rows), *[policies_of(learner, run) for run in runs]
    )
    count = jax.tree.leaves(params)[0].shape[0] // len(runs)
    last = jnp.arange(1, len(runs) + 1) * count - 1
    members = rookery.types.Genotype(
        *(jax.tree.map(lambda leaf: leaf[last], part) for part in (params, (), statistics_of))
    )
    bank_key, key = jax.random.split(jax.random.key(10_000))
    bank = jax.jit(learner.start_states)(bank_key)
    return np.asarray(play(members, (params, statistics_of), bank, key))


if __name__ == "__main__":
    main()
