"""Sends a run to MLflow (https://mlflow.org)."""

import contextlib
import logging
import os
import re
import shlex
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rookery.distributed import sync
from rookery.settings import user_path
from rookery.tracking import records
from rookery.tracking.records import TrackerError
from rookery.training.callbacks import Generation, Start
from rookery.training.terminal import terminal
from rookery.trees import flatten_mapping

_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""Environment variables, if the user has not set them: seconds and retries of a request; MLflow's own take minutes."""
_RETRY_SECONDS = 60.0  # time after a failed request in which values are collected without another one
_BATCH, _PARAMS, _LONGEST = 1000, 100, 500
"""Metrics and parameters in one request, and characters of a parameter, that every MLflow server accepts."""


class MlflowTracker:
    """A callback that sends a run to MLflow: the recorded config as parameters, and the values of each generation.

    The step is the number of the generation, counted from 0 as in `metrics.csv`; `records.values` lists the metrics.
    The MLflow run is recorded in `mlflow.json` in the run directory, so that a resumed run continues it; generations
    that it already has are not sent again. While the server cannot be reached, values are collected and sent later.

    Args:
      uri: of a server (`http://...`), a database (`sqlite:///runs.db`), or a folder, which then contains the database
        `mlflow.db` and the artifacts: MLflow no longer supports folders without a database.
      experiment: name of the MLflow experiment, created if it does not exist; by default that in the environment
        variable MLFLOW_EXPERIMENT_NAME, else "rookery".
      quiet: do not print where the MLflow run is.

    Raises:
      ImportError: mlflow is not installed.
      TrackerError: the server or the database cannot be reached.
    """

    def __init__(self, uri: str | Path, experiment: str | None = None, quiet: bool = False):
        self._given, self._quiet = str(uri), quiet
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "rookery"
        self._folder = None if re.match(r"[\w+-]{2,}:", self._given) else user_path(self._given).absolute()
        # The parser of database URIs takes these characters for a query and for the start of an escape.
        path = str(self._folder).replace("%", "%25").replace("?", "%3F")
        self._uri = f"sqlite:///{path}/mlflow.db" if self._folder else self._given
        with _quietly():
            self._mlflow: Any = records.load_package("mlflow", "mlflow")
            # It prints a trace of each error that a warning has.
            logging.getLogger("mlflow.store.db.utils").disabled = True
            if self._uri.startswith("sqlite:"):
                records.load_package("sqlalchemy", "mlflow")
        self._client: Any = None
        self._run_id = ""
        self._next = 0  # the first generation to send
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        if sync.is_first():
            with _quietly(), self._requests("give another URI, or start the run without it"):
                if self._folder:
                    self._folder.mkdir(parents=True, exist_ok=True)
                self._client = self._mlflow.MlflowClient(self._uri)
                self._client.search_experiments(max_results=1)

    def begin(self, start: Start) -> None:
        """Create the MLflow run, or continue the one that the run directory names."""
        record = records.read_record(start.run_dir, "mlflow")
        self._sender = _Sender(self._log)
        requests = partial(self._requests, "start the run without it, or resume it when MLflow answers")
        with _quietly(), requests():
            is_known = record.get("uri") == self._uri and self._exists(record["run_id"])
            self._run_id = record["run_id"] if is_known else self._create(start)
        with records.ended_if_it_fails(self.end):
            with _quietly(), requests():
                self._continue(start) if is_known else self._log_config(start)
            records.write_record(start.run_dir, "mlflow", {"uri": self._uri, "run_id": self._run_id})
            if not self._quiet:
                command = f"mlflow ui --backend-store-uri {shlex.quote(self._uri)}"
                view = self._uri if self._uri.startswith("http") else command
                terminal().print_line(f"{'mlflow':10} {view}, experiment {self._experiment}, run {self._run_id}")

    def __call__(self, generation: Generation) -> None:
        """Send a generation, unless the MLflow run has it already; a thread does, for which the run does not wait."""
        if generation.number >= self._next:
            with self._requests("its values are sent when MLflow answers again", is_temporary=True):
                self._send(generation)

    def _send(self, generation: Generation) -> None:
        self._next = generation.finished
        self._sender.put(self._metrics(generation))

    def end(self, error: BaseException | None) -> None:
        """Send what is left, and set the status: FINISHED, KILLED after a signal, or FAILED after an exception."""
        status = "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        with self._requests("its latest values are missing there; metrics.csv and lineage.csv have all"):
            self._sender.finish()
            self._client.set_terminated(self._run_id, status)

    def _metrics(self, generation: Generation) -> list[Any]:
        values = records.values(generation)
        values["env_steps"] = values.pop("env_steps")  # last, as the sign that the generation is complete
        now = int(1000 * time.time())
        return [
            self._mlflow.entities.Metric(re.sub(r"[^\w\-. :/]", "_", name), value, now, generation.number)
            for name, value in values.items()
        ]

    def _log(self, metrics: list[Any]) -> None:
        self._client.log_batch(self._run_id, metrics=metrics)

    def _continue(self, start: Start) -> None:
        """Send what the MLflow run lacks."""
        self._client.update_run(self._run_id, status="RUNNING")
        history = self._client.get_metric_history(self._run_id, "env_steps")
        self._next = 1 + max((entry.step for entry in history), default=-1)
        for generation in records.recorded(start, self._next):
            self._send(generation)

    def _create(self, start: Start) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            artifacts = (self._folder / "artifacts").as_uri() if self._folder else None
            identifier = self._client.create_experiment(self._experiment, artifacts)
        elif experiment.lifecycle_stage != "active":
            raise TrackerError(f"the MLflow experiment {self._experiment!r} is deleted; restore it, or name another.")
        else:
            identifier = experiment.experiment_id
        name, _ = records.name_and_group(start)
        return self._client.create_run(identifier, run_name=name).info.run_id

    def _log_config(self, start: Start) -> None:
        self._next = start.finished
        flat = flatten_mapping(dict(start.config)).items()
        params = [self._mlflow.entities.Param(key, records.as_utf8(str(value))[:_LONGEST]) for key, value in flat]
        for first in range(0, len(params), _PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _PARAMS])

    def _exists(self, run_id: str) -> bool:
        try:
            return self._client.get_run(run_id).info.lifecycle_stage == "active"
        except self._mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False

    @contextlib.contextmanager
    def _requests(self, consequence: str, is_temporary: bool = False) -> Iterator[None]:
        """Turn the errors of MLflow into a sentence."""
        try:
            yield
        except TrackerError:
            raise
        except Exception as error:
            message = f"MLflow at {self._given} cannot be used ({_reason(error)}); {consequence}."
            raise TrackerError(message, is_temporary) from error


