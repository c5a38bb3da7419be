"""METRA and LSD: skill discovery around any off-policy agent, rewarding distance along the skill in a learned space.

A network phi maps states to a space of the skills' dimension. A transition from s to s' is rewarded by
(phi(s') - phi(s)) . z, so that a skill z moves phi as far as it can in its direction. The methods differ in what limits
phi: LSD makes it 1-Lipschitz, and METRA bounds the distance that one step covers by 1, whatever the states' units.

Sources: Park 2024, "METRA: Scalable Unsupervised RL with Metric-Aware Abstraction" (arXiv:2310.08887); Park 2022,
"Lipschitz-constrained Unsupervised Skill Discovery" (arXiv:2202.00914); spectral norms: Miyato 2018 (arXiv:1802.05957).

Deviation: the reward is computed by phi before its update, not after it, which saves a forward pass. Skills of LSD have
length 1, as those of METRA; the paper draws them from a normal distribution.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rookery import gradients, hyperparams, networks, normalize
from rookery.agents.base import IntrinsicReward, OffPolicyAgent
from rookery.agents.skills import smerl
from rookery.agents.skills.diayn import act, check_discovery, explore, layout_around
from rookery.envs.base import EnvSpec, Previous, SkillSpec, Step
from rookery.features import as_floats
from rookery.hyperparams import Field, LogUniform, Space
from rookery.settings import POSITIVE, Within, config_from
from rookery.types import Array, Hyper, Key, Metrics, Observation, PyTree, Scalar, Transition


@dataclass(frozen=True)
class LsdConfig(smerl.SmerlConfig):
    """The input and the network of phi, and the fitness.

    Raises:
      ValueError: as for `SmerlConfig`, a layer size below 1, or an unknown fitness.
    """

    descriptor_full_state: bool = False
    """Let phi read the whole observation; by default it reads the task's descriptor of a state."""
    phi_hidden_sizes: Annotated[tuple[int, ...], Within(1)] = (256, 256)
    """Widths of the hidden layers of phi."""
    fitness: Literal["distance", "return"] = "distance"
    """Fitness of members: the distance in phi that an episode covers along its skill, or the environment's return."""


@dataclass(frozen=True)
class MetraConfig(LsdConfig):
    """The input and the network of phi, its initial multiplier, and the fitness.

    Raises:
      ValueError: as for `LsdConfig`, or a multiplier that is not above 0.
    """

    initial_dual: Annotated[float, POSITIVE] = 30.0
    """Initial Lagrange multiplier of the bound on the distance in phi of one step."""


class PhiParams(NamedTuple):
    """The parameters that can be copied into other members."""

    agent: PyTree
    """Parameters of the wrapped agent."""
    phi: PyTree
    log_dual: PyTree
    """METRA: `[]`, logarithm of the Lagrange multiplier; LSD: ()."""
    vectors: PyTree
    """LSD: estimates of singular vectors of the kernels of phi, see `normalize.normalize_kernels`; METRA: ()."""


class PhiState(NamedTuple):
    """The learned state of one member."""

    agent: PyTree
    """State of the wrapped agent."""
    phi: gradients.Learned
    log_dual: PyTree
    """METRA: `gradients.Learned` of the logarithm of the multiplier; LSD: ()."""
    vectors: PyTree
    """See `PhiParams.vectors`."""
    returns: PyTree
    """`smerl.Returns`, or () without SMERL."""

    @property
    def params(self) -> PhiParams:
        """The parameters that can be copied into other members."""
        log_dual = self.log_dual.params if self.log_dual != () else ()
        return PhiParams(self.agent.params, self.phi.params, log_dual, self.vectors)


class PhiBindings(NamedTuple):
    """The static arguments that the functions of both methods are bound to."""

    agent: OffPolicyAgent
    skill: SkillSpec
    config: LsdConfig
    phi: networks.Network
    """Features -> S outputs."""
    initial_dual: float | None
    """None: LSD."""


class PhiHyper(NamedTuple):
    """The hyper-parameter that both methods add to those of the wrapped agent."""

    phi_lr: Annotated[Scalar, Field("learning rate of phi", LogUniform(3e-5, 3e-3))] = 3e-4


class DualHyper(NamedTuple):
    """The hyper-parameters of METRA's bound."""

    dual_lr: Annotated[
        Scalar, Field("learning rate of the multiplier of the bound on phi", LogUniform(3e-5, 3e-3), high=1.0)
    ] = 3e-4
    slack: Annotated[
        Scalar, Field("largest credit for a step that stays within the bound on phi", LogUniform, high=1.0)
    ] = 1e-3


