"""One policy of a run, chosen and taken out of it: a function of what the world shows, and nothing else."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agents.ppo import PpoConfig
from rookery.deploy import render
from rookery.envs.base import ActionWithCarry, Assignment, Environment, EnvSpec, EnvState, Step
from rookery.envs.wrappers.skills import listed
from rookery.experiments import warm_start
from rookery.experiments.kinds import AnyMePbtRun, MapElitesRun, kind_of
from rookery.experiments.on_policy_kinds import AnyTeamRun, PbtIppoRun
from rookery.experiments.warm_start import Origin
from rookery.learners import rollout
from rookery.qd import repertoire as repertoires
from rookery.qd.map_elites import repertoire_of
from rookery.qd.repertoire import Elite, Repertoire
from rookery.types import Array, Genotype, Key, PyTree

Cell = str | int | Sequence[float]
"""Of a repertoire: "best", a cell's number, or a descriptor `[D]` (`"0.2,0.8"` or numbers), whose nearest is meant."""


class Policy(NamedTuple):
    """Who acts, and what is known of it."""

    origin: Origin
    evaluator: rollout.Evaluator  # by what it acts, and where
    genotype: Genotype
    cell: int | None  # of a repertoire
    member: int | None  # None of a repertoire, or where each role's best act together
    skill: int | None  # of a run that discovers skills
    descriptor: tuple[float, ...] | None  # as the repertoire has it
    fitness: float | tuple[float | None, ...] | None  # as stored; of roles that were bred apart, each one's

    @property
    def spec(self) -> EnvSpec:
        """What the agent was shown while it learned."""
        return self.evaluator.environment.spec

    @property
    def index_size(self) -> int:
        """How many numbers said at the beginning of its observation which agent of a team it is; 0 without."""
        config = self.origin.config
        identified = isinstance(config, AnyTeamRun) and config.parameters == "shared" and config.identify
        return len(self.spec.team.names) if identified and self.spec.team else 0

    @property
    def memory_size(self) -> int:
        """How many numbers the policy notes; what PPO's critic notes behind them changes no action."""
        agent = getattr(self.origin.config, "agent", None)
        return agent.memory_size if isinstance(agent, PpoConfig) and agent.recurrent else 0

    @property
    def observation_size(self) -> int:
        """Of the world's own observation: without index, skill and memory."""
        skill = self.spec.skill.size if self.spec.skill else 0
        return self.spec.observation_size - self.index_size - skill - self.spec.memory_size

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of one row: `observation` `[O]`, and `memory` `[H]` if it has one; of a team `[I, ...]`."""
        shapes = {"observation": (*self._agents, self.observation_size)}
        return shapes | ({"memory": (*self._agents, self.memory_size)} if self.memory_size else {})

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of one row: `action` `[A]`, or `[]` int32 where discrete; and `next_memory` `[H]`."""
        shapes = {"action": self._agents if self.spec.discrete else (*self._agents, self.spec.action_size)}
        return shapes | ({"next_memory": (*self._agents, self.memory_size)} if self.memory_size else {})

    @property
    def _agents(self) -> tuple[int, ...]:
        return (len(self.spec.team.names),) if self.spec.team else ()


def choose(origin: Origin, cell: Cell | None = None, member: int | None = None, skill: int | None = None) -> Policy:
    """Take a policy out of a run.

    Args:
      origin: the run.
      cell: of a run with a repertoire; the best elite by default.
      member: of any other; who was best when last judged by default.
      skill: of a run that discovers skills, counted from 0, which is the default.

    Raises:
      ValueError: the run has no such cell, member or skill, the cell is empty, or nobody acts in it.
    """
    evaluator = render.evaluator_of(origin.config, origin.built)
    slot = render.slot_of(origin, evaluator.environment.spec, skill)
    chosen = slot if evaluator.environment.spec.skill else None
    if isinstance(origin.config, MapElitesRun | AnyMePbtRun):
        if member is not None:
            raise ValueError(f"{origin.path} has a repertoire; choose by cell, and leave member out.")
        elite = _elite(origin, repertoire_of(origin.state), "best" if cell is None else cell)
        descriptor = tuple(np.asarray(elite.descriptor).tolist())
        return Policy(origin, evaluator, elite.genotype, elite.cell, None, chosen, descriptor, float(elite.fitness))
    if cell is not None:
        raise ValueError(
            f"{origin.path} is a run of kind {kind_of(origin.config)}, which has no cells; leave cell out, or choose "
            "a member."
        )
    member, genotype = render.actor_of(origin, member)
    return Policy(origin, evaluator, genotype, None, member, chosen, None, _fitness(origin, member))


def _elite(origin: Origin, repertoire: Repertoire, cell: Cell) -> Elite:
    if not repertoire.occupied.any():
        raise ValueError(f"the repertoire of {origin.path} is empty; let that run find somebody first.")
    if cell == "best":
        return repertoires.best(repertoire)
    wanted = _wanted(cell)
    if not isinstance(wanted, int):
        size = repertoire.centroids.shape[1]
        if len(wanted) != size or not all(map(math.isfinite, wanted)):
            raise ValueError(f"a descriptor of {origin.path} is {size} finite numbers, got {cell!r}; give as many.")
        return repertoires.nearest(repertoire, jnp.asarray(wanted))
    occupied = np.asarray(repertoire.occupied)
    if not 0 <= wanted < len(occupied):
        raise ValueError(
            f"{origin.path} has {len(occupied)} cells; choose one in 0..{len(occupied) - 1}, got {wanted}."
        )
    if not occupied[wanted]:
        centroids = np.asarray(repertoire.centroids)
        distance = np.linalg.norm(centroids - centroids[wanted], axis=1)
        near = int(np.argmin(np.where(occupied, distance, np.inf)))
        raise ValueError(f"cell {wanted} of {origin.path} is empty; choose cell {near}, the nearest that is not.")
    return repertoires.elite(repertoire, wanted)


