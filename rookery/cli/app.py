"""The command line: `rookery train | resume | evaluate | render | compare | report | export | envs`.

It is derived from the configs by tyro; `commands.py` has the commands for existing runs, `flags.py` the sentences for
mistakes in the flags.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console

from rookery.cli import commands, flags
from rookery.distributed import device_memory
from rookery.distributed import sync as processes
from rookery.distributed.initialize import ProcessesConfig, ProcessGroup, join
from rookery.distributed.mesh import describe
from rookery.experiments import build, lineage, warm_start
from rookery.experiments.cells import cache_folder
from rookery.experiments.config_io import PYTHON, from_record, to_record
from rookery.experiments.kinds import KINDS, AnyDiaynRun, AnyRun, MapElitesRun, MePbtRun, agent_of, kind_of, with_space
from rookery.experiments.on_policy_kinds import AnyTeamRun, PbtIppoRun
from rookery.experiments.population_settings import SeedsRun
from rookery.experiments.warm_start_settings import after, alone, like
from rookery.report import tables
from rookery.report.figures import curves
from rookery.report.figures.repertoire import draw_repertoire
from rookery.report.page import write_report
from rookery.signals import Interrupted
from rookery.storage import events
from rookery.storage import run_dir as folder
from rookery.storage.checkpoint import Checkpointer, CheckpointError, CheckpointWarning
from rookery.training import loop, run_writer
from rookery.training import memory_plan as plan


@dataclass(frozen=True)
class Train:
    """Train a population; a run is a folder that is complete in itself."""

    config: Any
    """The kind of run."""
    plan: tyro.conf.CascadeSubcommandArgs[bool] = False
    """Print what the run would hold in each device's memory, and what would not fit; train nothing."""
    processes: tyro.conf.CascadeSubcommandArgs[ProcessesConfig] = field(default_factory=ProcessesConfig)


@dataclass(frozen=True)
class Resume:
    """Continue a run from its newest whole checkpoint, bit-equal to one that never stopped."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    generations: int | None = None
    """Run on to this generation (at least 1); the run's own goal by default."""
    devices: int | None = None
    """Devices to spread the population over from now on; as many as before by default."""
    quiet: bool = False
    """Print nothing but errors."""
    live: bool = False
    """Refresh report.html in the run's folder with every checkpoint."""
    processes: ProcessesConfig = field(default_factory=ProcessesConfig)


def _command(defaults: Callable[[type[AnyRun]], AnyRun]) -> Any:
    """All commands; `defaults` gives what a kind of run is where no flag says otherwise."""
    kinds = [Annotated[kind, tyro.conf.subcommand(name, default=defaults(kind))] for name, kind in KINDS.items()]
    train = dataclasses.make_dataclass(
        "Train", [("config", functools.reduce(operator.or_, kinds))], bases=(Train,), frozen=True
    )
    train.__doc__ = Train.__doc__
    others = {"resume": Resume, **{name: command for name, (command, _) in commands.COMMANDS.items()}}
    named = [Annotated[command, tyro.conf.subcommand(name)] for name, command in {"train": train, **others}.items()]
    return functools.reduce(operator.or_, named)


def _defaults(arguments: Sequence[str]) -> Callable[[type[AnyRun]], AnyRun]:
    """A kind's own defaults; or the settings of the run that `--replay-schedule` or `--init-from` names, if the command
    line made it."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    flags = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    for flag, follow in (("--replay-schedule", like), ("--init-from", after)):
        place = flags.index(flag) + 1 if flag in flags else len(words)
        if place < len(words) and not words[place].startswith("-"):
            record = folder.open_existing(words[place]).config
            followed = from_record(record) if record.get("kind", PYTHON) != PYTHON else None
            return functools.partial(follow, followed)
    return lambda kind: kind()


def _called(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The command that is called, such as `rookery train sac`, and its flags; none where it is not known yet."""
    known = {"resume": Resume, **{name: command for name, (command, _) in commands.COMMANDS.items()}}
    name = "".join(words[:1])
    if name == "train" and (kind := next((word for word in words if word in KINDS), "")):
        return f"rookery train {kind}", flags.flags_of(Train) | flags.flags_of(KINDS[kind])
    if name == "train":
        return "rookery train", {}
    return (f"rookery {name}", flags.flags_of(known[name])) if name in known else ("rookery", {})


def _as_typed(message: str, arguments: Sequence[str]) -> str:
    """A message that calls the settings by the flags of the command line that it is about."""
    command, found = _called(arguments)
    names = {"population_size": "--population"} if "--population" in found else {}
    names |= {"eval_episodes": "--episodes"} if command == "rookery evaluate" else {}
    message = flags.as_typed(message, found, names)
    return message if _in_one_word(arguments) == [*arguments] else message.replace("--population", "--seeds")


