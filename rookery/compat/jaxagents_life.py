"""The life of a user's actors: `learners.on_policy`, an update at a time, seen as the documented runner and metrics."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat import jaxagents_agent as binding
from rookery.compat.jaxagents_records import HyperParameters, Runner, TrainState
from rookery.envs import api as envs
from rookery.learners import rollout
from rookery.learners.api import Learner, Member
from rookery.learners.on_policy import Actors, OnPolicyConfig, on_policy
from rookery.records import typed
from rookery.types import Array, Genotype, Key


class Life(NamedTuple):
    """Who lives where, and how."""

    parts: binding.Parts
    world: envs.Environment
    learner: Learner  # makes one update in a generation, so that each has start states of its own


def life_of(hooks: Any) -> Life:
    """That of a user's actors; see `jaxagents_agent.parts_of` for errors."""
    parts, size = binding.parts_of(hooks), hooks.config.batch_size
    world = binding.world(parts)
    config = OnPolicyConfig(size, hooks.config.rollout_length, evaluate_every=1, eval_episodes=1, start_states=size)
    return Life(parts, world, on_policy(binding.agent(parts), world, config))


def begin(life: Life, rng: Key, hyperparams: HyperParameters) -> Runner:
    """Nothing learned yet."""
    hyperparams = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), hyperparams)
    bank_key, member_key, rng = jax.random.split(typed(rng), 3)
    bank = life.learner.start_states(bank_key)
    member = life.learner.init(member_key, binding.Hyper(hyperparams.gamma, hyperparams), bank)
    member = member._replace(state=binding.minds(life.parts, member.state, hyperparams))
    return _runner(life, member, rng, jnp.zeros((2,)))


def _runner(life: Life, member: Member, rng: Key, losses: Array) -> Runner:
    lives = member.env_state.lives
    return Runner(
        actor_training=member.state.actor,
        critic_training=member.state.critic,
        envstate=lives.state,
        obs=lives.observation[:, 0].reshape(-1, *life.parts.obs.shape),
        rng=rng,
        hyperparams=member.hyper.documented,
        actor_loss=losses[:1],
        critic_loss=losses[1:],
    )


def learn(life: Life, updates: int, runner: Runner) -> Runner:
    """So many updates; the losses are their means."""
    seen = jax.vmap(partial(binding.shown, life.parts))(runner.obs)
    each = seen.shape[:2]
    member = Member(
        state=binding.Minds(runner.actor_training, runner.critic_training),
        hyper=binding.Hyper(runner.hyperparams.gamma, runner.hyperparams),
        normalizer=None,
        env_state=Actors(rollout.Lives(runner.envstate, seen), jnp.ones(each, bool), jnp.zeros(each)),
        buffer=(),
    )
    (member, rng), losses = jax.lax.scan(partial(_learn_once, life.learner), (member, runner.rng), length=updates)
    return _runner(life, member, rng, jnp.mean(losses, axis=0))


def _learn_once(learner: Learner, carry: tuple[Member, Key], _: None) -> tuple[tuple[Member, Key], Array]:
    member, rng = carry
    rng, bank_key, key = jax.random.split(rng, 3)
    member, told = learner.step(member, learner.start_states(bank_key), key, jnp.zeros((), jnp.int32))
    return (member, rng), jnp.stack([told["actor_loss"], told["critic_loss"]])


def judge(life: Life, n_evals: int, rng: Key, training: TrainState) -> dict[str, Array]:
    """The documented metrics of full episodes, which begin alike whenever the key is the same."""
    bank_key, key = jax.random.split(typed(rng))
    judged = rollout.Judge(partial(binding.act, life.parts), life.world, rollout.EvaluationConfig(), n_evals)
    bank = envs.start_bank(life.world, bank_key, n_evals)
    told = rollout.evaluate(judged, Genotype(training, None, None), bank, key).episodes
    everybody = [str(actor) for actor in range(life.parts.hooks.n_actors)]
    ends = {name: told[f"{name}/0"] > 0 for name in ("terminated", "truncated")}
    columns = {"final_rewards": "final_reward", "returns": "return"}
    return ends | {
        name: jnp.stack([told[f"{column}/{actor}"] for actor in everybody], axis=-1) for name, column in columns.items()
    }
