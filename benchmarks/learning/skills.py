"""What DIAYN learns without a reward: skills that are told apart, that reach further, and that a population tunes.

    python -m benchmarks.learning.skills --runs runs/skills --pictures docs

Four experiments, each with a budget of its own. `room`: eight skills in an open room. `ant` and `cheetah`: eight skills
of a robot, and the descriptors of its episodes beside those of random actions and of an agent that has learned nothing.
`tuning`: 20 skills in the room on a small budget, where PBT and random search are given the same steps. Accuracy is the
share of an episode's steps whose skill the discriminator names; at the end it is taken on fresh start states. A run
that is there already is not made again, so the benchmark can be stopped and goes on.
"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Mapping, Sequence
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
from rookery.agents.diayn import DiaynConfig, diayn
from rookery.envs import descriptors
from rookery.envs.wrappers.skills import skills
from rookery.learners import rollout
from rookery.populations.config import PbtConfig
from rookery.report import statistics
from rookery.report.figures import style

HIDDEN, EPISODE_LENGTH = (64, 64), 100


class Setting(NamedTuple):
    """An experiment."""

    task: str
    num_skills: int
    generations: int
    life: rookery.OffPolicyConfig
    contenders: tuple[str, ...] = ("DIAYN",)
    population_size: int = 1
    full_state: bool = False  # what the discriminator looks at: the whole observation, or the task's descriptor
    alpha_init: float = 1.0
    chosen: Mapping[str, float] = MappingProxyType({})  # hyper-parameters that are not the defaults, and do not evolve
    cells: int | None = None  # of the grid over the descriptor, along each axis


BREEDERS = {"PBT": PbtConfig(), "PBT with buffers": PbtConfig(inherit_buffer=True)}
"""What a slot has stored was done under other skills than its heir's, unless the parent's buffer comes along."""
ROOM_LIFE = rookery.OffPolicyConfig(num_envs=50, steps_per_generation=5_000, updates_per_step=0.1, eval_episodes=16)
ANT_LIFE = rookery.OffPolicyConfig(num_envs=100, steps_per_generation=25_000, updates_per_step=0.5, eval_episodes=64)
CHEETAH_LIFE = dataclasses.replace(ANT_LIFE, updates_per_step=0.2)
LOUDER = MappingProxyType({"reward_scaling": 10.0})
"""Diversity pays little at first; beside a temperature of 1 it is not heard, so that begins at 0.1 as well."""
SETTINGS = {
    "room": Setting("point_room", 8, 40, ROOM_LIFE),
    "ant": Setting("ant_uni", 8, 8, ANT_LIFE, cells=5, alpha_init=0.1, chosen=LOUDER),
    "cheetah": Setting("halfcheetah_uni", 8, 8, CHEETAH_LIFE, full_state=True, alpha_init=0.1, chosen=LOUDER, cells=10),
    "tuning": Setting("point_room", 20, 12, ROOM_LIFE, ("random search", *BREEDERS), population_size=8),
}
FRESH = 64  # episodes that judge a member at the end
GOOD = 0.9  # accuracy


class World(NamedTuple):
    """What an experiment's contender is made of."""

    agent: rookery.Agent
    environment: rookery.Environment
    learner: rookery.Learner
    program: rookery.Program


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--experiments", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    known = sorted({name for setting in SETTINGS.values() for name in setting.contenders})
    made.add_argument("--contenders", nargs="+", default=known, choices=known)
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    made.add_argument("--runs", default="runs/skills")
    made.add_argument("--pictures", help="folder for the pictures")
    made.add_argument("--only-report", action="store_true", help="make no runs, tell what is there")
    options = harness.parse(made)
    jax.config.update("jax_compilation_cache_dir", f"{options.runs}/cache")
    Path(options.runs).mkdir(parents=True, exist_ok=True)
    for experiment in [] if options.only_report else options.experiments:
        for seed in options.seeds:
            for contender in [name for name in SETTINGS[experiment].contenders if name in options.contenders]:
                path = Path(options.runs) / f"{experiment}-{contender.replace(' ', '-').lower()}-{seed}.json"
                if not path.exists():
                    row, arrays = train(experiment, contender, seed)
                    np.savez_compressed(path.with_suffix(".npz"), **arrays)
                    path.write_text(json.dumps(row) + "\n")
                    print(experiment, contender, seed, round(row["seconds"]), row["fresh"], flush=True)
    report(options)


def bind(setting: Setting, contender: str, eval_episodes: int | None = None) -> World:
    """A contender's program, judged by as many episodes as its life says, or by `eval_episodes`."""
    env = skills(rookery.make(setting.task, episode_length=EPISODE_LENGTH), setting.num_skills)
    inner = rookery.sac(env.spec, rookery.SacConfig(hidden_sizes=HIDDEN, alpha_init=setting.alpha_init))
    agent = diayn(inner, env.spec, DiaynConfig(setting.full_state, discriminator_hidden_sizes=HIDDEN))
    life = setting.life
    if eval_episodes is not None:
        life = dataclasses.replace(life, eval_episodes=eval_episodes, start_states=eval_episodes)
    learner = rookery.off_policy(agent, env, life)
    space, size = rookery.choose(agent.space, **setting.chosen), setting.population_size
    if contender in BREEDERS:
        return World(agent, env, learner, rookery.pbt(learner, space, size, BREEDERS[contender]))
    drawn = contender == "random search"
    return World(agent, env, learner, rookery.seeds(learner, space, size, draw_hyper=drawn))


