"""User-defined environments by name: `package.module:factory`, `path/to/file.py:factory`, and registered names.

A factory is a function that returns an `Environment`; its keyword parameters are the options of the task. Packages can
declare factories in the entry-point group `rookery.environments`. The names of the library's own tasks are reserved.
"""

from collections.abc import Callable, Iterable
from importlib import metadata

from rookery import factories
from rookery.envs.base import Environment
from rookery.factories import Product, call, is_reference, load, reference_to
from rookery.settings import check_names, type_of

ENTRY_POINTS = "rookery.environments"
"""Entry-point group in which a package declares its environments: name -> `package.module:factory`."""

Factory = Callable[..., Environment]
_FACTORIES: dict[str, Factory | str] = {}
_EXTRAS: dict[str, str | None] = {}
_TAKEN: set[str] = set()
ENVIRONMENT = Product("environment", "an Environment", "./mass.py:make", factories.OWN_ENVIRONMENT)


def register(name: str, factory: Factory | str, extra: str | None = None) -> None:
    """Give a user-defined environment a name, which is then accepted wherever a task's name is.

    A run records the module and the name of the factory, so that commands find it again in another process.

    Args:
      name: a name without ":" and "/" that no task of the library has; registering a name again replaces its factory.
      factory: a function that returns an `Environment`, or its name, "package.module:factory", to import on first use.
      extra: what to install where the factory cannot be imported, as in "pip install my-package".

    Raises:
      ValueError: the name is empty, contains ":" or "/", or is that of a task or scoring function of the library; or
        `factory` is neither a function nor of the form "package.module:factory".

    Example:
      >>> rookery.register("short_room", lambda: rookery.make("point_room", episode_length=5))
      >>> rookery.make("short_room").spec.episode_length
      5
    """
    if ":" in str(name) or "/" in str(name):
        raise ValueError(f"the name of an environment must be a word without ':' and '/', got {name!r}.")
    check_names("environment", [name])
    if name in _TAKEN:
        raise ValueError(
            f"the library has a task {name!r}; register the environment by another name, as in 'my_{name}'."
        )
    if not callable(factory) and not is_reference(str(factory)):
        raise ValueError(
            f"the factory of {name!r} must be a function or 'package.module:factory', got {factory!r}; pass a function "
            "that returns an Environment."
        )
    _FACTORIES[name], _EXTRAS[name] = factory, extra


def reserve(names: Iterable[str]) -> None:
    """Keep names for the library's own tasks: `register` refuses them, and names that packages declare do not count."""
    _TAKEN.update(names)


def is_custom(name: str) -> bool:
    """Whether a name is that of a user-defined environment: a reference, or a registered or declared name."""
    return is_reference(name) or name in _FACTORIES or name in _declared()


def names() -> tuple[str, ...]:
    """The registered names, and those that installed packages declare."""
    return (*_FACTORIES, *(name for name in _declared() if name not in _FACTORIES))


def make(name: str, /, **options: object) -> Environment:
    """Build a user-defined environment, whose factory takes the options.

    Raises:
      ValueError: the module, the file or the factory does not exist, the factory has no such option, raises an
        exception, or returns something else.
      ImportError: the module of a registered name is not installed.
    """
    factory = _load(name)
    environment = call(name, factory, options)
    if not isinstance(environment, Environment):
        remedy = f"build one by rookery.Environment(reset, step, spec). See {factories.OWN_ENVIRONMENT}."
        space = getattr(environment, "action_space", None)
        if space is not None and not callable(space):  # an object of Gymnasium; gymnax and JaxMARL have a method
            remedy = "return rookery.from_gymnasium(make_env), where make_env creates such an object."
        raise ValueError(f"the factory {name} returned {type_of(environment)}, not a rookery.Environment; {remedy}")
    return environment


def options(name: str) -> tuple[str, ...]:
    """The options of a user-defined environment, which are the parameters of its factory."""
    return tuple(factories.options_of(_load(name)))


def canonical(name: str) -> str:
    """The name by which another process finds the same environment: files with absolute paths, registered functions by
    their modules. A ValueError if such a function cannot be imported, as a lambda."""
    if name in _FACTORIES:
        factory = _FACTORIES[name]
        return factory if isinstance(factory, str) else reference_to(name, factory)
    return factories.canonical(name)


def recorded_name(name: str) -> str:
    """The name that a run in Python records: the canonical one, or the given one where there is none."""
    try:
        return canonical(name)
    except ValueError:
        return name


def _declared() -> dict[str, metadata.EntryPoint]:
    points = metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point for point in points if point.name not in _TAKEN}


def _load(name: str) -> Factory:
    factory = _FACTORIES.get(name)
    if factory is None and not is_reference(name):
        factory = _declared()[name].value
    if factory is not None and not isinstance(factory, str):
        return factory
    try:
        return load(factory or name, ENVIRONMENT)
    except ImportError as error:
        remedy = f"; install it: {_EXTRAS[name]}" if _EXTRAS.get(name) else ""
        raise ImportError(f"the environment {name} cannot be imported: {error}{remedy}") from error
