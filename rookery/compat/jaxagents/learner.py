"""Training and evaluation of an agent of user-defined functions (`agent`) in a user-defined environment.

A `Runner` is the state of training as one flat record, which can be inspected, stored and continued from.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.jaxagents import agent, stages
from rookery.compat.jaxagents import environment as adapter
from rookery.compat.jaxagents.agent import TrainState, TrainStates, UserFunctions
from rookery.compat.records import Record
from rookery.envs.base import Environment
from rookery.learners import rollout
from rookery.learners.base import Learner, Member
from rookery.learners.on_policy import OnPolicyConfig, on_policy, start_actors
from rookery.types import Array, Genotype, Key


class Sizes(NamedTuple):
    """Loop lengths of training, at least 1 each."""

    num_envs: int
    """E, number of parallel environments."""
    rollout_length: int
    """T, steps of each environment per update."""
    actor_epochs: int
    """Passes over each rollout for the actors."""
    critic_epochs: int
    """Passes over each rollout for the critics."""
    minibatches: int
    """Minibatches per epoch."""


class TrainingSetup(NamedTuple):
    """Agent, environment, learner and evaluation settings of one training."""

    bindings: agent.AgentBindings
    environment: Environment
    learner: Learner
    """Makes one update per generation, so that every update has new start states."""
    episodes: int
    """N, episodes of each evaluation during training; 0 for no evaluations."""
    key: Key | None
    """Key of every evaluation during training, raw or typed."""


class Runner(Record):
    """State of training between updates."""

    actor_training: Any
    """`TrainState` of the actor network."""
    critic_training: Any
    """`TrainState` of the critic network."""
    envstate: Any
    """`[E, ...]`."""
    obs: Any
    """`[E, ...]`."""
    rng: Any
    """One typed key for all environments."""
    hyperparams: Any
    actor_loss: Any
    """`[1]`, mean over the updates since the last evaluation."""
    critic_loss: Any
    """`[1]`, mean over the updates since the last evaluation."""


def training_setup(
    functions: UserFunctions,
    networks: tuple[Any, Any],
    environment: adapter.TimeLimit,
    params: Any,
    sizes: Sizes,
    episodes: int = 0,
    key: Key | None = None,
) -> TrainingSetup:
    """Build agent, environment and learner from user-defined parts.

    Args:
      functions: user-defined functions of the agent.
      networks: actor and critic network, with `init` and `apply`.
      environment: the user-defined environment with its time limit.
      params: parameters passed to the environment.
      sizes: loop lengths.
      episodes: episodes of each evaluation during training; 0 for no evaluations.
      key: key of every evaluation during training.

    Raises:
      ValueError: there is not one action per agent, or the minibatches do not divide the rollout; outputs of the other
        functions are checked when they are traced.
    """
    epochs, envs = (sizes.actor_epochs, sizes.critic_epochs), sizes.num_envs
    obs = adapter.observation_shape(environment, params)
    bindings = agent.bind(agent.AgentBindings(functions, networks, environment.count, obs, epochs, sizes.minibatches))
    team = adapter.team_environment(environment, params, bindings.action)
    config = OnPolicyConfig(envs, sizes.rollout_length, evaluate_every=1, eval_episodes=1, start_states=envs)
    return TrainingSetup(bindings, team, on_policy(agent.agent(bindings), team, config), episodes, key)


def begin(setup: TrainingSetup, rng: Key, hyper: Any) -> Runner:
    """Initialise a runner. The key, raw or typed, is consumed; leaves of `hyper` are `[]`."""
    hyper = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), hyper)
    member, rng = stages.begin(setup.learner, rng, agent.Hyper(hyper, jnp.ones(())))
    member = member._replace(state=agent.init_optimizers(setup.bindings, member.state, hyper))
    return _runner(setup, stages.TrainingState(member, rng), jnp.zeros((1,)), jnp.zeros((1,)))


def learn(setup: TrainingSetup, updates: int, runner: Runner) -> Runner:
    """Make `updates` updates; the losses are means over them."""
    observations = jax.vmap(partial(adapter.shared_observation, setup.bindings.count))(runner.obs)
    member = Member(
        state=TrainStates(runner.actor_training, runner.critic_training),
        hyper=agent.Hyper(runner.hyperparams, jnp.ones(())),
        normalizer=None,
        env_state=start_actors(rollout.EnvBatchState(runner.envstate, observations)),
        buffer=(),
    )
    state, metrics = stages.learn(setup.learner, updates, stages.TrainingState(member, runner.rng))
    return _runner(setup, state, metrics["actor_loss"][None], metrics["critic_loss"][None])


def _runner(setup: TrainingSetup, state: stages.TrainingState, actor_loss: Array, critic_loss: Array) -> Runner:
    member, env_batch = state.member, state.member.env_state.lives
    return Runner(
        actor_training=member.state.actor,
        critic_training=member.state.critic,
        envstate=env_batch.state,
        obs=env_batch.observation[:, 0].reshape(-1, *setup.bindings.obs.shape),
        rng=state.key,
        hyperparams=member.hyper.user,
        actor_loss=actor_loss,
        critic_loss=critic_loss,
    )


def evaluator(setup: TrainingSetup, episodes: int, rng: Key, training: TrainState) -> dict[str, Array]:
    """Evaluate the actors in full episodes; equal keys, raw or typed, give equal start states.

    Returns:
      `terminated` and `truncated`, `[N]` bool; `final_rewards` and `returns`, `[N, I]`.
    """
    deterministic = rollout.Evaluator(
        partial(agent.deterministic_actions, setup.bindings), setup.environment, rollout.EvaluationConfig(), episodes
    )
    metrics = stages.evaluate(deterministic, Genotype(training, None, None), rng).episodes
    ends = {name: metrics[f"{name}/0"] > 0 for name in ("terminated", "truncated")}
    agents, columns = range(setup.bindings.count), {"final_rewards": "final_reward", "returns": "return"}
    return ends | {
        name: jnp.stack([metrics[f"{column}/{agent_index}"] for agent_index in agents], axis=-1)
        for name, column in columns.items()
    }


def report(setup: TrainingSetup, runner: Runner) -> dict[str, Array]:
    """Metrics of a runner: its evaluation, `actor_loss` and `critic_loss` `[1]`; empty if `episodes` is 0."""
    if not setup.episodes:
        return {}
    metrics = evaluator(setup, setup.episodes, setup.key, runner.actor_training)  # pyright: ignore[reportArgumentType] - one each
    return {**metrics, "actor_loss": runner.actor_loss, "critic_loss": runner.critic_loss}


def first_runner(
    setup: TrainingSetup, rng: Key, hyper: Any, before: Runner | None = None
) -> tuple[Runner, dict[str, Array]]:
    """The first runner of a training and its metrics.

    With `before`, training continues from that runner under the new hyper-parameters.
    """
    runner, none = begin(setup, rng, hyper), jnp.zeros((1,))
    if before is not None:
        runner = before.replace(hyperparams=runner.hyperparams, actor_loss=none, critic_loss=none)
    return runner, report(setup, runner)


def stage(setup: TrainingSetup, updates: int, runner: Runner) -> tuple[Runner, dict[str, Array]]:
    """Make `updates` updates and compute the metrics."""
    runner = learn(setup, updates, runner)
    return runner, report(setup, runner)


def train(
    setup: TrainingSetup, counts: list[int], rng: Key, hyper: Any, before: Runner | None = None
) -> tuple[Runner, dict[str, Array]]:
    """Train as one pure function, which can be mapped over keys and hyper-parameters.

    `counts` are those of `stages.stage_counts`.

    Returns:
      The final runner, and the metrics before training and after each stage, `[len(counts) + 1, ...]`.
    """
    return stages.scan_stages(partial(stage, setup), counts, *first_runner(setup, rng, hyper, before))
