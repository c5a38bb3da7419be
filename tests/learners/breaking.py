"""An environment whose physics breaks where a policy makes it break."""

import jax
import jax.numpy as jnp

import rookery
from rookery.envs.base import Environment, EnvSpec, Team, descriptor_spec, first_step, next_step
from rookery.envs.wrappers.time_limit import limit_episode
from rookery.learners.base import Learner
from rookery.learners.off_policy import OffPolicyConfig

EDGE = 0.3


def breaking(reward: float, length: int = 50, team: bool = False) -> Environment:
    """A place on a line: every step has the same reward, and beyond the edge the physics breaks.

    It is not guarded: learners do that. In a team two agents share the place, and the first moves it.
    """
    agents = (2,) if team else ()
    spec = EnvSpec("breaking", 1, 1, length, descriptor=descriptor_spec("final x", "final", (-3.0,), (EDGE,)))
    spec = spec._replace(measures={"steps": "number of steps"})
    spec = spec._replace(team=Team(("left", "right"), (1, 1), (1, 1))) if team else spec

    def features(place: jax.Array) -> jax.Array:
        return jnp.broadcast_to(place, (*agents, 1))

    def reset(key):
        place = jax.random.uniform(key, (1,), minval=-0.1, maxval=0.1)
        return place, first_step(features(place), place, measures={"steps": jnp.zeros(())})

    def step(state, action, key):
        del key
        place = state + 0.2 * action.reshape(-1)[:1]
        place = jnp.where(place > EDGE, jnp.nan, place)
        got = jnp.where(jnp.isnan(place[0]), jnp.nan, reward)
        rewards, over, one = jnp.broadcast_to(got, agents), jnp.zeros(agents, bool), {"steps": jnp.ones(())}
        return place, next_step(features(place), rewards, over, place, measures=one)

    return limit_episode(Environment(reset, step, spec), length)


def learner_of(agent: str, reward: float) -> Learner:
    """A small learner of an agent on the line."""
    env = breaking(reward)
    if agent == "ppo":
        ppo = rookery.ppo(env.spec, hidden_sizes=(16,), minibatches=4, actor_epochs=4, critic_epochs=4)
        return rookery.on_policy(ppo, env, num_envs=8, rollout_length=64, evaluate_every=2)
    if agent == "es":
        policy = rookery.qd.policy(env.spec, rookery.qd.PolicyConfig(hidden_sizes=(16,)))
        learner = rookery.evolution_strategy(policy, env, directions=16, eval_episodes=4, start_states=8)
        return learner._replace(space=rookery.choose(learner.space, noise_scale=0.3, learning_rate=0.1))
    config = OffPolicyConfig(10, 500, 0.5, 32, 5000, 200, eval_episodes=4, start_states=8)
    made = {"sac": rookery.sac, "td3": rookery.td3}[agent](env.spec, hidden_sizes=(16,))
    return rookery.off_policy(made, env, config)