def _in_one_word(arguments: Sequence[str]) -> list[str]:
    """Independent members are a population, which their users call seeds."""
    independent = arguments[:1] == ["train"] and issubclass(KINDS.get("".join(arguments[1:2]), object), SeedsRun)
    return [re.sub("^--seeds(?==|$)", "--population", word) if independent else word for word in arguments]


def parse(arguments: Sequence[str]) -> Any:
    """The command that a command line gives, `Train` and so on.

    Raises:
      FlagError: a flag, a value or a command that there is not, or a value outside its range.
      ValueError: the run that `--replay-schedule` or `--init-from` names is none.
    """
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.ConsolidateSubcommandArgs)
    words = _in_one_word(arguments)
    command, found = _called(words)
    for place, what, known in ((0, "command", ["train", "resume", *commands.COMMANDS]), (1, "kind of run", [*KINDS])):
        if words[place : place + 1] and not words[place].startswith("-") and (place == 0 or words[0] == "train"):
            flags.check_name(what, words[place], known)
    if found and not {"-h", "--help"} & {*words}:
        flags.check(words, command, found)
    told = "Train populations of reinforcement-learning agents; evaluate, compare, show and export their runs."
    with flags.mistakes(words, command, found):
        typed = flags.with_values(words, found)
        return tyro.cli(_command(_defaults(words)), args=typed, prog="rookery", description=told, config=markers)


def main() -> None:
    """Run a command; exits 0, 1 on an error, 2 on a mistake in the flags, 130 on Ctrl-C, 143 on SIGTERM."""
    if sys.argv[1:] == ["--version"]:
        print(f"rookery {importlib.metadata.version('rookery')}")
        return
    group = ProcessGroup()
    try:
        command = parse(sys.argv[1:])
        keep_compiled_programs()
        warnings.showwarning = _show_warning
        group = join(getattr(command, "processes", ProcessesConfig()))
        if isinstance(command, Train):
            train(command, group)
        elif isinstance(command, Resume):
            resume(command, group)
        else:
            commands.act(command)
        group.leave()
    except (Interrupted, loop.Diverged) as stop:  # in every process, after the same generation
        interrupted = isinstance(stop, Interrupted)
        if processes.is_first():
            print(f"\n{stop}" if interrupted else f"error: {stop}", file=sys.stderr)
        group.leave()
        sys.exit(128 + stop.signum if interrupted else 1)
    except flags.FlagError as mistake:
        print(f"error: {_as_typed(str(mistake), sys.argv[1:])}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\ninterrupted; what was saved is whole", file=sys.stderr)
        group.abandon(130, "it was interrupted")
        sys.exit(130)
    except (ValueError, ImportError, MemoryError, CheckpointError) as error:
        group.hear(error)
        told = _as_typed(str(error), sys.argv[1:])
        print(f"{'' if group.alone or processes.is_first() else group}error: {told}", file=sys.stderr)
        group.abandon(1, told)
        sys.exit(1)
    except Exception as error:
        group.fail(error)
        raise


