"""What Population Based Training is told, and how many members that takes."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args, get_type_hints


@dataclass(frozen=True)
class PbtConfig:
    """Who is replaced, by whom, and how the newcomers differ.

    Raises:
      ValueError: a value outside its range.
    """

    exploit: Literal["truncation", "tournament", "multi-frequency", "none"] = "truncation"
    """truncation: the worst inherit from the best; tournament: each meets a random rival and inherits if it is better;
    multi-frequency: sub-populations that evolve at intervals of their own (MF-PBT); none: random search."""
    replace_fraction: float = 0.25
    """truncation: share of the population replaced each generation, in [0, 1]; one that rounds to 0 replaces nobody."""
    replace_count: int | None = None
    """truncation: members replaced each generation, instead of replace_fraction (0 to P)."""
    best_fraction: float = 0.25
    """truncation: share of the population that parents are drawn from, in [0, 1]; at least one member."""
    best_count: int | None = None
    """truncation: members that parents are drawn from, instead of best_fraction (1 to P)."""
    frequencies: tuple[int, ...] = (1, 10, 25, 50)
    """multi-frequency: selections between the evolutions of each sub-population (two or more, each at least 1)."""
    perturb: Literal["perturb", "resample", "pb2"] = "perturb"
    """perturb: multiply on each hyper-parameter's scale, or now and then draw afresh; resample: always draw afresh;
    pb2: a Gaussian-process bandit proposes (PB2)."""
    perturb_factors: tuple[float, float] = (0.8, 1.25)
    """The two factors of perturb (above 0)."""
    resample_probability: float = 0.25
    """Chance that perturb draws a hyper-parameter afresh, each on its own, in [0, 1]."""
    exploit_interval: int = 0
    """Environment steps of each member between two selections, in whole generations (at least 0); up to the length of a
    generation, every generation selects. Members that diverged are replaced in between all the same."""
    burn_in: int | None = None
    """Generations at the start in which only members that diverged are replaced (at least 0); by default those in which
    warm-up leaves no member a single update."""
    smooth: int = 1
    """Judge members by the mean of their lineage's last so many evaluations (at least 1)."""
    inherit_buffer: bool = False
    """Copy the parent's replay buffer as well; by default data stays with the slot. Over several devices, each of them
    then holds all buffers for a moment."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("replace_fraction", "best_fraction", "resample_probability"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}.")
        for name, least in (
            ("replace_count", 0),
            ("best_count", 1),
            ("exploit_interval", 0),
            ("burn_in", 0),
            ("smooth", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        if len(self.frequencies) < 2 or min(self.frequencies) < 1:
            raise ValueError(f"frequencies must be two or more, each at least 1, got {self.frequencies}.")
        if min(self.perturb_factors) <= 0:
            raise ValueError(f"perturb_factors must be above 0, got {self.perturb_factors}.")
        for name in ("exploit", "perturb"):
            known = get_args(get_type_hints(type(self))[name])
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}.")


class Timing(NamedTuple):
    """In which generations a population selects."""

    burn_in: int  # generations at the start without selection
    every: int  # generations between two selections, at least 1

    def __str__(self) -> str:
        """One clause."""
        first = -(-(self.burn_in + 1) // self.every) * self.every
        if self.every == 1:
            return "selects in every generation" + (f" from generation {first} on" if first > 1 else "")
        return f"selects in every {self.every} generations, first in generation {first}"


def timing(config: PbtConfig, steps_per_generation: int, untrained_generations: int) -> Timing:
    """When a population selects.

    Args:
      config: of the population.
      steps_per_generation: environment steps of one member.
      untrained_generations: at the start of the run, in which no member makes an update.
    """
    burn_in = untrained_generations if config.burn_in is None else config.burn_in
    return Timing(burn_in, max(1, -(-config.exploit_interval // steps_per_generation)))


def check_population(config: PbtConfig, population_size: int) -> None:
    """Refuse a population that is too small for the strategy.

    Raises:
      ValueError: the sentence names what is needed and what there is.
    """
    if population_size < 1:
        raise ValueError(f"population_size must be at least 1, got {population_size}.")
    if config.exploit == "truncation":
        counts(config, population_size)
    if config.exploit == "tournament" and population_size < 2:
        raise ValueError(f"a tournament needs a population of at least 2 members, got {population_size}.")
    tribes = len(config.frequencies)
    if config.exploit == "multi-frequency" and (population_size % tribes or population_size < 4 * tribes):
        raise ValueError(
            f"{tribes} frequencies need as many sub-populations of equal size, at least 4 members each: a multiple of "
            f"{tribes} from {4 * tribes} on, got a population of {population_size}; give other frequencies or members."
        )


def counts(config: PbtConfig, population_size: int) -> tuple[int, int]:
    """How many members truncation draws parents from, and how many it replaces each generation.

    A fraction is rounded to the nearest count; at least one member can be a parent.

    Raises:
      ValueError: the two together exceed the population.
    """
    best, replaced = config.best_count, config.replace_count
    best = rounded(config.best_fraction, population_size) if best is None else best
    replaced = rounded(config.replace_fraction, population_size) if replaced is None else replaced
    if max(best, replaced) > population_size or (replaced and best + replaced > population_size):
        raise ValueError(
            f"{best} best and {replaced} replaced members together exceed the population of {population_size}; "
            "lower best_fraction or replace_fraction (or their counts)."
        )
    return max(best, 1), replaced


def rounded(fraction: float, population_size: int) -> int:
    """A share of the population as whole members, to the nearest; a half rounds up."""
    return math.floor(fraction * population_size + 0.5)