def train(experiment: str, contender: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run's curves and what came of it on fresh start states; and the episodes of its skills."""
    setting = SETTINGS[experiment]
    world = bind(setting, contender)
    started = time.perf_counter()
    result = rookery.run(world.program, seed=seed, generations=setting.generations, quiet=True)
    seconds = time.perf_counter() - started
    judges = bind(setting, contender, FRESH)
    init_genotype = judges.program.init(jax.random.split(jax.random.key(seed))[0])  # as the run began
    evaluate, key = jax.jit(judges.program.evaluate), jax.random.key(10_000 + seed)
    fresh, untrained = (np.asarray(evaluate(state, key)["accuracy"]) for state in (result.state, init_genotype))
    row = {
        "experiment": experiment,
        "contender": contender,
        "seed": seed,
        "commit": harness.commit(),
        "seconds": seconds,
        "env_steps": ((np.arange(setting.generations) + 1) * setting.life.steps_per_generation).tolist(),
        "accuracy": [np.asarray(metrics["fitness"]).tolist() for metrics in result.history],
        "fresh": fresh.mean(axis=1).tolist(),
        "untrained": untrained.mean(axis=1).tolist(),
    }
    if setting.population_size > 1:
        return row, {}
    pair = trees.take(result.state.members, 0), trees.take(init_genotype.members, 0)
    return row, episodes(setting, judges, pair, key)


def episodes(setting: Setting, world: World, pair: tuple[Any, Any], key: jax.Array) -> dict[str, np.ndarray]:
    """Episodes from the same start states: of the skills, of random actions, of the agent before it learned.

    Returns:
      `skills`, `exploring`, `untrained`, `random`: descriptors `[FRESH, D]`; `paths` `[T, FRESH, D]`, of the skills.
    """
    learned, init_genotype = pair
    act = jax.vmap(world.agent.act, in_axes=(None, 0))
    size = world.environment.spec.action_size
    policies = {
        "skills": lambda observation, _: act(learned.state.params, observation),
        "exploring": partial(rollout.explore, world.agent, learned.state, learned.hyper),
        "untrained": partial(rollout.explore, world.agent, init_genotype.state, init_genotype.hyper),
        "random": lambda _, key: jax.random.uniform(key, (FRESH, size), minval=-1.0, maxval=1.0),
    }
    bank = world.learner.start_states(key)
    found: dict[str, np.ndarray] = {}
    for name, policy in policies.items():
        ends, paths = jax.jit(partial(walk, world.environment, policy))(bank, key)
        found[name] = np.asarray(ends)
        if name == "skills":
            found["paths"] = np.asarray(paths)
    return found | {"skill": np.arange(FRESH) % setting.num_skills}


def walk(environment: rookery.Environment, policy: Any, bank: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Episodes' descriptors `[FRESH, D]`, and those of all their states `[T, FRESH, D]`, NaN after an episode's end."""
    spec = environment.spec
    assert spec.descriptor is not None
    kind = descriptors.KINDS[spec.descriptor.kind]

    def step(carry: Any, key: jax.Array) -> Any:
        lives, alive, summary = carry
        act_key, env_key = jax.random.split(key)
        lives, _, told = rollout.advance(environment, lives, policy(lives.observation, act_key), env_key)
        summary = jax.vmap(kind.accumulate)(summary, told.descriptor, alive & ~told.broken)
        return (lives, alive & ~told.ended, summary), jnp.where(alive[:, None], told.descriptor, jnp.nan)

    lives = rollout.start_episodes(environment, bank, FRESH)
    empty = jax.tree.map(lambda leaf: jnp.zeros((FRESH, *leaf.shape)), kind.init(spec.descriptor_size))
    keys = jax.random.split(jax.random.fold_in(key, 1), spec.episode_length)
    (_, _, summary), paths = jax.lax.scan(step, (lives, jnp.ones((FRESH,), bool), empty), keys)
    return jax.vmap(kind.finish)(summary), paths


def coverage(setting: Setting, ends: np.ndarray) -> float:
    """How many cells of the grid hold an episode's descriptor, each axis of which lies in [0, 1]."""
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
    """The tables: interquartile means with their intervals over the seeds, and the pictures."""
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
            medians = [{"tuning": [np.median(row["fresh"]) for row in rows]} for rows in pair]
            better = statistics.probability_of_improvement
            lines.append(line("tuning", contender, f"better than {other}", better, *medians))
    harness.report("learning_skills", options, lines, harness.load())
    if options.pictures:
        draw_curves({key: rows for key, rows in found.items() if rows}, Path(options.pictures) / "skills_curves.png")
        for experiment, draw in (("room", draw_paths), ("ant", draw_ends), ("cheetah", draw_ends)):
            if rows := found[experiment, "DIAYN"]:
                draw(rows, Path(options.pictures) / f"skills_{experiment}.png")


def load(path: Path) -> dict[str, Any]:
    """A run, and what `episodes` told of it."""
    with np.load(path.with_suffix(".npz")) as arrays:
        return {**json.loads(path.read_text()), "episodes": dict(arrays)}


def summary(experiment: str, contender: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """An experiment's lines of the table, one per measure."""
    ended = [row["episodes"] for row in rows]
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
        apart, within = zip(*(spread(told["skills"], told["skill"]) for told in ended), strict=True)
        measures |= {"least distance between skills": list(apart), "distance within a skill": list(within)}
    if SETTINGS[experiment].cells is not None:
        names = ("skills", "exploring", "untrained", "random")
        covered = {name: [coverage(SETTINGS[experiment], told[name]) for told in ended] for name in names}
        measures |= {f"cells, {name}": values for name, values in covered.items()}
    lines = [
        line(experiment, contender, name, statistics.interquartile_mean, {experiment: values})
        for name, values in measures.items()
    ]
    lines[0]["commits"] = sorted({row["commit"] for row in rows})
    for other in ("untrained", "random") if SETTINGS[experiment].cells is not None else ():
        pair = [{experiment: measures[f"cells, {name}"]} for name in ("skills", other)]
        lines.append(line(experiment, contender, f"more than {other}", statistics.probability_of_improvement, *pair))
    return lines


def steps_to(row: Mapping[str, Any], curve: np.ndarray) -> float:
    """Environment steps until the accuracy of a generation is good; infinite if it never is."""
    return float(row["env_steps"][int(np.argmax(curve >= GOOD))]) if (curve >= GOOD).any() else np.inf


def line(experiment: str, contender: str, measure: str, statistic: Any, *samples: Any) -> dict[str, Any]:
    """A line of the table: a statistic with its interval, and each run's value."""
    found = statistics.estimate(statistic, *samples)
    values = [value for sample in samples for value in np.concatenate([*sample.values()], axis=None).tolist()]
    row = {"experiment": experiment, "contender": contender, "measure": measure, "values": values}
    return row | {"runs": len(values) // len(samples), "value": found.value, "low": found.low, "high": found.high}


def figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def draw_curves(found: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Accuracy over environment steps of a member, one panel per experiment: seeds thin, their mean thick."""
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
            curves = [np.median(np.asarray(row["accuracy"]), axis=1) for row in rows]
            for row, curve in zip(rows, curves, strict=True):
                steps = np.asarray(row["env_steps"]) / 1e3
                axes.plot(steps, curve, color=style.PALETTE[colour], linewidth=0.7, alpha=0.5)
            if rows:
                label = f"{contender} ({len(rows)} seeds)"
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
    """Where the episodes of each skill go, in the room; one panel per seed."""
    made = figure(2.5 * len(rows), 2.8)
    for row, axes in zip(rows, made.subplots(1, len(rows), squeeze=False)[0], strict=True):
        told = row["episodes"]
        for episode, skill in enumerate(told["skill"]):
            axes.plot(*told["paths"][:, episode].T, color=style.PALETTE[skill], linewidth=0.6, alpha=0.7)
        axes.scatter(*told["skills"].T, c=[style.PALETTE[skill] for skill in told["skill"]], s=8, zorder=3)
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
        axes.set_title(f"seed {row['seed']}", fontsize=9, color=style.INK, loc="left")
        style.tidy(axes)
    made.savefig(path, dpi=130)


def draw_ends(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The descriptors of the skills' episodes in colour, those of random actions dark; a row for two dimensions."""
    pairs = rows[0]["episodes"]["skills"].shape[1] // 2
    made = figure(2.5 * len(rows), 2.6 * pairs + 0.2)
    for column, row in zip(made.subplots(pairs, len(rows), squeeze=False).T, rows, strict=True):
        told = row["episodes"]
        colours = [style.PALETTE[skill] for skill in told["skill"]]
        for pair, axes in enumerate(column):
            place = slice(2 * pair, 2 * pair + 2)
            axes.scatter(*told["random"][:, place].T, color=style.INK, s=4, label="random actions")
            axes.scatter(*told["skills"][:, place].T, c=colours, s=8, alpha=0.8)
            axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
            axes.set_xlabel(f"contact of foot {2 * pair + 1}", fontsize=8)
            axes.set_ylabel(f"contact of foot {2 * pair + 2}", fontsize=8)
            style.tidy(axes)
        column[0].set_title(f"seed {row['seed']}", fontsize=9, color=style.INK, loc="left")
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=8)
    made.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
