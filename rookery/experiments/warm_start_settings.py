"""The defaults that a run takes from another run, if it replays its schedule or starts from its results."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rookery.envs import custom
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.config_io import from_record
from rookery.experiments.kinds import kind_of
from rookery.experiments.spec import Kind, RunSpec
from rookery.experiments.wrappers import WRAPPERS
from rookery.settings import SettingError, verbatim
from rookery.storage.record import PYTHON, agent_of
from rookery.storage.run_dir import RunFolderError, open_existing


def _of_genotypes() -> tuple[str, ...]:
    """The settings that a genotype depends on, besides those of the agent."""
    return ("policy", "dimensions", *dict.fromkeys(name for one in WRAPPERS.values() for name in vars(one.settings)))


def without_population_method(spec: RunSpec) -> RunSpec:
    """The run without its population method, to replay a schedule: `pbt-sac` -> `sac`. A ValueError if a given setting
    has no effect, because the schedule fixes the hyper-parameters."""
    default, ignored = spec.kind.default().flat, [*spec.space]
    ignored += ["draw_hyper"] if spec.flat.get("draw_hyper") else []
    if "pbt" in spec.flat:
        changed, usual = vars(spec.flat["pbt"]), vars(default["pbt"])
        ignored += [name for name, value in changed.items() if value != usual[name]]
    if ignored:
        others = f", as {', '.join(f'{{{name}}}' for name in ignored[1:])}" if ignored[1:] else ""
        problem = f"has no effect{others}, since a replayed schedule decides every hyper-parameter"
        raise SettingError(ignored[0], None, problem, "leave it out")
    alone = kind_of(agent_of(spec.kind.name)).default()
    return alone.replace(**_shared(spec, alone, *spec.flat))


def replay_defaults(run: RunSpec | None, kind: Kind) -> RunSpec:
    """The defaults of `kind` to replay the schedule of `run`: one member with its task, agent, learner and generations.

    Of a run that was started from Python (None) the settings are unknown; then only the population size differs from
    the kind's defaults. A kind that cannot replay a schedule keeps its defaults.
    """
    default = kind.default()
    if "replay_schedule" not in default.flat:
        return default
    default = default.replace(population=1)
    if run is None or run.kind.agent is None:
        return default
    shared = _shared(run, default, "agent", "learner", "init_from", "skill", *_of_genotypes())
    for part in ("agent", "learner"):
        if type(shared[part]) is not type(default.flat[part]):
            del shared[part]  # those of another agent: `check_agent` then reports the mismatch
    task = run.with_environment(devices=None).environment
    return default.replace(**shared, environment=task).with_run(generations=run.run.generations)


_TRAINING = ("actor_epochs", "critic_epochs", "epochs", "minibatches", "anneal_updates")
_TRAINING += ("exploration_share", "exploration_updates", "double", "target_period")
"""Settings of an agent that decide how it is trained, not which networks it has."""


def on_task(run: RunSpec | None, env: str | None) -> RunSpec | None:
    """The run with the environment `env`, if that is given; options of another one do not belong to it.

    None if its settings are not known, since a user's function built it.
    """
    if run is None or not run.kind.method.has_task:
        return None
    if env is None or custom.canonical(env) == run.environment.env:
        return run
    return dataclasses.replace(run, environment=EnvironmentConfig(env=env))


def warm_start_defaults(run: RunSpec | None, kind: Kind) -> RunSpec:
    """The defaults of `kind` to start from the results of `run`: its task, networks and observation normalisation.

    All other settings, such as the episode length, keep the kind's defaults; so do all if the run was started from
    Python (None), since its settings are unknown.
    """
    default = kind.default()
    if run is None:
        return default
    task = {name: getattr(run.environment, name) for name in ("env", "backend", "option", "frame_stack")}
    changed = _shared(run, default, *_of_genotypes())
    if run.learner is not None and default.learner is not None and type(run.agent) is type(default.agent):
        own = {name: getattr(default.agent, name) for name in _TRAINING if hasattr(default.agent, name)}
        changed["agent"] = dataclasses.replace(run.agent, **own)
        normalize = run.learner.normalize_observations
        changed["learner"] = dataclasses.replace(default.learner, normalize_observations=normalize)
    return default.replace(**changed).with_environment(**task)


def _shared(run: RunSpec, default: RunSpec, *names: str) -> dict[str, Any]:
    """The settings of the given names that both runs have, with the values of `run`."""
    return {name: run.flat[name] for name in names if name in run.flat and name in default.flat}


DEFAULTS = {"replay_schedule": replay_defaults, "init_from": warm_start_defaults}
"""Setting that names another run -> the function that takes settings from it."""


def defaults(kind: Kind, settings: Mapping[str, Any]) -> RunSpec:
    """The defaults of a kind of run, which include settings of the run that `replay_schedule` or `init_from` names, if
    that run was not started from Python. Of the given settings `env` decides what belongs to the task.
    """
    for name, of in DEFAULTS.items():
        if settings.get(name) is not None:
            try:
                record = open_existing(settings[name]).config
            except RunFolderError as error:
                raise SettingError(name, None, f"cannot be used: {verbatim(error).rstrip('.')}") from error
            run = from_record(record) if record.get("kind", PYTHON) != PYTHON else None
            return of(on_task(run, settings.get("env")), kind)
    return kind.default()
