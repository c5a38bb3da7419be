"""The command line: `rookery train | resume | evaluate | render | compare | report | export | envs`.

`options.py` derives the flags from the config dataclasses, `parser.py` has cyclopts parse them, `commands.py` has the
commands for existing runs.
"""

import dataclasses
import importlib.metadata
import inspect
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

from cyclopts import Parameter

from rookery import running
from rookery.cli import commands, config_file, islands, planning
from rookery.cli.config_file import ConfigFile
from rookery.cli.options import (
    ENVIRONMENT,
    Option,
    Positional,
    environment_option,
    flag_of,
    options_of,
    options_of_kind,
    with_values,
)
from rookery.cli.parser import CommandLineError, Parser, print_commands, typed_flags
from rookery.distributed.initialize import ProcessesConfig, ProcessGroup, join
from rookery.distributed.signals import Interrupted
from rookery.distributed.sync import check_alike, is_first
from rookery.envs.host.base import HostError, HostWarning
from rookery.experiments import warm_start_settings
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.kinds import KindWarning, check_effects, kinds, with_steps
from rookery.experiments.spec import Kind, RunSpec
from rookery.factories import is_reference, raised_by_user
from rookery.islands import IslandError
from rookery.settings import GUIDES, SettingError, Within, check_fields, unknown_name
from rookery.storage import events, sources
from rookery.storage.checkpoint import CheckpointWarning
from rookery.storage.csv_log import TableWarning
from rookery.storage.events import Diverged
from rookery.storage.island_files import IslandWarning
from rookery.storage.lineage import Schedule, record_of, schedule_of
from rookery.storage.run_dir import OutputWarning, sentence_of
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
    config_file: Annotated[Path | None, Parameter(name="--config")] = None
    """TOML or YAML file with settings, named like the flags without their dashes; typed flags take precedence."""
    steps: Annotated[float | None, Within(1)] = None
    """Environment steps of each member, another way to say how many generations; rounded up to whole ones."""
    print_config: bool = False
    """Print all settings as a TOML file for `--config`; train nothing."""
    plan: bool = False
    """Print the memory that the run needs on each device, and whether it fits; train nothing."""
    processes: ProcessesConfig = field(default_factory=ProcessesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass(frozen=True)
class Resume(commands.OfRun):
    """Resume a run from its newest complete checkpoint; the results are bit-identical to an uninterrupted run."""

    run: Positional[Path]
    """Run directory."""
    generations: Annotated[int | None, Within(1)] = None
    """Total number of generations after which the run ends; by default the number that the run was configured with."""
    steps: Annotated[float | None, Within(1)] = None
    """Total environment steps of each member, another way to say how many generations; rounded up to whole ones."""
    devices: Annotated[int | None, Within(1)] = None
    """Number of devices to shard the population over (it must divide the population); by default the setting that the
    run was configured with."""
    islands: Annotated[int | None, Within(1)] = None
    """Number of islands of a run of islands (at least as many as it has, further ones are added); by default as many as
    it has."""
    quiet: bool = False
    """Print nothing but errors."""
    live: bool = False
    """Rewrite report.html in the run directory with every checkpoint."""
    processes: ProcessesConfig = field(default_factory=ProcessesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


_COMMANDS = {"train": Train, "resume": Resume} | {name: command for name, (command, _) in commands.COMMANDS.items()}
_ABOUT = """Train populations of reinforcement-learning agents; evaluate, render, compare, report and export their runs.

`rookery COMMAND --help` describes a command, `rookery --version` prints the version."""
_NO_FILE = ConfigFile()


class CommandLine(NamedTuple):
    """A command line, after the command and the kind of run in it."""

    parser: Parser
    words: Sequence[str]
    name: str  # of the command
    kind: Kind | None = None
    file: ConfigFile = _NO_FILE

    def values(self) -> dict[tuple[str, ...], Any]:
        """The values that are given; see `Parser.parse`."""
        return self.parser.parse(self.words, self.file.path, self.file.settings)

    def shown(self, name: str) -> str:
        """A setting as it was given: a flag, or its name in the config file."""
        option = self.parser.option(name)
        if option is None:
            return name
        typed = typed_flags(self.words)
        keys = [key for key in self.file.settings if flag_of(key) in option.flags]
        is_of_file = bool(keys) and not typed & {*option.flags}
        return keys[0] if is_of_file else next((flag for flag in option.flags if flag in typed), option.flag)

    def text(self, error: Exception) -> str:
        """An error as one sentence, with the settings as they were given."""
        if not isinstance(error, SettingError):
            return sentence_of(error)
        is_of_file = self.shown(error.field) in self.file.settings
        return (f"{self.file.path}: " if is_of_file else "") + error.text(self.shown)


def read_line(arguments: Sequence[str]) -> CommandLine:
    """Find the command, the kind of run and the config file in a command line.

    Raises:
      SettingError: the command, the kind or the file does not exist.
      CommandLineError: one is missing, or the file is invalid.
    """
    words = [*arguments]
    name = "".join(words[:1]).replace("_", "-")
    if name.startswith("-") or not name:
        problem = f"has no flag {name}" if name else f"needs one of {', '.join(_COMMANDS)}"
        raise CommandLineError(f"rookery {problem}; `rookery --help` lists all.")
    if name not in _COMMANDS:
        raise unknown_name("command", words[0], "command", _COMMANDS)
    if name != "train":
        options = [option._replace(part=option.part or "options") for option in options_of(_COMMANDS[name])]
        return CommandLine(Parser(f"rookery {name}", inspect.getdoc(_COMMANDS[name]) or "", options), words[1:], name)
    return _train_line(words[1:])


def _train_line(words: list[str]) -> CommandLine:
    """The command line of `rookery train`, from the words after it."""
    common = [*options_of(Train)]
    path = config_file.path_in(words)
    found, settings = None, config_file.read(path) if path else {}
    place = _place_of_kind(words, [option.flag for option in common if option.is_switch]) if path else 0
    if place < len(words) and not words[place].startswith("-"):
        found = words.pop(place)
    kind = _kind(path, found, settings.pop("kind", None), words)
    if not kind.method.has_task:
        _put_function_first(words)
    file = ConfigFile(path, settings)
    options = [*options_of_kind(kind), *common]
    if kind.agent is not None:
        flags = [word.partition("=")[0] for word in words] + [flag_of(key) for key in settings]
        flags = dict.fromkeys(flag.replace("_", "-") for flag in flags)
        options += [environment_option(flag) for flag in flags if re.fullmatch(rf"{ENVIRONMENT}[\w-]+", flag)]
    for option in options:
        keys = [key for key in settings if flag_of(key) in option.flags]
        if keys[1:]:
            raise CommandLineError(f"{path}: {keys[1]} is given twice, as {keys[0]} too; leave one of them out.")
    about = "\n\n".join(filter(None, (kind.title, kind.sources)))

    def elsewhere(flag: str) -> list[str]:
        return [one.name for one in kinds().values() if any(flag in option.flags for option in options_of_kind(one))]

    parser = Parser(f"rookery train {kind.name}", about, options, f"guide: {GUIDES}/{kind.guide}.md", elsewhere)
    return CommandLine(parser, words, "train", kind, file)


def _kind(path: str, typed: str | None, recorded: object, words: Sequence[str]) -> Kind:
    """The kind that was typed, or that the config file at `path` ("" without one) has; None stands for neither."""
    if typed is None and recorded is None:
        missing = f'{path} has no kind; add one, such as kind = "pbt-sac", or type it after train'
        if not path:
            before = f" before {words[0]}" if words else ""
            missing = f"rookery train needs a kind of run{before}, such as pbt-sac; `rookery train --help` lists them"
        raise CommandLineError(f"{missing}.")
    given = [str(one).replace("_", "-") for one in (typed, recorded) if one is not None]
    for one in given:
        if one not in kinds():
            place = f"{path}: " if typed is None else ""
            raise CommandLineError(f"{place}{unknown_name('kind', one, 'kind of run', kinds())}")
    if len({*given}) > 1:
        raise CommandLineError(f"{path} is for {given[1]}, but {given[0]} was typed; leave one of the two out.")
    return kinds()[given[0]]


def _put_function_first(words: list[str]) -> None:
    """Move the function of a program, which follows the values of `--option`, to its place."""
    before = ""
    for place, word in enumerate(words):
        if before == "--option" and "=" not in word and is_reference(word):
            words.insert(0, words.pop(place))
            return
        before = word.partition("=")[0] if word.startswith("--") else before


def _place_of_kind(words: Sequence[str], switches: Sequence[str]) -> int:
    """The place of the kind of run beside `--config`, or of the word in its place; the number of words without one."""
    for place, word in enumerate(words):
        before, after_file = "".join(words[:place][-1:]), "--config" in words[:place][-2:-1]
        is_value = before.startswith("--") and "=" not in before and before not in switches
        expected = place == 0 or after_file or before.startswith("--config=") or word.replace("_", "-") in kinds()
        if expected and not is_value and not word.startswith("-"):
            return place
    return len(words)


def parse(arguments: Sequence[str]) -> Any:
    """Parse a command line to an instance of its command class, such as `Train`.

    Raises:
      SettingError: a command, a kind of run or a value is invalid, also in `--config`.
      CommandLineError: a flag does not exist, or a value is missing.
      ValueError: the path given to `--replay-schedule` or `--init-from` is no run directory.
    """
    return _parse(read_line(arguments))


def _parse(line: CommandLine) -> Any:
    values = line.values()
    if line.kind is not None:
        return _trained(_default(line.kind, values), values)
    command = _COMMANDS[line.name]
    arguments = {path[0]: values.pop(path) for path in [*values] if len(path) == 1}
    made = with_values(command(**arguments), values)
    check_fields(made)
    return made


def _default(kind: Kind, values: Mapping[tuple[str, ...], Any]) -> RunSpec:
    """The defaults of a kind of run, with settings of the run that a value names."""
    return warm_start_settings.defaults(kind, {path[-1]: value for path, value in values.items()})


def _trained(usual: RunSpec, values: Mapping[tuple[str, ...], Any]) -> Train:
    """The command `rookery train KIND`, from the defaults and the given values."""
    own = {field.name for field in dataclasses.fields(Train)}
    command = with_values(Train(usual), {path: value for path, value in values.items() if path[0] in own})
    check_fields(command)
    spec = with_values(usual, {path: value for path, value in values.items() if path[0] not in own})
    return dataclasses.replace(command, spec=with_steps(spec, usual, command.steps))


def _print_help(arguments: Sequence[str]) -> None:
    """Print the help of a command or of a kind of run."""
    words = [word for word in arguments if word not in ("-h", "--help")]
    if not words:
        texts = {name: (command.__doc__ or "").partition("\n\n")[0] for name, command in _COMMANDS.items()}
        print_commands("rookery", _ABOUT, {"commands": texts})
    elif (
        words[0] == "train"
        and not config_file.path_in(words)
        and not {word.replace("_", "-") for word in words} & {*kinds()}
    ):
        subjects: dict[str, dict[str, str]] = {}
        for kind in kinds().values():
            subjects.setdefault(kind.subject, {})[kind.name] = kind.title.partition(". ")[0].rstrip(".")
        about = f"{Train.__doc__}\n\n`rookery train KIND --help` describes a kind of run and all its options."
        print_commands("rookery train", about, subjects)
    else:
        line = read_line(words)
        try:
            defaults = _defaults(line, line.values())
        except ValueError:  # of the words, or of a run that they name
            defaults = _defaults(line, {})
        line.parser.print_help(defaults)


def _defaults(line: CommandLine, values: Mapping[tuple[str, ...], Any]) -> dict[Option, Any]:
    """The default of each option that is not required."""
    options = [option for option in line.parser.options if not option.is_required]
    if line.kind is None:
        command = _COMMANDS[line.name]
        config = command(**{option.path[0]: None for option in line.parser.options if option.is_required})
        return {option: option.value(config) for option in options}
    usual = _default(line.kind, values)
    both = {**usual.flat, **vars(Train(usual))}
    return {option: option.value(both) for option in options}


def main() -> None:
    """Run a command.

    Exits with 0; 1 after an error, or if something could not be printed or written beside the checkpoints; 2 after
    invalid settings; 129 after SIGHUP, 130 after Ctrl-C, 143 after SIGTERM.
    """
    _lost.clear()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # while the package was imported
        signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.showwarning = _show_warning
    sys.unraisablehook = _show_dropped
    warnings.simplefilter("always", OutputWarning)
    logging.getLogger("jax._src.callback").disabled = True  # what it prints of a function is in the error, too
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name) == "0":  # of a terminal without a size; nothing has room in 0 columns
            del os.environ[name]
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
    group, line, command = ProcessGroup(), None, None
    try:
        if {"-h", "--help"} & {*words}:
            _print_help(words)
            return
        line = read_line(words)
        command = _parse(line)
        if isinstance(command, Train) and command.print_config:
            default = _default(command.spec.kind, line.values())
            print(config_file.to_toml(command.spec, default), end="")
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
    except KeyboardInterrupt:
        trains = {*words[:1]} <= {"train", "resume"}
        print(f"\nstopped{_AFTER_INTERRUPT if trains else ''}", file=sys.stderr)
        group.abandon(130, "it was interrupted")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)  # the interpreter's exit waits for threads that compile, and crashes where Ctrl-C ends the wait
    except (ValueError, ImportError, MemoryError, OSError, HostError) as error:
        group.await_lost_process(error)
        message = line.text(error) if line else sentence_of(error)
        print(f"{'' if group.alone or is_first() else group}error: {message}", file=sys.stderr)
        group.abandon(1, message)
        sys.exit(2 if isinstance(error, SettingError | CommandLineError) else 1)
    except Exception as error:
        group.fail(error)
        raise


