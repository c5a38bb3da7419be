"""A user-defined agent, deep deterministic policy gradient (Lillicrap 2016, arXiv:1509.02971), under PBT.

    python examples/own_agent.py

An agent is a set of pure functions for one member; `rookery/agents/base.py` describes each. Hyper-parameters are read
from `hyper`, never from a constant, so that every member of a population has values of its own.
"""

import argparse
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

import rookery
from rookery import gradients, networks, returns
from rookery.hyperparams import Field, LogUniform, OneMinusLog, Uniform, declared
from rookery.types import Array, Key, Observation, PyTree, Scalar, Transition


class Hyper(NamedTuple):
    """What can evolve; the annotations give the meaning, the scale and the default domain."""

    discount: Annotated[Scalar, Field("discount factor", OneMinusLog(0.9, 0.999))] = 0.98
    learning_rate: Annotated[Scalar, Field("learning rate of both networks", LogUniform(1e-4, 1e-2))] = 1e-3
    noise: Annotated[Scalar, Field("standard deviation of the exploration noise", Uniform(0.0, 0.5))] = 0.2
    tau: Annotated[Scalar, Field("averaging rate of the targets", LogUniform, high=1.0)] = 0.01


class Params(NamedTuple):
    """What can be copied into other members."""

    policy: PyTree
    critic: PyTree


class State(NamedTuple):
    """What is learned; it contains no random key."""

    policy: gradients.Learned
    critic: gradients.Learned
    target: Params

    @property
    def params(self) -> Params:
        return Params(self.policy.params, self.critic.params)


def ddpg(spec: rookery.envs.EnvSpec, hidden_sizes: tuple[int, ...] = (64, 64)) -> rookery.agents.OffPolicyAgent:
    read = rookery.agents.reader(spec, "auto")  # images are read by convolutions
    policy = read.network(networks.mlp((read.size,), hidden_sizes, spec.action_size, output_scale=0.01))
    critic = read.network(networks.mlp((read.size, spec.action_size), hidden_sizes, 1))

    def init(key: Key) -> Params:
        policy_key, critic_key = jax.random.split(key)
        return Params(policy.init(policy_key), critic.init(critic_key))

    def start(params: Params) -> State:
        return State(gradients.start(params.policy), gradients.start(params.critic), jax.tree.map(jnp.copy, params))

    def act(params: Params, observation: Observation) -> Array:
        return jnp.tanh(policy.apply(params.policy, observation))

    def explore(state: State, hyper: Hyper, observation: Observation, key: Key) -> Array:
        action = act(state.params, observation)
        return jnp.clip(action + hyper.noise * jax.random.normal(key, action.shape), -1.0, 1.0)

    def critic_loss(params: PyTree, state: State, hyper: Hyper, batch: Transition) -> Array:
        following = batch.next_observation
        value = critic.apply(state.target.critic, following, act(state.target, following))[..., 0]
        target = returns.td_target(batch.reward, batch.terminated, hyper.discount, value)
        return jnp.mean((critic.apply(params, batch.observation, batch.action)[..., 0] - target) ** 2)

    def policy_loss(params: PyTree, state: State, batch: Transition) -> Array:
        action = jnp.tanh(policy.apply(params, batch.observation))
        return -jnp.mean(critic.apply(state.critic.params, batch.observation, action))

    def update(state: State, hyper: Hyper, batch: Transition, noise: PyTree, step: Array) -> tuple[State, dict]:
        del noise, step  # this update draws no random numbers
        loss, slope = jax.value_and_grad(critic_loss)(state.critic.params, state, hyper, batch)
        state = state._replace(critic=gradients.adam(state.critic, slope, hyper.learning_rate))
        slope = jax.grad(policy_loss)(state.policy.params, state, batch)
        state = state._replace(policy=gradients.adam(state.policy, slope, hyper.learning_rate))
        return state._replace(target=gradients.polyak(state.target, state.params, hyper.tau)), {"critic_loss": loss}

    return rookery.agents.OffPolicyAgent(init, start, explore, act, no_noise, update, declared(Hyper))


def no_noise(key: Key, batch_size: int) -> PyTree:
    del key, batch_size
    return ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", default="runs/own_agent")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()

    env = rookery.make("point_maze", episode_length=50)
    agent = ddpg(env.spec, (8,) if options.small else (64, 64))
    rookery.check_agent(agent, env.spec)  # each mistake is one sentence
    config = rookery.learners.OffPolicyConfig(
        num_envs=4,
        steps_per_generation=40 if options.small else 1_000,
        batch_size=8 if options.small else 64,
        buffer_size=20_000,
        warmup_steps=20 if options.small else 500,
    )
    program = rookery.pbt(rookery.off_policy(agent, env, config), population_size=4)
    run = partial(rookery.run, run_dir=options.run_dir, overwrite=True)
    result = run(program, generations=2 if options.small else 15)
    first, last = (float(result.history[place]["fitness"].max()) for place in (0, -1))
    print(f"best return: {first:.1f} in the first generation, {last:.1f} in the last")


if __name__ == "__main__":
    main()
