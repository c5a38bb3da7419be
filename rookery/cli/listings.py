"""Tables of tasks and of planned memory, which only commands print."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from rookery.distributed.device_memory import size
from rookery.report.formatting import Settings, limits_text
from rookery.training.memory_plan import WORKING, Plan


def tasks_table(suite: str, rows: Sequence[Settings]) -> Table:
    """The registered environments of a suite: sizes of observation and action ("d": discrete), agents, steps of an
    episode, and descriptor, the only column that wraps."""
    described = any(row["descriptor"] for row in rows)
    table = Table(title=suite, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("task", "obs", "act", "agents", "steps"):
        table.add_column(name, no_wrap=True, justify="left" if name == "task" else "right")
    if described:
        table.add_column("descriptor", overflow="fold")
    for row in rows:
        actions = f"{row['action_size']}{' d' if row['actions'] == 'discrete' else ''}"
        counts = (str(row[name] or "") for name in ("agents", "episode_length"))
        cells = [row["task"], str(row["observation_size"] or ""), actions, *counts]
        table.add_row(*cells, *([row["descriptor"] or ""] if described else []))
    return table


def task_table(row: Settings) -> Table:
    """Everything about one environment."""
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    install = f'pip install "rookery[{row["extra"]}]"' if row["extra"] else ""
    flags = {"episode_length": "--episode-length", "backend": "--backend"}
    options = [flags.get(name, f"--option {name}=...") for name in row["options"]]
    is_function = row["suite"] == "function"
    lines = {
        "task": row["task"],
        "suite": row["suite"],
        "observation size": row["observation_size"] or "",
        "genotype size" if is_function else "action size": f"{row['action_size']}, {row['actions']}",
        "agents": "" if is_function else row["agents"],
        "episode length": row["episode_length"] or "",
        "descriptor": _descriptor(row),
        f"QD offset{'' if is_function else ' per step'}": "" if row["qd_offset"] is None else f"{row['qd_offset']:g}",
        "options": ", ".join(options),
        "needs": install,
        "parameters": "\n".join(
            f"--space.env.{name.replace('_', '-')}: {text}" for name, text in row["parameters"].items()
        ),
        "measures": "\n".join(f"--objective {name}: {meaning}" for name, meaning in row["measures"].items()),
    }
    for name, value in lines.items():
        if value != "":
            table.add_row(name, Text(str(value)))
    return table


def plan_table(planned: Plan) -> Table:
    """Predicted memory of a run by part, on all devices and on one, and its peak."""
    count = planned.devices
    table = Table(title="memory", title_justify="left")
    for name in ("", *(["all devices"] if count > 1 else []), "one device"):
        table.add_column(name, justify="right" if name else "left")

    def add(name: str, share: int | None, end_section: bool = False) -> None:
        texts = ["?"] * len(table.columns) if share is None else [size(count * share), size(share)]
        table.add_row(name, *texts[-len(table.columns) + 1 :], end_section=end_section)

    for part in planned.parts:
        add(part.name, part.share, end_section=part is planned.parts[-1])
    add("the state", planned.held)
    add("its copies while saving", planned.copies * planned.held)
    add(WORKING, planned.working, end_section=True)
    add("peak", planned.peak)
    add("available", planned.available)
    return table


def _descriptor(row: Settings) -> str:
    if not row["descriptor"]:
        return ""
    bounds = dict.fromkeys(zip(row["descriptor_lower"], row["descriptor_upper"], strict=True))
    return f"{row['descriptor']} ({row['descriptor_size']}, {limits_text(*zip(*bounds, strict=True))})"
