"""Runs every island in an actor of Ray, which places, restarts and ends them.

An actor runs its island as a process of its own and resumes it from its checkpoint after a restart: Ray calls `run`
again when the process or its node was lost (`max_restarts`, `max_task_retries`).
"""

import contextlib
import importlib.util
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rookery.distributed.signals import Interrupted, Requests
from rookery.distributed.sync import PACKAGES
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.spec import RunSpec
from rookery.islands.failures import ENDS_ONE, Outcome, failed
from rookery.islands.plan import Builder, CallbacksFn, as_recorded, check
from rookery.settings import SettingError, verbatim
from rookery.storage.run_dir import RunFolder, RunFolderError, resume_command
from rookery.training.compilation import keep_compiled_programs
from rookery.versions import versions

_POLL_SECONDS = 1.0
_ANSWER_SECONDS = 10.0  # after which an island that does not answer has no process
_RESTARTS = 100  # restarts of an island by Ray before it counts as lost
_OBJECT_STORE = 80 * 2**20
"""Bytes of the object store of a Ray that is started here; genotypes do not pass through it."""


class Resources(NamedTuple):
    """What an island reserves on a node."""

    cpus: float
    gpus: float


class IslandTask(NamedTuple):
    """What an actor needs to know of its island."""

    number: int
    record: str
    """Settings of the whole run as JSON; classes that are generated do not travel between processes."""
    owner: str
    """Content of `.owner.json` in the run directory, by which the actor checks that it reads the same folder."""
    versions: dict[str, str]
    """Versions of the packages in the process that starts the islands."""
    command: Sequence[str] | None
    callbacks: CallbacksFn


class Actor:
    """An island in a process of its own; two threads, so that `stop` reaches it while it runs."""

    def __init__(self, task: IslandTask):
        self._task, self._requests = task, Requests()

    def run(self) -> Outcome:
        """Run the island to its end, or continue it; a ValueError if this node has other versions, or cannot read the
        run directory."""
        task = self._task
        spec = check(from_record(json.loads(task.record)))
        _check_node(task, str(spec.run.run_dir))
        keep_compiled_programs()
        builder = Builder(as_recorded(spec, task.number))
        turns = builder.turns(task.number, self._requests, task.command, task.callbacks)
        try:
            for _ in turns:
                pass
        except Interrupted:
            return Outcome(task.number, stopped=True)
        except ENDS_ONE as error:
            return failed(task.number, error, str(spec.run.run_dir))
        return Outcome(task.number)

    def stop(self, signum: int) -> None:
        """Save the island and stop it."""
        self._requests.signum = signum

    def pid(self) -> int:
        """The process of the island."""
        return os.getpid()


def check_installed() -> None:
    """Raise an ImportError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError(
            'ray_address needs Ray: pip install "rookery[ray]"; without it the islands take turns in one process.'
        )


def run_actors(
    spec: RunSpec,
    address: str,
    requests: Requests,
    command: Sequence[str] | None,
    callbacks: CallbacksFn,
    show: Callable[[], None],
) -> list[Outcome]:
    """Run all islands on Ray; the other arguments and the result are those of `engine.take_turns`.

    `address` is `auto`, the address of a cluster, or `local`; `show` is called about once a second.

    Raises:
      ValueError: Ray cannot be reached, or a node has other versions or cannot read the run directory.
    """
    with connected(address, spec.run.quiet):
        import ray  # after `connected`, which sets what Ray reads when it is imported

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        reserved = _share(nodes, spec.method.islands.islands)
        folder = RunFolder(str(spec.run.run_dir))
        owner = folder.owner_file.read_text(encoding="utf-8")
        known = versions((*PACKAGES, "ray"))
        remote: Any = ray.remote(Actor).options(  # pyright: ignore[reportFunctionMemberAccess]
            num_cpus=reserved.cpus,
            num_gpus=reserved.gpus,
            max_restarts=_RESTARTS,
            max_task_retries=-1,
            max_concurrency=2,
        )
        numbers = range(spec.method.islands.islands)
        configs = {number: json.dumps(to_record(_on_node(spec, number, reserved))) for number in numbers}
        tasks = [IslandTask(number, configs[number], owner, known, command, callbacks) for number in numbers]
        actors: dict[int, Any] = {task.number: remote.remote(task) for task in tasks}
        running = {actor.run.remote(): number for number, actor in actors.items()}
        outcomes = []
        while running:
            if requests.signum is not None:
                outcomes += _stop(ray, actors, running, requests.signum)
            finished, _ = ray.wait([*running], timeout=_POLL_SECONDS) if running else ([], [])
            for reference in finished:
                outcomes.append(_outcome(ray, reference, running.pop(reference), folder))
            show()
    return sorted(outcomes)


def _stop(ray: Any, actors: Mapping[int, Any], running: dict[Any, int], signum: int) -> list[Outcome]:
    """Save and stop the islands that are running; called repeatedly, since an actor that Ray restarts has forgotten it.

    Those that do not answer are removed from `running`: they wait for a node, and what they have saved is complete.
    """
    for number in running.values():
        actors[number].stop.remote(signum)
    asked = {actors[number].pid.remote(): reference for reference, number in running.items()}
    answered, _ = ray.wait([*asked], num_returns=len(asked), timeout=_ANSWER_SECONDS)
    silent = [reference for probe, reference in asked.items() if probe not in answered]
    return [Outcome(running.pop(reference), stopped=True) for reference in silent]


@contextlib.contextmanager
def connected(address: str, quiet: bool = False) -> Iterator[None]:
    """A connection to Ray: to a cluster by its address or `auto`, or to one that is started on this machine (`local`),
    on loopback and without a dashboard, and stopped at the end. A ValueError if it cannot be reached, or runs other
    versions of Python or Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    here: dict[str, Any] = {}
    if address == "local":
        # Ray replaces 127.0.0.1 by an address of the machine and listens on all of them, unless this forbids clusters;
        # it is read when Ray is imported.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": _OBJECT_STORE}
    import ray

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # for Ray's processes, which this one stops after a save
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=not quiet, **here)
    except Exception as error:  # a Ray that takes too long to start raises no narrower class
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        remedy = "start a cluster (ray start --head) with the same versions of Python and Ray, give its HOST:PORT, or "
        remedy += "use local."
        if address == "local":
            remedy = "run the command again, or without {ray_address}, so that the islands take turns in one process."
        raise SettingError("ray_address", address, f"cannot be used: {verbatim(reason).rstrip('.')}", remedy) from error
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        yield
    finally:
        ray.shutdown()


