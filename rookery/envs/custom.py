"""User-defined environments by name: `package.module:factory`, `path/to/file.py:factory`, and registered names.

A factory is a function that returns an `Environment`; its keyword parameters are the options of the task. Packages can
declare factories in the entry-point group `rookery.environments`.
"""

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from rookery.envs.base import Environment

ENTRY_POINTS = "rookery.environments"
"""Entry-point group in which a package declares its environments: name -> `package.module:factory`."""

Factory = Callable[..., Environment]
_FACTORIES: dict[str, Factory | str] = {}
_EXTRAS: dict[str, str | None] = {}
_MODULES: dict[Path, ModuleType] = {}


def register(name: str, factory: Factory | str, extra: str | None = None) -> None:
    """Give a user-defined environment a name, which is then accepted wherever a task's name is.

    A run records the module and the name of the factory, so that commands find it again in another process.

    Args:
      name: a name without ":" that no task has; registering a name again replaces its factory.
      factory: a function that returns an `Environment`, or its name, "package.module:factory", to import on first use.
      extra: what to install where the factory cannot be imported, as in "pip install my-package".

    Raises:
      ValueError: the name is empty or contains ":", or `factory` is neither a function nor of the form
        "package.module:factory".

    Example:
      >>> rookery.register("short_room", lambda: rookery.make("point_room", episode_length=5))
      >>> rookery.make("short_room").spec.episode_length
      5
    """
    if not name or ":" in name or "/" in name:
        raise ValueError(f"the name of an environment must be a word without ':' and '/', got {name!r}.")
    if not callable(factory) and not is_reference(str(factory)):
        raise ValueError(
            f"the factory of {name!r} must be a function or 'package.module:factory', got {factory!r}; pass a function "
            "that returns an Environment."
        )
    _FACTORIES[name], _EXTRAS[name] = factory, extra


def is_reference(name: str) -> bool:
    """Whether a name has the form `module:factory` or `file.py:factory`."""
    where, separator, attribute = name.rpartition(":")
    return bool(separator and where and attribute)


def is_custom(name: str) -> bool:
    """Whether a name is that of a user-defined environment: a reference, or a registered or declared name."""
    return is_reference(name) or name in _FACTORIES or name in _declared()


def names() -> tuple[str, ...]:
    """The registered names, and those that installed packages declare."""
    return (*_FACTORIES, *(name for name in _declared() if name not in _FACTORIES))


def make(name: str, **options: Any) -> Environment:
    """Build a user-defined environment.

    Args:
      name: as for `is_custom`.
      **options: keyword arguments of the factory.

    Raises:
      ValueError: the module, the file or the factory does not exist, the factory has no such option, raises an
        exception, or returns something else.
      ImportError: the module of a registered name is not installed.
    """
    factory = _load(name)
    _check_options(name, factory, options)
    try:
        environment = factory(**options)
    except Exception as error:
        raise ValueError(f"the factory {name} raised {_described(error)}") from error
    if not isinstance(environment, Environment):
        raise ValueError(
            f"the factory {name} returned {_type(environment)}, not a rookery.Environment; build one by "
            "rookery.Environment(reset, step, spec)."
        )
    return environment


def canonical(name: str) -> str:
    """The name by which another process finds the same environment: files with absolute paths, registered functions by
    their modules.

    Raises:
      ValueError: the name is registered for a function that cannot be imported, such as a lambda.
    """
    if name in _FACTORIES:
        factory = _FACTORIES[name]
        return factory if isinstance(factory, str) else _reference_to(name, factory)
    where, _, attribute = name.rpartition(":")
    return f"{Path(where).resolve()}:{attribute}" if where.endswith(".py") else name


def label(name: str) -> str:
    """A short name without ":" and "/" for run directories and titles: `mass` for `path/mass.py:make`."""
    where, separator, attribute = name.rpartition(":")
    if not separator:
        return name
    module = Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]
    return module if attribute in ("make", "build", "environment") else f"{module}-{attribute}"


def _declared() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def _load(name: str) -> Factory:
    """The factory of a name."""
    factory = _FACTORIES.get(name)
    if factory is None and not is_reference(name):
        factory = _declared()[name].value
    if factory is not None and not isinstance(factory, str):
        return factory
    where, _, attribute = (factory or name).rpartition(":")
    try:
        module = _from_file(where) if where.endswith(".py") else _from_package(where)
    except ImportError as error:
        remedy = f"; install it: {_EXTRAS[name]}" if _EXTRAS.get(name) else ""
        raise ImportError(f"the environment {name} cannot be imported: {error}{remedy}") from error
    found: Any = getattr(module, attribute, None)
    if not callable(found) or isinstance(found, Environment):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        near = difflib.get_close_matches(attribute, functions, n=3, cutoff=0.5) or functions[:5]
        remedy = f"did you mean {', '.join(near)}?" if near else "define a function that returns an Environment."
        raise ValueError(f"{where} has no function {attribute!r}; {remedy}")
    return cast(Factory, found)


def _from_package(name: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(
                f"there is no module {error.name!r}; run the command in its folder, install its package, or give "
                "the path of a file, such as ./mass.py:make."
            ) from error
        raise
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"the module {name} raised {_described(error)}") from error


def _from_file(where: str) -> ModuleType:
    """Import a file once; modules beside it can be imported by it."""
    path = Path(where).resolve()
    if path in _MODULES:
        return _MODULES[path]
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of a Python file, such as ./mass.py:make.")
    _make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # so that its classes can be pickled
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise ValueError(f"the file {path} raised {_described(error)}") from error
    _MODULES[path] = module
    return module


def _make_importable(folder: Path) -> None:
    """Let imports find the modules of a folder, after all others; for good, since modules may import on first use."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _check_options(name: str, factory: Factory, options: dict[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    accepted = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if unknown := sorted(set(options) - set(accepted)):
        raise ValueError(
            f"the factory {name} has no option {', '.join(unknown)}; it has {', '.join(accepted) or 'no options'}."
        )
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if missing := [parameter for parameter in required if parameter not in options]:
        raise ValueError(f"the factory {name} needs {', '.join(missing)}; give --option {missing[0]}=VALUE.")


def _reference_to(name: str, factory: Factory) -> str:
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


def _described(error: BaseException) -> str:
    """An exception with the place where it was raised, as the end of a sentence."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _type(value: object) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return "None" if value is None else f"an object of type {name}"
