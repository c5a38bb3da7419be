"""What a run is told by another run: the settings that are not given, where it follows a schedule or begins with it."""

import dataclasses
from typing import Any

from rookery.experiments.kinds import KINDS, AnyRun, MapElitesRun, agent_of, choices, kind_of
from rookery.experiments.population_settings import PbtRun, SeedsRun
from rookery.populations.config import PbtConfig


def alone(config: AnyRun) -> AnyRun:
    """The same life without a population method, to follow a schedule: `pbt-sac` -> `sac`.

    Raises:
      ValueError: something is chosen that the schedule decides.
    """
    idle = [f"--space.{name}" for name in choices(config)]
    idle += ["--draw-hyper"] if getattr(config, "draw_hyper", False) else []
    method = getattr(config, "pbt", PbtConfig())
    usual = dataclasses.asdict(getattr(type(config)(), "pbt", PbtConfig()))
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
    parts: dict[str, Any] = {
        "world": dataclasses.replace(run.world, devices=None),
        "run": dataclasses.replace(default.run, generations=run.run.generations),
    }
    for part in ("agent", "learner"):  # of another kind of agent they would be refused, and by a sentence of ours
        if type(getattr(run, part)) is type(getattr(default, part)):
            parts[part] = getattr(run, part)
    return dataclasses.replace(default, **parts, **_shared(run, default, "init_from", "skill"))


def after(run: AnyRun | None, kind: type[AnyRun]) -> AnyRun:
    """What `kind` is by default where it begins with what `run` learned: the same task, seen by the same networks.

    How long an episode is, and everything else, stays the kind's own.
    """
    default = kind()
    if run is None:
        return default
    changed: dict[str, object] = {
        "world": dataclasses.replace(
            default.world, env=run.world.env, backend=run.world.backend, option=run.world.option
        )
    }
    if (
        not isinstance(default, MapElitesRun)
        and not isinstance(run, MapElitesRun)
        and type(default.agent) is type(run.agent)
    ):
        changed["agent"] = _widths(run.agent, default.agent)
        normalize = run.learner.normalize_observations
        changed["learner"] = dataclasses.replace(default.learner, normalize_observations=normalize)
    return dataclasses.replace(default, **changed, **_shared(run, default))


def _shared(run: AnyRun, default: AnyRun, *more: str) -> dict[str, object]:
    """What decides the shapes of genotypes besides the agent, and more, where both have it."""
    names = ("skills", "diayn", "policy", "dimensions", "parameters", "identify", *more)
    return {name: getattr(run, name) for name in names if hasattr(default, name) and hasattr(run, name)}


def _widths(agent: Any, default: Any) -> Any:
    """What decides an agent's networks; how they are drawn stays the kind's own."""
    return dataclasses.replace(agent, output_scale=default.output_scale) if hasattr(agent, "output_scale") else agent
