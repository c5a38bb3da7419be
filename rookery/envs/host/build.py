"""The environment of a pool: what the suites on the host share."""

from functools import partial

from rookery.envs.base import Environment, EnvSpec
from rookery.envs.host import calls
from rookery.envs.host.pool import HostPool
from rookery.settings import check_counts

TIMEOUT = 60.0  # default time limit of a reset or step, in seconds


def environment(spec: EnvSpec, pool: HostPool) -> Environment:
    """Bind a pool's calls into an environment; the sizes of its spec are those of the pool's arrays."""
    return Environment(
        reset=partial(calls.reset, pool),
        step=partial(calls.step, pool),
        spec=spec,
        announce=partial(calls.announce, pool),
        host=pool,
    )


def episode_length(name: str, limit: int | None, requested: int | None) -> int:
    """The number of steps until truncation: the one `requested`, or the environment's own time limit. A ValueError if
    there is neither, or the request is below 1 or above the limit."""
    length = limit if requested is None else requested
    if length is None:
        raise ValueError(
            f"{name} has no time limit of its own; give episode_length, as in from_gymnasium(make_env, "
            "episode_length=1000), or --episode-length 1000 on the command line."
        )
    check_counts(episode_length=length)
    if limit is not None and length > limit:
        raise ValueError(f"{name} truncates episodes after {limit} steps; give an episode_length up to {limit}.")
    return int(length)
