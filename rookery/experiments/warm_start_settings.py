"""The defaults that a run takes from another run, if it replays its schedule or starts from its results."""

import dataclasses
from typing import Any

from rookery.experiments.kinds import KINDS, AnyRun, MapElitesRun, agent_of, choices, kind_of
from rookery.experiments.population_settings import PbtRun, SeedsRun
from rookery.populations.config import PbtConfig


def without_population_method(config: AnyRun) -> AnyRun:
    """The config without its population method, to replay a schedule: `pbt-sac` -> `sac`.

    Raises:
      ValueError: a setting is given that has no effect, because the schedule fixes the hyper-parameters.
    """
    ignored = [f"--space.{name}" for name in choices(config)]
    ignored += ["--draw-hyper"] if getattr(config, "draw_hyper", False) else []
    method = getattr(config, "pbt", PbtConfig())
    default = dataclasses.asdict(getattr(type(config)(), "pbt", PbtConfig()))
    ignored += [
        f"--{name.replace('_', '-')}" for name, value in dataclasses.asdict(method).items() if value != default[name]
    ]
    if ignored:
        raise ValueError(f"a replayed schedule decides every hyper-parameter; leave out {', '.join(ignored)}.")
    kind = KINDS[agent_of(kind_of(config))]
    shared = [entry.name for entry in dataclasses.fields(kind) if hasattr(config, entry.name)]
    return kind(**{name: getattr(config, name) for name in shared})


def replay_defaults(run: AnyRun | None, kind: type[AnyRun]) -> AnyRun:
    """The defaults of `kind` to replay the schedule of `run`: one member with its task, agent, learner and generations.

    Args:
      run: the config of the run; None if it was started from Python, so that its settings are unknown. Then only the
        population size differs from the kind's usual defaults.
      kind: of the new run; a kind that cannot replay a schedule keeps its usual defaults.
    """
    if not issubclass(kind, SeedsRun | PbtRun):
        return kind()
    default = dataclasses.replace(kind(), population=1)
    if run is None or isinstance(run, MapElitesRun):
        return default
    parts: dict[str, Any] = {
        "environment": dataclasses.replace(run.environment, devices=None),
        "run": dataclasses.replace(default.run, generations=run.run.generations),
    }
    for part in (
        "agent",
        "learner",
    ):  # the parts of another agent are left out: `check_agent` then reports the mismatch
        if type(getattr(run, part)) is type(getattr(default, part)):
            parts[part] = getattr(run, part)
    return dataclasses.replace(default, **parts, **_shared(run, default, "init_from", "skill"))


def warm_start_defaults(run: AnyRun | None, kind: type[AnyRun]) -> AnyRun:
    """The defaults of `kind` to start from the results of `run`: its task, networks and observation normalisation.

    All other settings, such as the episode length, keep the kind's usual defaults.

    Args:
      run: the config of the run; None if it was started from Python, so that its settings are unknown.
      kind: of the new run.
    """
    default = kind()
    if run is None:
        return default
    changed: dict[str, object] = {
        "environment": dataclasses.replace(
            default.environment, env=run.environment.env, backend=run.environment.backend, option=run.environment.option
        )
    }
    if (
        not isinstance(default, MapElitesRun)
        and not isinstance(run, MapElitesRun)
        and type(default.agent) is type(run.agent)
    ):
        changed["agent"] = _network_settings(run.agent, default.agent)
        normalize = run.learner.normalize_observations
        changed["learner"] = dataclasses.replace(default.learner, normalize_observations=normalize)
    return dataclasses.replace(default, **changed, **_shared(run, default))


def _shared(run: AnyRun, default: AnyRun, *more: str) -> dict[str, object]:
    """The settings besides the agent that determine the genotype's shapes, and those in `more`, if both configs have
    them."""
    names = ("skills", "diayn", "policy", "dimensions", "parameters", "identify", *more)
    return {name: getattr(run, name) for name in names if hasattr(default, name) and hasattr(run, name)}


def _network_settings(agent: Any, default: Any) -> Any:
    """The agent's config with the default scale of the initial output layer, which does not affect the shapes."""
    return dataclasses.replace(agent, output_scale=default.output_scale) if hasattr(agent, "output_scale") else agent
