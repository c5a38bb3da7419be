"""The parts of a program, built from a config: environment, agent, learner, search space, scoring."""

import contextlib
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax

from rookery import hyperparams, trees
from rookery.agents.base import OffPolicyAgent, OnPolicyAgent
from rookery.agents.multi_agent import independent, shared
from rookery.distributed.device_memory import available
from rookery.distributed.mesh import Mesh
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.tasks import functions
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.envs.wrappers.skills import skills
from rookery.envs.wrappers.teams import as_team, check_alone, identify
from rookery.experiments.agents import AgentEntry
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.kinds import choices
from rookery.experiments.settings import MapElitesRun, TrainingRun
from rookery.factories import check_names
from rookery.features import has_image
from rookery.hyperparams import Space
from rookery.learners import widths
from rookery.learners.base import Learner
from rookery.learners.off_policy import BUFFER_SIZE, OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.learners.rollout import PREFIX
from rookery.qd.base import Scoring
from rookery.qd.scoring import named_scoring, policy_scoring
from rookery.storage.lineage import Schedule

ConfigT = TypeVar("ConfigT", bound=TrainingRun)


def learner_of(
    config: ConfigT, mesh: Mesh, schedule: Schedule | None = None, populations: int = 1
) -> tuple[ConfigT, Learner, Space]:
    """The config with its open defaults filled in, the learner of one member, and the search space; see `build`."""
    environment = _environment(config.environment)
    if config.is_on_policy:
        config, agent, environment = _on_policy(config, environment, schedule is not None)
        assert isinstance(config.learner, OnPolicyConfig)
        learner = on_policy(agent, environment, config.learner)
    else:
        config, agent, environment = _off_policy(config, environment, mesh, populations)
        assert isinstance(config.learner, OffPolicyConfig)
        learner = off_policy(agent, environment, config.learner)
    parameters = [name for name in (schedule.values if schedule else ()) if name.startswith(PREFIX)]
    return config, learner, _space(learner, choices(config), parameters)


def _space(learner: Learner, chosen: Mapping[str, Any], replayed: Sequence[str]) -> Space:
    """The search space of a learner with these choices, and with the environment's parameters that a schedule sets.

    Raises:
      ValueError: a choice is invalid, the environment has no such parameter, or the networks have one width.
    """
    spec = learner.spec
    known = spec.parameters.fields if spec.parameters else {}
    for name in (name.removeprefix(PREFIX) for name in (*chosen, *replayed) if name.startswith(PREFIX)):
        if name not in known:
            near = difflib.get_close_matches(name, known) or known
            remedy = (
                f"parameter {name}; did you mean {' or '.join(near)}?" if near else f"parameters; leave {name} out."
            )
            raise ValueError(f"{spec.name} has no {remedy}")
    if widths.NAME in chosen and learner.resize is None:
        raise ValueError(f"the networks of this agent have one width; leave {widths.NAME} out.")
    defaults = {name: getattr(learner.space.optional and learner.space.optional.defaults, name) for name in replayed}
    return hyperparams.choose(learner.space, **{**defaults, **chosen})


def _off_policy(
    config: ConfigT, environment: Environment, mesh: Mesh, populations: int
) -> tuple[ConfigT, OffPolicyAgent, Environment]:
    check_alone(environment.spec)
    discovery = config.discovery
    if discovery is not None and config.skills is not None:
        chosen = config.skills.num_skills, config.skills.skill_kind, config.skills.balanced
        environment = skills(environment, *chosen, with_previous=discovery[0].with_previous)
    agent = base_agent(config, environment.spec)
    if discovery is not None:
        agent = discovery[0].make(agent, environment.spec, discovery[1])
    assert isinstance(config.learner, OffPolicyConfig)
    members = populations * config.population // mesh.devices.size
    rows = config.learner.buffer_size or _buffer_size(config.learner, environment, members, mesh)
    return _with_learner(config, buffer_size=rows), agent, environment


def _with_learner(config: ConfigT, **changes: object) -> ConfigT:
    return dataclasses.replace(config, learner=dataclasses.replace(config.learner, **changes))


