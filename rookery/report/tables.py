"""Tables of summaries and evaluations of runs, which the commands print."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from rookery.report.formatting import counted, equal_decimals, no_qd_score, number, signed
from rookery.report.readers import open_run
from rookery.report.runs import ranking_fitness, worst_fitness
from rookery.report.statistics import interquartile_mean, over_runs
from rookery.settings import MEASURE
from rookery.storage.lineage import Lineage
from rookery.storage.played import Tournament

Metrics = Mapping[str, np.ndarray]  # metrics of an evaluation, see `deploy.evaluate.evaluate`
_DENSE_FROM = 8  # columns; wider tables are printed densely
_REPERTOIRE = {"coverage": "coverage, %", "qd_score": "QD score", "max_fitness": "best fitness"}


def summary(run_dir: str | Path) -> Table:
    """The last generation of a run: best, middle and worst member with the hyper-parameters of their training.

    For independent members, their interquartile mean and its interval instead.
    """
    record = open_run(run_dir)
    lineage, seeds = record.lineage, record.seeds
    title = f"generation {len(lineage.fitness)}"
    hyper = {name: values[-1] for name, values in lineage.hyper.items()}
    if seeds:
        statistics = seeds_rows([run.end.fitness for run in seeds], worst_fitness(seeds))
        rows = {name: [text] for name, text in statistics.items()}  # the hyper-parameters of all seeds are equal
        rows |= {name: [_shown(lineage, name, values[0])] for name, values in hyper.items()}
        return _titled_table(title, [counted(len(seeds), "independent member")], rows)
    order = _best_first(lineage.selected_by[-1])
    chosen = {"best": order[0], "middle": order[(len(order) - 1) // 2], "worst": order[-1]}
    if len(order) == 1:
        chosen = {"only member": order[0]}
    rows = {"member": [str(member) for member in chosen.values()]}
    rated = {} if lineage.rating is None else {"rating": lineage.rating[-1]}
    for name, values in {"fitness": lineage.fitness[-1], **rated, **hyper}.items():
        rows[name] = [_shown(lineage, name, values[member]) for member in chosen.values()]
    if not (lineage.parents[1:] == np.arange(len(order))).all():
        copies = [_latest_copy(lineage.parents[:, member], member, record.outside) for member in chosen.values()]
        rows["copied from"], rows["after generation"] = map(list, zip(*copies, strict=True))
    return _titled_table(title, list(chosen), rows)


def _shown(lineage: Lineage, name: str, value: float) -> str:
    """A number of a member as text, or the name that it stands for."""
    return lineage.choices[name][int(value)] if name in lineage.choices else f"{value:z.4g}"


def _latest_copy(parents: np.ndarray, member: int, outside: str) -> tuple[str, str]:
    """What last replaced a member, from its parents `[G]`, and after which generation, counted from 1; `outside` is
    what the parent -1 means."""
    replaced = np.flatnonzero(parents[1:] != member)
    if not len(replaced):
        return "never", "-"
    parent = parents[replaced[-1] + 1]
    return outside.removeprefix("the ") if parent < 0 else f"member {parent}", str(replaced[-1] + 1)


def _best_first(fitness: np.ndarray) -> np.ndarray:
    """The members `[P]` by their fitness, the highest first; those that diverged last."""
    return np.argsort(-ranking_fitness(fitness), kind="stable")


def _titled_table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """A table with a title, and a label before each row."""
    table = Table("", title=title, title_justify="left", show_header=bool(columns))
    for name in columns:
        table.add_column(name, justify="right")
    for label, texts in rows.items():
        table.add_row(label, *texts)
    return table


def seeds_rows(fitness: npt.ArrayLike, floor: float | None = None) -> dict[str, str]:
    """Statistics of the fitness `[P]` of independent members, label -> text; a diverged one has the fitness `floor`, by
    default the lowest finite one."""
    fitness = np.asarray(fitness, np.float64)
    finite = fitness[np.isfinite(fitness)]
    rows = {}
    if len(finite):
        iqm = over_runs(fitness, floor).item()
        rows["interquartile mean of the fitness"] = number(iqm.value)
        rows["95 % interval"] = f"{number(iqm.low)} to {number(iqm.high)}"
        rows["median"] = number(float(np.median(finite)))
        rows["lowest to highest"] = f"{number(finite.min())} to {number(finite.max())}"
    return rows | ({"diverged": str(len(fitness) - len(finite))} if len(finite) < len(fitness) else {})


def repertoire_summary(run_dir: str | Path) -> Table:
    """Coverage, QD score and best fitness of a run's repertoire after the first and after the last generation."""
    metrics = open_run(run_dir).metrics
    rows = {label: [f"{metrics[name][row]:z.4g}" for row in (0, -1)] for name, label in _REPERTOIRE.items()}
    table = _titled_table(f"repertoire after generation {len(metrics['generation'])}", ["first", "last"], rows)
    table.caption, table.caption_justify = no_qd_score({name: values[-1] for name, values in metrics.items()}), "left"
    return table


