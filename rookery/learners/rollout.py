"""Acting in environments: steps to learn from, and full episodes to be judged by."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery import normalize, trees
from rookery.agents.base import ActFn, Agent, IntrinsicReward
from rookery.envs import base as envs
from rookery.envs import descriptors
from rookery.envs.base import Environment, EnvState, Step, Team
from rookery.envs.wrappers import auto_reset, skills
from rookery.learners.base import Bank, Member
from rookery.types import Array, Evaluation, Genotype, Hyper, Key, PyTree, Transition


class EnvBatchState(NamedTuple):
    """A member's environments, each in the middle of an episode."""

    state: EnvState  # [E, ...]
    observation: Array  # [E, O]


def begin(environment: Environment, bank: Bank, key: Key, num_envs: int) -> EnvBatchState:
    """Start `num_envs` episodes from states drawn from the bank; the key is consumed."""
    state, step = auto_reset.begin(environment, bank, key, num_envs)
    return EnvBatchState(state, step.observation)


def load_genotype(agent: Agent, member: Member, genotype: Genotype) -> Member:
    """Let a genotype live in a member's slot: see `api.LoadGenotypeFn`."""
    state = agent.start(genotype.params)
    return member._replace(state=state, hyper=genotype.hyper, normalizer=genotype.normalizer)


class Actor(Protocol):
    """Whoever acts by parameters: an `Agent`, or a policy that is bred."""

    @property
    def act(self) -> ActFn:
        """Parameters and observation -> action."""
        ...


def act(actor: Actor, genotype: Genotype, observation: Array) -> PyTree:
    """What a genotype does: the deterministic action `[A]` (or `[]` int32) for an observation `[O]`; of a team, each of
    its agents, `[I, A]` for `[I, O]`.

    The observation is seen as the genotype learned to see it, through its own statistics if it has any. With a memory
    it ends in that, 0 at first, and the action is `ActionWithCarry`, beside the memory to show next.

    Args:
      actor: the agent that the genotype is of, or `policy(spec, config)` for one that was bred without gradients.
      genotype: an elite's, e.g. `nearest(repertoire, descriptor).genotype`.
    """
    return actor.act(genotype.params, view(genotype.normalizer, observation))


def view(normalizer: PyTree, observation: Array) -> Array:
    """An observation `[..., O]` as the agent sees it: normalised, if the member keeps statistics, but for its skill."""
    if normalizer is None:
        return observation
    size = normalizer.mean.shape[-1]
    look = normalize.normalize
    if normalizer.mean.ndim > 1:  # each agent of a team through its own
        look = jax.vmap(look, in_axes=(0, -2), out_axes=-2)
    sensed = look(normalizer, observation[..., :size])
    return jnp.concatenate([sensed, observation[..., size:]], axis=-1)


def explore(agent: Agent, state: PyTree, hyper: Hyper, observation: Array, key: Key) -> Array:
    """Exploring actions `[E, A]` for observations `[E, O]`: one matmul per layer, the parameters are not mapped."""
    keys = jax.random.split(key, observation.shape[0])
    return jax.vmap(agent.explore, in_axes=(None, None, 0, 0))(state, hyper, observation, keys)[0]


def advance(
    environment: Environment,
    lives: EnvBatchState,
    action: Array,
    key: Key,
    intrinsic_reward: IntrinsicReward | None = None,
) -> tuple[EnvBatchState, Transition, Step]:
    """Step every environment once; `environment` resets itself.

    Args:
      curiosity: says what the transitions should carry besides.

    Returns:
      The lives after it, the transitions `[E, ...]` with the true successors, and the steps `[E, ...]`.
    """
    keys = jax.random.split(key, lives.observation.shape[0])
    state, step = jax.vmap(environment.step)(lives.state, action, keys)
    extras = jax.vmap(intrinsic_reward.keep)(step) if intrinsic_reward else ()
    transition = Transition(lives.observation, action, step.reward, step.final_observation, step.terminated, extras)
    return EnvBatchState(state, step.observation), transition, step


