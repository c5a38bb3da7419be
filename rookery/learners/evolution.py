"""An evolution strategy: the parameters of a policy climb the gradient that random perturbations of them estimate.

Source: Salimans 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (arXiv:1703.03864):
algorithm 2 with antithetic perturbations and rank-shaped fitness (section 2.2), Adam and weight decay (the authors'
code). Observations are normalised by running statistics, as there.

Deviations: the statistics are those of the unperturbed policy, which acts for some steps in each generation; equal
fitnesses share a rank; and weight decay is decoupled from Adam's moments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rookery import gradients, hyperparams, normalize, trees
from rookery.agents.base import ActFn
from rookery.envs.base import Environment
from rookery.envs.check import check_interface
from rookery.envs.wrappers.time_limit import guard_physics
from rookery.hyperparams import Field, LogUniform
from rookery.learners import evaluation, rollout
from rookery.learners.base import Bank, EvaluationConfig, Evaluator, Learner, Member, check_evaluation
from rookery.learners.on_policy import Actors, collect, start_actors
from rookery.settings import RETURN, Within, check_counts, check_fields, config_from
from rookery.types import Array, Evaluation, Genotype, Key, Metrics, Observation, PyTree, Scalar, named

NUM_ENVS, ROLLOUT_LENGTH = 16, 16
"""Environments, and steps of each in a generation, whose observations the statistics take."""


class EsHyper(NamedTuple):
    """Hyper-parameters of an evolution strategy."""

    learning_rate: Annotated[Scalar, Field("step size of Adam", LogUniform(1e-3, 1e-1))] = 0.01
    noise_scale: Annotated[Scalar, Field("standard deviation of the perturbations", LogUniform(5e-3, 0.5))] = 0.05
    weight_decay: Annotated[
        Scalar,
        Field(
            "part of a parameter that a step removes, times the rate", LogUniform(1e-4, 1e-1), zero=True, evolves=False
        ),
    ] = 0.005


SPACE = hyperparams.declared(EsHyper)


@dataclass(frozen=True)
class EvolutionConfig(EvaluationConfig):
    """The trials of an evolution strategy in each generation.

    Raises:
      ValueError: a count below 1.
    """

    directions: Annotated[int, Within(1)] = 64
    """D, random directions in each generation; every one is added to the parameters and subtracted from them, and both
    policies run an episode from the same start state."""
    normalize_observations: bool = True
    """Normalise observations by their running mean and variance, clipped to +-10."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)
        check_evaluation(self)


class Policy(NamedTuple):
    """A deterministic policy that is evolved without gradients."""

    init: Callable[[Key], PyTree]
    """Samples initial parameters; the key is consumed."""
    act: ActFn


class Bindings(NamedTuple):
    """The static arguments that the learner's functions are bound to."""

    policy: Policy
    environment: Environment
    trial: Evaluator
    """Evaluates one episode."""
    config: EvolutionConfig


def ranks(fitness: Array) -> Array:
    """Centred ranks of fitnesses `[M]`, from -0.5 to 0.5; equal fitnesses share the mean of their ranks.

    Those that are not finite have the lowest rank.
    """
    fitness = jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)
    ordered = jnp.sort(fitness)  # comparisons of all pairs would need M^2 numbers
    below, not_above = (jnp.searchsorted(ordered, fitness, side=side).astype(jnp.float32) for side in ("left", "right"))
    return 0.5 * (below + not_above - 1.0) / (len(fitness) - 1) - 0.5


def init(bindings: Bindings, key: Key, hyper: EsHyper, bank: Bank) -> Member[gradients.Learned, EsHyper]:
    """Initialise a member: new parameters, and environments for the statistics of observations."""
    agent_key, begin_key = jax.random.split(key)
    state = gradients.start(bindings.policy.init(agent_key))
    if not bindings.config.normalize_observations:
        return Member(state, hyper, None, (), ())
    statistics = normalize.init(bindings.environment.spec.observation_size)
    return Member(state, hyper, statistics, _start_episodes(bindings, bank, begin_key), ())


def _start_episodes(bindings: Bindings, bank: Bank, key: Key) -> Actors:
    env_batch = rollout.start_environments(bindings.environment, bank, key, NUM_ENVS)
    return start_actors(env_batch, bindings.environment.spec)


def restart(bindings: Bindings, member: Member, bank: Bank, key: Key, needed: Array) -> Member:
    """Reset the environments where `needed`."""
    if member.normalizer is None:
        return member
    return member._replace(env_state=trees.where(needed, _start_episodes(bindings, bank, key), member.env_state))