def repertoire_evaluation(metrics: Metrics) -> Table:
    """A repertoire's stored metrics, and the corrected ones from evaluations of its elites on fresh start states."""
    elites = int(np.sum(np.isfinite(metrics["stored_fitness"])))
    times = metrics["returns"].shape[1]
    title = f"{counted(elites, 'elite')}, {f'{times} episodes each' if times > 1 else 'each evaluated once'}"
    sides = ["stored", "corrected"]
    rows = {label: [f"{metrics[f'{side}/{name}']:z.4g}" for side in sides] for name, label in _REPERTOIRE.items()}
    occupied = np.isfinite(metrics["stored_fitness"])
    for name, values in _measures(metrics).items():
        rows[f"mean {name}"] = ["", f"{np.mean(values[occupied]):z.4g}" if elites else ""]
    return _titled_table(title, sides, rows)


def member_evaluation(metrics: Metrics) -> Table:
    """Every member on fresh start states, best first: mean and spread of the return, episode length, descriptor.

    With skills, also what the method of skill discovery measures; then the means of the task's measures. The fitness
    has a separate column where it is not the mean return.
    """
    returns, fitness = metrics["returns"], metrics["fitness"]
    mean = returns.mean(axis=1)
    texts = equal_decimals(mean, returns.std(axis=1), returns.min(axis=1), returns.max(axis=1))
    columns: dict[str, list[str]] = dict(zip(("mean return", "std", "min", "max"), texts, strict=True))
    rounding = 1e-5 * np.abs(returns).max(axis=1)
    if not np.isclose(fitness, mean, rtol=1e-4, atol=rounding, equal_nan=True).all():
        columns = {"fitness": equal_decimals(fitness)[0], **columns}
    columns |= _skill_columns({name: metrics[name].mean(axis=1) for name in _OF_SKILLS if name in metrics})
    taken = {*columns, "fitness", "length", "descriptor"}
    for name, values in _measures(metrics).items():
        columns[f"{MEASURE}{name}" if name in taken else name] = equal_decimals(values.mean(axis=1))[0]
    columns["length"] = [f"{value:.0f}" for value in metrics["lengths"].mean(axis=1)]
    if metrics["descriptor"].shape[1] > 0:
        columns["descriptor"] = _descriptor_texts(metrics["descriptor"])
    labels = {member: str(member) for member in _best_first(fitness)}
    return _columns_table(f"{counted(returns.shape[1], 'episode')} per member", "member", labels, columns)


def _measures(metrics: Metrics) -> dict[str, np.ndarray]:
    """The measures of the task, name -> `[P, N]`; of agents their mean only."""
    agents = tuple(f"/{name}" for name in metrics.get("agents", ()))
    found = {name.removeprefix(MEASURE): values for name, values in metrics.items() if name.startswith(MEASURE)}
    return {name: values for name, values in found.items() if not name.endswith(agents)}


def evaluation_summary(metrics: Metrics) -> list[Table | str]:
    """Summary of the members' fitness on fresh start states.

    For independent members it is their interquartile mean with its interval; for other populations a note on the
    optimistic scores, which are selected by the same evaluations that measure them.
    """
    if "stored_fitness" in metrics:
        sides = ([float(metrics[f"{side}/{name}"]) for name in _REPERTOIRE] for side in ("stored", "corrected"))
        if np.allclose(*sides, rtol=1e-4):  # a function without noise
            return []
        return [
            "note: the stored best is the highest of many noisy evaluations, which is optimistic; the corrected best, "
            "selected by these episodes, is less so; `rookery compare RUN --fresh 100` evaluates only the best elite."
        ]
    fitness = np.asarray(metrics["fitness"])
    if "best_member" not in metrics or len(fitness) < 2:
        return []
    if metrics["independent"]:
        rows = {name: [text] for name, text in seeds_rows(fitness).items()}
        return [_titled_table(counted(len(fitness), "independent member"), [], rows)]
    best = int(metrics["best_member"])
    has_equal = len({*fitness.tolist()}) < len(fitness)
    copies = " Equal rows may be copies, which the last selection made." if has_equal else ""
    return [
        f"note: the first row is the best of {len(fitness)} on these same episodes, which is optimistic; member {best} "
        "ranked first in training, by other episodes, so that these are an unbiased estimate of its fitness: "
        f"{number(float(fitness[best]))}.{copies}"
    ]


