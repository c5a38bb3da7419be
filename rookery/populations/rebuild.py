"""Builds a program again: for another placement on devices, or with another learner or scoring.

A program's functions are bound to their placement when the program is built. `rookery.run` binds a program that was
built for one device to all devices of a machine, and `rookery.deploy.evaluate` gives it other evaluation episodes.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from rookery.populations.base import Program, ProgramStateT
from rookery.populations.sharding import ONE_DEVICE, Placement


class Recipe(NamedTuple):
    """How a program is built again."""

    build: Callable[[Any, Placement], Program]
    """The learner (the scoring, without a learner) and the placement -> the program."""
    placement: Placement
    """The placement that the program is bound to."""
    functions: tuple[object, ...]
    """`init`, `step` and `evaluate` of the program that was built; others, set by hand, would be lost."""
    kept: dict[Hashable, tuple[Any, Program]]
    """What `rebuild` built before: `known_as` -> the problem of the program that was given, and what was built."""


def with_recipe(
    program: Program[ProgramStateT], build: Callable[[Any, Placement], Program], placement: Placement = ONE_DEVICE
) -> Program[ProgramStateT]:
    """The program with the function that builds it again."""
    return program._replace(recipe=Recipe(build, placement, _functions(program), {}))


def recipe_of(program: Program) -> Recipe | None:
    """The recipe of a program; None if it has none, or if one of its functions was replaced since."""
    recipe = program.recipe
    alike = recipe is not None and all(a is b for a, b in zip(recipe.functions, _functions(program), strict=True))
    return recipe if alike else None


def rebuild(
    program: Program[ProgramStateT],
    placement: Placement | None = None,
    problem: Any = None,
    known_as: Hashable = None,
) -> Program[ProgramStateT] | None:
    """Build a program again; None if it cannot be.

    Args:
      program: the program.
      placement: the new placement; by default that of the program.
      problem: the new learner, or the new scoring of a program without a learner; by default that of the program.
      known_as: a value that stands for the placement and the problem. What is built is kept, and a later call with an
        equal value returns the same functions, which JAX then does not compile again.
    """
    recipe = recipe_of(program)
    if recipe is None:
        return None
    own = program.learner or program.scoring
    kept_for, built = recipe.kept.get(known_as, (None, None))
    if built is None or kept_for is not own:
        built = recipe.build(problem or own, recipe.placement if placement is None else placement)
        if known_as is not None:
            recipe.kept[known_as] = own, built
    names = ("init", "step", "evaluate", "steps_per_generation", "divides_cells", "learner", "scoring", "recipe")
    return program._replace(**{name: getattr(built, name) for name in names})


def changed(
    program: Program[ProgramStateT], change: Callable[[Program[ProgramStateT]], Program[ProgramStateT]]
) -> Program[ProgramStateT]:
    """Apply a change of functions to a program so that it is applied again whenever the program is built again."""
    recipe, result = recipe_of(program), change(program)
    if recipe is None:
        return result._replace(recipe=None)
    return with_recipe(result, lambda problem, placement: change(recipe.build(problem, placement)), recipe.placement)


def _functions(program: Program) -> tuple[object, ...]:
    return program.init, program.step, program.evaluate
