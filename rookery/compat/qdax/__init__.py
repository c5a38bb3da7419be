"""QDax's documented classes for PBT, ME-PBT and DIAYN.

`docs/migrating.md` lists the differences from QDax and the equivalents in Rookery's own API.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rookery.agents import diayn
from rookery.compat.qdax import (
    environments,  # noqa: F401
    off_policy,
)
from rookery.compat.qdax.algorithms import *  # noqa: F403 - what each module names in __all__ is documented
from rookery.compat.qdax.algorithms import SAC, Learner
from rookery.compat.qdax.env_batch import BatchState as State
from rookery.compat.qdax.env_batch import first_episodes, unroll
from rookery.compat.qdax.figures import *  # noqa: F403
from rookery.compat.qdax.map_elites import *  # noqa: F403
from rookery.compat.qdax.populations import *  # noqa: F403
from rookery.compat.qdax.records import *  # noqa: F403
from rookery.compat.qdax.records import DiaynTrainingState, QDTransition
from rookery.compat.records import check, check_counts
from rookery.envs import base as envs
from rookery.learners import rollout
from rookery.types import Array, Key, PyTree


class DIAYN(Learner):
    """Skill discovery around SAC (Eysenbach 2018, arXiv:1802.06070)."""

    kind, row = DiaynTrainingState, QDTransition
    select_action = SAC.select_action

    def init(self, key: Key, action_size: int, observation_size: int, descriptor_size: int) -> DiaynTrainingState:
        """Initialise a training state.

        Args:
          key: consumed.
          action_size: A; a `ValueError` if it differs from the constructor's.
          observation_size: size of an observation without the skill.
          descriptor_size: size of the discriminator's input.
        """
        config, size = self._config, observation_size
        check_counts(observation_size=size, descriptor_size=descriptor_size)
        fits = not config.descriptor_full_state or descriptor_size == size
        check(
            fits,
            f"descriptor_full_state needs descriptor_size {size}, the size of observations; got {descriptor_size}.",
        )
        agent = self._agent(observation_size + config.num_skills, descriptor_size)
        return self._init_state(key, action_size, observation_size, agent)

    def play_step_fn(
        self, env_state: State, training_state: Any, skills: Array, env: Any, deterministic: bool = False
    ) -> tuple[State, Any, QDTransition]:
        """Step E environments, with each environment's skill `[E, num_skills]` appended to its observations.

        Raises:
          ValueError: `skills` has another shape; or the environment has no descriptor and `descriptor_full_state` is
            off.
        """
        fitting = (*env_state.reward.shape, self._config.num_skills)
        check(skills.shape == fitting, f"skills must be {fitting} here, got {skills.shape}.")
        named, full = "state_descriptor" in env_state.info, self._config.descriptor_full_state
        check(
            named or full, f"{env.name} has no descriptor; use a task with a descriptor, or descriptor_full_state=True."
        )
        after, agent, fields = self._play(env_state, training_state, env, deterministic, deterministic, skills)
        no_descriptor = jnp.zeros((*env_state.reward.shape, 2))
        before, reached = (
            env_state.info.get("state_descriptor", no_descriptor),
            after.info.get("final_state_descriptor", no_descriptor),
        )
        return after, agent, QDTransition(*fields, before, reached)  # pyright: ignore[reportCallIssue]

    def eval_policy_fn(
        self, training_state: Any, eval_env_first_state: State, play_step_fn: Callable, env_batch_size: int
    ) -> tuple[Array, Array, Array, Array]:
        """Evaluate in one episode per environment.

        Returns:
          Mean environment return `[]`, environment returns `[E]`, diversity returns `[E]`, and the state descriptors
          before each step `[T, E, D]`, which repeat the last one after the end of an episode.
        """
        size = eval_env_first_state.reward.shape[0]
        check(
            size == env_batch_size,
            f"env_batch_size is {env_batch_size}, but eval_env_first_state has {size} environments; make them equal.",
        )
        outputs = unroll(play_step_fn, eval_env_first_state, training_state, self._config.episode_length)[2]
        returns, after = first_episodes(outputs.rewards, outputs.dones, outputs.actions)
        normalized = outputs.replace(next_obs=rollout.view(training_state.normalizer, outputs.next_obs))
        rewards = self._compute_diversity_reward(normalized, training_state.discriminator_params)
        diverse, _ = first_episodes(rewards, outputs.dones, outputs.actions)
        last = jnp.minimum(jnp.arange(after.shape[0])[:, None], jnp.sum(~after, axis=0)[None] - 1)
        reached = jnp.take_along_axis(outputs.state_desc, last[..., None], axis=0)
        return jnp.mean(returns), returns, diverse, reached

    def _compute_diversity_reward(
        self, transition: QDTransition, discriminator_params: PyTree, add_log_p_z: bool = True
    ) -> Array:
        """Diversity reward `[...]` of transitions `[..., O + K]`, in nats.

        It is `log q(z | s') - log p(z)`, or `log q(z | s')` without `add_log_p_z`.
        """
        config, obs = self._config, transition.next_obs
        agent = self._agent(obs.shape[-1], transition.next_state_desc.shape[-1])
        skill = obs[..., -config.num_skills :]
        step = envs.first_step(obs, transition.next_state_desc)._replace(pursued=envs.SkillInfo(skill, jnp.zeros(())))
        assert agent.intrinsic_reward is not None
        reward = agent.intrinsic_reward.measure(diayn.DiaynParams((), discriminator_params), step)["diversity_return"]
        return reward if add_log_p_z else reward + diayn.log_prior(envs.SkillSpec("one-hot", config.num_skills))


warmstart_buffer, do_iteration_fn = off_policy.warmstart_buffer, off_policy.do_iteration_fn