def team_evaluation(metrics: Metrics) -> Table:
    """The agents of the best team on fresh start states, a row each: returns, and the ends of their episodes.

    For several independent teams, statistics over all teams.

    Args:
      metrics: `agents` `[I]`, names; `fitness` `[P]`; for each name, `return/<name>`, `final_reward/<name>`,
        `terminated/<name>` and `truncated/<name>`, `[P, N]`; `independent` `[]`, whether each team is an independent
        run.
    """
    if metrics.get("independent") and len(metrics["fitness"]) > 1:
        return _independent_teams(metrics)
    team = _best_first(metrics["fitness"])[0]
    names = [str(name) for name in metrics["agents"]]
    by_agent = {metric: np.stack([metrics[f"{metric}/{name}"][team] for name in names]) for metric in _AGENT_METRICS}
    returns = by_agent["return"].astype(np.float64)
    numbers = returns.mean(1), returns.std(1), returns.min(1), np.median(returns, axis=1), returns.max(1)
    columns = dict(zip(_RETURNS, equal_decimals(*numbers), strict=True)) | _episode_ends(by_agent)
    suffix = f", team {team}" if len(metrics["fitness"]) > 1 else ""
    title = f"{counted(returns.shape[1], 'episode')} per agent{suffix}"
    return _columns_table(title, "agent", dict(enumerate(names)), columns)


def _independent_teams(metrics: Metrics) -> Table:
    """The agents of independent teams: for each agent the interquartile mean over teams of its mean return."""
    names = [str(name) for name in metrics["agents"]]
    teams, episodes = metrics[f"return/{names[0]}"].shape
    by_agent = {metric: np.stack([metrics[f"{metric}/{name}"].ravel() for name in names]) for metric in _AGENT_METRICS}
    means = by_agent["return"].reshape(len(names), teams, episodes).mean(axis=2)
    iqm = over_runs(means)
    numbers = iqm.value, iqm.low, iqm.high, means.min(axis=1), means.max(axis=1)
    columns = dict(zip(_IQM, equal_decimals(*numbers), strict=True)) | _episode_ends(by_agent)
    title = f"{teams} independent teams, {counted(episodes, 'episode')} per agent, 95 % intervals"
    return _columns_table(title, "agent", dict(enumerate(names)), columns)


def tournament(result: Tournament) -> list[Table]:
    """The ratings of each role's members, and, for two roles, the returns of the first against the second."""
    parts = [_ratings(result, role) for role in range(len(result.agents))]
    size, opponents = result.returns.shape[1:]
    if len(result.agents) != 2 or opponents > _MOST_OPPONENTS:
        return parts
    first, second = result.agents
    texts = equal_decimals(*result.returns[0].T)
    columns = {str(opponent): column for opponent, column in enumerate(texts)}
    labels = {member: str(member) for member in range(size)}
    return [*parts, _columns_table(f"mean return of {first}", f"{first}/{second}", labels, columns)]


def _ratings(result: Tournament, role: int) -> Table:
    """The members of a role by their ratings, with the opponents against which they have the most and least return."""
    returns, ratings = result.returns[role], result.ratings[role]
    finite = np.isfinite(returns)
    mean = np.where(finite, returns, 0.0).sum(axis=1) / np.where(finite.any(axis=1), finite.sum(axis=1), np.nan)
    order = _best_first(ratings)
    columns = {"member": [str(member) for member in range(len(order))]}
    columns |= {"rating": [signed(rating) for rating in ratings], "mean return": equal_decimals(mean)[0]}
    ends = {"easiest opponent": np.where(finite, returns, -np.inf).argmax(axis=1)}
    ends["hardest opponent"] = np.where(finite, returns, np.inf).argmin(axis=1)
    columns |= {name: [f"{opponent}" for opponent in chosen] for name, chosen in ends.items()}
    labels = {member: str(rank + 1) for rank, member in enumerate(order)}
    return _columns_table(result.agents[role], "rank", labels, columns)


_MOST_OPPONENTS = 16  # columns of the table of returns; the picture has more


