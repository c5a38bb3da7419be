"""Small runs of islands by the command line in this process, and what is compared of them."""

from pathlib import Path

from rookery.storage.csv_log import read_csv
from rookery.storage.island_files import island_dir, read_exchanges
from tests.commandline import call

# An island of each has a population of tests/short_runs.py, whose compiled programs it shares as far as it can.
_TINY = (
    "--env point_room --episode-length 12 --num-envs 2 --hidden-sizes 4 --eval-episodes 2 --start-states 2 --devices 1 "
    "--steps-per-generation 20 --batch-size 4 --buffer-size 32 --warmup-steps 4 --quiet --checkpoint-every 1 --keep 9 "
    "--migrate-every 1"
)
PBT = f"pbt-sac {_TINY} --population 4 --islands 2 --exploit-interval 20 --migrate-fraction 1"
"""Two islands of two members, which exchange after every generation."""
ME_PBT = f"me-pbt-sac {_TINY} --population 4 --ga-population 4 --islands 2 --grid 4 4 --migrate-fraction 0.5"


def train(flags: str, folder: Path, *more: str) -> tuple[int, str, str]:
    return call("train", *flags.split(), "--run-dir", str(folder), *more)


def content(folder: Path, number: int) -> tuple:
    """What an island has computed: its tables without times, and its exchanges."""
    island = island_dir(folder, number)
    tables = [read_csv(island / name) for name in ("metrics.csv", "lineage.csv")]
    kept = [
        {name: column.tobytes() for name, column in table.items() if not name.startswith(("seconds", "steps_per"))}
        for table in tables
    ]
    exchanges = [exchange._replace(notes=()) for exchange in read_exchanges(island / "imports.jsonl")]
    return kept, exchanges


def contents(folder: Path, islands: int = 2) -> list[tuple]:
    return [content(folder, number) for number in range(islands)]
