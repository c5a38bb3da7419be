"""The settings of CMA-MAE."""

from dataclasses import dataclass
from typing import Annotated, Literal

from rookery.settings import POSITIVE, Within, check_fields


@dataclass(frozen=True)
class CmaMaeConfig:
    """The distributions of CMA-MAE, and how they are adapted and restarted.

    Raises:
      ValueError: a count or a standard deviation out of its range, or an unknown choice.
    """

    emitters: Annotated[int, Within(1)] = 15
    """Number of distributions, each of which draws an equal share of the batch (it must divide the batch)."""
    covariance: Literal["auto", "full", "diagonal"] = "auto"
    """full: CMA-ES, for genotypes of up to 1,000 numbers; diagonal: sep-CMA-ES, for longer ones; auto: full up to 1,000
    numbers, else diagonal."""
    initial_sigma: Annotated[float | None, POSITIVE] = None
    """Initial standard deviation of each distribution; by default a fifth of the range of a bounded function, 0.5 for
    other functions, and 0.05 for policies."""
    parents: Literal["half", "accepted"] = "half"
    """Samples that a distribution is adapted to: the better half, or those that exceed the threshold of their cell."""
    restart: Literal["basic", "no-improvement"] = "basic"
    """A distribution restarts at a random elite when it has converged (basic), or also when no sample exceeds the
    threshold of its cell (no-improvement)."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)
