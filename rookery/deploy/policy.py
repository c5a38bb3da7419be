"""Select one policy of a run and turn it into a function of the environment's observation alone."""

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rookery import trees
from rookery.agents.actor_critic import Memory
from rookery.deploy import interface
from rookery.envs.base import ActionWithCarry, EnvSpec
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.experiments import warm_start
from rookery.experiments.warm_start import RestoredRun
from rookery.features import Part, is_shape
from rookery.learners import rollout
from rookery.learners.base import Evaluator, genotype
from rookery.qd import repertoire as repertoires
from rookery.qd.map_elites import repertoire_of
from rookery.qd.repertoire import Elite, Repertoire
from rookery.settings import LARGEST_COUNT, SettingError, check_counts
from rookery.types import Array, Genotype, Observation, PyTree

Cell = str | int | Sequence[float] | np.ndarray | Array
"""Choice of an elite: "best", a cell's index, or a descriptor `[D]` (`"0.2,0.8"` or numbers), for the nearest elite."""


class Policy(NamedTuple):
    """One policy of a run."""

    origin: RestoredRun  # the run, at a checkpoint
    evaluator: Evaluator  # the run's deterministic policy function and evaluation environment
    genotype: Genotype
    cell: int | None  # cell of the repertoire; None without a repertoire
    member: int | None  # None for a repertoire, or where the best members of all roles act together
    skill: int | None  # index of the skill; None for a run without skills
    descriptor: tuple[float, ...] | None  # descriptor stored in the repertoire
    fitness: float | tuple[float | None, ...] | None  # stored fitness; where roles evolve separately, one per role

    def __repr__(self) -> str:
        """Where it is from, without the arrays of its run."""
        chosen = {"cell": self.cell, "member": self.member, "skill": self.skill}
        which = "".join(f", {name}={number}" for name, number in chosen.items() if number is not None)
        return f"Policy({str(self.origin.path)!r}, generation={self.origin.generation}{which})"

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
    def parts(self) -> tuple[Part, ...]:
        """The parts of an observation as the environment gives them, in the order of their features."""
        shape, dtype = self.spec.observation_shape or (self.spec.observation_size,), self.types["observation"].name
        leaves = jax.tree_util.tree_leaves_with_path(shape, is_leaf=is_shape)
        found = [(tuple(_key(key) for key in path), leaf) for path, leaf in leaves]
        return self.spec.given or tuple(Part(path, leaf, dtype, "by type", math.prod(leaf)) for path, leaf in found)

    @property
    def interface(self) -> dict[str, Any]:
        """What `interface.encode` and `decode` need to know of a policy, as JSON values: a part of `policy.json`."""
        spec, taken = self.spec, self.spec.taken
        size, team = spec.action_size, spec.team
        kind = {"kind": "continuous", "type": "float32", "size": size, "low": -1.0, "high": 1.0}
        if spec.discrete:
            kind = {"kind": "discrete", "type": "int32", "size": size, "low": 0, "high": size - 1}
        if spec.categories:
            highest = [count - 1 for count in spec.categories]
            kind = {"kind": "multi-discrete", "type": "int32", "size": len(highest), "low": 0, "high": highest}
        return {
            "inputs": self.inputs,
            "observation": {
                "size": self.observation_size,
                "type": self.types["observation"].name,
                "features": [part._asdict() | {"path": [*part.path]} for part in self.parts],
            },
            "action": kind | ({"environment": taken._asdict()} if taken else {}),
            # Smaller observations and actions are padded at the end.
            "team": team
            and {"names": team.names, "observation_sizes": team.observation_sizes, "action_sizes": team.action_sizes},
        }

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row by name: `action` `[A]`, `[]` or `[K]` int32 if discrete; `next_memory` `[H]`."""
        shapes = {"action": self.spec.action_shape}
        return shapes | ({"next_memory": (*self.spec.agents, self.memory_size)} if self.memory_size else {})


def _key(key: object) -> str | int:
    """A key of a path in a pytree as it is in an observation."""
    return next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name))


def select(
    origin: RestoredRun, cell: Cell | None = None, member: int | None = None, skill: int | None = None
) -> Policy:
    """Select a policy of a run.

    Args:
      origin: the run, at a checkpoint.
      cell: the elite, for runs with a repertoire; the best one by default.
      member: index of the member, for all other runs; by default the best of the last evaluation.
      skill: index of the skill, for runs that discover skills; 0 by default.

    Raises:
      ValueError: the run has no such cell, member or skill, the cell is empty, or the run optimises a scoring function
        without an environment.
    """
    given = {name: number for name, number in (("member", member), ("skill", skill)) if number is not None}
    check_counts(-LARGEST_COUNT, **given)
    member, skill = (None if number is None else operator.index(number) for number in (member, skill))
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


def evaluator_of(origin: RestoredRun) -> Evaluator:
    """The evaluator of a run: its deterministic policy function and its evaluation environment; a ValueError if it
    optimises a scoring function."""
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


def _skill(origin: RestoredRun, spec: EnvSpec, skill: int | None) -> int | None:
    """Index of the chosen skill; None for runs without skills."""
    if spec.skill is None:
        if skill is not None:
            raise ValueError(f"{origin.path} has no skills to choose from; leave skill out.")
        return None
    count = len(enumerate_skills(spec.skill))
    if skill is not None and not 0 <= skill < count:
        raise ValueError(f"{origin.path} has {count} skills; choose one in 0..{count - 1}, got {skill}.")
    return skill or 0


def _member(origin: RestoredRun, member: int | None) -> tuple[int | None, Genotype]:
    """A member and its genotype, by default the best; None where the best members of all roles make a team."""
    size = origin.built.program.population_size
    if member is not None and not 0 <= member < size:
        raise SettingError("member", member, f"must be in 0..{size - 1}")
    if member is None:
        return warm_start.best_genotype(origin)
    return member, trees.take(jax.vmap(genotype)(origin.state.members), member)


def _elite(origin: RestoredRun, repertoire: Repertoire, cell: Cell) -> Elite:
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
        raise SettingError("cell", cell, "must be best, a cell's index or a descriptor such as 0.2,0.8")
    values = np.asarray(cell)
    if values.dtype.kind not in "iuf" or values.ndim > 1:
        raise SettingError("cell", cell, "must be best, a cell's index, or a descriptor, a list of numbers")
    found = values.tolist()
    return [found] if isinstance(found, float) else found


def elite_text(policy: Policy, cell: Cell | None) -> str | None:
    """The descriptor of an elite, and its distance from the requested one; None without a repertoire."""
    if policy.descriptor is None:
        return None
    text = f"descriptor {', '.join(f'{value:z.4g}' for value in policy.descriptor)}"
    wanted = None if cell in (None, "best") else parse_cell(cell)
    if wanted is None or isinstance(wanted, int):
        return text
    distance = np.linalg.norm(np.subtract(policy.descriptor, wanted))
    return f"{text}, at a distance of {distance:.3g} from {', '.join(f'{value:z.4g}' for value in wanted)}"


def _fitness(origin: RestoredRun, member: int | None) -> float | tuple[float | None, ...] | None:
    """Fitness of a member in the last evaluation; None if the member was replaced since, the fitness is not finite, or
    `lineage.csv` has lost it.

    Where roles evolve separately, a tuple with one fitness per role.
    """
    try:
        standing = warm_start.current_fitness(origin)
    except warm_start.LostRowsError:  # the caller has named the member
        return None
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
      `policy_function(policy)`, which also takes lists, features in their own shape, such as images, and what an
      environment of Gymnasium gives, such as dictionaries and numbers of a Discrete space. It returns what the
      environment takes: for Gymnasium's an int, or an array of NumPy within the bounds.

    Raises:
      ValueError: the team has no such agent; (the function) the observation has another shape.
    """
    if agent is not None:
        return _acting_alone(policy, _agent(policy, agent))
    return partial(_act_on, policy.interface, policy.spec.taken is not None, jax.jit(policy_function(policy)))


def _act_on(about: dict[str, Any], on_host: bool, act: Callable[..., Any], observation: PyTree, *memory: Array) -> Any:
    """Act on one observation as the environment gives it; an environment on the host takes NumPy's numbers."""
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(observation))
    xp: Any = np if on_host and not traced else jnp
    features, expected = interface.encode(about, observation, xp), tuple(about["inputs"]["observation"])
    if features.shape != expected:
        raise ValueError(
            f"the policy reads observations of shape {expected}, got {features.shape}; jax.vmap gives the actions "
            "for a batch of them."
        )
    action, *following = act(features, *memory) if memory else (act(features),)
    action = interface.decode(about, xp.asarray(action), xp)
    return (action, *following) if memory else action


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
