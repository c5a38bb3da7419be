"""DIAYN: skill discovery around any off-policy agent, rewarding transitions whose skill a discriminator recognises.

Source: Eysenbach 2018, "Diversity is All You Need" (arXiv:1802.06070). The wrapped agent's update is unchanged; its
observations end in a skill, and this module computes its reward. With `smerl` it also learns from the environment's
reward: Kumar 2020, "One Solution is Not All You Need" (arXiv:2010.14484).

Deviation: the temperature of SAC is learned, unless `SacConfig.fix_alpha` is set; Eysenbach 2018 keeps it at 0.1.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rookery import distributions, gradients, hyperparams, networks
from rookery.agents.base import IntrinsicReward, OffPolicyAgent, UpdateLayout, check_continuous
from rookery.agents.skills import smerl
from rookery.envs.base import EnvSpec, SkillSpec, Step
from rookery.features import as_floats
from rookery.hyperparams import Field, LogUniform, Space
from rookery.settings import SettingError, Within, config_from, verbatim
from rookery.types import Array, Hyper, Key, Metrics, Observation, PyTree, Scalar, Transition


@dataclass(frozen=True)
class DiaynConfig(smerl.SmerlConfig):
    """The discriminator's input and network, the diversity reward, and the fitness.

    Raises:
      ValueError: as for `SmerlConfig`, a layer size below 1, or an unknown fitness.
    """

    descriptor_full_state: bool = False
    """Recognise skills from the whole next observation; by default from the task's descriptor of the next state."""
    add_log_p_z: bool = True
    """Reward log q(z | s') - log p(z), which is 0 for a random guess; without it the reward is log q(z | s'), which is
    never above 0, so that with smerl it is not a bonus."""
    discriminator_hidden_sizes: Annotated[tuple[int, ...], Within(1)] = (256, 256)
    """Widths of the discriminator's hidden layers."""
    fitness: Literal["accuracy", "diversity", "return"] = "accuracy"
    """Fitness of members: the discriminator's accuracy in [0, 1], the sum of the diversity reward over an episode, or
    the environment's return."""


class DiaynParams(NamedTuple):
    """The parameters that can be copied into other members."""

    agent: PyTree
    """Parameters of the wrapped agent."""
    discriminator: PyTree


class DiaynState(NamedTuple):
    """The learned state of one member."""

    agent: PyTree
    """State of the wrapped agent."""
    discriminator: gradients.Learned
    returns: PyTree
    """`smerl.Returns`, or () without SMERL."""

    @property
    def params(self) -> DiaynParams:
        """The parameters that can be copied into other members."""
        return DiaynParams(self.agent.params, self.discriminator.params)


class DiaynBindings(NamedTuple):
    """The static arguments that DIAYN's functions are bound to."""

    agent: OffPolicyAgent
    skill: SkillSpec
    config: DiaynConfig
    discriminator: networks.Network
    """Features -> S outputs."""


class Guess(NamedTuple):
    """The discriminator's result for a state and the skill that led to it; `[...]` each."""

    log_ratio: Array
    """log q(z | s') - log p(z), in nats."""
    accuracy: Array
    """1 for a correct prediction, else 0; on a sphere (1 + cosine) / 2 between predicted direction and skill."""


class DiaynHyper(NamedTuple):
    """The hyper-parameter that DIAYN adds to those of the wrapped agent."""

    discriminator_lr: Annotated[Scalar, Field("learning rate of the discriminator", LogUniform(3e-5, 3e-3))] = 3e-4


DISCOUNT = 0.97  # for episodes of about 100 steps


def space(inner: Space, with_smerl: bool = True) -> Space:
    """Extend the wrapped agent's search space by the discriminator's learning rate and, with SMERL, the diversity
    weight.

    The default discount becomes 0.97, whatever the wrapped agent's default is.
    """
    joined = smerl.space(hyperparams.join(inner, hyperparams.declared(DiaynHyper)), with_smerl)
    if "discount" in joined.defaults._fields:
        joined = joined._replace(defaults=joined.defaults._replace(discount=DISCOUNT))
    return joined


def guess(skill: SkillSpec, outputs: Array, chosen: Array) -> Guess:
    """Compare the discriminator's outputs with the skill that was active.

    Args:
      skill: kind and size of the skills.
      outputs: `[..., S]`: logits, or a direction times its concentration.
      chosen: `[..., S]`, the active skill.

    Returns:
      Log ratio and accuracy, `[...]` each.
    """
    if skill.kind == "sphere":
        length = jnp.sqrt(jnp.sum(jnp.square(outputs), axis=-1) + 1e-12)
        cosine = jnp.sum(outputs * chosen, axis=-1) / length
        return Guess(distributions.direction_log_ratio(outputs, chosen), 0.5 * (1.0 + cosine))
    index = jnp.argmax(chosen, axis=-1).astype(jnp.int32)
    log_prob = distributions.categorical_log_prob(outputs, index)
    correct = (jnp.argmax(outputs, axis=-1) == index).astype(jnp.float32)
    return Guess(log_prob + math.log(skill.size), correct)


