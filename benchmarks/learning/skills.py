"""Skills that DIAYN, METRA and LSD learn without a task reward: accuracy, coverage, and tuning by a population.

    python -m benchmarks.learning.skills --runs runs/skills --pictures docs/evidence

There are nine experiments, each with a separate budget. `travel-room`, `travel-maze`, `travel-ant` (`travel-ant-long`
has twice its steps) and `travel-cheetah`: METRA, LSD and DIAYN with equal skills and steps, and random actions from
the same start states, by the number of distinct cells that the states of 64 episodes lie in (0.1 along x and y for the
points, 1 m along the torso's x, y, or x for the robots), and the distance left to 64 goals as a share of the distance
at the start. `room`: eight skills in an open room. `ant` and `cheetah`: eight skills of a robot, and the descriptors
of its episodes compared with those of random actions and of an untrained agent. `tuning`: 20 skills in the room with a
small budget, where PBT and random search use the same number of steps. Accuracy is the share of an episode's steps
whose skill the discriminator predicts; at the end it is measured on new start states. Existing runs are not repeated,
so the benchmark can be stopped and continued.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from rookery import trees
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.agents.skills.metra import LsdConfig, MetraConfig, lsd, metra
from rookery.envs import descriptors
from rookery.envs.wrappers.skills import enumerate_skills, skills
from rookery.learners import evaluation, rollout
from rookery.learners.goals import reach_goals
from rookery.populations.config import PbtConfig
from rookery.report import statistics
from rookery.report.figures import style
from rookery.storage.csv_log import read_csv
from rookery.types import Observation

HIDDEN, EPISODE_LENGTH = (64, 64), 100


class Setting(NamedTuple):
    """An experiment."""

    task: str
    num_skills: int
    generations: int
    learner_config: rookery.learners.OffPolicyConfig
    contenders: tuple[str, ...] = ("DIAYN",)
    population_size: int = 1
    full_state: bool = False  # input of the discriminator: the whole observation, or the task's descriptor
    alpha_init: float = 1.0
    chosen: Mapping[str, float] = MappingProxyType({})  # constant hyper-parameters other than the defaults
    cells: int | None = None  # of the grid over the descriptor, along each axis; None for no grid
    skill_kind: str = "one-hot"
    episode_length: int = EPISODE_LENGTH
    positions: bool = False  # whether to count the cells that all states of the episodes lie in


POPULATION_CONFIGS = {"PBT": PbtConfig(), "PBT with buffers": PbtConfig(inherit_buffer=True)}
"""The slot's replay buffer was collected with other skills than the child's, unless the parent's buffer is copied."""
ROOM_CONFIG = rookery.learners.OffPolicyConfig(
    num_envs=50, steps_per_generation=5_000, updates_per_step=0.1, eval_episodes=16
)
ANT_CONFIG = rookery.learners.OffPolicyConfig(
    num_envs=100, steps_per_generation=25_000, updates_per_step=0.5, eval_episodes=64
)
CHEETAH_CONFIG = dataclasses.replace(ANT_CONFIG, updates_per_step=0.2)
SCALED_REWARD = MappingProxyType({"reward_scaling": 10.0})
"""The diversity reward is initially small relative to an entropy temperature of 1, which therefore starts at 0.1."""
METHODS = ("METRA", "LSD", "DIAYN")
REWARD_SCALES = {"METRA": 1.0, "LSD": 10.0, "DIAYN": 10.0}
"""A step of METRA is rewarded by at most about 1; LSD's reward is in metres, and a step covers a few hundredths."""
MEMBERS = 5
"""Of the travel experiments, whose seeds are one population of independent members, derived from seed 0 of the run."""
TRAVEL_CONFIG = rookery.learners.OffPolicyConfig(
    num_envs=100, steps_per_generation=50_000, updates_per_step=0.2, eval_episodes=16
)
TRAVEL = Setting(
    "point_room",
    2,
    20,
    ROOM_CONFIG,
    METHODS,
    population_size=MEMBERS,
    alpha_init=0.1,
    skill_kind="sphere",
    positions=True,
)
ROBOT = TRAVEL._replace(learner_config=TRAVEL_CONFIG, episode_length=200)
SETTINGS = {
    "travel-room": TRAVEL._replace(episode_length=50),
    "travel-maze": TRAVEL._replace(task="point_maze"),
    "travel-ant": ROBOT._replace(task="ant_omni"),
    "travel-ant-long": ROBOT._replace(task="ant_omni", generations=40, contenders=("METRA", "LSD")),
    "travel-cheetah": ROBOT._replace(task="halfcheetah_omni", num_skills=8, skill_kind="one-hot"),
    "room": Setting("point_room", 8, 40, ROOM_CONFIG),
    "ant": Setting("ant_uni", 8, 8, ANT_CONFIG, cells=5, alpha_init=0.1, chosen=SCALED_REWARD),
    "cheetah": Setting(
        "halfcheetah_uni", 8, 8, CHEETAH_CONFIG, full_state=True, alpha_init=0.1, chosen=SCALED_REWARD, cells=10
    ),
    "tuning": Setting("point_room", 20, 12, ROOM_CONFIG, ("random search", *POPULATION_CONFIGS), population_size=8),
}
FRESH = 64  # episodes of the final evaluation of a member
GOOD = 0.9  # accuracy


