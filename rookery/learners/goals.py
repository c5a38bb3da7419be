"""Zero-shot goal reaching: episodes whose skill is chosen anew in each step, so that it leads to a goal.

Source: Park 2024, "METRA: Scalable Unsupervised RL with Metric-Aware Abstraction" (arXiv:2310.08887), section 5.3.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.envs.base import DescriptorSpec, Previous
from rookery.learners.base import Bank, Evaluator
from rookery.learners.evaluation import act_once, start_episodes
from rookery.learners.rollout import EnvBatchState, normalize_features
from rookery.types import Array, Genotype, Key, Observation


class GoalEpisodes(NamedTuple):
    """Distances from the goals, in the unit of the descriptor."""

    goals: Array
    """`[N, D]`."""
    at_start: Array
    """`[N]`, distance of the start state."""
    left: Array
    """`[N]`, distance of the last state of the episode; NaN if the physics broke."""


def check_goals(evaluator: Evaluator) -> DescriptorSpec:
    """Return the descriptor whose limits contain the goals.

    Raises:
      ValueError: the task's descriptor is not a position, or the agent's skills do not lead to positions.
    """
    spec = evaluator.environment.spec
    if spec.descriptor is None or spec.descriptor.cell is None:
        raise ValueError(
            f"{spec.name} has no goals, since it has no descriptor that is a position; choose a run on a task such as "
            "point_room or ant_omni."
        )
    if evaluator.intrinsic_reward is None or evaluator.intrinsic_reward.towards is None:
        raise ValueError(
            f"the policies of this run on {spec.name} cannot be given goals, which needs skills of METRA or LSD whose "
            "phi reads the position; train metra or lsd, without descriptor_full_state where an observation does not "
            "start with the position."
        )
    return spec.descriptor


def reach_goals(evaluator: Evaluator, genotype: Genotype, bank: Bank, key: Key, count: int) -> GoalEpisodes:
    """Run one deterministic episode for each of `count` goals, drawn uniformly between the limits of the descriptor.

    Args:
      evaluator: its agent's intrinsic reward has `towards`, see `check_goals`.
      genotype: the policy.
      bank: at least `count` start states.
      key: consumed.
      count: N.
    """
    descriptor = check_goals(evaluator)
    lower, upper = jnp.asarray(descriptor.lower), jnp.asarray(descriptor.upper)
    goal_key, env_key = jax.random.split(key)
    goals = jax.random.uniform(goal_key, (count, descriptor.size), minval=lower, maxval=upper)
    start = start_episodes(evaluator.environment, bank, count), trees.take(bank[1].descriptor, jnp.arange(count))
    advance = partial(_advance, evaluator, genotype, goals, env_key)
    times = jnp.arange(evaluator.environment.spec.episode_length)
    (_, last, _), _ = jax.lax.scan(advance, (*start, jnp.ones((count,), bool)), times)
    return GoalEpisodes(goals, jnp.linalg.norm(start[1] - goals, axis=-1), jnp.linalg.norm(last - goals, axis=-1))


def _advance(
    evaluator: Evaluator,
    genotype: Genotype,
    goals: Array,
    key: Key,
    carry: tuple[EnvBatchState, Array, Array],
    time: Array,
) -> tuple[tuple[EnvBatchState, Array, Array], None]:
    env_batch, place, active = carry
    seen, wanted = env_batch.observation, _at(evaluator, env_batch.observation, goals)
    assert evaluator.intrinsic_reward is not None
    assert evaluator.intrinsic_reward.towards is not None
    pair = [
        Previous(normalize_features(genotype.normalizer, observation), descriptor)
        for observation, descriptor in ((seen, place), (wanted, goals))
    ]
    skill = jax.vmap(evaluator.intrinsic_reward.towards, in_axes=(None, 0, 0))(genotype.params, *pair)
    chosen = env_batch._replace(observation=seen._replace(skill=skill))
    env_batch, _, step, _ = act_once(evaluator, genotype, chosen, jax.random.fold_in(key, time))
    reached = jnp.where(step.broken[:, None], jnp.nan, step.descriptor)
    place = jnp.where(active[:, None], reached, place)
    return (env_batch, place, active & ~step.ended), None


def _at(evaluator: Evaluator, observation: Observation, goals: Array) -> Observation:
    """The observations `[N, ...]` with the goals as positions, where observations start with the position."""
    descriptor = evaluator.environment.spec.descriptor
    assert descriptor is not None
    if not descriptor.observed:
        return observation
    return observation._replace(features=observation.features.at[:, : descriptor.size].set(goals))