def log_prior(skill: SkillSpec) -> float:
    """Log density p(z) of the uniform prior, in nats; for one-hot skills the log probability."""
    return -(math.log(skill.size) if skill.kind == "one-hot" else distributions.direction_log_area(skill.size))


def discriminator_loss(params: PyTree, bindings: DiaynBindings, features: Array, chosen: Array) -> tuple[Array, Guess]:
    """Cross-entropy of the skill given the next state (Eysenbach 2018, Algorithm 1).

    Args:
      params: parameters of the discriminator.
      bindings: skills and networks.
      features: `[B, F]`, of the true successors, which are also the inputs of the reward.
      chosen: `[B, S]`, the active skills.

    Returns:
      Scalar `[]` in nats, and the guesses `[B]`.
    Deviation: none.
    """
    guesses = guess(bindings.skill, bindings.discriminator.apply(params, features), chosen)
    return -jnp.mean(guesses.log_ratio) - log_prior(bindings.skill), guesses


def init(bindings: DiaynBindings, key: Key) -> DiaynParams:
    """Initialise the agent and the discriminator; the initial discriminator predicts all skills with equal
    probability."""
    agent_key, discriminator_key = jax.random.split(key)
    return DiaynParams(bindings.agent.init(agent_key), bindings.discriminator.init(discriminator_key))


def start(bindings: DiaynBindings, params: DiaynParams) -> DiaynState:
    """Return a state with new optimisers and empty statistics of the skills' returns."""
    returns = smerl.start(bindings.config, bindings.skill)
    return DiaynState(bindings.agent.start(params.agent), gradients.start(params.discriminator), returns)


def layout_around(inner: UpdateLayout) -> UpdateLayout:
    """The layout of the wrapped agent's updates, for a state that contains its state as `agent`."""

    def change(change_agent: Callable, state: PyTree) -> PyTree:
        return state._replace(agent=change_agent(state.agent))

    return inner._replace(pack=partial(change, inner.pack), unpack=partial(change, inner.unpack))


def explore(agent: OffPolicyAgent, state: PyTree, hyper: Hyper, observation: Observation, key: Key) -> Array:
    """Return the wrapped agent's exploratory action; its state is `state.agent`."""
    return agent.explore(state.agent, hyperparams.select(agent.space, hyper), observation, key)


def act(agent: OffPolicyAgent, params: PyTree, observation: Observation) -> Array:
    """Return the wrapped agent's deterministic action; its parameters are `params.agent`."""
    return agent.act(params.agent, observation)


def update(
    bindings: DiaynBindings, state: DiaynState, hyper: Hyper, batch: Transition, noise: PyTree, step: Array
) -> tuple[DiaynState, Metrics]:
    """Compute the diversity reward, then update the discriminator and the wrapped agent.

    Args:
      bindings: skills, wrapped agent and networks.
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[B, ...]`; observations contain the skill, `extras` is the true successor's descriptor.
      noise: noise for the wrapped agent's update.
      step: `[]`, updates before this one; passed to the wrapped agent.

    Returns:
      The new state, and metrics `[]`: those of the wrapped agent, `discriminator_loss` (nats),
      `discriminator_accuracy`, `diversity_reward` (nats) and, with SMERL, `diverse`, the share of rows that are
      rewarded for diversity.
    """
    chosen = batch.observation.skill
    assert chosen is not None
    features = _features(bindings, batch.next_observation, batch.extras)
    loss = partial(discriminator_loss, bindings=bindings, features=features, chosen=chosen)
    (loss_value, guesses), gradient = jax.value_and_grad(loss, has_aux=True)(state.discriminator.params)
    metrics = {
        "discriminator_loss": loss_value,
        "discriminator_accuracy": jnp.mean(guesses.accuracy),
        "diversity_reward": jnp.mean(guesses.log_ratio),
    }
    reward = guesses.log_ratio if bindings.config.add_log_p_z else guesses.log_ratio + log_prior(bindings.skill)
    rewards = batch.reward, jax.lax.stop_gradient(reward)
    reward, more = smerl.mix(bindings.config, state.returns, hyper, rewards, chosen)
    batch = batch._replace(reward=reward, extras=())
    inner_hyper = hyperparams.select(bindings.agent.space, hyper)
    agent, agent_metrics = bindings.agent.update(state.agent, inner_hyper, batch, noise, step)
    learning_rate = hyperparams.select(DiaynHyper(), hyper).discriminator_lr
    discriminator = gradients.adam(state.discriminator, gradient, learning_rate)
    return DiaynState(agent, discriminator, state.returns), {**agent_metrics, **metrics, **more}


def keep(bindings: DiaynBindings, step: Step) -> PyTree:
    """Return the next state's descriptor, or nothing if the discriminator reads the next observation."""
    return () if bindings.config.descriptor_full_state else step.descriptor


