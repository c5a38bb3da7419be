"""Populations of SAC and TD3 agents in QDax's documented form, and Population Based Training.

The functions run on one device, or inside a mapped axis where each device holds its share of the population
(`distributed.layout.shares`).
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.agents.base import OffPolicyAgent
from rookery.compat.qdax.algorithms import SAC, TD3, DescriptorFn, SingleAgent
from rookery.compat.qdax.environments import Batch, Extractor
from rookery.compat.qdax.environments import BatchState as State
from rookery.compat.qdax.loops import do_iteration_fn, updates_of
from rookery.compat.qdax.records import (
    PBTSacTrainingState,
    PBTStateT,
    PBTTD3TrainingState,
    PBTTrainingState,
    ReplayBuffer,
    TrainingState,
    Transition,
)
from rookery.compat.records import check, check_equal, shared_count, split_key, typed_key
from rookery.distributed import layout
from rookery.envs.base import Step, first_step
from rookery.learners import evaluation, rollout
from rookery.learners.base import EvaluationConfig, Evaluator, Member, genotype
from rookery.learners.off_policy import OffPolicyBindings, OffPolicyConfig, iterate, summarize
from rookery.populations.base import member_keys
from rookery.populations.inheritance import inherit
from rookery.populations.sharding import WHOLE, Shares, moved
from rookery.qd.pbt_emitter import Counts, origins
from rookery.qd.scoring import descriptor_of
from rookery.settings import check_counts
from rookery.types import Array, Evaluation, Hyper, Key, Metrics, Observation, PyTree

__all__ = ["PBT", "PBTSAC", "PBTTD3"]

_DESCRIBED = ("select_action", "play_step_fn", "play_qd_step_fn", "eval_qd_policy_fn")
_TRAINED = ("select_action", "play_step_fn", "update", "_compute_reward", "_update_networks")

Trained = tuple[tuple[PBTStateT, State, ReplayBuffer], Metrics]


class Population(SingleAgent):
    """Methods of populations of one kind of agent; all leaves are `[P, ...]`."""

    def get_init_fn(
        self, population_size: int, action_size: int, observation_size: int, buffer_size: int
    ) -> Callable[[Key], tuple[TrainingState, ReplayBuffer]]:
        """Return a function of a key that creates training states and empty replay buffers; a ValueError if
        `population_size` is below 1."""
        check_counts(population_size=population_size)

        def init(key: Key) -> tuple[TrainingState, ReplayBuffer]:
            init_member = partial(self.init, action_size=action_size, observation_size=observation_size)
            empty = ReplayBuffer.init(buffer_size, Transition.init_dummy(observation_size, action_size))
            keys = jax.random.split(typed_key(key), population_size)
            return jax.vmap(init_member)(keys), trees.stack([empty] * population_size)

        return init

    def get_eval_fn(self, eval_env: Batch) -> Callable[[PBTTrainingState, State], tuple[Array, ...]]:
        """Return an evaluation function of training states and initial environment states `[P, E, ...]`.

        It runs one deterministic episode per environment, and returns the mean returns `[P]`, NaN where an action was
        not finite or the physics broke, and the returns `[P, E]`.
        """
        evaluator = self._evaluator(eval_env)
        if self._replaced(eval_env, "select_action", "play_step_fn", "eval_policy_fn"):
            play = partial(self.play_step_fn, env=eval_env, deterministic=True, evaluation=True)
            return jax.vmap(partial(self.eval_policy_fn, play_step_fn=play))
        return lambda states, first_env_states: evaluator(states, first_env_states)[::2]

    def get_eval_qd_fn(
        self, eval_env: Batch, descriptor_extraction_fn: DescriptorFn
    ) -> Callable[[PBTTrainingState, State], tuple[Array, ...]]:
        """Return an evaluation function as `get_eval_fn`, with descriptors.

        It returns mean returns `[P]`, mean descriptors `[P, D]`, returns `[P, E]` and descriptors `[P, E, D]`. With the
        task's descriptor, from `environments.descriptor_extractor`, no transitions are stored; with a user-defined
        function the episodes are run twice.

        Raises:
          ValueError: the environment has no descriptor.
        """
        task_extractor, evaluator = Extractor(descriptor_of(eval_env.environment.spec).kind), self._evaluator(eval_env)
        replaced = self._replaced(eval_env, *_DESCRIBED)
        if descriptor_extraction_fn == task_extractor and not replaced:
            return evaluator
        play = partial(self.play_qd_step_fn, env=eval_env, deterministic=True, evaluation=True)
        arguments = {"play_step_fn": play, "descriptor_extraction_fn": descriptor_extraction_fn}
        describe = jax.vmap(partial(self.eval_qd_policy_fn, **arguments))
        if replaced:
            return describe

        def evaluate(states: PBTTrainingState, first_env_states: State) -> tuple[Array, ...]:
            evaluated, played = evaluator(states, first_env_states), describe(states, first_env_states)
            return evaluated[0], played[1], evaluated[2], played[3]

        return evaluate

    def _replaced(self, env: Batch, *names: str) -> bool:
        """Whether a subclass replaces one of these methods, or a wrapper the environment, so that they are called."""
        documented = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        return type(env) is not Batch or any(getattr(type(self), one) is not getattr(documented, one) for one in names)

    def _evaluator(self, eval_env: Batch) -> Callable[[PBTTrainingState, State], tuple[Array, ...]]:
        length, steps = eval_env.episode_length, f"episodes of {eval_env.name} have {{}} steps"
        check_equal("episode_length", self._config.episode_length, length, steps)
        return partial(_evaluate, self._agent(eval_env.observation_size), eval_env)

    def get_train_fn(
        self, env: Batch, num_iterations: int, env_batch_size: int, grad_updates_per_step: float
    ) -> Callable[[PBTStateT, State, ReplayBuffer], Trained[PBTStateT]]:
        """Return a training function of training states, environment states `[P, E, ...]` and replay buffers.

        It makes `num_iterations` steps of E = `env_batch_size` environments, each followed by
        `int(grad_updates_per_step * E)` updates, and returns the three arguments after them and the metrics
        `[P, num_iterations]`, means over updates. Every call draws new start states for resets. The methods of a
        subclass that replaces `select_action`, `play_step_fn`, `update` or a part of it are called, as by
        `do_iteration_fn`, and so is `step` of a wrapped environment.

        Raises:
          ValueError: a count is below 1; or the environments were created with `auto_reset=False` or with
            `eval_metrics=True`, which training does not update. The training function raises it for arguments with
            different population sizes or numbers of environments, and for buffers of another class of transitions.
        """
        check(
            env.auto_reset and not env.eval_metrics,
            "training needs environments with auto_reset=True and eval_metrics=False; create others for evaluation.",
        )
        check_counts(num_iterations=num_iterations)
        config = OffPolicyConfig(
            num_envs=env_batch_size,
            steps_per_generation=num_iterations * env_batch_size,
            updates_per_step=updates_of(grad_updates_per_step, env_batch_size) / env_batch_size,
            batch_size=self._config.batch_size,
            warmup_steps=0,
        )
        if self._replaced(env, *_TRAINED):
            return partial(_train_by_methods, self, env, config, grad_updates_per_step)
        agent = self._agent(env.observation_size)
        return partial(_train, agent, partial(self._hyper, agent), env, config)


def _evaluate(agent: OffPolicyAgent, env: Batch, states: PBTTrainingState, first: State) -> tuple[Array, ...]:
    """Evaluate a population in one episode from each state `[P, E, ...]`: fitness, descriptor, returns, descriptors."""
    check_population(states.steps, first.reward)
    check(
        first.reward.ndim > 1,
        f"initial states must be [P, E, ...], got {first.reward.shape}; reshape the result of reset.",
    )
    environment = env.environment._replace(spec=env.environment.spec._replace(measures=None))  # none is returned
    evaluator = Evaluator(agent.act, environment, EvaluationConfig(), first.reward.shape[1])

    def evaluate_member(member: Member, first: State) -> Evaluation:
        start_states = first.pipeline_state, jax.vmap(first_step)(first.obs, first.pipeline_state.descriptor)
        return evaluation.evaluate(evaluator, genotype(member), start_states, typed_key(first.info["rng"][0]))

    result = jax.vmap(evaluate_member)(states.member(), first)
    return result.fitness, result.descriptor, result.returns, result.episodes["descriptors"]


def _truncated(step: Step) -> Array:
    return step.truncated


def _train(
    agent: OffPolicyAgent,
    complete: Callable[[Hyper], Hyper],
    env: Batch,
    config: OffPolicyConfig,
    states: PBTStateT,
    env_states: State,
    replay_buffers: ReplayBuffer,
) -> Trained[PBTStateT]:
    """Train a population, see `Population.get_train_fn`."""
    rows = type(replay_buffers.state.rows)
    check(rows is Transition, f"training stores a Transition, but the buffers were created for {rows.__name__}.")
    _check_trained(config, states, env_states, replay_buffers)
    next_keys, keys = jax.vmap(partial(split_key, count=3))(states.key)
    bank = env.start_states(keys[0, 1], config.start_states)
    done = jax.vmap(shared_count, out_axes=None)(states.steps) // config.updates
    config = dataclasses.replace(config, normalize_observations=states.normalizer is not None)
    bindings = OffPolicyBindings(agent, env.environment, replay_buffers.functions(), config, _truncated)

    def train_member(member: Member, key: Key) -> tuple[Member, tuple]:
        member = member._replace(hyper=complete(member.hyper))
        inputs = jax.random.split(key, config.iterations), done + jnp.arange(config.iterations)
        return jax.lax.scan(lambda member, now: iterate(bindings, member, bank, *now), member, inputs)

    playing = rollout.EnvBatchState(env_states.pipeline_state, Observation(env_states.obs))
    members = states.member(playing, replay_buffers.state)
    members, log = jax.vmap(train_member)(members, keys[:, 0])
    steps = states.steps + config.iterations * config.updates
    states = states.of_member(members, key=next_keys, steps=steps, hyper=states.hyper)
    env_states = env_states.moved_to(members.env_state.state, members.env_state.observation.features)
    trained = states, env_states, replay_buffers.replace(state=members.buffer)
    return trained, jax.vmap(jax.vmap(partial(summarize, env.environment.spec)))(log)


def _train_by_methods(
    learner: Population,
    env: Batch,
    config: OffPolicyConfig,
    grad_updates_per_step: float,
    states: PBTStateT,
    env_states: State,
    replay_buffers: ReplayBuffer,
) -> Trained[PBTStateT]:
    """Train a population of a subclass by its methods, see `Population.get_train_fn`."""
    _check_trained(config, states, env_states, replay_buffers)
    play = partial(learner.play_step_fn, env=env, deterministic=False)

    def step(carry: tuple, _: None) -> tuple[tuple, Metrics]:
        state, env_state, held = carry
        *carry_after, metrics = do_iteration_fn(
            state, env_state, held, config.num_envs, grad_updates_per_step, play, learner.update
        )
        return tuple(carry_after), jax.tree.map(partial(jnp.mean, axis=0), metrics)

    train_member = jax.vmap(lambda *carry: jax.lax.scan(step, carry, length=config.iterations))
    return train_member(states, env_states, replay_buffers)


def _check_trained(
    config: OffPolicyConfig, states: PBTTrainingState, env_states: State, replay_buffers: ReplayBuffer
) -> None:
    shape, each = env_states.reward.shape, config.num_envs
    check(
        len(shape) == 2 and shape[1] == each,
        f"states of {each} environments each must be [P, {each}, ...], got {shape}; reshape the result of reset.",
    )
    check_population(states.steps, env_states.reward, replay_buffers.state.size)
    states.check_optimizers()


def check_population(*arrays: Array) -> None:
    """Check that all arrays have the same leading axis, `[P, ...]`."""
    sizes = [array.shape[:1] for array in arrays]
    remedy = f"got {sizes}; reshape the result of reset to [P, E, ...]."
    check(len(set(sizes)) == 1 and sizes[0] != (), f"members of one population need one leading axis, {remedy}")


class PBTSAC(Population, SAC):
    """A population of SAC agents with evolved hyper-parameters."""

    kind = PBTSacTrainingState


class PBTTD3(Population, TD3):
    """A population of TD3 agents with evolved hyper-parameters."""

    kind = PBTTD3TrainingState


class PBT:
    """Population Based Training by truncation selection (Jaderberg 2017, arXiv:1711.09846).

    Counts refer to the whole population, over all devices.

    Raises:
      ValueError: a count is negative, or the counts exceed the population.
    """

    def __init__(self, population_size: int, num_best_to_replace_from: int, num_worse_to_replace: int) -> None:
        best, replaced = num_best_to_replace_from, num_worse_to_replace
        self._size, self._counts = population_size, Counts(max(best, 1), replaced, sampled=0)
        check_counts(population_size=population_size)
        description = f"{best} best and {replaced} replaced members"
        check(min(best, replaced) >= 0, f"{description} must not be negative.")
        check(
            best + replaced <= population_size,
            f"{description} exceed the population of {population_size}; lower one.",
        )

    def update_states_and_buffer(
        self, key: Key, population_returns: Array, training_state: PBTStateT, replay_buffer: ReplayBuffer
    ) -> tuple[PBTStateT, ReplayBuffer]:
        """Replace the worst members by copies of parents drawn from the best.

        A child copies its parent's training state and buffer, and gets hyper-parameters by `resample_hyperparams` of
        its class. Members with non-finite returns rank last, are replaced, and are never parents.

        Args:
          key: consumed.
          population_returns: `[P]`.
          training_state: leaves `[P, ...]`.
          replay_buffer: leaves `[P, ...]`.

        Raises:
          ValueError: the arguments have different numbers of members, or other than `population_size`.
        """
        return self._update(key, population_returns, training_state, replay_buffer, WHOLE)

    def update_states_and_buffer_pmap(
        self, key: Key, population_returns: Array, training_state: PBTStateT, replay_buffer: ReplayBuffer
    ) -> tuple[PBTStateT, ReplayBuffer]:
        """As `update_states_and_buffer`, inside a mapped axis `"p"` where each device passes its share.

        All members are ranked together.
        """
        return self._update(key, population_returns, training_state, replay_buffer, layout.shares("p"))

    def _update(
        self, key: Key, returns: Array, states: PBTStateT, replay_buffer: ReplayBuffer, shares: Shares
    ) -> tuple[PBTStateT, ReplayBuffer]:
        kind, needed = type(states).__name__, "a PBTTrainingState, such as those of PBTSAC.get_init_fn"
        check(isinstance(states, PBTTrainingState), f"training_state must be {needed}, got {kind}.")
        check(jnp.ndim(returns) == 1, f"population_returns must be mean returns [P], got shape {jnp.shape(returns)}.")
        check_population(returns, states.steps, replay_buffer.state.size)
        total = jax.eval_shape(shares.gather, returns).shape[0]
        check_equal("population_size", self._size, total, "population_returns has {} members")
        states, held, _ = exploit(self._counts, returns, states, key, shares, replay_buffer.state)
        return states, replay_buffer.replace(state=held)


def exploit(
    counts: Counts,
    fitness: Array,
    states: PBTStateT,
    key: Key,
    shares: Shares = WHOLE,
    data: PyTree = (),
    draw_elites: Callable[[Key, int], tuple[Array, PBTStateT]] | None = None,
) -> tuple[PBTStateT, PyTree, Array]:
    """Exploit step of PBT and of ME-PBT (Pierrot 2023, arXiv:2303.12803): see `pbt_emitter.origins`.

    The worst members copy a parent among the best; the next worst load an elite, if there is any. Each gets a new key
    and, by its `resample_hyperparams`, new hyper-parameters. A member with a number in its learned state that is not
    finite ranks last.

    Args:
      counts: for the whole population.
      fitness: of this device's share; the whole population is ranked.
      states: training states of this device's share.
      key: consumed; the first device's counts.
      shares: access to the other devices' shares.
      data: further data that a child copies, e.g. its parent's buffer.
      draw_elites: (key, count) -> `[]` bool, whether there is an elite, and training states `[count, ...]` of elites;
        None: members are only replaced by parents.

    Returns:
      The training states and data of this device's share; and a bool for each of its members, whether it replaced a
      member with non-finite fitness.
    """
    fitness = shares.gather(
        jnp.where(jax.vmap(trees.all_finite)((states.learned, states.normalizer)), fitness, jnp.nan)
    )
    size = fitness.shape[0]
    # Folded with a member's key, which changes over time, because some training loops pass the same key every time.
    raw_key, member_key = shares.gather((jax.random.key_data(typed_key(key))[None], states.key[:1]))
    common_key = jax.random.fold_in(typed_key(raw_key[0]), member_key[0, 0])
    parents_key, elites_key, new_key = jax.random.split(common_key, 3)
    elites_exist, elites = draw_elites(elites_key, size) if draw_elites else (False, None)
    parents, takes_elite = origins(counts, fitness, parents_key, elites_exist=elites_exist)

    members = states.member(buffer=data)
    members = inherit(members, parents, buffers_too=True, move=partial(moved, shares=shares))
    if elites is not None:
        loaded = shares.local(elites).member(buffer=members.buffer)
        members = trees.where(shares.local(takes_elite), loaded, members)
    is_new = takes_elite | (parents != jnp.arange(size))
    new_keys = jax.random.key_data(member_keys(new_key, size))
    new_keys, here, replaced = shares.local((new_keys, is_new, is_new & ~jnp.isfinite(fitness)))
    states = states.of_member(members, key=trees.where(here, new_keys, states.key))
    drawn = jax.vmap(states.resample_hyperparams)(states)
    return trees.where(here, drawn, states), members.buffer, replaced
