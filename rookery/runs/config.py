"""What a run is told: one frozen dataclass per kind of run. The command line and `config.json` are derived from it.

The parts are the configs of the rooms below, so that a setting is declared, documented and checked in one place only.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from typing_extensions import Doc

from rookery.agents import sac, td3
from rookery.hyperparams import Space, describe
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.rollout import EvaluationConfig
from rookery.populations.config import PbtConfig
from rookery.qd.pbt_emitter import MePbtConfig
from rookery.qd.scoring import PolicyConfig
from rookery.qd.variation import VariationConfig
from rookery.runs.cells import CellsConfig


@dataclass(frozen=True)
class WorldConfig:
    """Where the members live, and on what machine."""

    env: str = "hopper"
    """Task; `rookery envs` lists them."""
    episode_length: int | None = None
    """Steps until an episode is truncated (at least 1); the task's own by default."""
    backend: str | None = None
    """Physics of a Brax task: spring (the default), positional, generalized or mjx."""
    devices: int | None = None
    """Devices to spread the population over; by default as many as divide it, on a CPU its cores."""
    exact: bool = False
    """Map members one by one: slower, but the same bits on any number of devices."""


@dataclass(frozen=True)
class RunConfig:
    """What every kind of run shares.

    Raises:
      ValueError: a count below 1.
    """

    seed: int = 0
    """Seed of the run; with the same versions and devices it decides every bit."""
    generations: int = 50
    """Generations to run (at least 1)."""
    run_dir: str | None = None
    """Folder of the run; runs/<kind>-<env>-<seed> by default."""
    checkpoint_every: int = 5
    """Generations between checkpoints (at least 1); the last generation is always saved."""
    keep: int = 3
    """Checkpoints kept (at least 1)."""
    overwrite: bool = False
    """Replace a run that the folder already holds."""
    quiet: bool = False
    """Print nothing but errors."""

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("generations", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")


Chosen = tuple[float, float] | float | Literal["fixed"]
"""How a hyper-parameter is chosen: the bounds between which it evolves, its one value, or its default."""

_FLAG = "space."  # the names of the flags of a search space


def _space_flags(space: Space) -> Any:
    """A flag for every hyper-parameter of an agent, `--space.<name>`; what is not given is left out."""
    flags = {}
    for name, entry in space.fields.items():
        domain, value = space.domains.get(name), getattr(space.defaults, name)
        usual = f"evolves in [{domain.low:g}, {domain.high:g}], or is {value:g}" if domain else f"is {value:g}"
        flags[_FLAG + name] = Annotated[Chosen, Doc(f"{entry.meaning}, in {entry.range}; by default it {usual}.")]
    return TypedDict("SpaceFlags", flags, total=False)  # pyright: ignore[reportArgumentType]


SacSpace = _space_flags(sac.SPACE)
Td3Space = _space_flags(td3.SPACE)


@dataclass(frozen=True)
class SeedsRun:
    """Independent members, one by default."""

    population: int = 1
    """Members, each with a seed of its own (at least 1)."""
    draw_hyper: bool = False
    """Draw each member's hyper-parameters from the search space: random search."""
    replay_schedule: str | None = None
    """Folder of a run whose winner's schedule of hyper-parameters the members follow; every setting that is not given
    is that run's, but for the population and the seed."""
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
    world: WorldConfig = field(default_factory=WorldConfig)
    run: RunConfig = field(default_factory=RunConfig)
    pbt: PbtConfig = field(default_factory=PbtConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class SacRun(SeedsRun):
    """Soft actor-critic: independent members, one by default.

    Source: Haarnoja 2018 (arXiv:1812.05905).
    """

    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: SacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class Td3Run(SeedsRun):
    """Twin delayed deep deterministic policy gradient: independent members, one by default.

    Source: Fujimoto 2018 (arXiv:1802.09477).
    """

    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class PbtSacRun(PbtRun):
    """Population Based Training of soft actor-critic agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Haarnoja 2018 (arXiv:1812.05905).
    """

    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: SacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class PbtTd3Run(PbtRun):
    """Population Based Training of twin delayed deep deterministic policy gradient agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Fujimoto 2018 (arXiv:1802.09477).
    """

    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


def _described_world() -> WorldConfig:
    return WorldConfig(env="point_trap")


def _few_episodes() -> EvaluationConfig:
    return EvaluationConfig(eval_episodes=4)


@dataclass(frozen=True)
class MapElitesRun:
    """MAP-Elites: breed a repertoire of policies, or of a function's inputs, without gradients.

    Sources: Mouret 2015 (arXiv:1504.04909), Vassiliades 2018 (arXiv:1610.05729, arXiv:1804.03906).
    """

    batch_size: int = 256
    """Genotypes bred and judged in each generation (at least 1; a multiple of the devices)."""
    dimensions: int | None = None
    """Numbers in a genotype of a function (arm, sphere, rastrigin); the function's own by default."""
    world: WorldConfig = field(default_factory=_described_world)
    run: RunConfig = field(default_factory=RunConfig)
    cells: CellsConfig = field(default_factory=CellsConfig)
    variation: VariationConfig = field(default_factory=VariationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    evaluation: EvaluationConfig = field(default_factory=_few_episodes)


@dataclass(frozen=True)
class MePbtRun:
    """MAP-Elites with Population Based Training."""

    population: int = 10
    """P, members that train (at least 1; a multiple of the devices)."""
    ga_population: int = 30
    """Variations of elites that are judged beside them in each generation (at least 1)."""
    world: WorldConfig = field(default_factory=_described_world)
    run: RunConfig = field(default_factory=RunConfig)
    cells: CellsConfig = field(default_factory=CellsConfig)
    variation: VariationConfig = field(default_factory=VariationConfig)
    me_pbt: MePbtConfig = field(default_factory=MePbtConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class MePbtSacRun(MePbtRun):
    """A repertoire of diverse soft actor-critic agents: MAP-Elites with Population Based Training (ME-PBT).

    Sources: Pierrot 2023 (arXiv:2303.12803), Haarnoja 2018 (arXiv:1812.05905).
    """

    agent: sac.SacConfig = field(default_factory=lambda: sac.SacConfig(output_scale=1.0))
    space: SacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class MePbtTd3Run(MePbtRun):
    """A repertoire of diverse TD3 agents: MAP-Elites with Population Based Training (ME-PBT).

    Sources: Pierrot 2023 (arXiv:2303.12803), Fujimoto 2018 (arXiv:1802.09477).
    """

    agent: td3.Td3Config = field(default_factory=lambda: td3.Td3Config(output_scale=1.0))
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


AgentRun = SacRun | Td3Run | PbtSacRun | PbtTd3Run
"""Runs whose members can follow a schedule."""

AnyMePbtRun = MePbtSacRun | MePbtTd3Run

AnyRun = AgentRun | MapElitesRun | AnyMePbtRun

KINDS: dict[str, type[AnyRun]] = {
    "sac": SacRun,
    "td3": Td3Run,
    "pbt-sac": PbtSacRun,
    "pbt-td3": PbtTd3Run,
    "map-elites": MapElitesRun,
    "me-pbt-sac": MePbtSacRun,
    "me-pbt-td3": MePbtTd3Run,
}
"""Name on the command line -> config."""


def kind_of(config: AnyRun) -> str:
    """A config's name on the command line."""
    return next(name for name, kind in KINDS.items() if kind is type(config))


def agent_of(kind: str) -> str:
    """The agent that a kind of run trains: `pbt-sac` -> `sac`."""
    return kind.rpartition("-")[2]


def alone(config: AnyRun) -> AnyRun:
    """The same life without a population method, to follow a schedule: `pbt-sac` -> `sac`.

    Raises:
      ValueError: something is chosen that the schedule decides.
    """
    idle = [f"--space.{name}" for name in choices(config)]
    idle += ["--draw-hyper"] if getattr(config, "draw_hyper", False) else []
    method = getattr(config, "pbt", PbtConfig())
    usual = dataclasses.asdict(PbtConfig())
    idle += [
        f"--{name.replace('_', '-')}" for name, value in dataclasses.asdict(method).items() if value != usual[name]
    ]
    if idle:
        raise ValueError(f"a replayed schedule decides every hyper-parameter; leave out {', '.join(idle)}.")
    kind = KINDS[agent_of(kind_of(config))]
    shared = [entry.name for entry in dataclasses.fields(kind) if hasattr(config, entry.name)]
    return kind(**{name: getattr(config, name) for name in shared})


def like(run: AnyRun | None, kind: type[AnyRun]) -> AnyRun:
    """What `kind` is by default where it replays `run`: one member with that run's world, life, mind and length.

    Without a run (it was started from Python, and its settings are unknown) only the one member. A kind that replays
    nothing stays as it is.
    """
    if not issubclass(kind, SeedsRun | PbtRun):
        return kind()
    default = dataclasses.replace(kind(), population=1)
    if run is None or isinstance(run, MapElitesRun):
        return default
    parts = {"world": dataclasses.replace(run.world, devices=None), "run": RunConfig(generations=run.run.generations)}
    agent = run.agent if type(run.agent) is type(default.agent) else default.agent
    return dataclasses.replace(default, agent=agent, learner=run.learner, **parts)


def choices(config: AnyRun) -> dict[str, Chosen]:
    """What the config says of its search space, by the hyper-parameters' own names."""
    return {name.removeprefix(_FLAG): choice for name, choice in getattr(config, "space", {}).items()}


def with_space(config: AnyRun, space: Space | None) -> AnyRun:
    """The config with every hyper-parameter written out, so that another version's defaults cannot change the run."""
    if space is None or isinstance(config, MapElitesRun):
        return config
    told = {name: (d["low"], d["high"]) if isinstance(d, dict) else d for name, d in describe(space).items()}
    return dataclasses.replace(config, space=as_flags(told))


def as_flags(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Choices by name -> what the config's `space` holds."""
    return {_FLAG + name: tuple(choice) if isinstance(choice, list) else choice for name, choice in chosen.items()}
