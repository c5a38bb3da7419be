"""Sends a run to Weights & Biases (https://wandb.ai)."""

import contextlib
import io
import json
import os
import secrets
import time
from collections import deque
from pathlib import Path
from shutil import disk_usage
from typing import Any

from rookery.distributed import sync
from rookery.tracking import records
from rookery.tracking.records import TrackerError
from rookery.training.callbacks import Generation, Start
from rookery.training.terminal import terminal

_INIT_SECONDS = 30.0
_FINISH_SECONDS = 60.0
_SETTLED_SECONDS = 30.0
"""Seconds after which values of a killed run are certainly in W&B's files: its process writes them every 15 seconds."""
_LEAST_FREE = 2**16
"""Bytes of a disk that is not full: W&B's own process does not say that it cannot write its files."""
_SUMMARIES = {"best_fitness": "max", "max_fitness": "max", "qd_score": "max", "coverage": "max"}
_USUAL = {"project", "entity"}  # arguments of `wandb.init` that are no options of the user's
_REMEDY = "check the network and the key (`wandb login`), or set WANDB_MODE=offline to record without a server"


class WandbTracker:
    """A callback that sends a run to Weights & Biases: the recorded config, and the values of each generation.

    The step is the number of the generation, counted from 0 as in `metrics.csv`, and the horizontal axis `env_steps`;
    `records.values` lists the curves. The W&B run is recorded in `wandb.json` in the run directory, so that a resumed
    run continues it; generations that it certainly has are not sent again. With WANDB_MODE=offline everything is
    written to the folder `wandb` of the run directory, for `wandb sync`.

    Args:
      project: the W&B project, or `entity/project`.
      quiet: do not print where the W&B run is.
      **options: further arguments of `wandb.init`, such as `group`, `tags` or `name`; by default the name is that of
        the run directory, and the islands of a run are a group.

    Raises:
      ImportError: wandb is not installed.
      TrackerError: `project` is empty, there is no key, or the server rejects it or cannot be reached; (later) the
        disk is full, without a server.
    """

    def __init__(self, project: str, quiet: bool = False, **options: object):
        entity, _, name = project.rpartition("/")
        if not name:
            raise TrackerError(f"the W&B project {project!r} has no name; give PROJECT or ENTITY/PROJECT.")
        self._wandb: Any = records.load_package("wandb", "wandb")
        self._project, self._quiet = project, quiet
        self._options = {"project": name, **({"entity": entity} if entity else {}), **options}
        self._run: Any = None
        self._record: dict[str, Any] = {}
        self._sent: deque[tuple[float, int]] = deque()  # time and generations of values that may not be written yet
        self._run_dir = None
        if sync.is_first():
            self._log_in()

    def begin(self, start: Start) -> None:
        """Start the W&B run, or continue the one that the run directory names; nothing with WANDB_MODE=disabled."""
        mode = self._wandb.setup().settings.mode
        if mode == "disabled":
            return
        folder = os.environ.get("WANDB_DIR") or start.run_dir
        if (path := str(folder)) != records.as_utf8(path):
            remedy = "set WANDB_DIR to another folder, or rename it"
            raise TrackerError(f"W&B cannot write into {path!r}, whose name is not UTF-8; {remedy}.")
        if mode == "offline":
            _check_disk(folder or ".")
        self._run_dir = start.run_dir
        self._sent.clear()
        found = records.read_record(start.run_dir, "wandb")
        new = {"project": self._project, "id": secrets.token_hex(4), "finished": start.finished}
        self._record = found if found.get("project") == self._project else new
        name, group = records.name_and_group(start)
        options = {"name": name, "group": group, **self._options}
        settings = self._wandb.Settings(
            silent=True,
            console="off",
            init_timeout=_INIT_SECONDS,
            finish_timeout=_FINISH_SECONDS,
            finish_timeout_raises=True,
        )
        try:
            self._run = self._wandb.init(
                id=self._record["id"],
                resume="allow" if mode == "online" else None,
                config=json.loads(records.as_utf8(json.dumps(dict(start.config), ensure_ascii=False))),
                allow_val_change=True,
                dir=folder,
                reinit="create_new",
                settings=settings,
                **options,
            )
        except Exception as error:  # also of its own parts, about an argument
            remedy = f"correct the options of the tracker, or {_REMEDY}" if self._options.keys() - _USUAL else _REMEDY
            raise TrackerError(f"W&B started no run: {_sentence(error)}; {remedy}.") from error
        with records.ended_if_it_fails(self.end):
            self._run.define_metric("env_steps")
            self._run.define_metric("*", step_metric="env_steps")
            for name, summary in _SUMMARIES.items():
                self._run.define_metric(name, step_metric="env_steps", summary=summary)
            records.write_record(start.run_dir, "wandb", self._record)
            for generation in records.recorded(start, self._record["finished"]):
                self._log(generation)
            if not self._quiet:
                terminal().print_line(f"{'wandb':10} {self._place()}")

    def __call__(self, generation: Generation) -> None:
        """Send a generation, unless the W&B run has it already."""
        if self._run is not None and generation.finished > self._record["finished"]:
            try:
                self._log(generation)
            except Exception as error:  # of any kind, where W&B's own process has ended
                message = f"W&B takes no more values ({type(error).__name__}: {_sentence(error)})"
                raise TrackerError(f"{message}; metrics.csv and lineage.csv have all") from error
            self._settle(time.monotonic() - _SETTLED_SECONDS)

    def _log(self, generation: Generation) -> None:
        self._run.log(records.values(generation), step=generation.number)
        self._sent.append((time.monotonic(), generation.finished))

    def _settle(self, before: float) -> None:
        """Record that W&B has the generations that were sent before a time."""
        if self._run.offline:
            _check_disk(self._run.settings.sync_dir)
        while self._sent and self._sent[0][0] <= before:
            self._record["finished"] = self._sent.popleft()[1]
        records.write_record(self._run_dir, "wandb", self._record)

    def end(self, error: BaseException | None) -> None:
        """Finish the W&B run; it is marked as failed if an exception or a signal ended the run."""
        if self._run is None:
            return
        signum = getattr(error, "signum", None)
        code = 0 if error is None else 1 if signum is None else 128 + signum
        late = None
        try:
            self._run.finish(exit_code=code)
        except TimeoutError as error_of_server:
            late = error_of_server
        self._settle(time.monotonic())
        if late is not None:
            folder = self._run.settings.sync_dir
            message = f"not all values reached W&B within {_FINISH_SECONDS:.0f} seconds; send them with: wandb sync"
            raise TrackerError(f"{message} {folder}") from late

    def _log_in(self) -> None:
        """Check the key without asking for one, since a run must not wait for an answer."""
        mode = self._wandb.setup().settings.mode
        if mode != "online" or self._wandb.run is not None:
            return
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                known = self._wandb.login(prompt=False, verify=True)
        except self._wandb.Error as error:
            raise TrackerError(f"W&B cannot be used: {_sentence(error)}; {_REMEDY}.") from error
        if not known:
            remedy = "run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline to record without a server"
            raise TrackerError(f"W&B has no key of yours; {remedy}.")

    def _place(self) -> str:
        if self._run.offline:
            return f"offline; send it with: wandb sync {self._run.settings.sync_dir}"
        return str(self._run.url)


def _check_disk(folder: str | Path) -> None:
    with contextlib.suppress(OSError):  # W&B creates the folder
        if disk_usage(folder).free < _LEAST_FREE:
            remedy = "free space, or set WANDB_DIR to a folder of another one"
            raise TrackerError(f"W&B lacks values, since the disk of {folder} is full; {remedy}")


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(". ")
