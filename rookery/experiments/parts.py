"""What the population methods build a program from: devices, environment, agent, learner, search space, scoring."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from rookery import hyperparams, trees
from rookery.agents.base import OffPolicyAgent, OnPolicyAgent, check_continuous
from rookery.distributed import layout
from rookery.distributed.device_memory import available
from rookery.distributed.mesh import (
    Mesh,
    check_platform,
    check_population,
    make_mesh,
    mesh_for,
    use_cores,
)
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.tasks import functions
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.envs.wrappers.teams import check_alone
from rookery.experiments.agents import AgentRow
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.spec import RunSpec
from rookery.factories import SUITE_PREFIXES
from rookery.features import has_image
from rookery.hyperparams import Space
from rookery.learners import widths
from rookery.learners.base import EvaluationConfig, Learner
from rookery.learners.evolution import Policy, evolution_strategy
from rookery.learners.off_policy import BUFFER_SIZE, OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.learners.rollout import PREFIX
from rookery.populations.sharding import Placement
from rookery.qd.base import Scoring
from rookery.qd.scoring import PolicyConfig, named_scoring, policy_scoring
from rookery.settings import SettingError, check_names, unknown_name, verbatim
from rookery.storage.lineage import Schedule


def mesh_of(environment: EnvironmentConfig, over: Mesh | None, **sizes: int) -> Mesh:
    """The mesh `over`, or one of devices that divide all `sizes` evenly.

    On a CPU, its cores become devices here, which must happen before any other call initialises JAX.
    """
    if over is None:
        divisor = math.gcd(*sizes.values())
        use_cores(environment.devices or divisor)
        over = mesh_for(divisor) if environment.devices is None else requested_mesh(environment.devices)
    for name, size in sizes.items():
        check_population(size, over, name)
    return over


def requested_mesh(devices: int) -> Mesh:
    """A mesh of a number of devices."""
    check_platform()
    try:
        return make_mesh(devices)
    except ValueError as error:
        raise SettingError("devices", None, f"cannot be used: {verbatim(error).rstrip('.')}") from error


def sharded_cells(cells: CellsConfig) -> dict[str, int]:
    """The repertoire's size, if its cells are sharded and the devices must therefore divide it."""
    return {"repertoire": cells.count} if cells.shard_repertoire else {}


def placement_of(mesh: Mesh, environment: EnvironmentConfig, cells: CellsConfig) -> Placement:
    """How a repertoire with these cells lies on the devices."""
    return layout.placement(mesh, environment.exact, cells.count, cells.shard_repertoire)


def learner_of(
    spec: RunSpec, mesh: Mesh, schedule: Schedule | None = None, populations: int = 1
) -> tuple[RunSpec, Learner, Space]:
    """The run with its open defaults filled in, the learner of one member, and the search space; see `Method.build`."""
    spec = spec.with_network()
    assert spec.learner is not None
    row, environment = row_of(spec), environment_of(spec.environment, spec.learner.objective)
    if not isinstance(spec.learner, OnPolicyConfig):
        check_alone(environment.spec)
    environment = row.wrapper.environment(environment, spec.wrapper)
    if isinstance(spec.learner, OnPolicyConfig):
        spec, agent = _on_policy(spec, environment, schedule is not None)
        assert isinstance(spec.learner, OnPolicyConfig)
        learner = on_policy(agent, environment, spec.learner)
    elif isinstance(spec.learner, OffPolicyConfig):
        spec, agent = _off_policy(spec, environment, mesh, populations)
        assert isinstance(spec.learner, OffPolicyConfig)
        learner = off_policy(agent, environment, spec.learner)
    else:
        policy = row.make(environment.spec, spec.agent)
        assert isinstance(policy, Policy)
        learner = evolution_strategy(policy, environment, spec.learner)
    own = learner.space.defaults._fields
    optional = [name for name in (schedule.values if schedule else ()) if name not in (*own, widths.NAME)]
    return spec, learner, _space(learner, spec.space, optional)


def _space(learner: Learner, chosen: Mapping[str, Any], replayed: Sequence[str]) -> Space:
    """The search space of a learner with these choices, and with the optional hyper-parameters that a schedule sets."""
    spec = learner.spec
    known = spec.parameters.fields if spec.parameters else {}
    for name in (name.removeprefix(PREFIX) for name in (*chosen, *replayed) if name.startswith(PREFIX)):
        if name not in known:
            if known:
                raise unknown_name(PREFIX + name, name, f"parameter of {spec.name} named", known)
            raise SettingError(
                PREFIX + name, None, f"has no effect, since {verbatim(spec.name)} has no parameters", "leave it out"
            )
    if widths.NAME in chosen and learner.resize is None:
        problem = "has no effect, since the networks of this agent have one width"
        raise SettingError(widths.NAME, None, problem, "leave it out")
    known = hyperparams.describe(learner.space.optional._replace(domains={})) if learner.space.optional else {}
    defaults = {name: known[name] for name in replayed if name in known}
    return hyperparams.choose(learner.space, **{**defaults, **chosen})