def lsd_space(inner: Space, with_smerl: bool = True) -> Space:
    """Extend the wrapped agent's search space by that of phi and, with SMERL, the diversity weight."""
    return smerl.space(hyperparams.join(inner, hyperparams.declared(PhiHyper)), with_smerl)


def metra_space(inner: Space, with_smerl: bool = True) -> Space:
    """Extend the wrapped agent's search space by that of LSD and that of the bound on phi."""
    return hyperparams.join(lsd_space(inner, with_smerl), hyperparams.declared(DualHyper))


def direction(skill: SkillSpec, chosen: Array) -> Array:
    """The direction in phi `[..., S]` that a skill is rewarded for.

    On a sphere it is the skill. A one-hot skill is centred, with 1 for its own dimension and -1 / (S - 1) for the
    others: the rewards of one transition for all skills then add up to 0.
    """
    if skill.kind == "sphere":
        return chosen
    return (chosen * skill.size - 1.0) / (skill.size - 1.0)


class Motion(NamedTuple):
    """The transitions of a batch in phi, `[...]` each."""

    reward: Array
    """Distance along the skill, (phi(s') - phi(s)) . z."""
    squared: Array
    """Squared distance, |phi(s') - phi(s)|^2."""


def motion(skill: SkillSpec, moved: Array, chosen: Array) -> Motion:
    """The distances that transitions cover in phi.

    Args:
      skill: kind and size of the skills.
      moved: phi(s') - phi(s), `[..., S]`.
      chosen: the active skills, `[..., S]`.
    """
    return Motion(jnp.sum(moved * direction(skill, chosen), axis=-1), jnp.sum(jnp.square(moved), axis=-1))


def phi_loss(
    params: PyTree, bindings: PhiBindings, bound: tuple[Array, Scalar] | None, ends: tuple, vectors: PyTree
) -> tuple[Array, tuple]:
    """The loss of phi: the objective of Park 2024, Algorithm 1, with a bound, or of Park 2022 without one.

    Args:
      params: parameters of phi.
      bindings: skills and networks.
      bound: METRA's multiplier and slack, `[]` each; None for LSD.
      ends: features of both states of the transitions, `[B, F]` each, and the active skills `[B, S]`.
      vectors: see `PhiParams.vectors`.

    Returns:
      Scalar `[]`; and the `Motion` `[B]`, the constraint min(slack, 1 - |phi(s') - phi(s)|^2) `[B]` (() for LSD), and
      the new vectors.
    Deviation: none; the squared distance is the sum over the dimensions, of which the authors' code takes the mean.
    """
    before, after, chosen = ends
    if bound is None:
        params, vectors = normalize.normalize_kernels(params, vectors)
    both = bindings.phi.apply(params, jnp.concatenate([before, after]))
    size = before.shape[0]
    moves = motion(bindings.skill, both[size:] - both[:size], chosen)
    if bound is None:
        return -jnp.mean(moves.reward), (moves, (), vectors)
    dual, slack = bound
    constraint = jnp.minimum(slack, 1.0 - moves.squared)
    return -jnp.mean(moves.reward + dual * constraint), (moves, constraint, vectors)


def init(bindings: PhiBindings, key: Key) -> PhiParams:
    """Initialise the agent, phi and its multiplier."""
    if bindings.initial_dual is not None:
        agent_key, phi_key = jax.random.split(key)
        log_dual = jnp.asarray(math.log(bindings.initial_dual), jnp.float32)
        return PhiParams(bindings.agent.init(agent_key), bindings.phi.init(phi_key), log_dual, ())
    agent_key, phi_key, vector_key = jax.random.split(key, 3)
    phi = bindings.phi.init(phi_key)
    vectors = normalize.normalize_kernels(phi, normalize.start_vectors(phi, vector_key), _FIRST_ITERATIONS)[1]
    return PhiParams(bindings.agent.init(agent_key), phi, (), vectors)


_FIRST_ITERATIONS = 10
"""Power iterations for initial parameters, whose vectors are random."""


def start(bindings: PhiBindings, params: PhiParams) -> PhiState:
    """Return a state with new optimisers."""
    log_dual = () if bindings.initial_dual is None else gradients.start(params.log_dual)
    agent, returns = bindings.agent.start(params.agent), smerl.start(bindings.config, bindings.skill)
    return PhiState(agent, gradients.start(params.phi), log_dual, params.vectors, returns)


