"""Select one policy of a run and turn it into a function of the environment's observation alone."""

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.agents.actor_critic import Memory
from rookery.envs.base import ActionWithCarry, EnvSpec
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.experiments import warm_start
from rookery.experiments.warm_start import Origin
from rookery.features import as_floats, flatten_features, is_shape
from rookery.learners import rollout
from rookery.learners.base import Evaluator, genotype
from rookery.qd import repertoire as repertoires
from rookery.qd.map_elites import repertoire_of
from rookery.qd.repertoire import Elite, Repertoire
from rookery.types import Array, Genotype, Observation, PyTree

Cell = str | int | Sequence[float] | np.ndarray | Array
"""Choice of an elite: "best", a cell's index, or a descriptor `[D]` (`"0.2,0.8"` or numbers), for the nearest elite."""


class Policy(NamedTuple):
    """One policy of a run."""

    origin: Origin
    """The run, at a checkpoint."""
    evaluator: Evaluator
    """The run's deterministic policy function and evaluation environment."""
    genotype: Genotype
    cell: int | None
    """Cell of the repertoire; None without a repertoire."""
    member: int | None
    """None for a repertoire, or where the best members of all roles act together."""
    skill: int | None
    """Index of the skill; None for a run without skills."""
    descriptor: tuple[float, ...] | None
    """Descriptor stored in the repertoire."""
    fitness: float | tuple[float | None, ...] | None
    """Stored fitness; where roles evolve separately, one per role."""

    @property
    def spec(self) -> EnvSpec:
        """Spec of the environment, with all its wrappers, that the agent was trained in."""
        return self.evaluator.environment.spec

    @property
    def mask_size(self) -> int:
        """Size of the action mask at the end of an observation; 0 without a mask."""
        return self.spec.action_size if self.spec.masked else 0

    @property
    def memory_size(self) -> int:
        """Size of the recurrent policy's memory; excludes the memory of PPO's critic, which does not affect actions."""
        carry = self._observation.carry
        return carry.policy.shape[-1] if isinstance(carry, Memory) else 0

    @property
    def _observation(self) -> Observation:
        """Shapes and types of an observation."""
        return jax.eval_shape(self.evaluator.environment.reset, jax.random.key(0))[1].observation

    @property
    def observation_size(self) -> int:
        """Size of the input vector: the features, followed by the action mask (1 for an available action, else 0)."""
        return self.spec.observation_size + self.mask_size

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row by name: `observation` `[O]`, and `memory` `[H]` if recurrent; for a team `[I, ...]`."""
        shapes = {"observation": (*self.spec.agents, self.observation_size)}
        return shapes | ({"memory": (*self.spec.agents, self.memory_size)} if self.memory_size else {})

    @property
    def types(self) -> dict[str, np.dtype]:
        """Types of the inputs: uint8 for observations that are pixels alone, float32 for all others."""
        pixels = self._observation.features.dtype == jnp.uint8
        return {name: np.dtype("uint8" if pixels and name == "observation" else "float32") for name in self.inputs}

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row by name: `action` `[A]`, `[]` int32 if discrete; `next_memory` `[H]` if recurrent."""
        agents = self.spec.agents
        shapes = {"action": agents if self.spec.discrete else (*agents, self.spec.action_size)}
        return shapes | ({"next_memory": (*agents, self.memory_size)} if self.memory_size else {})


def choose(origin: Origin, cell: Cell | None = None, member: int | None = None, skill: int | None = None) -> Policy:
    """Select a policy of a run.

    Args:
      origin: the run, at a checkpoint.
      cell: the elite, for runs with a repertoire; the best one by default.
      member: index of the member, for all other runs; by default the best of the last evaluation.
      skill: index of the skill, for runs that discover skills; 0 by default.

    Returns:
      The policy.

    Raises:
      ValueError: the run has no such cell, member or skill, the cell is empty, or the run optimises a scoring function
        without an environment.
    """
    evaluator = evaluator_of(origin)
    chosen = _skill(origin, evaluator.environment.spec, skill)
    if origin.built.has_repertoire:
        if member is not None:
            raise ValueError(f"{origin.path} has a repertoire; choose by cell, and leave member out.")
        elite = _elite(origin, repertoire_of(origin.state), "best" if cell is None else cell)
        descriptor = tuple(np.asarray(elite.descriptor).tolist())
        return Policy(origin, evaluator, elite.genotype, elite.cell, None, chosen, descriptor, float(elite.fitness))
    if cell is not None:
        raise ValueError(f"{origin.path} has no repertoire, and so no cells; leave cell out, or choose a member.")
    member, actor = _member(origin, member)
    return Policy(origin, evaluator, actor, None, member, chosen, None, _fitness(origin, member))