def keep_compiled_programs() -> None:
    """Turn on JAX's persistent compilation cache, unless the user has chosen a place for it."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def train(command: Train, group: ProcessGroup) -> None:
    """`rookery train KIND`."""
    config, schedule, name = command.config, None, kind_of(command.config)
    if getattr(config, "replay_schedule", None) is not None:
        schedule = lineage.lineage(config.replay_schedule).schedule()
        lineage.check_agent(schedule, agent_of(name))
        config, name = alone(config), f"replay-{agent_of(name)}"
    run_dir = config.run.run_dir or f"runs/{name}-{config.world.env}-{config.run.seed}"
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, run_dir=run_dir))
    if command.plan:
        _plan(config, schedule)
    else:
        _go(config, schedule, group)


def resume(command: Resume, group: ProcessGroup) -> None:
    """`rookery resume RUN`."""
    record = folder.open_existing(command.run).config
    config = from_record(record)
    changed = {"run_dir": str(command.run), "quiet": command.quiet, "live": command.live}
    if command.generations is not None:
        changed["generations"] = command.generations
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, **changed))
    if command.devices is not None:
        config = dataclasses.replace(config, world=dataclasses.replace(config.world, devices=command.devices))
    _go(config, lineage.schedule_of(record), group, resume=True)


def _plan(config: AnyRun, schedule: lineage.Schedule | None) -> None:
    built = build.build(config, schedule)  # makes cores into devices, so nothing may start JAX before
    console = Console(quiet=config.run.quiet or not processes.is_first())
    built = built._replace(program=warm_start.begin(config, built))
    console.print(_what(config, built), highlight=False, soft_wrap=True)
    console.print("compiling a generation, which train will find in the cache", highlight=False)
    planned = loop.plan(built.program, config.run, built.mesh)
    console.print(tables.plan_table(planned))
    if does_not_fit := plan.remedy(planned):
        raise ValueError(does_not_fit)


def _what(config: AnyRun, built: build.Built) -> str:
    selection = f", {built.program.timing}" if built.program.timing else ""
    return f"{kind_of(config)} on {config.world.env}: {_people(config)} on {describe(built.mesh)}{selection}"


def _go(config: AnyRun, schedule: lineage.Schedule | None, group: ProcessGroup, resume: bool = False) -> None:
    group.tell_run(str(config.run.run_dir))
    processes.check_alike({**to_record(config), **lineage.record_of(schedule), "resume": resume})
    built = build.build(config, schedule)
    processes.connect(built.mesh)
    console = Console(quiet=config.run.quiet or not processes.is_first())
    if not (resume and _has_checkpoint(config)):
        built = built._replace(program=warm_start.begin(config, built))
    console.print(f"{_what(config, built)}, in {config.run.run_dir}", highlight=False, soft_wrap=True)
    record = to_record(with_space(built.config or config, built.space)) | lineage.record_of(schedule)
    words, live = events.command_line(), _refresh if config.run.live else None
    try:
        result = loop.run(built.program, config.run, built.mesh, resume, record, words, live)
    except (Exception, Interrupted) as error:  # a signal, a full disk: the page tells how far the run came
        if processes.is_first() and not isinstance(error, ValueError):  # which comes before there is anything to tell
            with contextlib.suppress(Exception):
                write_report([str(config.run.run_dir)])
        raise
    assert result.run_dir is not None
    group.finish()
    if not processes.is_first():
        return
    lies: dict[str, Path | str] = {"run": result.run_dir, "curves": curves.draw_curves(result.run_dir)}
    if page := _tell_by_page(result.run_dir):
        lies["report"] = page
    if built.program.table is not None:
        lies["repertoire"] = draw_repertoire(result.run_dir)
        console.print(tables.repertoire_summary(result.run_dir))
    lies["evaluate"] = f"rookery evaluate {result.run_dir}"
    if (result.run_dir / "lineage.csv").exists():
        console.print(tables.summary(result.run_dir))
    if result.memory is not None:
        lies["memory"] = str(result.memory)
    for name, value in lies.items():
        console.print(f"{name:10} {value}", highlight=False, soft_wrap=True)


def _refresh(run_dir: Path) -> None:
    """The page of a run that goes on, which loads itself again every 10 seconds."""
    write_report([run_dir], refresh=10)


def _tell_by_page(run_dir: Path) -> Path | None:
    """The run's page; a run that is safe on disk does not fail because of it."""
    try:
        return write_report([run_dir])
    except Exception as error:
        print(f"warning: no report.html was written ({type(error).__name__}: {error})", file=sys.stderr)
        return None


def _has_checkpoint(config: AnyRun) -> bool:
    """Whether a run can go on by itself, whatever has become of the run that it began with."""
    run_folder = folder.open_existing(str(config.run.run_dir))
    return not all(
        Checkpointer(path, read_only=True).empty for path in (run_folder.checkpoints, run_folder.interrupted)
    )


def _people(config: AnyRun) -> str:
    """Who lives in a run, in words."""
    if isinstance(config, AnyDiaynRun):
        kind = "skills" if config.skills.skill_kind == "one-hot" else "dimensions of skills"
        return f"population {config.population} with {config.skills.num_skills} {kind}"
    if isinstance(config, AnyTeamRun):
        of_roles = isinstance(config, PbtIppoRun) and config.member == "agent"
        return (
            f"population {config.population} of {'each role' if of_roles else 'teams'}, {config.parameters} parameters"
        )
    if isinstance(config, MapElitesRun):
        return f"{config.cells.count} cells, {config.batch_size} genotypes a generation"
    if isinstance(config, MePbtRun):
        return f"{config.cells.count} cells, population {config.population} and {config.ga_population} variations"
    return f"population {config.population}"


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Our own warnings are for the user: one line, without the place in the code."""
    if issubclass(category, CheckpointWarning | device_memory.MemoryWarning | run_writer.AfterSaveWarning):
        if not processes.is_first():
            return
        print(f"warning: {message}", file=sys.stderr)
    else:
        _show_other_warning(message, category, *where, **more)


_show_other_warning = warnings.showwarning