def _buffer_size(config: OffPolicyConfig, environment: Environment, members: int, mesh: Mesh) -> int:
    """Transitions in each member's replay buffer: 1 million as in the papers, or as many as fit a sixth of the memory.

    While a checkpoint is written, up to three copies of the buffers exist, which is half of the memory.
    """
    memory = available(mesh)
    if memory is None:
        return BUFFER_SIZE
    spec, features = environment.spec, 4 * environment.spec.observation_size
    if has_image(spec.observation_shape):  # pixels may have 8 bits
        step = jax.eval_shape(environment.reset, jax.random.key(0))[1]
        features = trees.size_in_bytes(step.observation.features)
    skill = 4 * (spec.input_size - spec.observation_size)
    row = 2 * (features + skill) + 4 * (spec.action_size + 2)  # bytes of a transition
    return max(min(BUFFER_SIZE, memory // (6 * row * members)), config.num_envs, config.batch_size)


def _on_policy(
    config: ConfigT, environment: Environment, scheduled: bool
) -> tuple[ConfigT, OnPolicyAgent, Environment]:
    if config.has_team:
        environment = as_team(environment)
        if config.parameters == "shared" and config.identify:
            environment = identify(environment)
    spec, learner = environment.spec, config.learner
    assert isinstance(learner, OnPolicyConfig)
    sharing = len(spec.team.names) if spec.team and config.parameters == "shared" else 1
    entry = _entry(config)
    chosen = entry.fill_defaults(config.agent, spec, sharing * learner.num_envs, learner.rollout_length)
    # By default a run of independent agents anneals over its whole length, see `with_annealing`. PBT searches the rates
    # and thereby finds a schedule (Jaderberg 2017, section 4); rates annealed to 0 would end the search before the run.
    if config.has_team or not config.has_independent_members:
        chosen = entry.anneal(chosen, 0)
    config = dataclasses.replace(config, agent=chosen)
    agent = entry.make(spec, with_annealing(config, scheduled))
    assert isinstance(agent, OnPolicyAgent)
    if learner.normalize_observations is None:
        config = _with_learner(config, normalize_observations=agent.normalize)
    if config.parameters is not None:
        agent = {"independent": independent, "shared": shared}[config.parameters](agent, spec)
    return config, agent, environment


def with_annealing(config: TrainingRun, scheduled: bool) -> Any:
    """The agent's config with the number of updates filled in over which rates are annealed: by default the whole run.

    The rates fall linearly with the share of these updates that is done: a run resumed with more generations continues
    with the rates that a run of the new length has at that generation.

    Args:
      config: of a run with an on-policy agent, with its other defaults filled in.
      scheduled: whether the hyper-parameters follow a schedule of another run; if so, they are not annealed as well.
    """
    assert isinstance(config.learner, OnPolicyConfig)
    return _entry(config).anneal(
        config.agent, 0 if scheduled else config.run.generations * config.learner.evaluate_every
    )


def base_agent(config: TrainingRun, spec: EnvSpec) -> OffPolicyAgent:
    """The off-policy agent of a run's config without a wrapper for skills."""
    agent = _entry(config).make(spec, config.agent)
    assert isinstance(agent, OffPolicyAgent)
    return agent


def _entry(config: TrainingRun) -> AgentEntry[Any]:
    assert config.agent_entry is not None
    return config.agent_entry


def scoring(config: MapElitesRun) -> Scoring:
    """The scoring function of a MAP-Elites run: a named test function, or policies evaluated in an environment.

    Raises:
      ValueError: `dimensions` is given for an environment or is below 1, or an environment setting is given for a
        test function.
    """
    if config.environment.env not in functions.names():
        if config.dimensions is not None:
            raise ValueError(
                f"dimensions belong to a function ({', '.join(functions.names())}), but {config.environment.env} is an "
                "environment; leave them out."
            )
        environment = _environment(config.environment)
        check_alone(environment.spec)
        return policy_scoring(environment, config.policy, config.evaluation)
    stacked = {"frame_stack": config.environment.frame_stack} if config.environment.frame_stack != 1 else {}
    if chosen := _overrides(config.environment) | stacked:
        raise ValueError(f"{config.environment.env} is a function and has no {', '.join(chosen)}; leave it out.")
    return named_scoring(functions.function(config.environment.env, config.dimensions))


def _environment(environment: EnvironmentConfig) -> Environment:
    return stack_frames(registry.make(environment.env, **_overrides(environment)), environment.frame_stack)


def _overrides(environment: EnvironmentConfig) -> dict[str, object]:
    chosen: dict[str, object] = {"episode_length": environment.episode_length, "backend": environment.backend}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return chosen | option_values(environment.option)


def option_values(words: Sequence[str]) -> dict[str, object]:
    """Parse words `name=value`; no name is there twice."""
    values = [_option_value(word) for word in words]
    check_names("option", [name for name, _ in values])
    return dict(values)


def _option_value(word: str) -> tuple[str, object]:
    """Parse `name=value` into the name and a bool (`true`, `false`), an int, a float or, if it is none, a string."""
    name, separator, value = word.partition("=")
    if not (name and separator and value):
        raise ValueError(f"option must be name=value, such as predator_speed=3, got {word!r}.")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value
