"""Runs an island again from its seed and the recorded exchanges, and compares every bit."""

import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.envs.host.base import HostState
from rookery.experiments.config_io import from_record
from rookery.islands.plan import Builder, as_recorded, check
from rookery.islands.store import StoreError
from rookery.storage import sources
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import Names, check_columns, read_table
from rookery.storage.island_files import ImportJournal, island_dir, islands_of, read_exchanges
from rookery.storage.record import CHOICES, check_keys
from rookery.storage.run_dir import RunFolder, open_existing

_TIMES = ("seconds", "steps_per_second")


class Replay(NamedTuple):
    """What was compared, and found equal bit by bit."""

    island: int
    generation: int
    """Generation of the checkpoint that was reached again."""
    imports: int
    """Imports that were repeated."""
    publications: int
    """Publications whose checksums were compared."""
    leaves: int
    """Arrays of the state."""
    bytes: int
    """Their size."""
    rows: int
    """Rows of `metrics.csv` (without times) and of `lineage.csv`."""


def replay_island(run_dir: str | Path, number: int) -> Replay:
    """Run an island again up to its newest checkpoint, and compare state, tables and publications.

    Args:
      run_dir: the run directory of all islands, which is only read.
      number: of the island.

    Returns:
      What was compared.

    Raises:
      ValueError: the run has no such island, an exchange or a publication is missing, or something differs.
      CheckpointError: the island has no complete checkpoint.
    """
    folder = open_existing(run_dir)
    if not islands_of(folder.path):
        raise ValueError(f"{folder.path} has no islands to replay; give the run directory of a run with --islands.")
    sources.use(folder)
    spec = check(from_record(folder.config))
    check_keys(folder.config, folder.path)
    if not 0 <= number < spec.method.islands.islands:
        raise ValueError(f"island {number} does not exist; choose one in 0..{spec.method.islands.islands - 1}.")
    spec = spec.with_run(run_dir=str(folder.path))
    recorded = open_existing(island_dir(folder.path, number))
    builder = Builder(as_recorded(spec, number), begins=True)
    template = builder.compiler.template
    state, _, generation = Checkpointer(recorded.checkpoints, read_only=True).restore(template)
    exchanges = [exchange for exchange in read_exchanges(recorded.imports_file) if exchange.generation <= generation]
    with tempfile.TemporaryDirectory(prefix="rookery-replay-") as temporary:
        again = RunFolder(temporary)
        try:
            result = builder.replayed(number, again.path, generation, ImportJournal(None, exchanges))
        except StoreError as error:
            raise ValueError(f"island {number} cannot be replayed: {error}") from error
        leaves = _compare_states(state, result.state)
        tables = (recorded.metrics_file, again.metrics_file), (recorded.lineage_file, again.lineage_file)
        names = recorded.config.get(CHOICES, {})
        rows = sum(_compare_tables(*files, generation, names) for files in tables)
    published = sum(exchange.published is not None for exchange in exchanges)
    size = trees.size_in_bytes(leaves)
    imports = sum(len(exchange.imports) for exchange in exchanges)
    return Replay(number, generation, imports, published, len(leaves), size, rows)


def _compare_states(saved: object, replayed: object) -> list[np.ndarray]:
    """Compare two states; returns the arrays of the first. Slots of a host's environments, which are mere names, may
    differ."""
    saved, replayed = (_without_slots(state) for state in (saved, replayed))
    compared = []
    for (path, left), right in zip(jax.tree.leaves_with_path(saved), jax.tree.leaves(replayed), strict=True):
        first, second = (np.asarray(jax.device_get(_data(leaf))) for leaf in (left, right))
        if first.tobytes() != second.tobytes():
            raise ValueError(f"the replay differs from the checkpoint in {jax.tree_util.keystr(path)} of the state.")
        compared.append(first)
    return compared


def _without_slots(state: object) -> object:
    def strip(node: object) -> Any:
        return node._replace(slot=()) if isinstance(node, HostState) else node

    return jax.tree.map(strip, state, is_leaf=lambda node: isinstance(node, HostState))


def _data(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _compare_tables(recorded: Path, again: Path, generation: int, names: Names = MappingProxyType({})) -> int:
    """Compare two tables up to a generation, without times; returns the number of rows."""
    left, right = read_table(recorded, names), read_table(again, names)
    check_columns(recorded, left, ("generation",))
    kept, same = left["generation"] < generation, right["generation"] < generation
    compared = [name for name in left if name in right and not name.startswith(_TIMES)]  # a replay calls no callbacks
    for name in compared:
        if left[name][kept].tobytes() != right[name][same].tobytes():
            raise ValueError(f"the replay differs from {recorded} in the column {name}.")
    return int(kept.sum())
