"""Selection in competitive environments: by rating, by returns, by the return of one agent, or not at all.

    python -m benchmarks.learning.ratings --picture docs/evidence/ratings.png

All contenders train P teams of independent PPO agents for the same number of generations with the same settings, and
search the same space; they differ in what they select by, and in one the speeds of both roles evolve, while ratings are
those of the task itself. `mean return` is selection by a team's mean return, which is
0 for every team of a zero-sum environment. The evaluations of the ratings are not training steps; `seconds` of a run
show what they cost.

The runs are compared by cross-play. Of each run the best member of each role plays (as `rookery export` selects it), in
each role, with the best members of every run in all other roles: the same opponents for all. A run's score is the mean
over its roles of its rating among all runs (`rookery.populations.rating_of`), which has the same scale for all roles;
the mean returns of the roles are reported as well. Opponents are runs of both the same and other contenders.

The best policies of a finished run are kept in `benchmarks/results/curves/ratings`, and these runs are not repeated, so
the benchmark can be stopped and continued, and processes can share the environments, contenders or seeds;
`--only-report` makes the tables and the figures of what there is, for the contenders that are named.
"""

import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from rookery.learners.evaluation import with_episodes
from rookery.populations.ratings import cross_play, played, rating_of
from rookery.populations.sharding import ONE_DEVICE
from rookery.report import statistics
from rookery.report.figures import style


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
REFERENCES = ("mean return", "prey's return", "roles, return", "no selection", "rating")


class Sizes(NamedTuple):
    """The sizes of all runs."""

    population: int = 8
    generations: int = 40
    episodes: int = 64
    """Of the cross-play, for each pair and role."""
    quick: bool = False


QUICK = Sizes(4, 2, 4, True)


def main() -> None:
    made = harness.learning_parser(__doc__, "ratings")
    made.add_argument("--envs", nargs="+", default=list(ENVIRONMENTS), choices=list(ENVIRONMENTS))
    made.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = harness.parse(made)
    sizes = QUICK if options.quick else Sizes()
    load, rows, kept = harness.load(), [], Path("runs/ratings-quick" if options.quick else options.curves)
    kept.mkdir(parents=True, exist_ok=True)
    for env in [] if options.only_report else options.envs:
        parameters = rookery.make(env).spec.parameters
        for seed in options.seeds:
            for name in options.contenders:
                path = path_of(kept, env, name, seed)
                if not path.exists() and (parameters or not CONTENDERS[name].evolving):
                    train(path, env, name, seed, sizes)
    for env in options.envs:
        paths = {name: [path_of(kept, env, name, seed) for seed in options.seeds] for name in options.contenders}
        finished = {name: [path for path in of_name if path.exists()] for name, of_name in paths.items()}
        compared = compare(env, {name: of_name for name, of_name in finished.items() if of_name}, sizes)
        if options.picture:
            draw(env, compared, Path(options.picture))
        rows += compared
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


def path_of(kept: Path, env: str, contender: str, seed: int) -> Path:
    """File of the best policies of a run."""
    name = contender.replace("'s", "").replace(",", "").replace(" ", "-")
    return kept / f"{env}-{name}-{seed}.npz"


def train(path: Path, env: str, contender: str, seed: int, sizes: Sizes) -> None:
    """Train a run, and keep the leaves of the policies of its best members, its environment steps and its seconds."""
    program = program_of(env, contender, sizes.population, sizes.quick)
    with tempfile.TemporaryDirectory() as folder:
        result = rookery.run(
            program, run_dir=folder, seed=seed, overwrite=True, generations=sizes.generations, quiet=True
        )
        run = rookery.load(folder, program=program)
        seconds = float(run.metrics["seconds"].sum())
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(played(run.best()))]
    steps = len(result.history) * program.steps_per_generation
    np.savez_compressed(path, *leaves, env_steps=steps, seconds=seconds)
    print(f"{path.stem}: {steps:,} steps, {seconds:.0f} s", flush=True)