class Contender(NamedTuple):
    """Components of a contender."""

    agent: rookery.agents.OffPolicyAgent
    environment: rookery.Environment
    learner: rookery.Learner
    program: rookery.Program


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--experiments", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    contender_names = sorted({name for setting in SETTINGS.values() for name in setting.contenders})
    made.add_argument("--contenders", nargs="+", default=contender_names, choices=contender_names)
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    made.add_argument("--runs", default="runs/skills")
    made.add_argument("--pictures", help="folder for the figures")
    made.add_argument("--only-report", action="store_true", help="report the existing runs without making new ones")
    options = harness.parse(made)
    if options.quick:
        options.runs, options.seeds = f"{options.runs}-quick", options.seeds[:1]
        for name, setting in SETTINGS.items():
            short = dataclasses.replace(
                setting.learner_config, steps_per_generation=20 * setting.learner_config.num_envs
            )
            SETTINGS[name] = setting._replace(generations=1, learner_config=short)
    jax.config.update("jax_compilation_cache_dir", f"{options.runs}/cache")
    Path(options.runs).mkdir(parents=True, exist_ok=True)
    for experiment in [] if options.only_report else options.experiments:
        for seed in options.seeds[:1] if SETTINGS[experiment].positions else options.seeds:
            for contender in [name for name in SETTINGS[experiment].contenders if name in options.contenders]:
                path = Path(options.runs) / f"{experiment}-{contender.replace(' ', '-').lower()}-{seed}.json"
                if not path.exists():
                    row, arrays = train(experiment, contender, seed, path.with_suffix(""))
                    np.savez_compressed(path.with_suffix(".npz"), **arrays)
                    path.write_text(json.dumps(row) + "\n")
                    print(experiment, contender, seed, round(row["seconds"]), row["fresh"], flush=True)
    report(options)


def bind(setting: Setting, contender: str, eval_episodes: int | None = None) -> Contender:
    """Program of a contender, evaluated with the configured number of episodes or with `eval_episodes`."""
    distances = measure_of(contender) == "distance"
    task = rookery.make(setting.task, episode_length=setting.episode_length)
    env = skills(task, setting.num_skills, setting.skill_kind, with_previous=distances)
    inner = rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=HIDDEN, alpha_init=setting.alpha_init))
    agent: rookery.agents.OffPolicyAgent[Any, Any, Any, Any]
    if contender == "METRA":
        agent = metra(inner, env.spec, MetraConfig(setting.full_state, phi_hidden_sizes=HIDDEN))
    elif contender == "LSD":
        agent = lsd(inner, env.spec, LsdConfig(setting.full_state, phi_hidden_sizes=HIDDEN))
    else:
        agent = diayn(inner, env.spec, DiaynConfig(setting.full_state, discriminator_hidden_sizes=HIDDEN))
    learner_config = setting.learner_config
    if eval_episodes is not None:
        learner_config = dataclasses.replace(learner_config, eval_episodes=eval_episodes, start_states=eval_episodes)
    learner = rookery.off_policy(agent, env, learner_config)
    chosen = {"reward_scaling": REWARD_SCALES[contender]} if setting.positions else setting.chosen
    space, size = rookery.choose(agent.space, **chosen), setting.population_size
    if contender in POPULATION_CONFIGS:
        return Contender(agent, env, learner, rookery.pbt(learner, space, size, POPULATION_CONFIGS[contender]))
    drawn = contender == "random search"
    return Contender(agent, env, learner, rookery.seeds(learner, space, size, draw_hyper=drawn))