class Episodes(NamedTuple):
    """Evaluation in flight: sums over N episodes, no trajectories. Of a team, what is `[N]` by an agent is `[N, I]`."""

    lives: EnvBatchState  # [N, ...]
    alive: Array  # [N] bool, by an agent
    returns: Array  # [N], by an agent
    lengths: Array  # [N] int32
    summary: descriptors.Summary  # [N, ...]
    sums: Mapping[str, Array]  # name -> [N], what a curious agent measures
    broken: Array  # [N] bool: ended because the physics broke
    is_finite: Array  # [] bool, or [I]: every action of a living episode was finite
    time: Array  # [] int32
    last: PyTree = ()  # `LastStep` of the agents of a team


class LastStep(NamedTuple):
    """How an episode ended for each agent of a team, `[N, I]`."""

    final_reward: Array
    terminated: Array  # bool
    truncated: Array  # bool


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """By how much a genotype is judged.

    Raises:
      ValueError: no episode, fewer start states than episodes, or an unknown summary.
    """

    eval_episodes: int = 10
    """Full deterministic episodes by which each is judged each generation (at least 1)."""
    start_states: int = 64
    """Start states drawn each generation, from which episodes begin (at least eval_episodes)."""
    eval_descriptor: Literal["mean", "median"] = "mean"
    """How the episodes' descriptors become one, in each dimension; a mean may be a behaviour that nobody shows."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_evaluation(self)


def check_evaluation(config: EvaluationConfig) -> None:
    """Refuse what cannot be judged by.

    Raises:
      ValueError: as `EvaluationConfig` says.
    """
    if config.eval_episodes < 1:
        raise ValueError(f"eval_episodes must be at least 1, got {config.eval_episodes}.")
    if config.start_states < config.eval_episodes:
        raise ValueError(
            f"start_states must be at least eval_episodes ({config.eval_episodes}), got {config.start_states}."
        )
    if config.eval_descriptor not in SUMMARIES:
        raise ValueError(f"eval_descriptor must be one of {tuple(SUMMARIES)}, got {config.eval_descriptor!r}.")


SUMMARIES = {"mean": jnp.mean, "median": jnp.median}


class Evaluator(NamedTuple):
    """Who judges genotypes, and where: all that is known before a genotype is."""

    act: ActFn  # parameters and observation -> action
    environment: Environment  # without automatic reset
    config: EvaluationConfig  # how descriptors become one
    episodes: int  # N
    intrinsic_reward: IntrinsicReward | None = None
    role: int | None = None  # the agent of a team by whose return the team is judged; None: the mean of all


def evaluator(
    act: ActFn, environment: Environment, config: EvaluationConfig, intrinsic_reward: IntrinsicReward | None = None
) -> Evaluator:
    """As many episodes as configured; with skills rounded up until every listed skill has equally many."""
    skill, episodes = environment.spec.skill, config.eval_episodes
    return Evaluator(
        act, environment, config, skills.whole_rounds(skill, episodes) if skill else episodes, intrinsic_reward
    )


def bank_size(evaluator: Evaluator) -> int:
    """K, start states per generation: as configured, and at least one for each episode of an evaluation."""
    return max(evaluator.config.start_states, evaluator.episodes)


def start_episodes(environment: Environment, bank: Bank, episodes: int) -> EnvBatchState:
    """The first start states of the bank, each of which begins an episode; with skills these are taken in turn."""
    start = trees.take(bank, jnp.arange(episodes))
    if environment.assignment is not None:
        start = jax.vmap(partial(environment.assignment.first, key=None))(start, jnp.arange(episodes))
    return EnvBatchState(start[0], start[1].observation)


def evaluate(evaluator: Evaluator, genotype: Genotype, bank: Bank, key: Key) -> Evaluation:
    """Judge a genotype by full deterministic episodes from the first start states of the bank.

    The loop ends when the last episode does. Steps after an episode's end, or after the end of an agent's task while
    others go on, are told apart by a boolean.

    Args:
      judge: how.
      genotype: what.
      bank: at least N start states.
      key: consumed, by the environment alone.

    Returns:
      The `Evaluation`; its fitness is NaN if any action was not finite. `episodes` has each one's descriptor `[N, D]`,
      and what a curious agent tells of it; of a team `return/<agent>`, `final_reward/<agent>`, `terminated/<agent>` and
      `truncated/<agent>`, `[N]` each.
    """
    environment, episodes = evaluator.environment, evaluator.episodes
    spec = environment.spec
    kind = descriptors.KINDS[spec.descriptor.kind if spec.descriptor else "mean"]
    empty = jax.tree.map(lambda leaf: jnp.zeros((episodes, *leaf.shape)), kind.init(spec.descriptor_size))
    sums = {}
    if evaluator.intrinsic_reward:
        measures = jax.eval_shape(evaluator.intrinsic_reward.measure, genotype.params, trees.take(bank[1], 0))
        sums = jax.tree.map(lambda leaf: jnp.zeros((episodes,), leaf.dtype), dict(measures))
    lives = start_episodes(environment, bank, episodes)
    nobody = jnp.zeros_like(lives.observation[..., 0], bool)  # made of what is there: a mapped axis may be checked
    zeros, false = jnp.zeros_like(nobody, jnp.float32), jnp.zeros_like(nobody.reshape(episodes, -1)[:, 0])
    start = Episodes(
        lives=lives,
        alive=~nobody,
        returns=zeros,
        lengths=jnp.zeros_like(false, jnp.int32),
        summary=trees.where(false, empty, empty),
        sums=trees.where(false, sums, sums),
        broken=false,
        is_finite=~nobody[0],
        time=jnp.zeros((), jnp.int32),
        last=LastStep(zeros, nobody, nobody) if spec.team else (),
    )
    advance_all = partial(_advance_episodes, evaluator, kind, genotype, key)
    end = jax.lax.while_loop(lambda run: run.alive.any() & (run.time < spec.episode_length), advance_all, start)
    reached = jax.vmap(kind.finish)(end.summary)
    evaluation = Evaluation(
        fitness=jnp.where(end.is_finite.all(), jnp.mean(end.returns), jnp.nan),
        descriptor=SUMMARIES[evaluator.config.eval_descriptor](reached, axis=0),
        returns=end.returns,
        lengths=end.lengths,
        broken=jnp.sum(end.broken),
        episodes={"descriptors": reached},
    )
    if spec.team:
        return _by_agents(evaluator, spec.team, end, evaluation)
    if evaluator.intrinsic_reward:
        fitness, told = evaluator.intrinsic_reward.conclude(end.sums, end.returns, end.lengths)
        fitness = jnp.where(end.is_finite, fitness, jnp.nan)
        evaluation = evaluation._replace(fitness=fitness, episodes={**evaluation.episodes, **told})
    return evaluation


def _by_agents(evaluator: Evaluator, team: Team, end: Episodes, evaluation: Evaluation) -> Evaluation:
    """What an evaluation says of each agent, and by whom the team is judged."""
    told = {"return": end.returns, **end.last._asdict()}
    columns = {
        f"{name}/{agent}": values[:, i].astype(jnp.float32)
        for name, values in told.items()
        for i, agent in enumerate(team.names)
    }
    by_agent = jnp.mean(end.returns, axis=0)
    fitness = jnp.mean(by_agent) if evaluator.role is None else by_agent[evaluator.role]
    return evaluation._replace(
        fitness=jnp.where(end.is_finite.all(), fitness, jnp.nan),
        returns=jnp.mean(end.returns, axis=1),
        episodes={**evaluation.episodes, **columns},
        roles=jnp.where(end.is_finite, by_agent, jnp.nan),
    )


def _advance_episodes(
    evaluator: Evaluator, kind: descriptors.Descriptor, genotype: Genotype, key: Key, run: Episodes
) -> Episodes:
    lives, step, action = _act_once(evaluator, genotype, run.lives, jax.random.fold_in(key, run.time))
    sums = _measured(evaluator.intrinsic_reward, genotype, step, run) if evaluator.intrinsic_reward else run.sums
    alive, last = _somebody(run.alive), run.last
    if last:
        now = LastStep(step.reward, step.terminated, step.truncated)
        last = jax.tree.map(partial(jnp.where, run.alive), now, last)
    return Episodes(
        lives=lives,
        alive=run.alive & ~step.ended,
        returns=run.returns + jnp.where(run.alive, step.reward, 0.0),
        lengths=run.lengths + alive.astype(jnp.int32),
        summary=jax.vmap(kind.accumulate)(run.summary, step.descriptor, alive & ~step.broken),
        sums=sums,
        broken=run.broken | (alive & step.broken),
        is_finite=run.is_finite & (_finite(action, run.alive.ndim) | ~run.alive).all(axis=0),
        time=run.time + 1,
        last=last,
    )


def _somebody(alive: Array) -> Array:
    """Whether an episode goes on, `[N]`, where it may go on for only some agents of a team, `[N, I]`."""
    return alive if alive.ndim == 1 else alive.any(axis=1)


def _finite(action: PyTree, rank: int) -> Array:
    """Whether all numbers of each action are; a discrete policy whose outputs are not says so by a negative index."""
    action = action.action if isinstance(action, envs.ActionWithCarry) else action
    possible = action >= 0 if jnp.issubdtype(action.dtype, jnp.integer) else jnp.isfinite(action)
    return possible.all(axis=tuple(range(rank, action.ndim)))


def _measured(intrinsic_reward: IntrinsicReward, genotype: Genotype, step: Step, run: Episodes) -> Mapping[str, Array]:
    """The sums after a step of the living episodes."""
    seen = step._replace(final_observation=view(genotype.normalizer, step.final_observation))
    measures = jax.vmap(intrinsic_reward.measure, in_axes=(None, 0))(genotype.params, seen)
    return {name: total + jnp.where(run.alive, measures[name], 0.0) for name, total in run.sums.items()}


def trace(evaluator: Evaluator, genotype: Genotype, bank: Bank, key: Key) -> tuple[Array, Array]:
    """Follow the episodes that `evaluate` judges by; see `api.TraceFn`. Stores a descriptor per step."""
    lives = start_episodes(evaluator.environment, bank, evaluator.episodes)
    begun = trees.take(bank[1].descriptor, jnp.arange(evaluator.episodes))
    alive = jnp.ones(lives.observation.shape[:-1], bool)
    times = jnp.arange(evaluator.environment.spec.episode_length)
    _, (reached, lived) = jax.lax.scan(partial(_follow, evaluator, genotype, key), (lives, alive), times)
    everywhere = jnp.concatenate([begun[None], reached])
    always = jnp.concatenate([jnp.ones((1, evaluator.episodes), bool), lived])
    return jnp.swapaxes(everywhere, 0, 1), jnp.swapaxes(always, 0, 1)


def _follow(
    evaluator: Evaluator, genotype: Genotype, key: Key, carry: tuple[EnvBatchState, Array], time: Array
) -> tuple[tuple[EnvBatchState, Array], tuple[Array, Array]]:
    lives, alive = carry
    lives, step = _act_once(evaluator, genotype, lives, jax.random.fold_in(key, time))[:2]
    return (lives, alive & ~step.ended), (step.descriptor, _somebody(alive) & ~step.broken)


def _act_once(
    evaluator: Evaluator, genotype: Genotype, lives: EnvBatchState, key: Key
) -> tuple[EnvBatchState, Step, PyTree]:
    """One step of every episode as the genotype acts, and what it did, `[N, ...]`."""
    observation = view(genotype.normalizer, lives.observation)
    action = jax.vmap(evaluator.act, in_axes=(None, 0))(genotype.params, observation)
    lives, _, step = advance(evaluator.environment, lives, action, key)
    return lives, step, action