def _off_policy(
    spec: RunSpec, environment: Environment, mesh: Mesh, populations: int
) -> tuple[RunSpec, OffPolicyAgent]:
    row, learner = row_of(spec), spec.learner
    assert isinstance(learner, OffPolicyConfig)
    if spec.kind.has_skills or spec.kind.method.has_repertoire:  # no agent of discrete actions has such a kind
        check_continuous(environment.spec, spec.kind.name, wraps=True)
    updates = learner.updates * max(spec.run.generations * learner.iterations - learner.warmup_iterations, 0)
    agent = row.make(environment.spec, row.explore_over(spec.agent, updates))
    assert isinstance(agent, OffPolicyAgent)
    agent = row.wrapper.agent(agent, environment.spec, spec.wrapper)
    members = populations * spec.method.population // mesh.devices.size
    rows = learner.buffer_size or _buffer_size(learner, environment, members, mesh)
    normalizes = agent.normalize if learner.normalize_observations is None else learner.normalize_observations
    return _with_learner(spec, buffer_size=rows, normalize_observations=normalizes), agent


def _with_learner(spec: RunSpec, **changes: object) -> RunSpec:
    assert spec.learner is not None
    return dataclasses.replace(spec, learner=dataclasses.replace(spec.learner, **changes))


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
    action = 4 + 2 * spec.action_size * spec.masked if spec.discrete else 4 * spec.action_size
    row = 2 * (features + skill) + action + 8  # bytes of a transition
    return max(min(BUFFER_SIZE, memory // (6 * row * members)), config.num_envs, config.batch_size)


def _on_policy(spec: RunSpec, environment: Environment, scheduled: bool) -> tuple[RunSpec, OnPolicyAgent]:
    row, learner = row_of(spec), spec.learner
    assert isinstance(learner, OnPolicyConfig)
    sequences = row.wrapper.sharing(environment.spec, spec.wrapper) * learner.num_envs
    chosen = row.fill_defaults(spec.agent, environment.spec, sequences, learner.rollout_length)
    # By default a run of independent agents anneals over its whole length, see `with_annealing`. PBT searches the rates
    # and thereby finds a schedule (Jaderberg 2017, section 4); rates annealed to 0 would end the search before the run.
    if row.wrapper.is_team or not spec.kind.method.is_independent:
        chosen = row.anneal(chosen, 0)
    spec = dataclasses.replace(spec, agent=chosen)
    agent = row.make(environment.spec, with_annealing(spec, scheduled))
    assert isinstance(agent, OnPolicyAgent)
    if learner.normalize_observations is None:
        spec = _with_learner(spec, normalize_observations=agent.normalize)
    return spec, row.wrapper.agent(agent, environment.spec, spec.wrapper)


def with_annealing(spec: RunSpec, scheduled: bool) -> Any:
    """The agent's config with the numbers of updates filled in over which rates are annealed, by default the whole run,
    and over which exploration falls.

    The rates fall linearly with the share of these updates that is done: a run resumed with more generations continues
    with the rates that a run of the new length has at that generation.
    If they follow a schedule of another run (`scheduled`), they are not annealed as well.
    """
    assert isinstance(spec.learner, OnPolicyConfig)
    row, updates = row_of(spec), spec.run.generations * spec.learner.evaluate_every
    return row.explore_over(row.anneal(spec.agent, 0 if scheduled else updates), updates)


def base_agent(spec: RunSpec, environment: EnvSpec) -> OffPolicyAgent:
    """The off-policy agent of a run without its wrapper."""
    agent = row_of(spec).make(environment, spec.agent)
    assert isinstance(agent, OffPolicyAgent)
    return agent


def row_of(spec: RunSpec) -> AgentRow:
    """The agent of a run whose method trains one."""
    assert spec.kind.agent is not None
    return spec.kind.agent


def scoring(
    task: EnvironmentConfig, policy: PolicyConfig, evaluation: EvaluationConfig, dimensions: int | None = None
) -> Scoring:
    """The scoring function of a search without agents: a named test function, or policies evaluated in an environment.

    Raises:
      ValueError: `dimensions` is given for an environment or is below 1, or an environment setting is given for a
        test function.
    """
    if task.env not in functions.names():
        if dimensions is not None:
            known = ", ".join(functions.names())
            problem = f"belongs to a function ({known}), but {verbatim(task.env)} is an environment"
            raise SettingError("dimensions", dimensions, problem, "leave it out")
        environment = environment_of(task, evaluation.objective)
        check_alone(environment.spec)
        return policy_scoring(environment, policy, evaluation)
    stacked = {"frame_stack": task.frame_stack} if task.frame_stack != 1 else {}
    if chosen := _overrides(task) | stacked:
        name, value = next(iter(chosen.items()))
        raise SettingError(name, value, f"has no effect on {verbatim(task.env)}, which is a function", "leave it out")
    return named_scoring(functions.function(task.env, dimensions))


def environment_of(task: EnvironmentConfig, objective: str | None = None) -> Environment:
    """The environment that the settings name; one of Gymnasium has the measures of its own wrappers by their names."""
    chosen = _overrides(task)
    if task.env.startswith(SUITE_PREFIXES) and objective in ("is_success", "episode") and "measure" not in chosen:
        chosen["measure"] = objective
        if "episode_length" in chosen:  # which may cut episodes before the end that reports the measure
            _check_each_step(task.env, objective, chosen)
    return stack_frames(registry.make(task.env, **chosen), task.frame_stack)


def _check_each_step(env: str, objective: str, chosen: Mapping[str, object]) -> None:
    """Check that the first step of an environment on the host, as any other, reports the measure."""
    probe = registry.make(env, **{**chosen, "measure_by": "max"}).host  # needs it in every step
    assert probe is not None
    failure = probe.try_step()
    probe.close()
    if f"its info has no {objective!r}" in failure:
        problem = f"is unknown where {{episode_length}} ends an episode of {verbatim(env)}: a step's info lacks it"
        raise SettingError("objective", objective, problem, "leave out one of the two")


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
        raise SettingError("option", word, "must be name=value, such as predator_speed=3")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value
