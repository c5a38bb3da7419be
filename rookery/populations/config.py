"""Configuration of Population Based Training, and the member counts and generations derived from it."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from rookery.settings import FRACTION, POSITIVE, SettingError, Within, check_counts, check_fields


@dataclass(frozen=True)
class PbtConfig:
    """Selection of members to replace and of their parents, and perturbation of the inherited hyper-parameters.

    Raises:
      ValueError: a value outside its range.
    """

    exploit: Literal["truncation", "tournament", "threshold", "multi-frequency", "none"] = "truncation"
    """truncation: the worst members inherit from the best; tournament: each member is compared with a random other one
    and inherits from it if that is better; threshold: members far below the mean inherit from those far above it
    (Isaac Lab); multi-frequency: sub-populations that evolve at different intervals (MF-PBT); none: no selection
    (random search)."""
    replace_fraction: Annotated[float, FRACTION] = 0.25
    """truncation: share of the population replaced at each selection; it must give at least one member."""
    replace_count: Annotated[int | None, Within(1)] = None
    """truncation: number of members replaced at each selection, instead of replace_fraction (1 to P)."""
    best_fraction: Annotated[float, FRACTION] = 0.25
    """truncation: share of the population that parents are drawn from; at least one member."""
    best_count: Annotated[int | None, Within(1)] = None
    """truncation: number of best members that parents are drawn from, instead of best_fraction (1 to P)."""
    threshold_std: Annotated[float, Within(0)] = 0.1
    """threshold: least distance from the mean in standard deviations."""
    threshold_abs: Annotated[float, Within(0)] = 0.05
    """threshold: the same in units of the fitness; both must be exceeded."""
    frequencies: Annotated[tuple[int, ...], Within(1)] = (1, 10, 25, 50)
    """multi-frequency: number of selections between two evolutions of each sub-population (two or more)."""
    perturb: Literal["perturb", "resample", "pb2"] = "perturb"
    """perturb: multiply each inherited hyper-parameter by a factor on its scale (in an interval across 0, shift it), or
    resample it with resample_probability; resample: always sample from the space; pb2: proposals of a Gaussian-process
    bandit (PB2)."""
    perturb_factors: Annotated[tuple[float, float], POSITIVE] = (0.8, 1.25)
    """The two factors of perturb."""
    resample_probability: Annotated[float, FRACTION] = 0.25
    """Probability that perturb samples a hyper-parameter from the space instead, independently for each."""
    exploit_interval: Annotated[int | Literal["auto"], Within(0)] = 0
    """Environment steps of each member between two selections, rounded up to whole generations; values up to the length
    of a generation select in every generation. Members that diverged are replaced in every generation. auto: rounds
    whose interval doubles (IPBT)."""
    round_patience: Annotated[int, Within(1)] = 6
    """exploit-interval auto: selections without a new best fitness that end a round."""
    rounds_until: Annotated[int | None, Within(1)] = None
    """exploit-interval auto: no round begins that cannot end within these generations; by default those of the run
    (no limit in Python)."""
    burn_in: Annotated[int | None, Within(0)] = None
    """Generations at the start in which only members that diverged are replaced; the default is the number of
    generations that end before warm-up allows a first update."""
    smooth: Annotated[int, Within(1, 100_000)] = 1
    """Number of latest evaluations of a member's lineage whose mean is used for selection."""
    inherit_buffer: bool = False
    """Copy the parent's replay buffer as well; by default the buffer stays with the slot. With several devices, each
    device then temporarily holds all buffers."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)
        if len(self.frequencies) < 2:
            raise SettingError("frequencies", self.frequencies, "must be two or more")
        if self.is_automatic and self.exploit in ("none", "multi-frequency"):
            problem = f"cannot be automatic with {{exploit}} {self.exploit}"
            remedy = "give a number of steps, or {exploit} truncation, tournament or threshold"
            raise SettingError("exploit_interval", "auto", problem, remedy)

    @property
    def is_automatic(self) -> bool:
        """Whether the population trains in rounds with different intervals, see `selection.Rounds`."""
        return self.exploit_interval == "auto"

    @property
    def has_bandit(self) -> bool:
        """Whether the observations of PB2 are recorded."""
        return self.perturb == "pb2" or self.is_automatic


@dataclass(frozen=True)
class LeagueConfig:
    """A pool of earlier members of each role, which act as opponents in a share of the training environments.

    Raises:
      ValueError: a value outside its range.
    """

    league_size: Annotated[int, Within(1)] = 8
    """K, number of entries of the pool; each has one earlier member of every role."""
    league_share: Annotated[float, FRACTION] = 0.25
    """Share of the environments in which one agent of a team learns against an entry, divided evenly among the roles;
    in the others a team learns together. 0: entries are rated, but not played."""
    league_every: Annotated[int, Within(1)] = 5
    """Generations between two entries; then all entries are rated against the current members."""
    league_power: Annotated[float, Within(0)] = 2.0
    """Exponent k of the weight (1 - p)^k with which an entry is drawn, where p is how often current members do better
    against it than against current opponents (prioritised fictitious self-play); 0: all entries alike."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)


