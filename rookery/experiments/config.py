"""What every kind of run is told: where, how long, how often saved; and how a search space is chosen by flags."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from typing_extensions import Doc

from rookery.hyperparams import Space


@dataclass(frozen=True)
class WorldConfig:
    """Where the members live, and on what machine."""

    env: str = "hopper"
    """Task; `rookery envs` lists them."""
    episode_length: int | None = None
    """Steps until an episode is truncated (at least 1); the task's own by default."""
    backend: str | None = None
    """Physics of a Brax task: spring (the default), positional, generalized or mjx."""
    option: tuple[str, ...] = ()
    """More that the task lets one choose, each as name=value, such as predator_speed=3; docs/tasks.md says what."""
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
    best_by: str | None = None
    """Column of metrics.csv whose greatest value yet has its generation saved at once, and kept beside the others; a
    mean over members, where the column is one."""
    overwrite: bool = False
    """Replace a run that the folder already holds."""
    quiet: bool = False
    """Print nothing but errors."""
    live: bool = False
    """Refresh report.html in the run's folder with every checkpoint."""

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("generations", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")


Chosen = tuple[float, float] | float | Literal["fixed"]
"""How a hyper-parameter is chosen: the bounds between which it evolves, its one value, or its default."""

FLAG = "space."  # the names of the flags of a search space


def space_flags(space: Space, continuous: Space | None = None) -> Any:
    """A flag for every hyper-parameter of an agent, `--space.<name>`; what is not given is left out.

    Args:
      space: of the agent; where `continuous` is given, for discrete actions.
      continuous: for continuous actions.
    """
    flags = {}
    for name, entry in space.fields.items():
        usual, other = _usual(space, name), _usual(continuous or space, name)
        usual += "" if other == usual else f"; where actions are continuous it {other}"
        flags[FLAG + name] = Annotated[Chosen, Doc(f"{entry.meaning}, in {entry.range}; by default it {usual}.")]
    return TypedDict("SpaceFlags", flags, total=False)  # pyright: ignore[reportArgumentType]


def _usual(space: Space, name: str) -> str:
    domain, value = space.domains.get(name), getattr(space.defaults, name)
    return f"evolves in [{domain.low:g}, {domain.high:g}], or is {value:g}" if domain else f"is {value:g}"
