"""The command line: `rookery train | resume | evaluate | render | compare | report | export | envs`.

tyro derives it from the config dataclasses. `commands.py` has the commands for existing runs, `flags.py` the messages
for invalid flags.
"""

import dataclasses
import importlib.metadata
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from rookery import running
from rookery.cli import commands, config_file, flags, help, islands, parameters, planning
from rookery.cli.options import FLAG, settings_class
from rookery.distributed.initialize import ProcessesConfig, ProcessGroup, join
from rookery.distributed.signals import Interrupted
from rookery.distributed.sync import check_alike, is_first
from rookery.envs.host.base import HostError, HostWarning
from rookery.experiments import warm_start_settings
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.kinds import KindWarning, check_effects, kinds, with_steps
from rookery.experiments.spec import Kind, RunSpec
from rookery.factories import place_of
from rookery.islands import IslandError
from rookery.storage import events, sources
from rookery.storage.checkpoint import CheckpointWarning
from rookery.storage.csv_log import TableWarning
from rookery.storage.events import Diverged
from rookery.storage.island_files import IslandWarning
from rookery.storage.lineage import Schedule, record_of, schedule_of
from rookery.storage.run_dir import OutputWarning
from rookery.storage.sources import SourceWarning
from rookery.tracking import TrackingConfig, continued, trackers
from rookery.training import CallbackWarning, run_writer
from rookery.training.compilation import keep_compiled_programs
from rookery.training.terminal import unfailing_streams