class _Sender:
    """Sends values, by a function of at most `_BATCH` of them, in a thread: a run waits for no database or server."""

    def __init__(self, send: Callable[[list[Any]], None]):
        self._send = send
        self._thread = ThreadPoolExecutor(1, "rookery-mlflow")
        self._pending: list[Any] = []
        self._sending: Future[None] | None = None
        self._retry_at = 0.0

    def put(self, values: list[Any]) -> None:
        """Add values, and begin to send what is pending, but not within `_RETRY_SECONDS` after a failure; what failed
        remains pending, and its exception is raised here."""
        self._pending += values
        failure = None
        if self._sending is not None and self._sending.done():
            failure, self._sending = self._sending.exception(), None
            self._retry_at = time.monotonic() + _RETRY_SECONDS if failure else 0.0
        if self._sending is None and time.monotonic() >= self._retry_at:
            self._sending = self._thread.submit(self._send_pending)
        if failure:
            raise failure

    def finish(self) -> None:
        """Wait for the thread, and try once more to send what is pending; raises what prevents it."""
        self._thread.shutdown()
        self._send_pending()

    def _send_pending(self) -> None:
        while batch := self._pending[:_BATCH]:
            self._send(batch)
            del self._pending[: len(batch)]  # only what was sent, since `put` may have added values to the end


def _reason(error: BaseException) -> str:
    """An error as one line; where the system has refused something, what it says, without the errors made of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if isinstance(cause, TimeoutError):
            return "it did not answer in time"
        cause = cause.__cause__ or cause.__context__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(". ")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hide the notes of MLflow and of its database, and their warnings about deprecated parts of each other."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