def evaluator_of(origin: Origin) -> Evaluator:
    """The evaluator of a run: its deterministic policy function and its evaluation environment.

    Raises:
      ValueError: the run optimises a scoring function, without an environment.
    """
    program = origin.built.program
    problem = program.learner or program.scoring
    if problem is None:
        raise ValueError(
            f"the program of {origin.path} has no learner, from which its policies could be read; build it by "
            "rookery.pbt or rookery.seeds, or set it: program._replace(learner=learner)."
        )
    if problem.evaluator is not None:
        return problem.evaluator
    if program.learner is not None:
        raise ValueError(
            f"the learner of {origin.path} has no evaluator, from which its policies could be read; build it by "
            "rookery.off_policy or rookery.on_policy, or set it: learner._replace(evaluator=evaluator)."
        )
    raise ValueError(
        f"{program.task} is a scoring function without a policy; choose a run in an environment (`rookery envs`)."
    )


def _skill(origin: Origin, spec: EnvSpec, skill: int | None) -> int | None:
    """Index of the chosen skill; None for runs without skills."""
    if spec.skill is None:
        if skill is not None:
            raise ValueError(f"{origin.path} has no skills to choose from; leave skill out.")
        return None
    count = len(enumerate_skills(spec.skill))
    if skill is not None and not 0 <= skill < count:
        raise ValueError(f"{origin.path} has {count} skills; choose one in 0..{count - 1}, got {skill}.")
    return skill or 0


def _member(origin: Origin, member: int | None) -> tuple[int | None, Genotype]:
    """A member and its genotype, by default the best; None where the best members of all roles make a team."""
    size = origin.built.program.population_size
    if member is not None and not 0 <= member < size:
        raise ValueError(f"member {member} does not exist; choose one in 0..{size - 1}.")
    if member is None:
        return warm_start.best_genotype(origin)
    return member, trees.take(jax.vmap(genotype)(origin.state.members), member)


def _elite(origin: Origin, repertoire: Repertoire, cell: Cell) -> Elite:
    if not repertoire.occupied.any():
        raise ValueError(f"the repertoire of {origin.path} is empty; continue that run until it has an elite.")
    if isinstance(cell, str) and cell == "best":
        return repertoires.best(repertoire)
    requested = parse_cell(cell)
    if not isinstance(requested, int):
        size = repertoire.centroids.shape[1]
        if len(requested) != size or not all(map(math.isfinite, requested)):
            raise ValueError(f"a descriptor of {origin.path} is {size} finite numbers, got {cell!r}; give as many.")
        return repertoires.nearest(repertoire, jnp.asarray(requested))
    occupied = np.asarray(repertoire.occupied)
    if not 0 <= requested < len(occupied):
        raise ValueError(
            f"{origin.path} has {len(occupied)} cells; choose one in 0..{len(occupied) - 1}, got {requested}."
        )
    if not occupied[requested]:
        centroids = np.asarray(repertoire.centroids)
        distance = np.linalg.norm(centroids - centroids[requested], axis=1)
        near = int(np.argmin(np.where(occupied, distance, np.inf)))
        raise ValueError(f"cell {requested} of {origin.path} is empty; choose cell {near}, the nearest that is not.")
    return repertoires.elite(repertoire, requested)


def parse_cell(cell: Cell) -> int | list[float]:
    """A cell's index, or a descriptor; a single number with a decimal point is a descriptor of one dimension."""
    if isinstance(cell, str):
        with contextlib.suppress(ValueError):
            return int(cell)
        with contextlib.suppress(ValueError):
            return [float(number) for number in cell.split(",")]
        raise ValueError(f"cell must be best, a cell's index or a descriptor such as 0.2,0.8, got {cell!r}.")
    values = np.asarray(cell).tolist()
    return [values] if isinstance(values, float) else values


def _fitness(origin: Origin, member: int | None) -> float | tuple[float | None, ...] | None:
    """Fitness of a member in the last evaluation; None if the member was replaced since, or the fitness is not finite.

    Where roles evolve separately, a tuple with one fitness per role.
    """
    standing = warm_start.current_fitness(origin)
    learner = origin.built.learner
    if not origin.built.has_separate_roles:
        assert member is not None
        return _finite_or_none(standing[member])
    assert learner is not None
    assert learner.spec.team is not None
    by_role = standing.reshape(-1, len(learner.spec.team.names))
    slots = warm_start.best_slots(origin) if member is None else np.full(by_role.shape[1], member)
    return tuple(_finite_or_none(value) for value in by_role[slots, np.arange(by_role.shape[1])])