def measure(bindings: DiaynBindings, params: DiaynParams, step: Step) -> Mapping[str, Array]:
    """Return a step's diversity reward, in nats and independent of `add_log_p_z`, and the discriminator's accuracy."""
    features, skill = _features(bindings, step.final_observation, step.descriptor), step.final_observation.skill
    assert skill is not None
    result = guess(bindings.skill, bindings.discriminator.apply(params.discriminator, features), skill)
    return {"diversity_return": result.log_ratio, "accuracy": result.accuracy}


def conclude(
    config: DiaynConfig, sums: Mapping[str, Array], returns: Array, lengths: Array
) -> tuple[Array, Mapping[str, Array]]:
    """Return the configured fitness and, for each episode, the mean accuracy, the diversity return and the true
    return."""
    accuracy = sums["accuracy"] / jnp.maximum(lengths, 1).astype(jnp.float32)
    episodes = {"accuracy": accuracy, "diversity_return": sums["diversity_return"], "true_return": returns}
    name = {"accuracy": "accuracy", "diversity": "diversity_return", "return": "true_return"}[config.fitness]
    return jnp.mean(episodes[name]), episodes


def _features(bindings: DiaynBindings, next_observation: Observation, descriptor: Array) -> Array:
    """Return the discriminator's input, which never contains the skill."""
    return as_floats(next_observation.features) if bindings.config.descriptor_full_state else descriptor


def freeze_skill(params: PyTree, spec: EnvSpec, skill: Array, encoded_size: int | None = None) -> PyTree:
    """Return the wrapped agent's parameters for one skill, for the environment without skills: equal actions and
    values.

    Args:
      params: parameters of an agent that discovers skills; those of the wrapped agent are `params.agent`.
      spec: spec of the environment with skills that the agent was built for.
      skill: `[S]`.
      encoded_size: of the wrapped agent.
    """
    features = spec.observation_size if encoded_size is None else encoded_size
    start = spec.input_size - skill.shape[0] - spec.observation_size + features
    return networks.freeze_inputs(params.agent, start, skill)


def check_discovery(method: str, agent: OffPolicyAgent, spec: EnvSpec, full_state: bool) -> int:
    """Check what a method of skill discovery is built from.

    Args:
      method: its name, for messages.
      agent: the agent to wrap.
      spec: spec of the environment.
      full_state: whether the method reads whole observations, not the task's descriptor.

    Returns:
      Number of features of a state that it reads.

    Raises:
      ValueError: the agent learns on-policy; or the environment has discrete actions, no skills, or no descriptor to
        read.
    """
    if not isinstance(agent, OffPolicyAgent):
        raise ValueError(f"{method} needs an agent that learns from stored transitions, such as rookery.sac(spec).")
    check_continuous(spec, method, wraps=True)
    if spec.skill is None:
        raise ValueError(f"{method} needs an environment with skills; wrap it: skills({spec.name}, num_skills=5).")
    if spec.descriptor is None and not full_state:
        problem = f"is needed, since {verbatim(spec.name)} has no descriptor to recognise skills by"
        raise SettingError("descriptor_full_state", None, problem, "turn it on, or choose a task that has one")
    return spec.observation_size if full_state else spec.descriptor_size


def diayn(
    agent: OffPolicyAgent, spec: EnvSpec, config: DiaynConfig | None = None, **options: Any
) -> OffPolicyAgent[DiaynParams, DiaynState, Any, Any]:
    """Build DIAYN around an off-policy agent that was built for `spec`; with `smerl` in the config, SMERL.

    Args:
      agent: SAC, TD3 or a custom agent; it reads the skill of an observation.
      spec: spec of an environment with skills (`rookery.skills`).
      config: discriminator, reward and fitness.
      **options: fields of `DiaynConfig`, instead of `config`.

    Raises:
      ValueError: the agent learns on-policy; or the environment has no skills, or no descriptor while
        `descriptor_full_state` is off.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `DiaynConfig`.

    Example:
      >>> env = rookery.skills(rookery.make("point_room"))
      >>> agent = rookery.diayn(rookery.sac(env.spec), env.spec)
    """
    config = config_from(DiaynConfig, config, options)
    size = check_discovery("DIAYN", agent, spec, config.descriptor_full_state)
    assert spec.skill is not None
    bindings = DiaynBindings(
        agent=agent,
        skill=spec.skill,
        config=config,
        # The last layer is so small that the initial discriminator is uniform and the first rewards are 0.
        discriminator=networks.mlp((size,), config.discriminator_hidden_sizes, spec.skill.size, output_scale=1e-12),
    )
    return OffPolicyAgent(
        init=partial(init, bindings),
        start=partial(start, bindings),
        explore=partial(explore, agent),
        act=partial(act, agent),
        noise=agent.noise,
        update=partial(update, bindings),
        space=space(agent.space, config.smerl),
        intrinsic_reward=IntrinsicReward(
            partial(keep, bindings),
            partial(smerl.observe, config, spec.skill),
            partial(measure, bindings),
            partial(conclude, config),
        ),
        encoded_size=agent.encoded_size,
        layout=agent.layout and layout_around(agent.layout),
        normalize=agent.normalize,
        sizes=agent.sizes,
        settings={**agent.settings, "diayn": vars(config)},
    )
