"""Reads what wandb wrote offline: a `.wandb` file is a log of LevelDB with a protobuf `Record` in each entry."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_FILE_HEADER, _BLOCK, _HEADER = 7, 32768, struct.Struct("<IHB")  # an entry's checksum, length and type
_FULL, _LAST = 1, 4


class Offline(NamedTuple):
    """The content of one file."""

    id: str
    project: str
    name: str
    group: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    """The values of each `log` by name, with `_step`."""
    exit_code: int | None
    summaries: dict[str, str]
    """Metric -> "max" where the summary is its maximum."""


def entries(path: Path) -> Iterator[bytes]:
    content, at, entry = path.read_bytes(), _FILE_HEADER, b""
    assert content[:4] == b":W&B"
    while at + _HEADER.size <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER.size:  # the rest of a block
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(content, at)
        entry += content[at + _HEADER.size : at + _HEADER.size + length]
        at += _HEADER.size + length
        if kind in (_FULL, _LAST):
            yield entry
            entry = b""


def read(path: Path) -> Offline:
    """Read one file."""
    from wandb.proto import wandb_internal_pb2  # wandb reads the environment when it is imported

    run, history, exit_code, summaries = None, [], None, {}
    for entry in entries(path):
        record = vars(wandb_internal_pb2)["Record"]()  # protobuf creates its classes at import
        record.ParseFromString(entry)
        kind = record.WhichOneof("record_type")
        if kind == "run" and run is None:
            run = record.run
        elif kind == "history":
            values = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            history.append({name: json.loads(value) for name, value in values.items()})
        elif kind == "exit":
            exit_code = record.exit.exit_code
        elif kind == "metric" and record.metric.summary.max:
            summaries[record.metric.name] = "max"
    assert run is not None
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    return Offline(run.run_id, run.project, run.display_name, run.run_group, config, history, exit_code, summaries)


def offline_files(run_dir: Path) -> list[Offline]:
    """What a run wrote, a file for each start, in the order of time."""
    import wandb

    wandb.teardown()  # until then another process writes them
    files = [read(path) for path in run_dir.glob("wandb/offline-run-*/*.wandb")]
    return sorted(files, key=lambda file: file.history[0]["_timestamp"])
