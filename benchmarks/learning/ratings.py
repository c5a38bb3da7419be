"""Selection in competitive environments: by rating, by returns, by the return of one agent, or not at all.

    python -m benchmarks.learning.ratings --runs runs/ratings

All contenders train P teams of independent PPO agents for the same number of generations with the same settings, and
search the same space; they differ in what they select by, and in one the speeds of both roles evolve, while ratings are
those of the task itself. `mean return` is selection by a team's mean return, which is
0 for every team of a zero-sum environment. The evaluations of the ratings are not training steps; `seconds` of a run
show what they cost.

The runs are compared by cross-play. Of each run the best member of each role plays (as `rookery export` selects it), in
each role, with the best members of every run in all other roles: the same opponents for all. A run's score is the mean
over its roles of its rating among all runs (`rookery.populations.rating_of`), which has the same scale for all roles;
the mean returns of the roles are reported as well. Existing runs are not repeated, so the benchmark can be stopped and
continued, and several processes can share the work, one environment each.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from rookery.learners.episodes import with_episodes
from rookery.populations.ratings import cross_play, played, rating_of
from rookery.populations.sharding import ONE_DEVICE
from rookery.report import statistics


class Contender(NamedTuple):
    """A population method."""

    method: Callable[..., rookery.Program]
    options: Mapping[str, Any] = {}
    by_last: bool = False
    """Whether the fitness of a team is the return of its last agent, the prey."""
    evolving: tuple[str, ...] = ()
    """Parameters of the task that evolve: a curriculum, since members are rated on the task itself."""


OPPONENTS = 4
CONTENDERS: Mapping[str, Contender] = {
    "no selection": Contender(rookery.pbt, {"exploit": "none"}),
    "mean return": Contender(rookery.pbt),
    "prey's return": Contender(rookery.pbt, by_last=True),
    "rating": Contender(rookery.pbt, {"rating_opponents": OPPONENTS}),
    "roles, return": Contender(rookery.populations.pbt_roles),
    "roles, rating": Contender(rookery.populations.pbt_roles, {"rating_opponents": OPPONENTS}),
    "rating, speeds evolve": Contender(
        rookery.pbt, {"rating_opponents": OPPONENTS}, evolving=("env_predator_speed", "env_prey_speed")
    ),
}
ENVIRONMENTS: Mapping[str, Mapping[str, Any]] = {
    # With equal speeds the outcome depends on both sides; with the default ones trained prey are never caught.
    "pursuit_continuous": {"predator_speed": 2.0, "prey_speed": 2.0},
    "MPE_simple_tag_v3": {},
}
REFERENCES = ("mean return", "prey's return", "roles, return", "no selection")


class Sizes(NamedTuple):
    """The sizes of all runs."""

    population: int = 8
    generations: int = 40
    episodes: int = 64
    """Of the cross-play, for each pair and role."""
    quick: bool = False


QUICK = Sizes(4, 2, 4, True)


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--envs", nargs="+", default=list(ENVIRONMENTS), choices=list(ENVIRONMENTS))
    made.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--generations", type=int, help=f"of each run ({Sizes().generations})")
    made.add_argument("--runs", default="runs/ratings")
    options = harness.parse(made)
    sizes = QUICK if options.quick else Sizes()
    sizes = sizes._replace(generations=options.generations or sizes.generations)
    jax.config.update("jax_compilation_cache_dir", f"{options.runs}/cache")
    load, rows = harness.load(), []
    for env in options.envs:
        parameters = rookery.make(env).spec.parameters
        names = [name for name in options.contenders if parameters or not CONTENDERS[name].evolving]
        for seed in range(options.seeds):
            for contender in names:
                train(env, contender, seed, sizes, Path(options.runs))
        rows += compare(env, names, options, sizes)
    harness.report("learning_ratings", options, rows, load)


@cache
def learner_of(env: str, by_last: bool, quick: bool) -> rookery.Learner:
    """The learner of a team."""
    environment = rookery.make(env, **ENVIRONMENTS[env])
    assert environment.spec.team is not None
    agent = rookery.agents.independent(rookery.ppo(environment.spec), environment.spec)
    fitness = environment.spec.team.names[-1] if by_last else None
    lengths: dict[str, Any] = {"num_envs": 4, "rollout_length": 16, "evaluate_every": 1} if quick else {"num_envs": 32}
    config = rookery.learners.OnPolicyConfig(**lengths, fitness=fitness)
    return rookery.on_policy(agent, environment, config)


@cache
def program_of(env: str, name: str, population: int, quick: bool) -> rookery.Program:
    """The program of a contender."""
    contender = CONTENDERS[name]
    learner = learner_of(env, contender.by_last, quick)
    space = rookery.choose(learner.space, **dict.fromkeys(contender.evolving, "evolve"))
    return contender.method(learner, space, population, **contender.options)


def folder_of(runs: Path, env: str, contender: str, seed: int, generations: int) -> Path:
    name = contender.replace("'s", "").replace(",", "").replace(" ", "-")
    return runs / f"{name}-{env}-{generations}-{seed}"


def train(env: str, contender: str, seed: int, sizes: Sizes, runs: Path) -> None:
    """Train a run, or the rest of it."""
    folder = folder_of(runs, env, contender, seed, sizes.generations)
    if (folder / "done.json").exists():
        return
    program = program_of(env, contender, sizes.population, sizes.quick)
    settings = {"generations": sizes.generations, "checkpoint_every": 10, "keep": 1, "quiet": True}
    result = rookery.run(program, run_dir=str(folder), seed=seed, overwrite=True, **settings)
    steps = len(result.history) * program.steps_per_generation
    seconds = float(rookery.load(folder, program=program).metrics["seconds"].sum())
    (folder / "done.json").write_text(json.dumps({"env_steps": steps, "seconds": seconds}) + "\n")
    print(f"{folder.name}: {steps:,} steps, {seconds:.0f} s", flush=True)


def compare(env: str, names: list[str], options: argparse.Namespace, sizes: Sizes) -> list[dict[str, Any]]:
    """The rows of an environment's contenders."""
    policies, done, seeds = [], [], options.seeds
    for name in names:
        program = program_of(env, name, sizes.population, sizes.quick)
        for seed in range(seeds):
            folder = folder_of(Path(options.runs), env, name, seed, sizes.generations)
            policies.append(played(rookery.load(folder, program=program).best()))
            done.append(json.loads((folder / "done.json").read_text()))
    returns = cross_played(
        with_episodes(learner_of(env, False, sizes.quick), sizes.episodes), policies
    )  # [I, runs, runs]
    of_roles = np.asarray(jax.vmap(rating_of)(returns)).mean(axis=0).reshape(len(names), seeds)
    mean_returns = np.asarray(returns).mean(axis=1).reshape(-1, len(names), seeds)
    team = learner_of(env, False, sizes.quick).spec.team
    assert team is not None
    scores = {name: of_roles[index] for index, name in enumerate(names)}
    rows = []
    for index, name in enumerate(names):
        own = dict(zip(team.names, mean_returns[:, index], strict=True))
        row = {"env": env, "selection by": name, **summary(env, name, scores)}
        row |= {role: float(statistics.interquartile_mean({env: values})) for role, values in own.items()}
        runs = done[index * seeds : (index + 1) * seeds]
        row |= {key: float(np.mean([run[key] for run in runs])) for key in ("env_steps", "seconds")}
        rows.append(row | {"ratings": scores[name].tolist(), "returns": {role: own[role].tolist() for role in own}})
    return rows


def cross_played(learner: rookery.Learner, policies: list[Any]) -> jax.Array:
    """`[I, runs, runs]`, the mean return of each role's policy (last axis) with those of every run in other roles."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
    bank_key, key = jax.random.split(jax.random.key(10_000))
    play = jax.jit(partial(cross_play, ONE_DEVICE, learner))
    members = rookery.types.Genotype(stacked[0], (), stacked[1])
    return play(members, stacked, jax.jit(learner.start_states)(bank_key), key)


def summary(env: str, name: str, scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The interquartile mean over seeds with its interval, and the probabilities of improvement."""
    middle = statistics.estimate(statistics.interquartile_mean, {env: scores[name]}).item()
    row: dict[str, Any] = {"rating": middle.value, "low": middle.low, "high": middle.high}
    for other in REFERENCES:
        if other in scores and other != name:
            tasks = {env: scores[name]}, {env: scores[other]}
            better = statistics.estimate(statistics.probability_of_improvement, *tasks).item()
            row |= {f"over {other}": better.value, f"interval over {other}": [better.low, better.high]}
    return row


if __name__ == "__main__":
    main()