def _wanted(cell: Cell) -> int | list[float]:
    """A cell's number, or a descriptor; of the words without a comma, those with a point are descriptors."""
    if isinstance(cell, str):
        with contextlib.suppress(ValueError):
            return int(cell)
        with contextlib.suppress(ValueError):
            return [float(number) for number in cell.split(",")]
        raise ValueError(f"cell must be best, a cell's number or a descriptor such as 0.2,0.8, got {cell!r}.")
    return [float(number) for number in cell] if isinstance(cell, Sequence) else int(cell)


def _fitness(origin: Origin, member: int | None) -> float | tuple[float | None, ...] | None:
    """What a member was last judged by; None for who was not judged since it came, or not finite."""
    standing = warm_start.standing(origin.path, origin.generation, origin.state)
    config, learner = origin.config, origin.built.learner
    if not (isinstance(config, PbtIppoRun) and config.member == "agent"):
        assert member is not None
        return _told(standing[member])
    assert learner is not None
    assert learner.spec.team is not None
    by_role = standing.reshape(-1, len(learner.spec.team.names))
    return tuple(_told(value) for value in (by_role.max(axis=0) if member is None else by_role[member]))


def _told(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def acts(policy: Policy) -> Callable[..., Array | tuple[Array, Array]]:
    """What the policy does: an observation of the world's own, and a memory if it has one, -> the deterministic action,
    and the memory to give in the next step. Shapes are those of one row in `policy.inputs` and `policy.outputs`; a
    memory is 0 in the first step of an episode."""
    if policy.memory_size:
        return partial(_act_and_note, policy)
    return partial(_act, policy)


def _act(policy: Policy, observation: Array) -> Array:
    return rollout.act(policy.evaluator, policy.genotype, _shown(policy, observation))


def _act_and_note(policy: Policy, observation: Array, memory: Array) -> tuple[Array, Array]:
    of_critic = jnp.zeros((*memory.shape[:-1], policy.spec.memory_size - policy.memory_size))
    shown = jnp.concatenate([_shown(policy, observation), memory, of_critic], axis=-1)
    noted: ActionWithCarry = rollout.act(policy.evaluator, policy.genotype, shown)
    return noted.action, noted.memory[..., : policy.memory_size]


def _shown(policy: Policy, observation: Array) -> Array:
    """The world's own observation as the run's wrappers show it, but for a memory."""
    if policy.index_size:
        observation = jnp.concatenate([jnp.eye(policy.index_size), observation], axis=-1)
    if policy.spec.skill and policy.skill is not None:
        observation = jnp.concatenate([observation, jnp.asarray(listed(policy.spec.skill)[policy.skill])], axis=-1)
    return observation


class Met(NamedTuple):
    """What a policy saw and did in an episode, on the host."""

    inputs: Mapping[str, np.ndarray]  # name -> [T, ...], as `Policy.inputs`
    outputs: Mapping[str, np.ndarray]  # name -> [T, ...], as `Policy.outputs`: by the run's own agent


def meet(policy: Policy, key: Key) -> Met:
    """Live through one episode with the run's own agent in the run's own world; the key is consumed."""
    world = _witnessed(policy.evaluator.environment)
    watch = jax.jit(partial(render.watch, policy.evaluator.act, world, _observed))
    watched = watch(policy.genotype, key, policy.skill or 0)
    shown = watched.seen[: render.length_of(jax.device_get(watched.over))]  # nobody acts on the last
    own = jax.jit(jax.vmap(partial(rollout.act, policy.evaluator, policy.genotype)))(shown)
    bare = policy.index_size + policy.observation_size
    inputs, outputs = {"observation": shown[..., policy.index_size : bare]}, {"action": own}
    if isinstance(own, ActionWithCarry):
        outputs = {"action": own.action, "next_memory": own.memory[..., : policy.memory_size]}
        inputs["memory"] = shown[..., bare : bare + policy.memory_size]
    return Met(*jax.device_get((inputs, outputs)))


class _Witnessed(NamedTuple):
    inner: EnvState
    observation: Array


def _observed(state: _Witnessed) -> Array:
    return state.observation


def _witnessed(environment: Environment) -> Environment:
    """The same world, whose states keep what was seen of them."""
    assignment = environment.assignment
    return environment._replace(
        reset=partial(_reset, environment),
        step=partial(_step, environment),
        assignment=assignment and Assignment(partial(_first, assignment), assignment.next),
    )


def _seen(begun: tuple[EnvState, Step]) -> tuple[_Witnessed, Step]:
    state, step = begun
    return _Witnessed(state, step.observation), step


def _reset(environment: Environment, key: Key) -> tuple[_Witnessed, Step]:
    return _seen(environment.reset(key))


def _step(environment: Environment, state: _Witnessed, action: PyTree, key: Key) -> tuple[_Witnessed, Step]:
    return _seen(environment.step(state.inner, action, key))


def _first(
    assignment: Assignment, start: tuple[_Witnessed, Step], slot: Array, key: Key | None
) -> tuple[_Witnessed, Step]:
    return _seen(assignment.first((start[0].inner, start[1]), slot, key))
