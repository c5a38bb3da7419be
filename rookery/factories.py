"""Functions of a user's modules and files by name: `package.module:function` and `path/to/file.py:function`.

A factory is such a function that builds a part of a run; its keyword parameters are the options.
"""

import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rookery.settings import GUIDES, OptionError, suggestion, user_path

Factory = Callable[..., Any]
_MODULES: dict[Path, ModuleType] = {}
COPIES: dict[str, Path] = {}
"""File that a run recorded -> its copy in the run directory, which is used where the file is gone."""
OWN_ENVIRONMENT = f"{GUIDES}/own_environment.md"
OWN_AGENT = f"{GUIDES}/own_agent.md"
OWN_NETWORK = f"{GUIDES}/own_network.md"
OWN_PROGRAM = f"{GUIDES}/python_runs.md"


RAISED = (Exception, SystemExit)  # what a user's function raises as its own failure; KeyboardInterrupt is Ctrl-C


class Product(NamedTuple):
    """What the factories of a kind build, for messages."""

    noun: str  # such as "environment"
    kind: str  # the type that they return, such as "an Environment"
    example: str  # a factory by name, such as "./mass.py:make"
    guide: str  # the document that describes such factories


SUITE_PREFIXES = ("gym:", "envpool:")  # begin the names of environments that a suite finds by itself


def is_reference(name: str) -> bool:
    """Whether a name has the form `module:factory` or `file.py:factory`."""
    where, separator, attribute = name.rpartition(":")
    return bool(separator and where and attribute) and not name.startswith(SUITE_PREFIXES)


def load(reference: str, product: Product) -> Factory:
    """Import the function of a name of the form `module:function` or `file.py:function`.

    Raises:
      ValueError: the module, the file or the function does not exist, or the module raises an exception.
      ImportError: an import of the module fails.
    """
    where, _, attribute = reference.rpartition(":")
    module = _from_file(where, product) if where.endswith(".py") else _from_package(where, product)
    found: Any = getattr(module, attribute, None)
    if callable(found):
        return found
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
    otherwise = "" if functions else f"define a function that returns {product.kind} (see {product.guide})."
    raise ValueError(f"{where} has no function {attribute!r}; {suggestion(attribute, functions, otherwise)}")


def call(name: str, factory: Factory, options: dict[str, Any]) -> Any:
    """Call a factory, of this name in messages, with options.

    Raises:
      ValueError: the factory has no such option, needs another one, or raises an exception.
    """
    _check_options(name, factory, options)
    try:
        return factory(**options)
    except RAISED as error:
        raise ValueError(f"the factory {name} raised {described(error)}") from error


def canonical(reference: str) -> str:
    """The name by which another process finds the same function: files with absolute paths."""
    where, _, attribute = reference.rpartition(":")
    is_file = where.endswith(".py") and is_reference(reference)
    return f"{user_path(where).resolve()}:{attribute}" if is_file else reference


def label(name: str) -> str:
    """A short name without ":" and "/" for run directories and titles: `mass` for `path/mass.py:make`."""
    if name.startswith(SUITE_PREFIXES):
        return name.replace(":", "-").replace("/", "-")
    if not is_reference(name):
        return name
    where, _, attribute = name.rpartition(":")
    module = Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]
    return module if attribute in ("make", "build", "environment") else f"{module}-{attribute}"


def _from_package(name: str, product: Product) -> ModuleType:
    make_importable(Path.cwd())
    try:
        if "/" in name or os.sep in name or ":" in name or "" in name.split("."):  # such as a path without .py
            raise ModuleNotFoundError(name=name)
        return importlib.import_module(name)
    except RAISED as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise ValueError(
                f"there is no module {missing!r}; run the command in its folder, install its package, or give "
                f"the path of a file, such as {product.example}."
            ) from error
        if isinstance(error, ImportError):
            raise ImportError(f"{error}{place_of(error)}") from error
        raise ValueError(f"the module {name} raised {_described_import(error)}") from error


def _from_file(where: str, product: Product) -> ModuleType:
    """Import a file once; modules beside it can be imported by it."""
    path = user_path(where).resolve()
    if not path.is_file():
        path = COPIES.get(str(path), path)
    if path in _MODULES:
        return _MODULES[path]
    if not path.is_file():
        recorded = ", or put the file back if a run recorded it" if user_path(where).is_absolute() else ""
        remedy = f"give the path of a Python file, such as {product.example}{recorded}."
        raise ValueError(f"there is no file {path}; {remedy}")
    make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # so that its classes can be pickled
    words, sys.argv = sys.argv, [str(path), *sys.argv[1:]]  # the first of which a parser names in its messages
    try:
        spec.loader.exec_module(module)
    except RAISED as error:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise ValueError(f"the file {path} raised {_described_import(error)}") from error
    finally:
        sys.argv = words
    _MODULES[path] = module
    return module


