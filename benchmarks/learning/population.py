"""Best agent for equal environment steps: PBT, PB2, MF-PBT, random search, and default hyper-parameters.

    python -m benchmarks.learning.population --agents sac td3 --runs runs/learning

All contenders train P members for the same number of generations, with the same training configuration, in the same
environment; they differ only in the choice of hyper-parameters. `defaults` are P members with the agent's default
hyper-parameters, `random search` P members with sampled ones. All search the agent's default space. A run's score is
the mean return of its best member (by the last generation's evaluation) over new episodes, so that it has no selection
bias; for the default hyper-parameters this is `best of 8 defaults`. Since their members are independent, each is also
scored as a single run with its share of the steps: `defaults`. The run directories are kept for `rookery compare`,
which scores runs by the same rules. Existing runs are not repeated, so the benchmark can be stopped and continued, and
two processes can share the work, one agent each.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import harness
from rookery.distributed import programs
from rookery.experiments import build
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.config_io import to_record
from rookery.experiments.kinds import configure, with_space
from rookery.experiments.spec import Built, RunSpec
from rookery.learners.off_policy import OffPolicyConfig
from rookery.populations.config import PbtConfig
from rookery.report import compare, statistics
from rookery.report.figures.comparison import draw_comparison
from rookery.storage.record import agent_of
from rookery.training import loop
from rookery.training.config import RunConfig

CONTENDERS: Mapping[str, PbtConfig | bool] = {
    "defaults": False,  # independent members, hyper-parameters not drawn
    "random search": True,
    "PBT": PbtConfig(),
    "PBT, every 3,000 steps": PbtConfig(exploit_interval=3_000),  # as pbt-sac and pbt-td3 by default
    "PBT, every 10,000 steps": PbtConfig(exploit_interval=10_000),
    "PBT, every 30,000 steps": PbtConfig(exploit_interval=30_000),
    "PB2": PbtConfig(perturb="pb2"),
    "MF-PBT": PbtConfig(exploit="multi-frequency", frequencies=(1, 5)),
}


SELECTED = "best of 8 defaults"
"""A run with default hyper-parameters, scored by its best member, with the steps of all members."""


class Budget(NamedTuple):
    """Training budget of a task."""

    generations: int
    steps_per_generation: int
    updates_per_step: float
    episode_length: int | None


BUDGETS = {
    "point_maze": Budget(generations=40, steps_per_generation=750, updates_per_step=1.0, episode_length=None),
    "reacher": Budget(generations=40, steps_per_generation=750, updates_per_step=1.0, episode_length=50),
    "inverted_double_pendulum": Budget(
        generations=40, steps_per_generation=1_500, updates_per_step=1.0, episode_length=None
    ),
}
POPULATION, HIDDEN, BATCH, EPISODES, FRESH_BLOCKS = 8, (32, 32), 64, 16, 16
"""Members, hidden sizes, batch size, evaluation episodes of a member, and blocks of as many episodes for the score."""


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--agents", nargs="+", default=["sac", "td3"])
    made.add_argument("--envs", nargs="+", default=list(BUDGETS))
    made.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--length", type=int, default=1, help="how many times as long the runs are; give other --runs")
    made.add_argument("--runs", default="runs/learning")
    made.add_argument("--only-report", action="store_true", help="report the existing runs without making new ones")
    made.add_argument("--earlier", help="result file with the scores of contenders without runs")
    made.add_argument("--pictures", help="folder for a figure of each agent's runs")
    options = harness.parse(made)
    jax.config.update("jax_compilation_cache_dir", f"{options.runs}/cache")
    runs = Path(options.runs)
    for env in [] if options.only_report else options.envs:
        for agent in options.agents:
            for contender in options.contenders:
                generations = BUDGETS[env].generations * options.length
                config = config_of(agent, env, contender, generations)
                train(runs, config, contender, generations, range(options.seeds))
    report(options)


def config_of(agent: str, env: str, contender: str, generations: int) -> RunSpec:
    """Configuration of the run, as the command line would create it with these settings."""
    choice, budget = CONTENDERS[contender], BUDGETS[env]
    parts: dict[str, Any] = {"draw_hyper": choice} if isinstance(choice, bool) else {"pbt": choice}
    kind = agent if isinstance(choice, bool) else f"pbt-{agent}"
    agent_config = type(configure(kind).agent)(hidden_sizes=HIDDEN)
    learner_config = OffPolicyConfig(
        num_envs=10,
        steps_per_generation=budget.steps_per_generation,
        updates_per_step=budget.updates_per_step,
        batch_size=BATCH,
        buffer_size=generations * budget.steps_per_generation,
        eval_episodes=EPISODES,
        start_states=32,
    )
    env_config = EnvironmentConfig(env=env, episode_length=budget.episode_length, devices=1)
    parts |= {"environment": env_config, "learner": learner_config, "agent": agent_config}
    return configure(kind, population=POPULATION, **parts)


def train(
    runs: Path, config: RunSpec, contender: str, generations: int, seeds: Iterable[int], blocks: int = FRESH_BLOCKS
) -> None:
    """Train the missing runs of one contender, and score each; the program is traced once.

    Args:
      runs: folder of the run directories.
      config: of the runs, without their seed, length and directory.
      contender: its name in the tables.
      generations: of each run.
      seeds: of the runs.
      blocks: blocks of evaluation episodes for the score.
    """
    agent, env, built = agent_of(config.kind.name), config.environment.env, None
    for seed in seeds:
        folder = run_folder(runs, config, contender, seed)
        if (folder / "score.json").exists():
            continue
        built = built or build.build(dataclasses.replace(config, run=RunConfig(seed, generations)))
        run = RunConfig(seed, generations, str(folder), checkpoint_every=10_000, keep=1, overwrite=True)
        record = to_record(with_space(dataclasses.replace(built.spec or config, run=run), built.space))
        result = loop.run(built.program, dataclasses.replace(run, quiet=True), built.mesh, record=record)
        scored = evaluator(built, result, seed, blocks)
        row = {"contender": contender, "agent": agent, "env": env, "seed": seed, **scored}
        (folder / "score.json").write_text(json.dumps(row) + "\n")
        print(row, flush=True)


def run_folder(runs: Path, config: RunSpec, contender: str, seed: int) -> Path:
    """The run directory of a contender and a seed."""
    names = contender.replace(" ", "-").lower(), agent_of(config.kind.name), config.environment.env
    return runs / "-".join((*names, str(seed)))


def evaluator(built: Built, result: loop.Result, seed: int, blocks: int) -> dict[str, Any]:
    """Mean returns over new episodes of the best member and of all, and the fitness by which the best was selected."""
    returns = fresh_returns(built, result, seed, blocks).mean(axis=1)
    return scored(result.history[-1]["fitness"], returns, len(result.history) * built.program.steps_per_generation)


def scored(fitness: np.ndarray, returns: np.ndarray, env_steps: int) -> dict[str, Any]:
    """The fresh return of the member with the best fitness, from the fitness and the mean fresh returns `[P]`."""
    best = int(np.argmax(np.where(np.isfinite(fitness), fitness, -np.inf)))
    score = float(returns[best])  # the best member of a generation always survives its exploit
    return {"score": score, "members": returns.tolist(), "seemed": float(fitness[best]), "env_steps": env_steps}


def fresh_returns(built: Built, result: loop.Result, seed: int, blocks: int = FRESH_BLOCKS) -> np.ndarray:
    """Returns `[P, N]` of every member over new episodes, which are the same for all runs of a seed.

    In a team they are those of the agent whose return is the fitness.
    """
    evaluate = programs.compile_program(built.program, built.mesh).evaluate
    agent = getattr(built.spec and built.spec.learner, "fitness", None)
    name = f"return/{agent}" if agent else "returns"
    keys = jax.random.split(jax.random.key(10_000 + seed), blocks)
    return np.concatenate([jax.device_get(evaluate(result.state, key))[name] for key in keys], axis=1)


def report(options: argparse.Namespace) -> None:
    """Report the table: interquartile means with confidence intervals, and probabilities of improvement."""
    scored = [json.loads(path.read_text()) for path in sorted(Path(options.runs).glob("*/score.json"))]
    earlier = json.loads(Path(options.earlier).read_text())["rows"] if options.earlier else []
    rows = []
    for agent in options.agents:
        for env in options.envs:
            mine = [row for row in scored if (row["agent"], row["env"]) == (agent, env)]
            scores = {name: np.array([r["score"] for r in mine if r["contender"] == name]) for name in CONTENDERS}
            alone = [score for r in mine if r["contender"] == "defaults" for score in r["members"]]
            scores |= {SELECTED: scores["defaults"], "defaults": np.array(alone)}
            earlier_scores = {
                r["contender"]: np.array(r["scores"]) for r in earlier if (r["agent"], r["env"]) == (agent, env)
            }
            scores = earlier_scores | {name: values for name, values in scores.items() if len(values)}
            rows += [summary(agent, env, name, scores) for name in scores]
    harness.report("learning_population", options, rows, harness.load())
    for agent in options.agents if options.pictures else []:
        draw(options, agent)


def draw(options: argparse.Namespace, agent: str) -> None:
    """Draw the figure of `rookery compare` for an agent's runs, labelled with the contenders' names."""
    folders = [path.parent for path in sorted(Path(options.runs).glob(f"*-{agent}-*/score.json"))]
    folders = [folder for folder in folders if any(f"-{agent}-{env}-" in folder.name for env in options.envs)]
    found = compare.compare(folders)

    def named(group: Any) -> Any:
        row = json.loads((group.runs[0].path / "score.json").read_text())
        return group._replace(name=row["contender"])

    renamed = found._replace(
        groups=[named(group) for group in found.groups],
        rows=[row._replace(group=named(row.group)) for row in found.rows],
        pairs=[pair._replace(first=named(pair.first), second=named(pair.second)) for pair in found.pairs],
    )
    draw_comparison(renamed, Path(options.pictures) / f"learning_{agent}.png")


def summary(
    agent: str,
    env: str,
    name: str,
    scores: Mapping[str, np.ndarray],
    references: Iterable[str] = ("defaults", SELECTED, "random search"),
) -> dict[str, Any]:
    """One line of the table, with the probability of a better score than that of each reference."""
    middle = statistics.estimate(statistics.interquartile_mean, scores[name])
    row = {"agent": agent, "env": env, "contender": name, "runs": len(scores[name])}
    row |= {"iqm": middle.value, "low": middle.low, "high": middle.high}
    row |= {"scores": scores[name].tolist()}
    for other in references:
        if other in scores and other != name:
            better = statistics.estimate(statistics.probability_of_improvement, scores[name], scores[other])
            row |= {f"over {other}": better.value, f"low {other}": better.low, f"high {other}": better.high}
    return row


if __name__ == "__main__":
    main()