def step(bindings: Bindings, member: Member, bank: Bank, key: Key, generation: Array) -> tuple[Member, Metrics]:
    """Run the trials of a generation, and move the parameters; see `learners.base.StepFn`."""
    del generation
    hyper, config = member.hyper, bindings.config
    environment, member = rollout.parameterized(SPACE, bindings.environment, member)
    bindings = bindings._replace(environment=environment)
    noise_key, episode_key, act_key = jax.random.split(key, 3)
    mean, unravel = ravel_pytree(member.state.params)
    noise = jax.random.normal(noise_key, (config.directions, len(mean)))
    trial = bindings.trial._replace(environment=environment)

    def run(direction: Array, number: Array) -> Evaluation:
        params = unravel(mean + member.hyper.noise_scale * direction)
        start = trees.take(bank, number[None] % len(jax.tree.leaves(bank)[0]))
        episode = jax.random.fold_in(episode_key, number)
        return evaluation.evaluate(trial, Genotype(params, hyper, member.normalizer), start, episode)

    found = jax.vmap(run)(jnp.concatenate([noise, -noise]), jnp.tile(jnp.arange(config.directions), 2))
    first, second = jnp.split(ranks(found.fitness), 2)
    ascent = (first - second) @ noise / (2 * config.directions * member.hyper.noise_scale)
    state = gradients.adam(member.state, unravel(-ascent), member.hyper.learning_rate, hyper=member.hyper)
    member = _observe(bindings, member, bank, act_key)
    return member._replace(state=state, hyper=hyper), _summarize(bindings, found)


def _observe(bindings: Bindings, member: Member, bank: Bank, key: Key) -> Member:
    """Add observations of the unperturbed policy to the statistics."""
    if member.normalizer is None:
        return member

    def explore(observation: Observation, _: Key) -> tuple[PyTree, Array]:
        observation = rollout.normalize_features(member.normalizer, observation)
        act = jax.vmap(bindings.policy.act, in_axes=(None, 0))
        return act(member.state.params, observation), jnp.zeros(NUM_ENVS)

    keys = jax.random.split(key, ROLLOUT_LENGTH)
    collected = collect(explore, bindings.environment, bank, jnp.ones(()), member.env_state, keys)
    features = collected[1].observation.features
    rows = features.reshape(-1, features.shape[-1])
    return member._replace(env_state=collected[0], normalizer=normalize.update(member.normalizer, rows))


def _summarize(bindings: Bindings, found: Evaluation) -> Metrics:
    """The metrics of the trials, see `rollout.training_returns`, and the number of steps in which the physics broke."""
    known = jnp.isfinite(found.returns[:, 0])
    returns, lengths = (
        jnp.sum(jnp.where(known, values[:, 0].astype(jnp.float32), 0.0)) for values in (found.returns, found.lengths)
    )
    finished = rollout.Finished(jnp.sum(known, dtype=jnp.int32), {RETURN: returns}, lengths)
    finished = jax.tree.map(lambda leaf: leaf[None], finished)
    returns = rollout.training_returns(finished, bindings.environment.spec)
    return {**returns, "broken_steps": jnp.sum(found.broken)}


def evolution_strategy(
    policy: Policy, environment: Environment, config: EvolutionConfig | None = None, **options: Any
) -> Learner[gradients.Learned, EsHyper]:
    """An evolution strategy that trains a policy in an environment (OpenAI-ES; see the module's docstring).

    It needs no gradient of the policy, and no reward in each step: the fitness of an episode is its return, or the
    objective. A generation of a member runs 2 D episodes.

    Args:
      policy: such as `rookery.qd.policy(env.spec)`.
      environment: of one agent.
      config: trials and evaluation; or give its fields as keywords.
      **options: fields of `EvolutionConfig`, instead of `config`.

    Raises:
      ValueError: the environment has no such objective, or runs on the host.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `EvolutionConfig`.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.evolution_strategy(rookery.qd.policy(env.spec), env, directions=8)
      >>> learner.steps_per_generation
      3200
    """
    config = config_from(EvolutionConfig, config, options)
    check_interface(environment)
    if environment.host is not None:
        name, remedy = environment.spec.name, "evolve policies there by rookery.map_elites, or train ppo"
        raise ValueError(f"an evolution strategy needs an environment in JAX, but {name} runs on the host; {remedy}.")
    environment = guard_physics(environment)
    evaluator = evaluation.evaluator(policy.act, environment, config)
    trial = evaluator._replace(episodes=1)
    steps = 2 * config.directions * trial.steps
    check_counts(**{"directions x 2 x steps of an episode": steps})
    bindings = Bindings(policy, environment, trial, config)
    return Learner(
        **evaluation.evaluation_of(evaluator),
        init=partial(init, bindings),
        load_genotype=partial(rollout.load_genotype, gradients.start),
        restart=partial(restart, bindings),
        step=partial(step, bindings),
        trace=partial(evaluation.trace, evaluator),
        spec=environment.spec,
        space=rollout.space_with_parameters(SPACE, environment),
        steps_per_generation=steps,
        evaluation_steps=evaluator.steps,
        settings={**environment.settings, "learner": named("evolution_strategy", config)},
    )
