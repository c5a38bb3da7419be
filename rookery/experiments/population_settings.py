"""What runs whose members live by themselves are told: independent members, and populations that evolve."""

from dataclasses import dataclass, field

from rookery.experiments.config import RunConfig, WorldConfig
from rookery.learners.off_policy import OffPolicyConfig
from rookery.populations.config import PbtConfig


@dataclass(frozen=True)
class SeedsRun:
    """Independent members, one by default."""

    population: int = 1
    """Members, each with a seed of its own, in one compiled run (at least 1); this flag may be called seeds as well."""
    draw_hyper: bool = False
    """Draw each member's hyper-parameters from the search space: random search."""
    replay_schedule: str | None = None
    """Folder of a run whose winner's schedule of hyper-parameters the members follow; every setting that is not given
    is that run's, but for the population and the seed."""
    init_from: str | None = None
    """Folder of a run whose best member everybody begins as; task and widths that are not given are that run's."""
    skill: int | None = None
    """Which skill of the run to begin with, if it discovered skills (counted from 0)."""
    world: WorldConfig = field(default_factory=WorldConfig)
    run: RunConfig = field(default_factory=RunConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class PbtRun:
    """Population Based Training."""

    population: int = 8
    """P, members (at least 1; a multiple of the devices)."""
    replay_schedule: str | None = None
    """Folder of a run whose winner's schedule one fresh agent follows, without selection: as `rookery train` of the
    agent alone does."""
    init_from: str | None = None
    """Folder of a run whose best member everybody begins as; task and widths that are not given are that run's."""
    skill: int | None = None
    """Which skill of the run to begin with, if it discovered skills (counted from 0)."""
    world: WorldConfig = field(default_factory=WorldConfig)
    run: RunConfig = field(default_factory=RunConfig)
    pbt: PbtConfig = field(default_factory=PbtConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)
