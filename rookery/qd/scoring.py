"""Search problems: any function of a pytree, policies of an environment, and the agents of a learner."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rookery import hyperparams, networks, trees
from rookery.agents import discrete
from rookery.agents.base import check_spec
from rookery.agents.encoders import EncoderName, reader
from rookery.envs import base as envs
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.check import check_interface
from rookery.envs.tasks.functions import Function
from rookery.envs.wrappers.teams import check_alone
from rookery.hyperparams import Space
from rookery.learners import widths
from rookery.learners.base import EvaluationConfig, Learner, genotype
from rookery.learners.evaluation import evaluation_of, evaluator, more_episodes
from rookery.learners.evolution import Policy
from rookery.populations.stages import no_start_states, without_bank
from rookery.qd.base import Bank, Scoring
from rookery.settings import SettingError, Within, check_fields, check_numbers, config_from, type_of
from rookery.types import Array, Evaluation, Genotype, GenotypeT, HyperT, Key, Observation, PyTree, StateT


def function_scoring(
    score: Callable[[GenotypeT, Key], tuple[Array, Array] | tuple[Array, Array, Mapping[str, Array]]],
    init: Callable[[Key], GenotypeT],
    lower: Sequence[float],
    upper: Sequence[float],
    qd_offset: float = 0.0,
    bounds: tuple[float, float] | None = None,
    name: str = "function",
) -> Scoring[GenotypeT]:
    """Search problem with a user-defined function of a user-defined pytree.

    Args:
      score: one genotype and a key -> its fitness `[]`, higher is better, its descriptor `[D]`, and, if it returns
        three results, name -> further values, which are stored with an elite (`Repertoire.extras`).
      init: a key -> an initial genotype, of floating-point numbers, or of whole numbers (an integer type), which stay
        whole.
      lower: `[D]`, the lower limits of the descriptor. A genotype with a descriptor outside of the limits competes for
        the nearest cell, and is counted in the metric `outside`.
      upper: `[D]`, the upper limits of the descriptor.
      qd_offset: the fitness that counts as 0 in the QD score, finite.
      bounds: lower and upper bound to which every number of a genotype is clipped.
      name: the name of the task, recorded with a saved repertoire.

    Returns:
      The scoring.

    Raises:
      ValueError: the limits are of size 0, of different sizes, or do not increase; the bounds are not finite, or do not
        increase; or the offset is not finite.
      TypeError: `init` is no function.

    Example:
      >>> def square(x, key):
      ...     return -jnp.sum(x**2), x[:2]
      >>> def init(key):
      ...     return jax.random.normal(key, (8,))
      >>> scoring = rookery.qd.function_scoring(square, init, lower=(-1.0, -1.0), upper=(1.0, 1.0))
    """
    lowest, highest = (tuple(np.atleast_1d(trees.unmasked(side, np.float64)).tolist()) for side in (lower, upper))
    descriptor = envs.descriptor_spec("descriptor", "final", lowest, highest)
    check_numbers(Within(), qd_offset=qd_offset)
    if bounds is not None and not (len(bounds) == 2 and trees.has_finite_range(*bounds) and bounds[0] < bounds[1]):
        raise ValueError(
            f"bounds must be two finite numbers, the lower one first, got {bounds}; their difference must be finite."
        )
    if not callable(init):
        raise TypeError(f"init must be a function from a key to one genotype, got {type_of(init)}.")
    return Scoring(
        name=name,
        init_genotype=partial(without_bank, init),
        start_states=no_start_states,
        evaluate=partial(_evaluate_function, score, descriptor.size),
        descriptor=descriptor,
        qd_offset=qd_offset,
        steps=1,
        bounds=bounds,
    )


def host_scoring(
    score: Callable[[Any, np.ndarray], tuple[npt.ArrayLike, npt.ArrayLike]] | None,
    init: Callable[[Key], GenotypeT],
    lower: Sequence[float],
    upper: Sequence[float],
    qd_offset: float = 0.0,
    bounds: tuple[float, float] | None = None,
    name: str = "function",
) -> Scoring[GenotypeT]:
    """Search problem with a function outside of JAX, such as a simulator, which scores a whole batch on the host.

    It must depend on its arguments alone. With several devices it is called for each device's share of the batch, one
    call at a time. An exception in it ends the run, whose newest checkpoint is complete.

    Args:
      score: genotypes as NumPy arrays, leaves `[B, ...]`, and seeds `[B]` uint32 -> the fitness `[B]`, higher is
        better, and the descriptors `[B, D]`. A genotype is rejected if its scores are not finite. None for a
        `Search`, to which the scores are given.
      init: as for `function_scoring`, a function of JAX.
      lower: `[D]`, as for `function_scoring`.
      upper: `[D]`, as for `function_scoring`.
      qd_offset: as for `function_scoring`.
      bounds: as for `function_scoring`.
      name: as for `function_scoring`.

    Returns:
      The scoring.

    Raises:
      ValueError: the limits are of size 0, of different sizes, or do not increase.

    Example:
      >>> def score(genotypes, seeds):
      ...     return -np.square(genotypes).sum(axis=1), genotypes[:, :2]
      >>> def init(key):
      ...     return jax.random.normal(key, (8,))
      >>> scoring = rookery.qd.host_scoring(score, init, lower=(-1.0, -1.0), upper=(1.0, 1.0))
    """
    on_host = partial(_score_on_host, score, len(np.atleast_1d(np.asarray(lower))))
    return function_scoring(on_host, init, lower, upper, qd_offset, bounds, name)


def _score_on_host(score: Callable | None, size: int, genotype: PyTree, key: Key) -> tuple[Array, Array]:
    shapes = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((size,), jnp.float32)
    call, seed = partial(_score_batch, score, size), jax.random.bits(key, (), jnp.uint32)
    return jax.pure_callback(call, shapes, genotype, seed, vmap_method="broadcast_all")


def _score_batch(score: Callable | None, size: int, genotypes: PyTree, seeds: Array) -> tuple[np.ndarray, np.ndarray]:
    """Score genotypes with leading axes, which the seeds have too, as one batch."""
    if score is None:
        raise ValueError("the genotypes are evaluated outside, by a Search; give a scoring function to run a program.")
    leading = np.shape(seeds)
    count = int(np.prod(leading))
    rows = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(count, *leaf.shape[len(leading) :]), genotypes)
    with _ONE_CALL:
        scores = score(rows, np.asarray(seeds).reshape(count))
    if not isinstance(scores, tuple | list) or len(scores) != 2:
        raise ValueError(f"the scoring function must return fitnesses and descriptors, got {type_of(scores)}.")
    fitness, descriptors = (trees.unmasked(values, np.float32) for values in scores)
    if fitness.shape != (count,) or descriptors.shape != (count, size):
        raise ValueError(
            f"the scoring function must return fitnesses [{count}] and descriptors [{count}, {size}] for {count} "
            f"genotypes, got the shapes {list(fitness.shape)} and {list(descriptors.shape)}."
        )
    return fitness.reshape(leading), descriptors.reshape(*leading, size)


_ONE_CALL = threading.Lock()


def named_scoring(function: Function) -> Scoring[Array]:
    """Search problem of a benchmark function, e.g. `named_scoring(function("arm"))`.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> arm.name
      'arm'
    """
    score, descriptor = partial(_without_key, function.score), function.descriptor
    limits = descriptor.lower, descriptor.upper
    scoring = function_scoring(score, function.init, *limits, function.worst_fitness, function.bounds, function.name)
    # The function's descriptor also states its meaning.
    return scoring._replace(descriptor=descriptor, settings={"dimensions": function.size})


def _without_key(score: Callable[[Array], tuple[Array, Array]], genotype: Array, key: Key) -> tuple[Array, Array]:
    del key  # the function is deterministic
    return score(genotype)


def _evaluate_function(score: Callable, size: int, genotype: PyTree, bank: Bank, key: Key) -> Evaluation:
    del bank
    first, second, *rest = score(genotype, key)
    fitness, descriptor = (jnp.asarray(value, jnp.float32) for value in (first, second))
    if fitness.shape != () or descriptor.shape != (size,):
        raise ValueError(
            f"the scoring function must return a fitness [] and a descriptor [{size}] for one genotype, got the shapes "
            f"{list(fitness.shape)} and {list(descriptor.shape)}."
        )
    return evaluation_outside(fitness, descriptor)._replace(extras=rest[0] if rest else {})


def evaluation_outside(fitness: Array, descriptor: Array) -> Evaluation:
    """The evaluation of one genotype without an episode from its fitness `[]` and its descriptor `[D]`."""
    one, none = jnp.ones((1,), jnp.int32), jnp.zeros((), jnp.int32)
    return Evaluation(fitness, descriptor, fitness[None], one, broken=none)


@dataclass(frozen=True)
class PolicyConfig:
    """The network of a policy that is evolved without gradients.

    Raises:
      ValueError: a layer size below 1.
    """

    hidden_sizes: Annotated[tuple[int, ...], Within(1)] = (64, 64)
    """Widths of the policy's hidden layers."""
    encoder: EncoderName = "auto"
    """How the policy reads observations: nature or small, convolutional encoders of images (Mnih 2015; MinAtar, Young
    2019); none, as a vector; auto, by the size of the image, and none for vectors."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        check_fields(self)


def policy(spec: EnvSpec, config: PolicyConfig | None = None, encoder: networks.Encoder | None = None) -> Policy:
    """Create a policy network. The action is tanh of its output, or its argmax if actions are discrete.

    Only actions that the observation's mask allows are chosen; the action is -1 if the output is not finite. A
    user-defined `encoder` reads the features, as in `sac`.

    Raises:
      ValueError: the spec is that of a multi-agent environment, or the encoder cannot read the features.

    Example:
      >>> env = rookery.make("point_room")
      >>> actor = rookery.qd.policy(env.spec, rookery.qd.PolicyConfig(hidden_sizes=(32,)))
    """
    check_spec(spec, "a policy")
    check_alone(spec)
    config = config_from(PolicyConfig, config, {})
    read = reader(spec, config.encoder, encoder)
    network = read.network(networks.mlp((read.size,), config.hidden_sizes, spec.action_size))
    return Policy(network.init, partial(_act, network, spec))


def policy_scoring(
    environment: Environment,
    config: PolicyConfig | None = None,
    evaluation: EvaluationConfig | None = None,
    encoder: networks.Encoder | None = None,
) -> Scoring[Genotype[PyTree, tuple[()]]]:
    """Search problem of deterministic policies of an environment, evolved without gradients.

    A genotype contains the parameters of `policy(environment.spec, config)`.

    Args:
      environment: a task with a descriptor.
      config: the network of the policy.
      evaluation: the episodes of an evaluation.
      encoder: a user-defined network that reads the features, as in `sac`.

    Returns:
      The scoring.

    Raises:
      ValueError: the task has no descriptor or several agents, the encoder cannot read the features, or the environment
        differs from its spec.

    Example:
      >>> env = rookery.make("point_room")
      >>> scoring = rookery.qd.policy_scoring(env)
    """
    check_interface(environment)
    evaluation, spec = evaluation or EvaluationConfig(), environment.spec
    evolved = policy(spec, config, encoder)
    evaluates = evaluator(evolved.act, environment, evaluation)
    return Scoring(
        name=spec.name,
        init_genotype=partial(_init_policy, evolved),
        **evaluation_of(evaluates),
        descriptor=descriptor_of(spec),
        qd_offset=0.0 if evaluation.objective else worst_return(spec),
        steps=evaluates.steps,
        settings={**environment.settings, "policy": vars(config or PolicyConfig()), "evaluation": vars(evaluation)},
    )


def with_episodes(scoring: Scoring[GenotypeT], episodes: int) -> Scoring[GenotypeT]:
    """The same scoring with another number of evaluation episodes; unchanged if it runs none."""
    if scoring.evaluator is None:
        return scoring
    evaluates = more_episodes(scoring.evaluator, episodes)
    return scoring._replace(**evaluation_of(evaluates), steps=evaluates.steps)


def with_extras(scoring: Scoring[GenotypeT], extras: Callable[[Evaluation], Mapping[str, Array]]) -> Scoring[GenotypeT]:
    """The same scoring, with values of an evaluation that are stored with each elite.

    They are `Repertoire.extras` and `Elite.extras`; numbers are also columns `extra/NAME` of `repertoire.csv`.

    Args:
      scoring: of policies or agents; a function of `function_scoring` can return them itself.
      extras: the evaluation of one genotype -> name -> values to store.

    Example:
      >>> scoring = rookery.qd.policy_scoring(rookery.make("point_room"))
      >>> scoring = rookery.qd.with_extras(scoring, lambda found: {"shortest": found.lengths.min()})
    """
    return scoring._replace(extras=extras)


def _init_policy(evolved: Policy, key: Key, bank: Bank) -> Genotype[PyTree, tuple[()]]:
    del bank
    return Genotype(evolved.init(key), (), None)


def _act(network: networks.Network, spec: EnvSpec, params: PyTree, observation: Observation) -> Array:
    output = network.apply(params, observation)
    return discrete.greedy(output, observation.action_mask, spec.categories) if spec.discrete else jnp.tanh(output)


def learner_scoring(
    learner: Learner[StateT, HyperT], space: Space[HyperT] | None = None
) -> Scoring[Genotype[Any, HyperT]]:
    """Search problem of the agents of a learner.

    A genotype contains an agent's parameters, hyper-parameters and observation statistics.

    Args:
      learner: evaluates a genotype as it evaluates its members.
      space: the hyper-parameters of initial genotypes are sampled from it; the agent's default space if None.

    Returns:
      The scoring.

    Raises:
      ValueError: the task has no descriptor, or the space has the width of the networks.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env)
      >>> scoring = rookery.qd.learner_scoring(learner)
    """
    if widths.evolves(learner, (space or learner.space).defaults):
        raise ValueError(
            f"{widths.NAME} cannot be chosen with a repertoire, whose variations mix the parameters of two elites."
        )
    if learner.rate_training is not None:
        problem = "has no effect with a repertoire, which needs the descriptors of evaluations"
        raise SettingError("fitness_from", "training", problem, "leave it out")
    return Scoring(
        name=learner.spec.name,
        init_genotype=partial(_init_agent, learner, space or learner.space),
        start_states=learner.start_states,
        evaluate=learner.evaluate,
        descriptor=descriptor_of(learner.spec),
        qd_offset=0.0 if learner.evaluator and learner.evaluator.config.objective else worst_return(learner.spec),
        steps=learner.evaluation_steps,
        evaluator=learner.evaluator,
        settings=learner.settings,
    )


def _init_agent(learner: Learner[Any, HyperT], space: Space[HyperT], key: Key, bank: Bank) -> Genotype[Any, HyperT]:
    hyper_key, init_key = jax.random.split(key)
    return genotype(learner.init(init_key, hyperparams.sample(space, hyper_key), bank))


def descriptor_of(spec: EnvSpec) -> envs.DescriptorSpec:
    """The descriptor of a task.

    Raises:
      ValueError: the task has no descriptor.
    """
    if spec.descriptor is None:
        raise ValueError(
            f"{spec.name} has no descriptor, which quality diversity needs; tasks that have one are "
            f"{', '.join(registry.described())}; a user-defined environment declares it in its spec."
        )
    return spec.descriptor


def worst_return(spec: EnvSpec) -> float:
    """The return that counts as 0 in a QD score: minus the task's `qd_offset`, times the length of a full episode."""
    return -spec.qd_offset * spec.episode_length