class Timing(NamedTuple):
    """The generations in which a population selects."""

    burn_in: int
    """Generations at the start without selection."""
    every: int
    """Generations between two selections, at least 1; in the first round if the interval is automatic."""
    replaced: int | None = None
    """Members that each selection replaces, if no fitnesses are equal; None if it depends on the fitnesses."""
    is_automatic: bool = False
    """Whether the interval grows, see `selection.Rounds`."""

    @property
    def first(self) -> int:
        """The generation of the first selection, at least 1."""
        return -(-(self.burn_in + 1) // self.every) * self.every

    def __str__(self) -> str:
        """A clause for the summary of a run, such as "selects in every generation, replaces 2 members"."""
        count = "as many members as the fitnesses decide"
        if self.replaced is not None:
            count = f"{self.replaced} member{'s' * (self.replaced > 1)}"
        members = f", replaces {count}"
        if self.is_automatic:
            return f"selects at an automatic interval, first in generation {self.first}{members}"
        if self.every == 1:
            later = f" from generation {self.first} on" if self.first > 1 else ""
            return f"selects in every generation{later}{members}"
        return f"selects every {self.every} generations, first in generation {self.first}{members}"


def timing(config: PbtConfig, population_size: int, steps_per_generation: int, untrained_generations: int) -> Timing:
    """Compute the generations in which a population selects.

    Args:
      config: the configuration of the population.
      population_size: P.
      steps_per_generation: environment steps of one member.
      untrained_generations: generations at the start of the run in which no member makes an update.
    """
    burn_in = untrained_generations if config.burn_in is None else config.burn_in
    replaced = counts(config, population_size)[1] if config.exploit == "truncation" else None
    if config.exploit_interval == "auto":
        return Timing(burn_in, 1, replaced, True)
    return Timing(burn_in, max(1, -(-config.exploit_interval // steps_per_generation)), replaced)


def check_population(config: PbtConfig, population_size: int) -> None:
    """Check that the population is large enough for the exploit strategy.

    Raises:
      ValueError: the population is too small; the message states the required and the given size.
      TypeError: its size is no whole number.
    """
    check_counts(population_size=population_size)
    if config.exploit != "none" and population_size < 2:
        problem = f"must be at least 2 with {{exploit}} {config.exploit}"
        raise SettingError("population_size", population_size, problem, "enlarge it, or give {exploit} none")
    if config.exploit == "truncation":
        counts(config, population_size)
    count = len(config.frequencies)
    if config.exploit == "multi-frequency" and (population_size % count or population_size < 4 * count):
        problem = f"must be a multiple of {count} from {4 * count} on, 4 members for each of {{frequencies}}"
        raise SettingError("population_size", population_size, problem)


def counts(config: PbtConfig, population_size: int) -> tuple[int, int]:
    """The number of best members that truncation draws parents from, and the number of members it replaces.

    A fraction is rounded to the nearest count; at least one member can be a parent.

    Raises:
      ValueError: no member would be replaced, or the two counts together exceed the population.
    """
    best, replaced = config.best_count, config.replace_count
    best = rounded(config.best_fraction, population_size) if best is None else best
    replaced = rounded(config.replace_fraction, population_size) if replaced is None else replaced
    if replaced < 1:
        problem = f"replaces no member of a population of {population_size}"
        remedy = "raise it, give {replace_count} 1, or {exploit} none"
        raise SettingError("replace_fraction", config.replace_fraction, problem, remedy)
    if max(best, replaced) > population_size or best + replaced > population_size:
        problem = f"replaces {replaced} members, which with the {best} best exceed the population of {population_size}"
        name = "replace_fraction" if config.replace_count is None else "replace_count"
        lower = "best_fraction" if config.best_count is None else "best_count"
        raise SettingError(name, getattr(config, name), problem, f"lower it, or {{{lower}}}")
    return max(best, 1), replaced


def rounded(fraction: float, population_size: int) -> int:
    """A fraction of the population as a number of members, rounded to the nearest integer; a half rounds up."""
    return math.floor(fraction * population_size + 0.5)