def compare(env: str, paths: Mapping[str, list[Path]], sizes: Sizes) -> list[dict[str, Any]]:
    """The rows of an environment's contenders."""
    learner = with_episodes(learner_of(env, False, sizes.quick), sizes.episodes)
    runs = [dict(np.load(path)) for of_name in paths.values() for path in of_name]
    returns = cross_played(learner, [policies_of(learner, run) for run in runs])  # [I, runs, runs]
    ratings = np.asarray(jax.vmap(rating_of)(returns)).mean(axis=0)
    mean_returns = np.asarray(returns).mean(axis=1)
    assert learner.spec.team is not None
    contender_of_run = np.array([name for name, of_name in paths.items() for _ in of_name])
    scores = {name: ratings[contender_of_run == name] for name in paths}
    rows = []
    for name in paths:
        own = dict(zip(learner.spec.team.names, mean_returns[:, contender_of_run == name], strict=True))
        row = {"env": env, "selection by": name, **summary(name, scores)}
        row |= {role: float(statistics.interquartile_mean(values.astype(float))) for role, values in own.items()}
        chosen = [run for run, of_run in zip(runs, contender_of_run, strict=True) if of_run == name]
        row |= {key: float(np.mean([run[key] for run in chosen])) for key in ("env_steps", "seconds")}
        rows.append(row | {"ratings": scores[name].tolist(), "returns": {role: own[role].tolist() for role in own}})
    return rows


def policies_of(learner: rookery.Learner, run: Mapping[str, np.ndarray]) -> Any:
    """The policies that `train` kept."""
    bank = jax.eval_shape(learner.start_states, jax.random.key(0))
    member = jax.eval_shape(learner.init, jax.random.key(0), rookery.hyperparams.defaults(learner.space), bank)
    structure = jax.tree.structure(played(rookery.genotype(member)))
    return jax.tree.unflatten(structure, [run[f"arr_{index}"] for index in range(structure.num_leaves)])


def cross_played(learner: rookery.Learner, policies: list[Any]) -> jax.Array:
    """`[I, runs, runs]`, the mean return of each role's policy (last axis) with those of every run in other roles."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
    bank_key, key = jax.random.split(jax.random.key(10_000))
    play = jax.jit(partial(cross_play, ONE_DEVICE, learner))
    members = rookery.types.Genotype(stacked[0], (), stacked[1])
    return play(members, stacked, jax.jit(learner.start_states)(bank_key), key)


def summary(name: str, scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The interquartile mean over seeds with its interval, and the probabilities of improvement."""
    middle = statistics.estimate(statistics.interquartile_mean, scores[name]).item()
    row: dict[str, Any] = {"rating": middle.value, "low": middle.low, "high": middle.high}
    for other in REFERENCES:
        if other in scores and other != name:
            better = statistics.estimate(statistics.probability_of_improvement, scores[name], scores[other]).item()
            row |= {f"over {other}": better.value, f"interval over {other}": [better.low, better.high]}
    return row


def draw(env: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Plot the ratings of the runs of each contender, and their interquartile mean with its 95 % interval."""
    figure = style.new_figure((6.4, 0.7 + 0.45 * len(rows)))
    axes = figure.add_subplot(1, 1, 1)
    for place, row in enumerate(rows):
        colour = style.colour_of(place)
        axes.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=6, alpha=0.3)
        axes.plot(row["ratings"], np.full(len(row["ratings"]), place), "o", color=colour, markersize=4)
        axes.plot(row["rating"], place, "|", color=colour, markersize=14)
    axes.set_yticks(range(len(rows)), [f"{row['selection by']} ({len(row['ratings'])})" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    style.title_axes(axes, f"best members on {env}")
    style.label_axes(axes, "rating among all runs")
    style.save_figure(figure, path.with_name(f"{path.stem}_{env}{path.suffix}"))


if __name__ == "__main__":
    main()
