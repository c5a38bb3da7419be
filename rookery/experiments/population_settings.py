"""Settings of the two population methods: independent members (seeds), and Population Based Training."""

from dataclasses import dataclass, field

from rookery.experiments.config import EnvironmentConfig, RunConfig
from rookery.learners.off_policy import OffPolicyConfig
from rookery.populations.config import PbtConfig


@dataclass(frozen=True)
class SeedsRun:
    """Independent members, one by default."""

    population: int = 1
    """Number of members, each with a different random seed, trained in one compiled program (at least 1; a multiple of
    the number of devices); `--seeds` is another name of this flag."""
    draw_hyper: bool = False
    """Random search: draw each member's hyper-parameters once from the search space."""
    replay_schedule: str | None = None
    """Run directory; the members train with the hyper-parameters that the ancestors of its best member had in each
    generation. Settings that are not given are taken from that run, except for the population and the seed."""
    init_from: str | None = None
    """Run directory; every member starts from the parameters of its best member. Task and network settings that are not
    given are taken from that run."""
    skill: int | None = None
    """Number of the skill of `--init-from` to start from (0 to the number of skills - 1), if that run discovered skills
    and this one does not."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    run: RunConfig = field(default_factory=RunConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class PbtRun:
    """Population Based Training."""

    population: int = 8
    """P, number of members (at least 1; a multiple of the number of devices)."""
    replay_schedule: str | None = None
    """Run directory; one new agent trains, without selection, with the hyper-parameters that the ancestors of its best
    member had in each generation, as `--replay-schedule` does in `rookery train sac` for a run of pbt-sac."""
    init_from: str | None = None
    """Run directory; every member starts from the parameters of its best member. Task and network settings that are not
    given are taken from that run."""
    skill: int | None = None
    """Number of the skill of `--init-from` to start from (0 to the number of skills - 1), if that run discovered skills
    and this one does not."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    run: RunConfig = field(default_factory=RunConfig)
    pbt: PbtConfig = field(default_factory=PbtConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)