def _share(nodes: Sequence[Mapping[str, float]], islands: int) -> Resources:
    """The largest equal share of which the nodes, each with an amount of each resource, hold one for each island.

    Shares of several CPUs or GPUs are whole numbers; a fraction of a GPU has to be on a single one, as in Ray.
    """
    gpus = _largest([node.get("GPU", 0.0) for node in nodes], [islands] * len(nodes), islands, single=True)
    places = [_held(node.get("GPU", 0.0), gpus, single=True) if gpus else islands for node in nodes]
    return Resources(_largest([node.get("CPU", 0.0) for node in nodes], places, islands, single=False), gpus)


def _largest(capacities: Sequence[float], places: Sequence[int], islands: int, single: bool) -> float:
    """The largest share of a resource of which nodes with these capacities, and places for islands, hold enough."""
    counts = range(1, islands + 1)
    shares = {_whole(capacity / count) for capacity in (*capacities, 1.0) for count in counts}
    fits = [
        share
        for share in shares
        if share and sum(map(min, places, (_held(capacity, share, single) for capacity in capacities))) >= islands
    ]
    return max(fits, default=0.0)


def _held(capacity: float, share: float, single: bool) -> int:
    """How many shares a node holds; with `single`, one below 1 is on a single unit."""
    return int(capacity) * int(1 / share) if single and share < 1 else int(capacity / share)


def _whole(share: float) -> float:
    return float(int(share)) if share >= 1 else int(share * 1000) / 1000


def _on_node(spec: RunSpec, number: int, reserved: Resources) -> RunSpec:
    """The run with the number of devices of an island: those recorded, or on a CPU as many as it has cores for."""
    spec = as_recorded(spec, number)
    if spec.environment.devices is not None or reserved.gpus:
        return spec
    size, cores = spec.method.population // spec.method.islands.islands, max(1, int(reserved.cpus))
    return as_recorded(spec, number, max(count for count in range(1, cores + 1) if size % count == 0))


def _check_node(task: IslandTask, run_dir: str) -> None:
    """Raise a ValueError if the versions or the run directory of this node differ from those of the process that starts
    the islands."""
    found = versions((*PACKAGES, "ray"))
    for name, version in task.versions.items():
        if found[name] != version:
            raise ValueError(
                f"island {task.number} is on a node with {name} {found[name]}, but the run was started with {version}; "
                "install the same versions on all nodes."
            )
    folder = RunFolder(run_dir)
    if not folder.owner_file.is_file() or folder.owner_file.read_text(encoding="utf-8") != task.owner:
        raise ValueError(
            f"island {task.number} is on a node that cannot read {folder.path}; give a --run-dir on a file system that "
            "all nodes share."
        )


def _outcome(ray: Any, reference: Any, number: int, folder: RunFolder) -> Outcome:
    """How an actor ended; an error of its island is raised only if it is one of the settings."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RunFolderError):  # of this island alone, such as a process that still has its folder
            return failed(number, cause, folder.path)
        if isinstance(cause, ValueError | ImportError):  # a subclass may need more arguments than the message
            raise (ValueError if isinstance(cause, ValueError) else ImportError)(str(cause)) from error
        return failed(number, cause, folder.path)
    except ray.exceptions.RayError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        saved = "what it has saved is complete, so continue with"
        return Outcome(number, f"{reason}; {saved}: {resume_command(folder.path)}")