def _episode_ends(by_agent: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    """Columns with the final reward, and the shares of terminated and truncated episodes, from `[I, N]`."""
    columns = {"final reward": equal_decimals(by_agent["final_reward"].mean(axis=1))[0]}
    for name in ("terminated", "truncated"):
        columns[name] = [f"{100 * share:.0f} %" for share in by_agent[name].mean(axis=1)]
    return columns


_IQM = ("IQM return", "interval low", "interval high", "lowest", "highest")
_RETURNS = ("mean return", "std", "min", "median", "max")
_AGENT_METRICS = ("return", "final_reward", "terminated", "truncated")


def skill_evaluation(metrics: Metrics, member: int = 0) -> Table:
    """The skills of one member on fresh start states: a row each, and the mean over all of them.

    Args:
      metrics: `skill` `[N]`, the skill of each episode; for each member and episode `returns`, `lengths` in steps, and
        some of `accuracy` in [0, 1], `diversity_return` in nats, `distance` and `phi_step`, `[P, N]`, and `descriptors`
        `[P, N, D]`; D may be 0.
    """
    skills, index, episodes = np.unique(metrics["skill"], return_inverse=True, return_counts=True)
    names = ("returns", "lengths", "descriptors", *(name for name in _OF_SKILLS if name in metrics))
    rows = {name: [metrics[name][member][index == row].mean(axis=0) for row in range(len(skills))] for name in names}
    means = {name: np.stack([*values, np.mean(values, axis=0)]) for name, values in rows.items()}
    columns = {"true return": equal_decimals(means["returns"])[0]}
    columns |= _skill_columns(means)
    columns["length"] = [f"{value:.0f}" for value in means["lengths"]]
    if means["descriptors"].shape[1] > 0:
        columns["mean descriptor"] = _descriptor_texts(means["descriptors"])
    fewest, most = int(episodes.min()), int(episodes.max())
    title = f"{counted(fewest, 'episode') if fewest == most else f'{fewest} to {most} episodes'} per skill"
    title += f", member {member}" if len(metrics["returns"]) > 1 else ""
    labels = dict(enumerate([*map(str, skills), "mean"]))
    return _columns_table(title, "skill", labels, columns, end_section=len(skills) - 1)


def _columns_table(
    title: str, heading: str, labels: Mapping[int, str], columns: Mapping[str, Sequence[str]], end_section: int = -1
) -> Table:
    """A table of texts; with many columns a dense one, so that ten of them fit into 80 characters.

    Args:
      heading: name of the column of labels.
      labels: index of a row in `columns` -> its label, in the order of the rows.
      end_section: index of the row that a line follows; -1 for none.
    """
    dense = len(columns) + 1 >= _DENSE_FROM
    layout = {"box": box.SIMPLE_HEAD, "padding": 0, "show_edge": False} if dense else {}
    table = Table(title=title, title_justify="left", **layout)
    for name in (heading, *columns):
        table.add_column(name.replace(" ", "\n") if dense else name, justify="right")
    for row, label in labels.items():
        table.add_row(label, *(texts[row] for texts in columns.values()), end_section=row == end_section)
    return table


_OF_SKILLS = {
    "accuracy": "accuracy",
    "diversity_return": "diversity return",
    "distance": "distance in phi",
    "phi_step": "step in phi",
}
"""What methods of skill discovery measure, and its headings."""


def _skill_columns(values: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    columns = {_OF_SKILLS[name]: equal_decimals(values[name])[0] for name in _OF_SKILLS if name in values}
    if "accuracy" in values:
        columns["accuracy"] = [f"{value:.3f}" for value in values["accuracy"]]
    return columns


def coverage_line(metrics: Metrics) -> str:
    """The number of distinct cells that the skills of the best member visited; see `deploy.evaluate.evaluate`."""
    side, size = f"{float(metrics['cell']):g}", metrics["descriptor"].shape[1]
    episodes = counted(metrics["returns"].shape[1], "episode")
    cells = f"{int(metrics['cells']):,} cells of {' x '.join([side] * size)}"
    return f"coverage   {cells}, which the states of {episodes} of member {int(metrics['best_member'])} lie in"


def goal_evaluation(metrics: Metrics) -> Table:
    """Distances that are left between the last states of episodes and their goals, and relative to the start; `metrics`
    are those of `deploy.evaluate.evaluate_goals`."""
    intact = np.isfinite(metrics["left"])  # the physics broke in the others
    at_start, left = (np.asarray(metrics[name], np.float64)[intact] for name in ("at_start", "left"))
    if not intact.any():
        return Table(title="the physics broke on the way to every goal", title_justify="left")
    rows = {
        "at the start": (at_start, f"{1.0:.3f}"),
        "left at the end": (left, f"{left.mean() / at_start.mean():.3f}"),
    }
    title = f"{counted(len(intact), 'goal')}, member {int(metrics['best_member'])}"
    title += f"; without {counted(int(np.sum(~intact)), 'episode')} of broken physics" if not intact.all() else ""
    table = Table(title=title, title_justify="left")
    for name in ("distance", "mean", "interquartile mean", "relative"):
        table.add_column(name, justify="left" if name == "distance" else "right")
    for label, (values, relative) in rows.items():
        middle = float(interquartile_mean(values))
        table.add_row(label, number(float(values.mean())), number(middle), relative)
    return table


def _descriptor_texts(descriptors: np.ndarray) -> list[str]:
    """A text per descriptor, with its dimensions aligned across rows."""
    texts = [[f"{value:z.2f}" for value in row] for row in descriptors]
    width = max(len(text) for row in texts for text in row)
    return [" ".join(text.rjust(width) for text in row) for row in texts]