def update(
    bindings: PhiBindings, state: PhiState, hyper: Hyper, batch: Transition, noise: PyTree, step: Array
) -> tuple[PhiState, Metrics]:
    """Compute the reward, then update phi, its multiplier and the wrapped agent.

    Args:
      bindings: skills, wrapped agent and networks.
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[B, ...]`; observations contain the skill, `extras` are the descriptors of both states.
      noise: noise for the wrapped agent's update.
      step: `[]`, updates before this one; passed to the wrapped agent.

    Returns:
      The new state, and metrics `[]`: those of the wrapped agent, `phi_reward` and `phi_length`, the mean distances
      of a transition along its skill and in any direction; for METRA also `dual`, the multiplier.
    Deviation: the multiplier's gradient is that of its logarithm without the factor of the multiplier, as in the
    authors' code, so that it stays above 0.
    """
    chosen = batch.observation.skill
    assert chosen is not None
    ends = (*_ends(bindings, batch), chosen)
    bound = None
    if bindings.initial_dual is not None:
        bound = jnp.exp(state.log_dual.params), hyperparams.select(DualHyper(), hyper).slack
    loss = partial(phi_loss, bindings=bindings, bound=bound, ends=ends, vectors=state.vectors)
    (_, (moves, constraint, vectors)), gradient = jax.value_and_grad(loss, has_aux=True)(state.phi.params)
    metrics = {"phi_reward": jnp.mean(moves.reward), "phi_length": jnp.mean(jnp.sqrt(moves.squared))}
    log_dual = state.log_dual
    if bound is not None:
        learning_rate = hyperparams.select(DualHyper(), hyper).dual_lr
        log_dual = gradients.adam(log_dual, jnp.mean(constraint), learning_rate)
        metrics["dual"] = bound[0]
    phi = gradients.adam(state.phi, gradient, hyperparams.select(PhiHyper(), hyper).phi_lr)
    rewards = batch.reward, jax.lax.stop_gradient(moves.reward)
    reward, more = smerl.mix(bindings.config, state.returns, hyper, rewards, chosen)
    batch = batch._replace(reward=reward, extras=())
    inner_hyper = hyperparams.select(bindings.agent.space, hyper)
    agent, agent_metrics = bindings.agent.update(state.agent, inner_hyper, batch, noise, step)
    return PhiState(agent, phi, log_dual, vectors, state.returns), {**agent_metrics, **metrics, **more}


def _ends(bindings: PhiBindings, batch: Transition) -> tuple[Array, Array]:
    """The inputs of phi, which never contain the skill, for both states of each transition."""
    if bindings.config.descriptor_full_state:
        return as_floats(batch.observation.features), as_floats(batch.next_observation.features)
    return batch.extras


def keep(bindings: PhiBindings, step: Step) -> PyTree:
    """Return the descriptors of both states of a step, or nothing if phi reads observations."""
    assert step.previous is not None
    return () if bindings.config.descriptor_full_state else (step.previous.descriptor, step.descriptor)


def _map_state(bindings: PhiBindings, params: PhiParams, observation: Observation, descriptor: Array) -> Array:
    """Map one state to its point in phi, `[S]`."""
    phi = params.phi
    if bindings.initial_dual is None:
        phi, _ = normalize.normalize_kernels(phi, params.vectors)
    full_state = bindings.config.descriptor_full_state
    return bindings.phi.apply(phi, as_floats(observation.features) if full_state else descriptor)


def measure(bindings: PhiBindings, params: PhiParams, step: Step) -> Mapping[str, Array]:
    """Return a step's `distance` along the skill and its `phi_step`, the distance in any direction.

    METRA's steps of more than 1 count as steps of length 1 in the distance: what the bound forbids is worth nothing.
    """
    previous, skill = step.previous, step.final_observation.skill
    assert previous is not None
    assert skill is not None
    before = _map_state(bindings, params, previous.observation, previous.descriptor)
    after = _map_state(bindings, params, step.final_observation, step.descriptor)
    moves = motion(bindings.skill, after - before, skill)
    length = jnp.sqrt(moves.squared)
    bound = 1.0 if bindings.initial_dual is None else jnp.maximum(length, 1.0)
    return {"distance": moves.reward / bound, "phi_step": length}