def make_importable(folder: Path) -> None:
    """Let imports find the modules of a folder, after all others; for good, since modules may import on first use."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def options_of(factory: Factory) -> list[str]:
    """The parameters of a factory that can be given by name."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return []
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _check_options(name: str, factory: Factory, options: dict[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    accepted = options_of(factory)
    if unknown := sorted(set(options) - set(accepted)):
        has = f"it has {', '.join(accepted) or 'no options'}."
        raise OptionError("option", None, f"the factory {name} has no option {', '.join(unknown)}; {has}")
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if missing := [parameter for parameter in required if parameter not in options]:
        sentence = f"the factory {name} needs {', '.join(missing)}; give --option {missing[0]}=VALUE."
        raise OptionError("option", None, sentence)
    for parameter in parameters:
        hint, value = parameter.annotation, options.get(parameter.name)
        kind = _KINDS.get(hint) if isinstance(hint, type | str) else None
        if kind is None or parameter.name not in options:
            continue
        if not isinstance(value, kind.types) or isinstance(value, bool) != (kind is _SWITCH):
            sentence = f"the option {parameter.name} of the factory {name} must be {kind.text}, got {value!r}."
            raise OptionError("option", value, sentence)


class _Kind(NamedTuple):
    types: tuple[type, ...]
    text: str


_WHOLE, _ANY = _Kind((int,), "a whole number"), _Kind((int, float), "a number")
_SWITCH = _Kind((bool,), "true or false")
_KINDS = {int: _WHOLE, "int": _WHOLE, float: _ANY, "float": _ANY, bool: _SWITCH, "bool": _SWITCH}
"""Annotation -> the values that an option with it takes; others are not checked."""


def reference_to(name: str, factory: Factory) -> str:
    """The reference by which a registered function can be imported."""
    module, attribute = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "<lambda>")
    if module is None or "<" in attribute or "." in attribute:
        raise ValueError(
            f"{name!r} is registered for {attribute}, which another process cannot import; register a function that is "
            "defined at the top level of a module."
        )
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" and file:
        return f"{Path(file).resolve()}:{attribute}"
    return f"{module}:{attribute}"


def described(error: BaseException) -> str:
    """An exception with the place that led to it, as the end of a sentence."""
    return f"{type(error).__name__}: {str(error).rstrip('.') or 'no message'}{place_of(error)}"


def _described_import(error: BaseException) -> str:
    """Likewise, for an exception of a module while it is imported."""
    remedy = '; keep what ends the program under if __name__ == "__main__"' if isinstance(error, SystemExit) else ""
    return described(error) + remedy


def place_of(error: BaseException) -> str:
    """The latest place in the user's own files that led to an exception, such as ` (mass.py, line 9)`; that in an
    installed package if there is none, and "" if the message has the place or there is neither."""
    if isinstance(error, SyntaxError):
        return ""
    frames, packages = _frames(error), _packages()
    installed = [frame for frame in frames if frame[0].startswith(packages)]
    found = [frame for frame in frames if not frame[0].startswith((*packages, *_PYTHON, _HERE))] or installed
    return f" ({found[-1][0]}, line {found[-1][1]})" if found else ""


def raised_by_user(error: BaseException) -> str | None:
    """What a user's own function raised, and where, such as `KeyError: 'mass' was raised (mass.py, line 9)`, also where
    JAX called it on the host; None if this library raised it, or if it is an error of this library."""
    outside = (*_packages(), *_PYTHON)
    names = [name for name, _ in _frames(error) if name.startswith(_HERE) or not name.startswith(outside)]
    if not names or names[-1].startswith(_HERE) or type(error).__module__.startswith("rookery."):
        return None
    lines = str(error).strip().splitlines() or ["no message"]
    what = lines[-1] if _ON_HOST.match(str(error)) else f"{type(error).__name__}: {lines[0]}"
    return f"{what} was raised{place_of(error)}"


_ON_HOST = re.compile(r'.*jax/_src/callback\.py", line \d+, in \w+\n(.*)', re.DOTALL)
"""JAX's error of a function that it called on the host, with the end of a traceback: the frames of that function."""
_HERE = str(Path(__file__).parent)
_PYTHON = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


def _packages() -> tuple[str, ...]:
    return tuple(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))


def _frames(error: BaseException) -> list[tuple[str, int | None]]:
    """The files and lines that led to an exception, the latest last."""
    if on_host := _ON_HOST.match(str(error)):
        return [(name, int(line)) for name, line in re.findall(r'File "(.+)", line (\d+)', on_host[1])]
    return [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