def _finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def policy_function(policy: Policy) -> Callable[..., Array | tuple[Array, Array]]:
    """The policy as a function of the unwrapped environment's observation, and of a memory if it is recurrent.

    Args:
      policy: the policy.

    Returns:
      A function from observation (and memory) to the deterministic action (and the memory of the next step). Shapes are
      those of one row in `policy.inputs` and `policy.outputs`; the memory is 0 in the first step of an episode.
    """
    if policy.memory_size:
        return partial(_act_with_memory, policy)
    return partial(_act, policy)


def acting(policy: Policy, agent: str | int | None = None) -> Callable[..., Array | tuple[Array, Array]]:
    """The policy as a compiled function of whatever an environment returns as its observation.

    Args:
      policy: the policy.
      agent: name or index of one agent of a team, whose observation and action have no axis of agents then.

    Returns:
      `policy_function(policy)`, which also takes lists, and features in their own shape, such as images.

    Raises:
      ValueError: the team has no such agent; (the function) the observation has another shape.
    """
    if agent is not None:
        return _acting_alone(policy, _agent(policy, agent))
    act = jax.jit(policy_function(policy))
    return lambda observation, *memory: act(_features(policy, observation), *memory)


def _agent(policy: Policy, agent: str | int) -> int:
    """The index of an agent of the team."""
    if policy.spec.team is None:
        raise ValueError(f"{policy.origin.path} has one agent in an environment; leave agent out.")
    names = policy.spec.team.names
    if agent not in (*names, *range(len(names))):
        raise ValueError(f"{policy.spec.name} has no agent {agent!r}; choose one of {', '.join(names)}.")
    return names.index(agent) if isinstance(agent, str) else agent


def _acting_alone(policy: Policy, agent: int) -> Callable[..., Array | tuple[Array, Array]]:
    """`acting` for one agent: the team acts on copies of its observation, and its own action is returned."""
    team = acting(policy)

    def act(observation: PyTree, *memory: Array) -> Array | tuple[Array, Array]:
        size = policy.spec.agents[0]
        copies = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * size), (observation, *memory))
        return jax.tree.map(lambda leaf: leaf[agent], team(*copies))

    return act


def _features(policy: Policy, observation: PyTree) -> Array:
    """An observation as a vector `[O]`, for a team `[I, O]`; with action masks it is one already."""
    shape, leading = policy.spec.observation_shape, len(policy.spec.agents)
    arrays = jnp.asarray(observation) if shape is None or is_shape(shape) else observation
    if [leaf.shape[leading:] for leaf in jax.tree.leaves(arrays)] == jax.tree.leaves(shape, is_leaf=is_shape):
        arrays = flatten_features(arrays, leading)
    vector, expected = jnp.asarray(arrays), policy.inputs["observation"]
    if vector.shape != expected:
        own = f" or {shape}" if shape is not None else ""
        raise ValueError(
            f"the policy reads observations of shape {expected}{own}, got {vector.shape}; jax.vmap gives the actions "
            "for a batch of them."
        )
    return _as_input(policy, vector)


def _as_input(policy: Policy, vector: Array) -> Array:
    """A vector in the type of the policy's observations.

    Raises:
      ValueError: the policy reads pixels, and the vector has other numbers.
    """
    if policy.types["observation"] != np.uint8:
        return as_floats(vector)  # among other features, pixels are numbers in [0, 1]
    if not jnp.issubdtype(vector.dtype, jnp.integer):
        raise ValueError(f"the policy reads pixels, uint8 in 0..255, got {vector.dtype}; do not divide them by 255.")
    return vector.astype(jnp.uint8)


def _act(policy: Policy, observation: Array) -> Array:
    return rollout.act(policy.evaluator, policy.genotype, _wrap(policy, observation))


def _act_with_memory(policy: Policy, observation: Array, memory: Array) -> tuple[Array, Array]:
    carry = Memory(memory, jnp.zeros_like(memory))  # the critic's memory has no effect on actions
    wrapped = _wrap(policy, observation)._replace(carry=carry)
    step: ActionWithCarry = rollout.act(policy.evaluator, policy.genotype, wrapped)
    return step.action, step.carry.policy


def _wrap(policy: Policy, vector: Array) -> Observation:
    """The observation of the run's agent: with the agent index and the skill, as the run's wrappers add them."""
    spec = policy.spec
    skill = jnp.asarray(enumerate_skills(spec.skill)[policy.skill or 0]) if spec.skill else None
    mask = vector[..., spec.observation_size :].astype(jnp.float32) > 0.5 if spec.masked else None
    index = jnp.eye(spec.agents[0]) if spec.identified else None
    return Observation(vector[..., : spec.observation_size], skill, mask, agent=index)