_AFTER_INTERRUPT = "; if a checkpoint was saved before, it is complete, and rookery resume continues from it"


def _join(command: object) -> ProcessGroup:
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
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as stop:  # of a function of the user, such as a step that is traced
        if str(stop).rstrip().endswith("\nKeyboardInterrupt:"):  # Ctrl-C while JAX called the host
            raise KeyboardInterrupt from stop
        raised = raised_by_user(stop)
        if raised is None and isinstance(stop, Exception):
            raise
        raised = raised or f"{type(stop).__name__}: {stop} was raised"
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
    command.use_functions()
    changed: dict[str, Any] = {"quiet": command.quiet, "live": command.live}
    if command.generations is not None:
        changed["generations"] = command.generations
    if command.steps is not None:
        recorded = from_record(sources.opened(command.run).config)
        changed["generations"] = with_steps(recorded.with_run(**changed), recorded, command.steps).run.generations
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
_lost: list[str] = []  # the output that this command has lost


def _show_dropped(dropped: Any) -> None:
    """Print an exception that Python drops. Ctrl-C in JAX's callback of the garbage collector comes again instead, and
    at the end of the process is of no effect."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        _show_other_dropped(dropped)
    elif threading.main_thread().is_alive():
        signal.signal(signal.SIGALRM, _interrupt_again)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # until it is handled: one before a system call ends no wait


def _interrupt_again(*_: Any) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt


_show_other_dropped = sys.unraisablehook
