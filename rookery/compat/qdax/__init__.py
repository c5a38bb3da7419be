"""QDax's documented classes for PBT, ME-PBT and DIAYN; `docs/migrating.md` has the differences and our own way."""

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
        """A newborn training state; observations are without a skill, descriptors what the discriminator looks at."""
        config, size = self._config, observation_size
        check_counts(observation_size=size, descriptor_size=descriptor_size)
        fits = not config.descriptor_full_state or descriptor_size == size
        check(fits, f"descriptor_full_state looks at observations of size {size}, not of {descriptor_size}.")
        agent = self._agent(observation_size + config.num_skills, descriptor_size)
        return self._newborn(key, action_size, observation_size, agent)

    def play_step_fn(
        self, env_state: State, training_state: Any, skills: Array, env: Any, deterministic: bool = False
    ) -> tuple[State, Any, QDTransition]:
        """One step of the environments, each under its skill, `[E, num_skills]`, which observations end in. Without a
        descriptor, and with `descriptor_full_state` off, an environment is a `ValueError`."""
        fitting = (*env_state.reward.shape, self._config.num_skills)
        check(skills.shape == fitting, f"skills must be {fitting} here, got {skills.shape}.")
        named, full = "state_descriptor" in env_state.info, self._config.descriptor_full_state
        check(named or full, f"{env.name} has no descriptor; take a task that has one, or descriptor_full_state=True.")
        after, agent, fields = self._play(env_state, training_state, env, deterministic, deterministic, skills)
        nothing = jnp.zeros((*env_state.reward.shape, 2))
        before, reached = (
            env_state.info.get("state_descriptor", nothing),
            after.info.get("final_state_descriptor", nothing),
        )
        return after, agent, QDTransition(*fields, before, reached)  # pyright: ignore[reportCallIssue]

    def eval_policy_fn(
        self, training_state: Any, eval_env_first_state: State, play_step_fn: Callable, env_batch_size: int
    ) -> tuple[Array, Array, Array, Array]:
        """An episode in each environment: mean true return `[]`, true returns `[E]`, diversity returns `[E]`, and the
        state descriptors before each step `[T, E, D]`; after an episode's end its last one stays."""
        size = eval_env_first_state.reward.shape[0]
        check(
            size == env_batch_size, f"env_batch_size is {env_batch_size}, but there are states of {size} environments."
        )
        told = unroll(play_step_fn, eval_env_first_state, training_state, self._config.episode_length)[2]
        returns, after = first_episodes(told.rewards, told.dones, told.actions)
        seen = told.replace(next_obs=rollout.view(training_state.normalizer, told.next_obs))
        rewards = self._compute_diversity_reward(seen, training_state.discriminator_params)
        diverse, _ = first_episodes(rewards, told.dones, told.actions)
        last = jnp.minimum(jnp.arange(after.shape[0])[:, None], jnp.sum(~after, axis=0)[None] - 1)
        reached = jnp.take_along_axis(told.state_desc, last[..., None], axis=0)
        return jnp.mean(returns), returns, diverse, reached

    def _compute_diversity_reward(
        self, transition: QDTransition, discriminator_params: PyTree, add_log_p_z: bool = True
    ) -> Array:
        """`log q(z | s') - log p(z)`, or without the latter, of transitions `[..., O + K]`; `[...]`, in nats."""
        config, obs = self._config, transition.next_obs
        agent = self._agent(obs.shape[-1], transition.next_state_desc.shape[-1])
        skill = obs[..., -config.num_skills :]
        step = envs.first_step(obs, transition.next_state_desc)._replace(pursued=envs.SkillInfo(skill, jnp.zeros(())))
        assert agent.intrinsic_reward is not None
        reward = agent.intrinsic_reward.measure(diayn.DiaynParams((), discriminator_params), step)["diversity_return"]
        return reward if add_log_p_z else reward + diayn.log_prior(envs.SkillSpec("one-hot", config.num_skills))


warmstart_buffer, do_iteration_fn = off_policy.warmstart_buffer, off_policy.do_iteration_fn