def measure_of(contender: str) -> str:
    """What an evaluation measures of a contender's skills."""
    return "distance" if contender in ("METRA", "LSD") else "accuracy"


def train(experiment: str, contender: str, seed: int, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train one run; return its curves with its accuracy on new start states, and the episodes of its skills.

    A run that was interrupted is continued from its last checkpoint.
    """
    setting = SETTINGS[experiment]
    built = bind(setting, contender)
    files = {"run_dir": str(folder), "resume": (folder / "config.json").exists(), "checkpoint_every": 2, "keep": 1}
    result = rookery.run(built.program, seed=seed, generations=setting.generations, quiet=True, **files)
    fitness = read_csv(folder / "lineage.csv")["fitness"].reshape(setting.generations, -1)
    final = bind(setting, contender, FRESH)
    init_genotype = final.program.init(jax.random.split(jax.random.key(seed))[0])  # the initial state of the run
    evaluate, key = jax.jit(final.program.evaluate), jax.random.key(10_000 + seed)
    fresh, untrained = (
        np.asarray(evaluate(state, key)[measure_of(contender)]) for state in (result.state, init_genotype)
    )
    row = {
        "experiment": experiment,
        "contender": contender,
        "seed": seed,
        "commit": harness.commit(),
        "seconds": float(np.sum(read_csv(folder / "metrics.csv")["seconds"])),
        "env_steps": ((np.arange(setting.generations) + 1) * setting.learner_config.steps_per_generation).tolist(),
        "accuracy": fitness.tolist(),
        "fresh": fresh.mean(axis=1).tolist(),
        "untrained": untrained.mean(axis=1).tolist(),
    }
    if setting.population_size > 1 and not setting.positions:
        return row, {}
    walks = {name: jax.jit(partial(walk, final.environment, policy)) for name, policy in policies(final).items()}
    members, untrained_members = result.state.members, init_genotype.members
    keys = [jax.random.key(10_000 + seed + number) for number in range(setting.population_size)]
    pairs = [(trees.take(members, number), trees.take(untrained_members, number)) for number in range(len(keys))]
    found = [episodes(setting, final, walks, *pair, key) for pair, key in zip(pairs, keys, strict=True)]
    if not setting.positions:
        return row, found[0]
    if measure_of(contender) == "distance":
        reach = jax.jit(partial(distance_left, final.learner))
        row["goals"] = [float(reach(learned, key)) for (learned, _), key in zip(pairs, keys, strict=True)]
    return row, {name: np.stack([arrays[name] for arrays in found]) for name in found[0] if "visited" in name}


def distance_left(learner: rookery.Learner, member: Any, key: jax.Array) -> jax.Array:
    """The distance left to `FRESH` goals, as a share of the distance at the start; means over the goals."""
    assert learner.evaluator is not None
    goal_key, bank = jax.random.fold_in(key, 2), learner.start_states(key)
    found = reach_goals(learner.evaluator, rookery.genotype(member), bank, goal_key, FRESH)
    return found.left.mean() / found.at_start.mean()


def policies(built: Contender) -> dict[str, Callable]:
    """The four policies, functions of a member, observations `[FRESH, ...]` and a key."""
    act = jax.vmap(built.agent.act, in_axes=(None, 0))
    size = built.environment.spec.action_size

    def explore(member: Any, observation: Observation, key: jax.Array) -> jax.Array:
        return rollout.explore(built.agent, member.state, member.hyper, observation, key)

    return {
        "skills": lambda member, observation, _: act(member.state.params, observation),
        "exploring": explore,
        "untrained": explore,
        "random": lambda _, __, key: jax.random.uniform(key, (FRESH, size), minval=-1.0, maxval=1.0),
    }


def episodes(
    setting: Setting, built: Contender, walks: Mapping[str, Callable], learned: Any, untrained: Any, key: jax.Array
) -> dict[str, np.ndarray]:
    """Run episodes from the same start states with the skills, with random actions, and with the untrained agent.

    Returns:
      `skills`, `exploring`, `untrained`, `random`: descriptors `[FRESH, D]`; `paths`: state descriptors of the skills
      `[T, FRESH, D]`. With `positions` also `visited_skills`, ..., the number of cells that all states lie in.
    """
    bank = built.learner.start_states(key)
    found: dict[str, np.ndarray] = {}
    for name, walked in walks.items():
        ends, paths = walked(untrained if name == "untrained" else learned, bank, key)
        found[name] = np.asarray(ends)
        if setting.positions:
            states, descriptor = np.asarray(paths), built.environment.spec.descriptor
            assert descriptor is not None
            assert descriptor.cell is not None
            reached = states[np.isfinite(states).all(axis=-1)]
            found[f"visited_{name}"] = np.asarray(descriptors.visited_cells(reached, descriptor.cell))
        if name == "skills":
            found["paths"] = np.asarray(paths)
    assert built.environment.spec.skill is not None
    return found | {"skill": np.arange(FRESH) % len(enumerate_skills(built.environment.spec.skill))}


def walk(
    environment: rookery.Environment, policy: Callable, member: Any, bank: Any, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Descriptors of episodes `[FRESH, D]`, and of all their states `[T, FRESH, D]`, NaN after an episode's end."""
    spec = environment.spec
    assert spec.descriptor is not None
    kind = descriptors.KINDS[spec.descriptor.kind]

    def step(carry: Any, key: jax.Array) -> Any:
        env_states, alive, summary = carry
        act_key, env_key = jax.random.split(key)
        env_states, _, recorded = rollout.advance(
            environment, env_states, policy(member, env_states.observation, act_key), env_key
        )
        summary = jax.vmap(kind.accumulate)(summary, recorded.descriptor, alive & ~recorded.broken)
        return (env_states, alive & ~recorded.ended, summary), jnp.where(alive[:, None], recorded.descriptor, jnp.nan)

    env_states = evaluation.start_episodes(environment, bank, FRESH)
    empty = jax.tree.map(lambda leaf: jnp.zeros((FRESH, *leaf.shape)), kind.init(spec.descriptor_size))
    keys = jax.random.split(jax.random.fold_in(key, 1), spec.episode_length)
    (_, _, summary), paths = jax.lax.scan(step, (env_states, jnp.ones((FRESH,), bool), empty), keys)
    return jax.vmap(kind.finish)(summary), paths


def coverage(setting: Setting, ends: np.ndarray) -> float:
    """Number of grid cells that contain an episode's descriptor, in [0, 1] along each axis."""
    assert setting.cells is not None
    cells = np.floor(ends * setting.cells).clip(0, setting.cells - 1)
    return float(len(np.unique(cells, axis=0)))


def spread(ends: np.ndarray, skill: np.ndarray) -> tuple[float, float]:
    """The smallest distance between two skills' mean ends, and the mean distance of an end from its skill's mean."""
    means = np.stack([ends[skill == z].mean(axis=0) for z in np.unique(skill)])
    apart = np.linalg.norm(means[:, None] - means[None], axis=-1)
    within = np.linalg.norm(ends - means[skill], axis=-1)
    return float(apart[np.triu_indices(len(means), 1)].min()), float(within.mean())


def report(options: argparse.Namespace) -> None:
    """Report the table (interquartile means over the seeds with confidence intervals), and draw the figures."""
    lines, found = [], {}
    for experiment, setting in SETTINGS.items():
        for contender in setting.contenders:
            name = f"{experiment}-{contender.replace(' ', '-').lower()}-"
            paths = sorted(Path(options.runs).glob(f"{name}[0-9]*.json"))
            found[experiment, contender] = [load(path) for path in paths]
            if paths and experiment in options.experiments:
                lines += summary(experiment, contender, found[experiment, contender])
    for contender, other in itertools.combinations(reversed(SETTINGS["tuning"].contenders), 2):
        pair = found["tuning", contender], found["tuning", other]
        if all(pair) and "tuning" in options.experiments:
            medians = [[float(np.median(row["fresh"])) for row in rows] for rows in pair]
            better = statistics.probability_of_improvement
            lines.append(line("tuning", contender, f"better than {other}", better, *medians))
    harness.report("learning_skills", options, lines, harness.load())
    if options.pictures:
        accuracies = {key: rows for key, rows in found.items() if rows and not SETTINGS[key[0]].positions}
        draw_curves(accuracies, Path(options.pictures) / "skills_curves.png")
        for experiment, draw in (("room", draw_paths), ("ant", draw_ends), ("cheetah", draw_ends)):
            if rows := found[experiment, "DIAYN"]:
                draw(rows, Path(options.pictures) / f"skills_{experiment}.png")


def load(path: Path) -> dict[str, Any]:
    """Load a run with the result of `episodes`."""
    with np.load(path.with_suffix(".npz")) as arrays:
        return {**json.loads(path.read_text()), "episodes": dict(arrays)}


def summary(experiment: str, contender: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the table of an experiment, one per measure."""
    ended = [row["episodes"] for row in rows]
    if SETTINGS[experiment].positions:
        return travelled(experiment, contender, rows)
    measures: dict[str, list[float]] = {
        "accuracy, fresh": [float(np.median(row["fresh"])) for row in rows],
        "accuracy, untrained": [float(np.median(row["untrained"])) for row in rows],
        "accuracy, last generation": [float(np.median(row["accuracy"][-1])) for row in rows],
        "seconds": [row["seconds"] for row in rows],
    }
    if experiment != "tuning":
        curves = [np.asarray(row["accuracy"])[:, 0] for row in rows]
        reached = [steps_to(row, curve) for row, curve in zip(rows, curves, strict=True)]
        if all(np.isfinite(reached)):
            measures[f"steps to accuracy {GOOD}"] = reached
        apart, within = zip(*(spread(recorded["skills"], recorded["skill"]) for recorded in ended), strict=True)
        measures |= {"least distance between skills": list(apart), "distance within a skill": list(within)}
    if SETTINGS[experiment].cells is not None:
        names = ("skills", "exploring", "untrained", "random")
        covered = {name: [coverage(SETTINGS[experiment], recorded[name]) for recorded in ended] for name in names}
        measures |= {f"cells, {name}": values for name, values in covered.items()}
    lines = [
        line(experiment, contender, name, statistics.interquartile_mean, values) for name, values in measures.items()
    ]
    lines[0]["commits"] = sorted({row["commit"] for row in rows})
    for other in ("untrained", "random") if SETTINGS[experiment].cells is not None else ():
        pair = [measures[f"cells, {name}"] for name in ("skills", other)]
        lines.append(line(experiment, contender, f"more than {other}", statistics.probability_of_improvement, *pair))
    return lines


def travelled(experiment: str, contender: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the table of an experiment that counts the cells in which all states of the episodes lie."""
    names = ("skills", "exploring", "untrained", "random")
    visited = {
        name: np.concatenate([row["episodes"][f"visited_{name}"] for row in rows]).astype(float).tolist()
        for name in names
    }
    ratio = np.asarray(visited["skills"]) / np.asarray(visited["random"])
    measures = {
        f"{measure_of(contender)}, fresh": [value for row in rows for value in row["fresh"]],
        **{f"cells visited, {name}": values for name, values in visited.items()},
        "cells visited, skills over random": ratio.tolist(),
        **({"distance left to goals": [left for row in rows for left in row["goals"]]} if "goals" in rows[0] else {}),
        "seconds": [row["seconds"] for row in rows],
    }
    mean = statistics.interquartile_mean
    lines = [line(experiment, contender, name, mean, values) for name, values in measures.items()]
    lines[0]["commits"] = sorted({row["commit"] for row in rows})
    pair = [visited[name] for name in ("skills", "random")]
    return [*lines, line(experiment, contender, "more than random", statistics.probability_of_improvement, *pair)]


def steps_to(row: Mapping[str, Any], curve: np.ndarray) -> float:
    """Environment steps until the accuracy of a generation reaches `GOOD`; infinite if it never does."""
    return float(row["env_steps"][int(np.argmax(curve >= GOOD))]) if (curve >= GOOD).any() else np.inf


def line(experiment: str, contender: str, measure: str, statistic: Any, *samples: Sequence[float]) -> dict[str, Any]:
    """A row of the table: a statistic with its confidence interval, and each run's value."""
    found = statistics.estimate(statistic, *samples)
    values = np.concatenate(samples).tolist()
    row = {"experiment": experiment, "contender": contender, "measure": measure, "values": values}
    return row | {"runs": len(values) // len(samples), "value": found.value, "low": found.low, "high": found.high}


def figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def draw_curves(found: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Plot accuracy over environment steps, one panel per experiment: thin lines for seeds, thick for their mean."""
    titles = {
        "room": "8 skills in the room",
        "ant": "8 skills of the ant, by its feet",
        "cheetah": "8 skills of the cheetah, by its state",
        "tuning": "20 skills, median of 8 members",
    }
    shown = [name for name in titles if any(key[0] == name for key in found)]
    made = figure(3.8 * len(shown), 3.2)
    for experiment, axes in zip(shown, made.subplots(1, len(shown), squeeze=False)[0], strict=True):
        for colour, contender in enumerate(SETTINGS[experiment].contenders):
            rows = found.get((experiment, contender), [])
            if rows:
                curves = [np.median(np.asarray(row["accuracy"]), axis=1) for row in rows]
                steps, label = np.asarray(rows[0]["env_steps"]) / 1e3, f"{contender} ({len(rows)} seeds)"
                for curve in curves:
                    axes.plot(steps, curve, color=style.PALETTE[colour], linewidth=0.7, alpha=0.5)
                axes.plot(steps, np.mean(curves, axis=0), color=style.PALETTE[colour], linewidth=2.2, label=label)
        guess = 1.0 / SETTINGS[experiment].num_skills
        axes.axhline(guess, color=style.QUIET, linewidth=1.0, linestyle="--", label="guessing")
        axes.set_ylim(0.0, 1.03)
        axes.set_title(titles[experiment], fontsize=10, color=style.INK, loc="left")
        axes.set_xlabel("thousand environment steps of a member", fontsize=8)
        axes.legend(frameon=False, fontsize=8, loc="best")
        style.tidy(axes)
    made.axes[0].set_ylabel("accuracy", color=style.INK)
    made.savefig(path, dpi=130)


def draw_paths(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the trajectories of each skill in the room, one panel per seed."""
    made = figure(2.5 * len(rows), 2.8)
    for row, axes in zip(rows, made.subplots(1, len(rows), squeeze=False)[0], strict=True):
        recorded = row["episodes"]
        for episode, skill in enumerate(recorded["skill"]):
            axes.plot(*recorded["paths"][:, episode].T, color=style.PALETTE[skill], linewidth=0.6, alpha=0.7)
        axes.scatter(*recorded["skills"].T, c=[style.PALETTE[skill] for skill in recorded["skill"]], s=8, zorder=3)
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
        axes.set_title(f"seed {row['seed']}", fontsize=9, color=style.INK, loc="left")
        style.tidy(axes)
    made.savefig(path, dpi=130)


def draw_ends(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the descriptors of the skills (coloured) and of random actions (dark); one row per two dimensions."""
    pairs = rows[0]["episodes"]["skills"].shape[1] // 2
    made = figure(2.5 * len(rows), 2.6 * pairs + 0.2)
    for column, row in zip(made.subplots(pairs, len(rows), squeeze=False).T, rows, strict=True):
        recorded = row["episodes"]
        colours = [style.PALETTE[skill] for skill in recorded["skill"]]
        for pair, axes in enumerate(column):
            place = slice(2 * pair, 2 * pair + 2)
            axes.scatter(*recorded["random"][:, place].T, color=style.INK, s=4, label="random actions")
            axes.scatter(*recorded["skills"][:, place].T, c=colours, s=8, alpha=0.8)
            axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
            axes.set_xlabel(f"contact of foot {2 * pair + 1}", fontsize=8)
            axes.set_ylabel(f"contact of foot {2 * pair + 2}", fontsize=8)
            style.tidy(axes)
        column[0].set_title(f"seed {row['seed']}", fontsize=9, color=style.INK, loc="left")
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=8)
    made.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
