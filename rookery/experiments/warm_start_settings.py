"""The defaults that a run takes from another run, if it replays its schedule or starts from its results."""

import dataclasses

from rookery.envs import custom
from rookery.experiments.agents import DISCOVERIES
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.kinds import choices, configure, parameter_flag
from rookery.experiments.settings import AnyRun, IndependentRun, PbtRun, ProgramRun, RecordedRun
from rookery.storage.record import agent_of

_GENOTYPE_SETTINGS = ("skills", *DISCOVERIES, "policy", "dimensions", "parameters", "identify")


def without_population_method(config: IndependentRun | PbtRun) -> AnyRun:
    """The config without its population method, to replay a schedule: `pbt-sac` -> `sac`.

    Raises:
      ValueError: a setting is given that has no effect, because the schedule fixes the hyper-parameters.
    """
    ignored = [parameter_flag(name) for name in choices(config)]
    ignored += ["--draw-hyper"] if config.draw_hyper else []
    if config.pbt is not None:
        changed, default = dataclasses.asdict(config.pbt), dataclasses.asdict(type(config)().pbt)
        ignored += [f"--{name.replace('_', '-')}" for name, value in changed.items() if value != default[name]]
    if ignored:
        raise ValueError(f"a replayed schedule decides every hyper-parameter; leave out {', '.join(ignored)}.")
    agent = configure(agent_of(config.kind))
    return dataclasses.replace(agent, **_shared(config, agent))


def replay_defaults(run: AnyRun | None, kind: type[AnyRun]) -> AnyRun:
    """The defaults of `kind` to replay the schedule of `run`: one member with its task, agent, learner and generations.

    Args:
      run: the config of the run; None if it was started from Python, so that its settings are unknown. Then only the
        population size differs from the kind's defaults.
      kind: of the new run; a kind that cannot replay a schedule keeps its defaults.
    """
    default = kind()
    if default.has_repertoire:
        return default
    default = dataclasses.replace(default, population=1)
    if run is None or not run.trains_agents:
        return default
    shared = _shared(run, default, "agent", "learner", "init_from", "skill", *_GENOTYPE_SETTINGS)
    for part in ("agent", "learner"):
        if type(shared[part]) is not type(getattr(default, part)):
            del shared[part]  # those of another agent: `check_agent` then reports the mismatch
    return dataclasses.replace(
        default,
        environment=dataclasses.replace(run.environment, devices=None),
        run=dataclasses.replace(default.run, generations=run.run.generations),
        **shared,
    )


_TRAINING = ("actor_epochs", "critic_epochs", "minibatches", "anneal_updates")
"""Settings of an agent that decide how it is trained, not which networks it has."""


def on_task(run: RecordedRun | None, env: str | None) -> AnyRun | None:
    """The config of a run with the environment `env`, if that is given; options of another one do not belong to it.

    Returns:
      The config; None if the settings of the run are not known, since a user's function built it.
    """
    if run is None or isinstance(run, ProgramRun):
        return None
    if env is None or custom.canonical(env) == run.environment.env:
        return run
    return dataclasses.replace(run, environment=EnvironmentConfig(env=env))


def warm_start_defaults(run: AnyRun | None, kind: type[AnyRun]) -> AnyRun:
    """The defaults of `kind` to start from the results of `run`: its task, networks and observation normalisation.

    All other settings, such as the episode length, keep the kind's defaults.

    Args:
      run: the config of the run; None if it was started from Python, so that its settings are unknown.
      kind: of the new run.
    """
    default = kind()
    if run is None:
        return default
    task = {name: getattr(run.environment, name) for name in ("env", "backend", "option", "frame_stack")}
    changed = _shared(run, default, *_GENOTYPE_SETTINGS)
    changed["environment"] = dataclasses.replace(default.environment, **task)
    if run.learner is not None and default.learner is not None and run.agent_entry is default.agent_entry:
        own = {name: getattr(default.agent, name) for name in _TRAINING if hasattr(default.agent, name)}
        changed["agent"] = dataclasses.replace(run.agent, **own)
        normalize = run.learner.normalize_observations
        changed["learner"] = dataclasses.replace(default.learner, normalize_observations=normalize)
    return dataclasses.replace(default, **changed)


def _shared(run: AnyRun, default: AnyRun, *names: str) -> dict[str, object]:
    """The settings of `run` that `default` has too: those of the given names, by default all."""
    both = {field.name for field in dataclasses.fields(run)} & {field.name for field in dataclasses.fields(default)}
    return {name: getattr(run, name) for name in sorted(both) if not names or name in names}


DEFAULTS = {"--replay-schedule": replay_defaults, "--init-from": warm_start_defaults}
"""Flag that names another run -> the function that takes settings from it."""