@dataclass(frozen=True)
class Train:
    """Train a population; all results are written to one run directory."""

    spec: RunSpec
    """The run."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """TOML or YAML file with settings, named like the flags without their dashes; typed flags take precedence."""
    steps: float | None = None
    """Environment steps of each member (above 0), another way to say how many generations; rounded up to whole ones."""
    print_config: bool = False
    """Print all settings as a TOML file for `--config`; train nothing."""
    plan: bool = False
    """Print the memory that the run needs on each device, and whether it fits; train nothing."""
    processes: ProcessesConfig = field(default_factory=ProcessesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass(frozen=True)
class Resume:
    """Resume a run from its newest complete checkpoint; the results are bit-identical to an uninterrupted run."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    generations: int | None = None
    """Total number of generations after which the run ends (at least 1); by default the number that the run was
    configured with."""
    devices: int | None = None
    """Number of devices to shard the population over (at least 1; it must divide the population); by default the
    setting that the run was configured with."""
    islands: int | None = None
    """Number of islands of a run of islands (at least as many as it has, further ones are added); by default as many as
    it has."""
    quiet: bool = False
    """Print nothing but errors."""
    live: bool = False
    """Rewrite report.html in the run directory with every checkpoint."""
    processes: ProcessesConfig = field(default_factory=ProcessesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


_COMMANDS = {"train": Train, "resume": Resume} | {name: command for name, (command, _) in commands.COMMANDS.items()}
_ABOUT = "Train populations of reinforcement-learning agents; evaluate, render, compare, report and export their runs."


def _default(kind: Kind, arguments: Sequence[str]) -> RunSpec:
    """The defaults of a kind of run in a command line."""
    words = [word for argument in arguments for word in argument.split("=", 1 if argument.startswith("--") else 0)]
    flags = [word[2:].replace("-", "_") if word.startswith("--") else "" for word in words[:-1]]
    given = {name: words[flags.index(name) + 1] for name in ("env", *warm_start_settings.DEFAULTS) if name in flags}
    given = {name: word for name, word in given.items() if not word.startswith("-") and word != "None"}
    return warm_start_settings.defaults(kind, given)


def _kind_in(words: Sequence[str]) -> Kind | None:
    """The kind of run in the command line of `rookery train`; None if there is none."""
    return kinds().get("".join(words[1:2]).replace("_", "-")) if words[:1] == ["train"] else None


def _command_and_flags(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The command in a command line, such as `rookery train sac`, and its flags; {} if the command is incomplete."""
    name, kind = "".join(words[:1]), _kind_in(words)
    if kind is not None:
        return f"rookery train {kind.name}", flags.flags_of(Train) | flags.flags_of(kind)
    if name == "train":
        return "rookery train", {}
    return (f"rookery {name}", flags.flags_of(_COMMANDS[name])) if name in _COMMANDS else ("rookery", {})


def _as_typed(message: str, line: config_file.CommandLine | None) -> str:
    """An error message in which settings are replaced by the flags, or names in the config file, that caused it."""
    if line is None:  # the config file cannot be read, and the message names it
        return message
    arguments = line.words
    command, found = _command_and_flags(arguments)
    names = {"population_size": "--population"} if "--population" in found else {}
    names |= {"eval_episodes": "--episodes"} if command == "rookery evaluate" else {}
    names |= parameters.named(arguments)
    message = flags.as_typed(message, found, names)
    message = message if _without_alias(arguments) == [*arguments] else message.replace("--population", "--seeds")
    return line.explain(message)


def _without_alias(arguments: Sequence[str]) -> list[str]:
    """Replace `--seeds`, the alias of `--population` in runs of independent members."""
    kind = _kind_in(arguments[:2])
    independent = kind is not None and kind.method.is_independent
    return [re.sub("^--seeds(?==|$)", "--population", word) if independent else word for word in arguments]


def parse(arguments: Sequence[str]) -> Any:
    """Parse a command line to an instance of its command class, such as `Train`.

    Raises:
      FlagError: a command, a flag or a value does not exist, or a value is outside its range, also in `--config`.
      ValueError: the path given to `--replay-schedule` or `--init-from` is no run directory.
    """
    return _parse(config_file.expand(arguments, flags.flags_of(Train)).words)


def _parse(arguments: Sequence[str]) -> Any:
    words, chosen = parameters.taken(_without_alias(arguments))
    words[:1] = [word.replace("_", "-") for word in words[:1]]
    command, found = _command_and_flags(words)
    for place, label, known in ((0, "command", [*_COMMANDS]), (1, "kind of run", [*kinds()])):
        if words[place : place + 1] and not words[place].startswith("-") and (place == 0 or words[0] == "train"):
            flags.check_name(label, words[place], known)
    if {"-h", "--help"} & {*words}:
        _print_help(words)
    incomplete = words[:1] in ([], ["train"]) and _kind_in(words) is None
    if incomplete or words[0] not in _COMMANDS:
        unknown = next((word for word in words if word.startswith("-")), "")
        if unknown:
            raise flags.FlagError(flags.unknown_flag(unknown, words, command, found))
        raise flags.FlagError(f"{command} needs one of {', '.join(kinds() if words else _COMMANDS)}.")
    flags.check(words, command, found)
    typed, kind = flags.with_values(words, found), _kind_in(words)
    with flags.parse_errors(words, command, found):
        if kind is not None:
            return _parse_train(kind, _default(kind, words), typed[2:], chosen)
        return _parse_as(_COMMANDS[words[0]], typed[1:])


def _parse_as(command: type, words: Sequence[str]) -> Any:
    return tyro.cli(command, args=words, prog="rookery", description="", config=(tyro.conf.OmitArgPrefixes,))


def _parse_train(kind: Kind, usual: RunSpec, words: Sequence[str], chosen: Mapping[str, Any]) -> Train:
    """Parse the flags of `rookery train KIND`.

    Args:
      kind: of run.
      usual: the run with the defaults.
      words: after the kind.
      chosen: choices for parameters of the environment, in the search space.
    """
    fields = [("spec", settings_class(kind, usual))]
    parsed = _parse_as(dataclasses.make_dataclass("Train", fields, bases=(Train,), frozen=True), words)
    settings = vars(parsed.spec)
    if "space" in settings:
        settings["space"] = {name.removeprefix(FLAG): one for name, one in settings["space"].items()} | dict(chosen)
    try:
        spec = with_steps(usual.replace(**settings), usual, parsed.steps)
    except (TypeError, ValueError) as error:
        raise flags.FlagError(str(error)) from error
    return Train(**{**vars(parsed), "spec": spec})


def _print_help(words: Sequence[str]) -> None:
    """Print the help of a command or of a kind of run, and exit."""
    named = next((word for word in words if word.replace("_", "-") in kinds()), "")
    if (kind := _kind_in([words[0], named])) is not None:
        help.print_kind(Train(_default(kind, words)))
    elif words[0] == "train":
        help.print_kinds(Train(kinds()["sac"].default()))
    elif words[0] in _COMMANDS:
        help.print_command(words[0], _COMMANDS[words[0]])
    else:
        help.print_commands(_ABOUT, _COMMANDS)
    sys.exit(0)


def main() -> None:
    """Run a command.

    Exits with 0; 1 after an error, or if something could not be printed or written beside the checkpoints; 2 after
    invalid flags; 129 after SIGHUP, 130 after Ctrl-C, 143 after SIGTERM.
    """
    _lost.clear()
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", OutputWarning)
    try:
        with unfailing_streams(), events.hidden_words() as words:
            _run_command(words)
    except SystemExit as stop:
        if stop.code or not _lost:
            raise
    if _lost:
        sys.exit(1)


def _run_command(words: list[str]) -> None:
    if words == ["--version"]:
        print(f"rookery {importlib.metadata.version('rookery')}")
        return
    group, line = ProcessGroup(), None
    try:
        line = config_file.expand(words, flags.flags_of(Train))
        command = _parse(line.words)
        if isinstance(command, Train) and command.print_config:
            print(config_file.to_toml(command.spec, _default(command.spec.kind, line.words)), end="")
            return
        keep_compiled_programs()
        group = _join(command)
        _execute(command, group)
        group.leave()
    except (Interrupted, Diverged, IslandError) as stop:  # raised in every process after the same generation
        interrupted = isinstance(stop, Interrupted)
        if is_first():
            lines = str(stop).replace("\n", "\nerror: ")  # islands that failed have a line each
            print(f"\n{stop}" if interrupted else f"error: {lines}", file=sys.stderr)
        group.leave()
        sys.exit(128 + stop.signum if interrupted else 1)
    except flags.FlagError as error:
        print(f"error: {_as_typed(str(error), line)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        trains = {*words[:1]} <= {"train", "resume"}
        print(f"\nstopped{_AFTER_INTERRUPT if trains else ''}", file=sys.stderr)
        group.abandon(130, "it was interrupted")
        sys.exit(130)
    except (ValueError, ImportError, MemoryError, OSError, HostError) as error:
        group.await_lost_process(error)
        message = _as_typed(_sentence(error), line)
        print(f"{'' if group.alone or is_first() else group}error: {message}", file=sys.stderr)
        group.abandon(1, message)
        sys.exit(1)
    except Exception as error:
        group.fail(error)
        raise


_AFTER_INTERRUPT = "; what was saved before is complete, and rookery resume continues from it"


def _sentence(error: Exception) -> str:
    """The message of an error; of one of the system, which file it is about and what helps."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    place = "a file could not be read or written" if error.filename is None else error.filename
    return f"{place}: {error.strerror}; check its permissions and the free space of its disk."


def _join(command: Any) -> ProcessGroup:
    if isinstance(command, Train):  # before anything connects
        check_effects(command.spec)
        islands.has_islands(command.spec, command.processes)
    elif isinstance(command, Resume) and command.processes.wanted:
        islands.check_resumed(command.run, command.processes)
    return join(getattr(command, "processes", ProcessesConfig()))


def _execute(command: Any, group: ProcessGroup) -> None:
    try:
        if isinstance(command, Train):
            train(command, group)
        elif isinstance(command, Resume):
            resume(command, group)
        else:
            commands.execute(command)
    except BaseException as stop:
        if isinstance(stop, Exception | KeyboardInterrupt):
            raise
        # of a function of the user, such as a step that is traced
        raised = f"{type(stop).__name__}: {stop} was raised{place_of(stop)}"
        raise ValueError(f"the command ended early, since {raised}.") from stop


def train(command: Train, group: ProcessGroup) -> None:
    """`rookery train KIND`."""
    divided = islands.has_islands(command.spec, command.processes)
    if command.plan:
        planning.plan(command.spec)
        return
    spec, schedule = running.complete(command.spec, command.steps)
    if divided:
        islands.train(spec, command.processes, command.tracking)
    else:
        _run(spec, schedule, group, command.tracking)


def resume(command: Resume, group: ProcessGroup) -> None:
    """`rookery resume RUN`."""
    changed: dict[str, Any] = {"quiet": command.quiet, "live": command.live}
    if command.generations is not None:
        changed["generations"] = command.generations
    if islands.resume(command.run, command.islands, command.devices, command.processes, command.tracking, **changed):
        return
    record = sources.opened(command.run).config
    spec = from_record(record).with_run(run_dir=str(command.run), **changed)
    if command.devices is not None:
        spec = spec.with_environment(devices=command.devices)
    _run(spec, schedule_of(record), group, command.tracking, resume=True)


def _run(
    spec: RunSpec,
    schedule: Schedule | None,
    group: ProcessGroup,
    tracking: TrackingConfig,
    resume: bool = False,
) -> None:
    run_dir = str(spec.run.run_dir)
    group.set_run_dir(run_dir)
    callbacks = trackers(continued(tracking, run_dir) if resume else tracking, spec.run.quiet)
    check_alike({**to_record(spec), **record_of(schedule), "resume": resume})
    running.start(spec, schedule, callbacks, resume, events.command_line(), group.finish)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print rookery's warnings to the user as one line, without the position in the source code."""
    if issubclass(category, OutputWarning):
        _lost.append(str(message))
    if issubclass(category, _SHOWN):
        if not is_first():
            return
        print(f"warning: {message}", file=sys.stdout if getattr(sys.stderr, "failed", False) else sys.stderr)
    else:
        _show_other_warning(message, category, *where, **more)


_SHOWN = (CheckpointWarning, CallbackWarning, OutputWarning, running.ProgramWarning)
_SHOWN += (KindWarning, run_writer.AfterSaveWarning, HostWarning, IslandWarning, SourceWarning, TableWarning)
_show_other_warning = warnings.showwarning
_lost: list[str] = []
"""The output that this command has lost."""
