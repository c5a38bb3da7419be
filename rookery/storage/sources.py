"""Copies of the files of a user's functions in the run directory, from which a run is built where the files are gone.

`source/files.json` has for each file or module that `config.json` names its hashes; the files are in `source/0`,
`source/1`, ... with those that they import from their own folder; so is a module of the current folder. A module of an
installed package is not copied: its version is recorded.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rookery import factories
from rookery.factories import is_reference, make_importable
from rookery.settings import SettingError, user_path, verbatim
from rookery.storage.run_dir import REPLACED, RunFolder, open_existing, output_to, write_atomically
from rookery.types import Record


class SourceWarning(UserWarning):
    """The code of a user's function has changed since the run recorded it."""


def save(folder: RunFolder) -> None:
    """Copy the source of the functions that a run's `config.json` names, in place of those that it had; an
    OutputWarning if a file cannot be copied."""
    found: dict[str, Any] = {}
    with output_to(folder.sources_file):
        for number, where in enumerate(_references(folder.config)):
            files = _files(where)
            found[where] = {name: _digest(path) for name, path in files.items()}
            if not where.endswith(".py"):
                found[where] |= {"version": _version(where)}
                if not _is_local(where):
                    continue
            for name, path in files.items():
                target = folder.sources / str(number) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        if found:
            folder.sources.mkdir(exist_ok=True)
            write_atomically(folder.sources_file, json.dumps(found, indent=2) + "\n")


def use(folder: RunFolder) -> None:
    """Let `factories.load` and imports find the copies of a run's files where the files themselves are gone."""
    for number, (where, recorded) in enumerate(zip(_references(folder.config), _recorded(folder), strict=False)):
        copies, is_file = folder.sources / str(number), where.endswith(".py")
        if is_file and (copy := copies / Path(recorded).name).is_file():
            factories.COPIES[where] = copy
        if copies.is_dir() and (not is_file or Path(where).is_file()):
            make_importable(Path(where).parent if is_file else Path.cwd())  # whose files come first
            make_importable(copies)


def replace(run_dir: str | Path, **functions: str | None) -> None:
    """Build the parts of a run by other functions than those that it recorded, such as of a file that was moved.

    It counts in this process until the run is opened by other ones; a run that is resumed records the new name.

    Args:
      **functions: `env` and `factory`, each the name of a function, or None to keep the recorded one.

    Raises:
      ValueError: the run has no function of a user in this place, or the name has another form.
    """
    given = REPLACED[user_path(run_dir).resolve()] = {}
    for name, function in functions.items():
        if function is None:
            continue
        if not is_reference(str(_functions(open_existing(run_dir).config)[name])):
            problem = f"replaces a function of yours, and {verbatim(run_dir)} has none"
            raise SettingError(name, None, problem, "leave it out")
        if not is_reference(function):
            raise SettingError(name, function, "must be package.module:function or path/to/file.py:function")
        where = factories.canonical(function).rpartition(":")[0]
        if where.endswith(".py") and not Path(where).is_file():
            raise SettingError(name, function, "must name a file that exists")
        given[name] = factories.canonical(function)


def changed(folder: RunFolder) -> list[str]:
    """The files of a run's functions that differ from those that it recorded; a file that is gone has a copy."""
    return [
        str(path)
        for where, recorded in zip(_references(folder.config), _recorded(folder).values(), strict=False)
        for name, path in _files(where).items()
        if recorded.get(name) not in (None, _digest(path)) and str(path) != str(factories.COPIES.get(where))
    ]


def opened(run_dir: str | Path) -> RunFolder:
    """Open a run directory whose program is to be built; see `use`."""
    folder = open_existing(run_dir)
    use(folder)
    return folder


def _recorded(folder: RunFolder) -> Mapping[str, Mapping[str, str]]:
    with contextlib.suppress(OSError, ValueError):  # an older run, or a damaged file: the originals are needed
        found = json.loads(folder.sources_file.read_text(encoding="utf-8"))
        if isinstance(found, dict) and all(isinstance(files, dict) for files in found.values()):
            return found
    return {}


def _functions(config: Record) -> dict[str, Any]:
    """The names of the functions of a user in a run's `config.json`, or what is in their places."""
    environment = config.get("environment")
    env = environment.get("env") if isinstance(environment, Mapping) else None
    return {"factory": config.get("factory"), "env": env}


def _references(config: Record) -> Iterator[str]:
    """The files and modules that a run's `config.json` names, each once."""
    given = _functions(config).values()
    names = [str(name).removeprefix("gym:") for name in given]  # Gymnasium imports the module of gym:module:Id
    yield from dict.fromkeys(name.rpartition(":")[0] for name in names if is_reference(name))


def _files(where: str) -> dict[str, Path]:
    """Name below its folder -> path of a file, and of the modules that were imported from that folder."""
    if where.endswith(".py"):
        main = factories.COPIES.get(where, Path(where)) if not Path(where).is_file() else Path(where)
        folder = main.parent
    else:
        main, folder = _path(sys.modules.get(where)), Path.cwd()
        if not _is_local(where):
            return {main.name: main} if main.is_file() else {}
    found = {str(main.relative_to(folder)): main}
    for name, module in list(sys.modules.items()):
        path = _path(module)
        ours = name.partition(".")[0] != "rookery" and not {"site-packages", "dist-packages"} & {*path.parts}
        if ours and path.suffix == ".py" and folder in path.parents and path.is_file():
            found[str(path.relative_to(folder))] = path
    return found if main.is_file() else {}


def _is_local(module: str) -> bool:
    """Whether a module was imported from the current folder, and of no installed package."""
    top = sys.modules.get(module.partition(".")[0])
    folder = _path(top).parent
    return (folder.parent if hasattr(top, "__path__") else folder) == Path.cwd() and not _version(module)


def _path(module: ModuleType | None) -> Path:
    """The file of a module, "/" where it has none."""
    return Path(getattr(module, "__file__", None) or "/")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _version(module: str) -> str:
    """The version of the package that provides a module; "" for one that is not installed."""
    package = module.partition(".")[0]
    names = importlib.metadata.packages_distributions().get(package, [package])
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(names[0])
    return ""