def conclude(
    config: LsdConfig, sums: Mapping[str, Array], returns: Array, lengths: Array
) -> tuple[Array, Mapping[str, Array]]:
    """Return the configured fitness and, for each episode, the distance, the mean length of a step, and the return."""
    step = sums["phi_step"] / jnp.maximum(lengths, 1).astype(jnp.float32)
    episodes = {"distance": sums["distance"], "phi_step": step, "true_return": returns}
    return jnp.mean(episodes["true_return" if config.fitness == "return" else "distance"]), episodes


def towards(bindings: PhiBindings, params: PhiParams, state: Previous, goal: Previous) -> Array:
    """Choose the skill `[S]` that leads from a state to a goal: phi(goal) - phi(state), or the one-hot skill whose
    direction is nearest to it (Park 2024, section 5.3)."""
    difference = _map_state(bindings, params, *goal) - _map_state(bindings, params, *state)
    if bindings.skill.kind == "sphere":
        return difference / jnp.sqrt(jnp.sum(jnp.square(difference)) + 1e-12)
    return jax.nn.one_hot(jnp.argmax(difference), bindings.skill.size)


def _knows_positions(spec: EnvSpec, config: LsdConfig) -> bool:
    """Whether phi reads the position in a state, so that skills can lead to positions."""
    descriptor = spec.descriptor
    if descriptor is None or descriptor.cell is None:
        return False
    return descriptor.observed or not config.descriptor_full_state


def metra(
    agent: OffPolicyAgent, spec: EnvSpec, config: MetraConfig | None = None, **options: Any
) -> OffPolicyAgent[PhiParams, PhiState, Any, Any]:
    """Build METRA around an off-policy agent that was built for `spec`.

    Args:
      agent: SAC, TD3 or a custom agent; it reads the skill of an observation.
      spec: spec of an environment with skills and the state before each step, `skills(env, with_previous=True)`.
      config: phi, its multiplier and the fitness; `**options` are its fields, as keywords instead.

    Raises:
      ValueError: the agent learns on-policy; or the environment has no skills, no state before each step, or no
        descriptor while `descriptor_full_state` is off.

    Example:
      >>> env = rookery.skills(rookery.make("point_room"), 2, "sphere", with_previous=True)
      >>> agent = rookery.agents.metra(rookery.sac(env.spec), env.spec)
    """
    config = config_from(MetraConfig, config, options)
    return _build("METRA", agent, spec, config, config.initial_dual)


def lsd(
    agent: OffPolicyAgent, spec: EnvSpec, config: LsdConfig | None = None, **options: Any
) -> OffPolicyAgent[PhiParams, PhiState, Any, Any]:
    """Build LSD around an off-policy agent that was built for `spec`.

    Arguments and errors are those of `metra`.

    Example:
      >>> env = rookery.skills(rookery.make("point_room"), 2, "sphere", with_previous=True)
      >>> agent = rookery.agents.lsd(rookery.sac(env.spec), env.spec)
    """
    return _build("LSD", agent, spec, config_from(LsdConfig, config, options), None)


def _build(
    method: str, agent: OffPolicyAgent, spec: EnvSpec, config: LsdConfig, initial_dual: float | None
) -> OffPolicyAgent[PhiParams, PhiState, Any, Any]:
    size = check_discovery(method, agent, spec, config.descriptor_full_state)
    assert spec.skill is not None
    if not spec.has_previous:
        raise ValueError(f"{method} reads the state before each step; give skills(env, ..., with_previous=True).")
    phi = networks.mlp((size,), config.phi_hidden_sizes, spec.skill.size)
    bindings = PhiBindings(agent, spec.skill, config, phi, initial_dual)
    return OffPolicyAgent(
        init=partial(init, bindings),
        start=partial(start, bindings),
        explore=partial(explore, agent),
        act=partial(act, agent),
        noise=agent.noise,
        update=partial(update, bindings),
        space=(lsd_space if initial_dual is None else metra_space)(agent.space, config.smerl),
        intrinsic_reward=IntrinsicReward[PhiParams, PhiState](
            partial(keep, bindings),
            partial(smerl.observe, config, spec.skill),
            partial(measure, bindings),
            partial(conclude, config),
            partial(towards, bindings) if _knows_positions(spec, config) else None,
        ),
        encoded_size=agent.encoded_size,
        layout=agent.layout and layout_around(agent.layout),
        normalize=agent.normalize,
        sizes=agent.sizes,
        settings={**agent.settings, method.lower(): vars(config)},
    )
