"""The life of a joint agent (`agents.joint`) in a world of one's own (`envs.joint`), for loops of one's own.

A `Runner` is a training in flight as one flat record, to be looked at, stored, and gone on from.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.jaxagents import agent, stages
from rookery.compat.jaxagents import environment as worlds
from rookery.compat.jaxagents.agent import TrainState, TrainStates, UserFunctions
from rookery.compat.records import Record
from rookery.envs.base import Environment
from rookery.learners import rollout
from rookery.learners.base import Learner, Member
from rookery.learners.on_policy import OnPolicyConfig, going_on, on_policy
from rookery.types import Array, Genotype, Key


class Sizes(NamedTuple):
    """Trip counts of a life, at least 1 each."""

    num_envs: int  # E
    rollout_length: int  # T
    actor_epochs: int  # passes over each rollout
    critic_epochs: int
    minibatches: int


class Life(NamedTuple):
    """Who lives where, and how."""

    bindings: agent.AgentBindings
    world: Environment
    learner: Learner  # makes one update in a generation, so that each has start states of its own
    episodes: int  # N, of the judgements while training; 0 for none
    key: Key | None  # raw or typed, of each of them


class Runner(Record):
    """A training in flight."""

    actor_training: Any
    critic_training: Any
    envstate: Any  # [E, ...]
    obs: Any  # [E, ...]
    rng: Any  # one typed key for all
    hyperparams: Any
    actor_loss: Any  # [1], mean over the updates since the last look
    critic_loss: Any


def life(
    own: UserFunctions,
    networks: tuple[Any, Any],
    world: worlds.TimeLimit,
    params: Any,
    sizes: Sizes,
    episodes: int = 0,
    key: Key | None = None,
) -> Life:
    """Bind what one brings.

    Args:
      own: the functions.
      networks: of actors and critics, with `init` and `apply`.
      world: within its time limit.
      params: handed on to it.
      sizes: trip counts.
      episodes: of each judgement while training; 0 for none.
      key: of all judgements.

    Raises:
      ValueError: there is not one action for each agent, or the minibatches do not fit; what other functions return is
        checked when they are traced.
    """
    epochs, envs = (sizes.actor_epochs, sizes.critic_epochs), sizes.num_envs
    obs = worlds.shape(world, params)
    bindings = agent.bind(agent.AgentBindings(own, networks, world.count, obs, epochs, sizes.minibatches))
    team = worlds.team(world, params, bindings.action)
    config = OnPolicyConfig(envs, sizes.rollout_length, evaluate_every=1, eval_episodes=1, start_states=envs)
    return Life(bindings, team, on_policy(agent.agent(bindings), team, config), episodes, key)


def begin(life: Life, rng: Key, hyper: Any) -> Runner:
    """Nothing learned yet; the key, raw or typed, is consumed. Leaves of `hyper` are `[]`."""
    hyper = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), hyper)
    member, rng = stages.begin(life.learner, rng, agent.Hyper(hyper, jnp.ones(())))
    member = member._replace(state=agent.equip(life.bindings, member.state, hyper))
    return _runner(life, stages.Underway(member, rng), jnp.zeros((1,)), jnp.zeros((1,)))


def learn(life: Life, updates: int, runner: Runner) -> Runner:
    """So many updates; the losses are their means."""
    seen = jax.vmap(partial(worlds.shown, life.bindings.count))(runner.obs)
    member = Member(
        state=TrainStates(runner.actor_training, runner.critic_training),
        hyper=agent.Hyper(runner.hyperparams, jnp.ones(())),
        normalizer=None,
        env_state=going_on(rollout.EnvBatchState(runner.envstate, seen)),
        buffer=(),
    )
    now, told = stages.learn(life.learner, updates, stages.Underway(member, runner.rng))
    return _runner(life, now, told["actor_loss"][None], told["critic_loss"][None])


def _runner(life: Life, now: stages.Underway, actor_loss: Array, critic_loss: Array) -> Runner:
    member, lives = now.member, now.member.env_state.lives
    return Runner(
        actor_training=member.state.actor,
        critic_training=member.state.critic,
        envstate=lives.state,
        obs=lives.observation[:, 0].reshape(-1, *life.bindings.obs.shape),
        rng=now.key,
        hyperparams=member.hyper.own,
        actor_loss=actor_loss,
        critic_loss=critic_loss,
    )


def evaluator(life: Life, episodes: int, rng: Key, training: TrainState) -> dict[str, Array]:
    """Full episodes of the actors, which begin alike whenever the key, raw or typed, is the same.

    Returns:
      `terminated` and `truncated`, `[N]` bool; `final_rewards` and `returns`, `[N, I]`.
    """
    judged = rollout.Evaluator(partial(agent.follow, life.bindings), life.world, rollout.EvaluationConfig(), episodes)
    told = stages.evaluate(judged, Genotype(training, None, None), rng).episodes
    ends = {name: told[f"{name}/0"] > 0 for name in ("terminated", "truncated")}
    everybody, columns = range(life.bindings.count), {"final_rewards": "final_reward", "returns": "return"}
    return ends | {
        name: jnp.stack([told[f"{column}/{one}"] for one in everybody], axis=-1) for name, column in columns.items()
    }


def look(life: Life, runner: Runner) -> dict[str, Array]:
    """What a training reports: the evaluation, `actor_loss` and `critic_loss` `[1]`; nothing without episodes."""
    if not life.episodes:
        return {}
    told = evaluator(life, life.episodes, life.key, runner.actor_training)  # pyright: ignore[reportArgumentType] - one each
    return {**told, "actor_loss": runner.actor_loss, "critic_loss": runner.critic_loss}


def enter(life: Life, rng: Key, hyper: Any, before: Runner | None = None) -> tuple[Runner, dict[str, Array]]:
    """Where a training begins, anew or where another ended, under hyper-parameters of its own; and a look."""
    runner, none = begin(life, rng, hyper), jnp.zeros((1,))
    if before is not None:
        runner = before.replace(hyperparams=runner.hyperparams, actor_loss=none, critic_loss=none)
    return runner, look(life, runner)


def stage(life: Life, updates: int, runner: Runner) -> tuple[Runner, dict[str, Array]]:
    """So many updates, and a look."""
    runner = learn(life, updates, runner)
    return runner, look(life, runner)


def train(
    life: Life, counts: list[int], rng: Key, hyper: Any, before: Runner | None = None
) -> tuple[Runner, dict[str, Array]]:
    """A training as one pure function, to be mapped over keys and hyper-parameters; `counts` from `by_stages.stages`.

    Returns:
      Where it ended, and what was told at first and after each stage, `[len(counts) + 1, ...]`.
    """
    return stages.through(partial(stage, life), counts, *enter(life, rng, hyper, before))
