"""Skill discovery around any off-policy agent: a discriminator guesses the skill, and who is recognised is rewarded.

Source: Eysenbach 2018, "Diversity is All You Need" (arXiv:1802.06070). The agent that is wrapped learns as it always
does, from observations that end in a skill and from a reward that is made here. With `smerl` it also learns the world's
own reward: Kumar 2020, "One Solution is Not All You Need" (arXiv:2010.14484).

Deviation: the temperature of SAC is learned, unless `SacConfig.fix_alpha` is set; Eysenbach 2018 keeps it at 0.1.
"""

import collections
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import jax
import jax.numpy as jnp

from rookery import distributions, gradients, hyperparams, networks
from rookery.agents import smerl
from rookery.agents.base import Agent, IntrinsicReward, check_hidden_sizes
from rookery.envs.base import EnvSpec, SkillSpec, Step
from rookery.hyperparams import Field, LogUniform, Space, Uniform
from rookery.types import Array, Hyper, Key, Metrics, PyTree, Transition


@dataclass(frozen=True)
class DiaynConfig:
    """What the discriminator looks at, and what skills are rewarded and judged by.

    Raises:
      ValueError: a layer size below 1, an unknown fitness, or SMERL's numbers out of range or without SMERL.
    """

    descriptor_full_state: bool = False
    """Recognise skills by the whole next observation; by default by the task's descriptor of the state reached."""
    add_log_p_z: bool = True
    """Reward log q(z | s') - log p(z), which is 0 for a guess at random; without, only log q(z | s'), which is never
    above 0 and so, with smerl, no bonus."""
    discriminator_hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the discriminator's hidden layers (at least 1)."""
    fitness: Literal["accuracy", "diversity", "return"] = "accuracy"
    """What members are judged by: the discriminator's accuracy in [0, 1], the sum of the diversity reward over an
    episode, or the environment's own return."""
    smerl: bool = False
    """Learn the environment's reward, and add the diversity reward for skills whose return is near the best; fitness
    `return` then selects by what is learned."""
    smerl_target: float | None = None
    """The return that counts as best; by default a share of the greatest running mean that any skill has had."""
    smerl_fraction: float = 0.9
    """The share of the greatest running mean that is the target where none is given, in (0, 1]."""
    smerl_margin: float = 0.0
    """By how much a skill's return may miss the target and still be rewarded for diversity (at least 0)."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_hidden_sizes(self.discriminator_hidden_sizes, name="discriminator_hidden_sizes")
        known = get_args(get_type_hints(type(self))["fitness"])
        if self.fitness not in known:
            raise ValueError(f"fitness must be one of {known}, got {self.fitness!r}.")
        if not 0.0 < self.smerl_fraction <= 1.0:
            raise ValueError(f"smerl_fraction must lie in (0, 1], got {self.smerl_fraction}.")
        if self.smerl_margin < 0.0:
            raise ValueError(f"smerl_margin must not be negative, got {self.smerl_margin}.")
        if self.smerl_target is not None and self.smerl_fraction != DiaynConfig.smerl_fraction:
            raise ValueError("smerl_fraction makes a target where none is given; give it or smerl_target, not both.")
        told = self.smerl_target is not None or self.smerl_margin or self.smerl_fraction != DiaynConfig.smerl_fraction
        if told and not self.smerl:
            raise ValueError(
                "smerl_target, smerl_fraction and smerl_margin say nothing without smerl; turn it on or drop them."
            )


class DiaynParams(NamedTuple):
    """The genome."""

    agent: PyTree  # the wrapped agent's
    discriminator: PyTree


class DiaynState(NamedTuple):
    """What one member has learned."""

    agent: PyTree  # the wrapped agent's state
    discriminator: gradients.Learned
    returns: PyTree  # `smerl.Returns`, or () without SMERL

    @property
    def params(self) -> DiaynParams:
        """The genome."""
        return DiaynParams(self.agent.params, self.discriminator.params)


class DiaynBindings(NamedTuple):
    """What DIAYN is bound to."""

    agent: Agent
    skill: SkillSpec
    config: DiaynConfig
    discriminator: networks.Network  # what it looks at -> S numbers
    hyper: type  # of the wrapped agent


class Guess(NamedTuple):
    """What the discriminator says of one state and the skill that led there; `[...]` each."""

    log_ratio: Array  # log q(z | s') - log p(z), in nats
    accuracy: Array  # 1 where it is right, else 0; on a sphere (1 + cosine) / 2 between its direction and the skill


DISCRIMINATOR_LR = Field("Adam's step size for the discriminator", LogUniform)
DIVERSITY_SCALE = Field("SMERL's weight of the diversity reward", LogUniform)
DISCOUNT = 0.97  # for episodes of about 100 steps


def space(inner: Space, with_smerl: bool = True) -> Space:
    """The wrapped agent's search space and the discriminator's rate; with SMERL the weight of the diversity reward.

    The default discount becomes 0.97, whatever the wrapped agent's is.
    """
    own = {"discriminator_lr": 3e-4, **({"diversity_scale": 1.0} if with_smerl else {})}
    domains = {"discriminator_lr": LogUniform(3e-5, 3e-3), "diversity_scale": LogUniform(0.1, 10.0)}
    fields = {"discriminator_lr": DISCRIMINATOR_LR, "diversity_scale": DIVERSITY_SCALE}
    # What an agent of one's own declares nothing of must still be there to be chosen.
    inner_fields = inner.fields or dict.fromkeys(inner.defaults._fields, Field("", Uniform, low=-math.inf))
    values = {**inner.defaults._asdict(), **own}
    if "discount" in values:
        values["discount"] = DISCOUNT
    return hyperparams.space(
        _hyper_type(type(inner.defaults), with_smerl)(**values),
        {**inner.domains, **{name: domains[name] for name in own}},
        {**inner_fields, **{name: fields[name] for name in own}},
    )


@functools.cache
def _hyper_type(inner: Any, with_smerl: bool) -> Any:
    """One type per wrapped agent, so that two calls of `diayn` give trees of one structure."""
    own = ("discriminator_lr", "diversity_scale") if with_smerl else ("discriminator_lr",)
    return collections.namedtuple("DiaynHyper", (*inner._fields, *own))  # known at run time


def guess(skill: SkillSpec, outputs: Array, chosen: Array) -> Guess:
    """What the discriminator's outputs say of the skill that was chosen.

    Args:
      skill: its kind.
      outputs: `[..., S]`: logits, or a direction times its concentration.
      chosen: `[..., S]`, the skill.
    """
    if skill.kind == "sphere":
        length = jnp.sqrt(jnp.sum(jnp.square(outputs), axis=-1) + 1e-12)
        cosine = jnp.sum(outputs * chosen, axis=-1) / length
        return Guess(distributions.direction_log_ratio(outputs, chosen), 0.5 * (1.0 + cosine))
    index = jnp.argmax(chosen, axis=-1).astype(jnp.int32)
    log_prob = distributions.categorical_log_prob(outputs, index)
    right = (jnp.argmax(outputs, axis=-1) == index).astype(jnp.float32)
    return Guess(log_prob + math.log(skill.size), right)


def log_prior(skill: SkillSpec) -> float:
    """Log density p(z) of the uniform prior, in nats; of one-hot skills the log probability."""
    return -(math.log(skill.size) if skill.kind == "one-hot" else distributions.direction_log_area(skill.size))


def discriminator_loss(params: PyTree, bindings: DiaynBindings, features: Array, chosen: Array) -> tuple[Array, Guess]:
    """Cross-entropy of the skill given the state reached (Eysenbach 2018, Algorithm 1).

    Args:
      params: of the discriminator.
      features: `[B, F]`, of the true successors: what the reward is asked about is what is learned.
      chosen: `[B, S]`.

    Returns:
      Scalar `[]` in nats, and the guesses `[B]`.
    Deviation: none.
    """
    guesses = guess(bindings.skill, bindings.discriminator.apply(params, features), chosen)
    return -jnp.mean(guesses.log_ratio) - log_prior(bindings.skill), guesses


def init(bindings: DiaynBindings, key: Key) -> DiaynParams:
    """Draw the agent and a discriminator that knows nothing: all skills are equally likely to it."""
    agent_key, discriminator_key = jax.random.split(key)
    return DiaynParams(bindings.agent.init(agent_key), bindings.discriminator.init(discriminator_key))


def start(bindings: DiaynBindings, params: DiaynParams) -> DiaynState:
    """Fresh optimisers; nothing known of the skills' returns."""
    returns = smerl.nothing(bindings.skill) if bindings.config.smerl else ()
    return DiaynState(bindings.agent.start(params.agent), gradients.start(params.discriminator), returns)


def explore(
    bindings: DiaynBindings, state: DiaynState, hyper: Hyper, observation: Array, key: Key
) -> tuple[Array, PyTree]:
    """As the wrapped agent does."""
    return bindings.agent.explore(state.agent, inner_hyper(bindings.hyper, hyper), observation, key)


def act(bindings: DiaynBindings, params: DiaynParams, observation: Array) -> Array:
    """As the wrapped agent does."""
    return bindings.agent.act(params.agent, observation)


def update(
    bindings: DiaynBindings, state: DiaynState, hyper: Hyper, batch: Transition, noise: PyTree, step: Array
) -> tuple[DiaynState, Metrics]:
    """Reward each transition by how well its skill is recognised, learn to recognise it, update the wrapped agent.

    Args:
      batch: `Transition` of `[B, ...]`; observations end in the skill, `extras` is the true successor's descriptor.
      noise: the wrapped agent's.
      step: likewise.

    Returns:
      The new state, and metrics `[]`: the wrapped agent's, `discriminator_loss` (nats), `discriminator_accuracy`,
      `diversity_reward` (nats) and, with SMERL, `diverse`, the share of rows that are rewarded for diversity.
    """
    chosen = batch.observation[:, -bindings.skill.size :]
    features = _features(bindings, batch.next_observation, batch.extras)
    loss = partial(discriminator_loss, bindings=bindings, features=features, chosen=chosen)
    (told, guesses), gradient = jax.value_and_grad(loss, has_aux=True)(state.discriminator.params)
    metrics = {
        "discriminator_loss": told,
        "discriminator_accuracy": jnp.mean(guesses.accuracy),
        "diversity_reward": jnp.mean(guesses.log_ratio),
    }
    reward = guesses.log_ratio if bindings.config.add_log_p_z else guesses.log_ratio + log_prior(bindings.skill)
    reward = jax.lax.stop_gradient(reward)
    if bindings.config.smerl:
        diverse = smerl.near_best(_aim(bindings.config), state.returns, chosen)
        reward = batch.reward + hyper.diversity_scale * jnp.where(diverse, reward, 0.0)
        metrics["diverse"] = jnp.mean(diverse.astype(jnp.float32))
    batch = batch._replace(reward=reward, extras=())
    agent, learned = bindings.agent.update(state.agent, inner_hyper(bindings.hyper, hyper), batch, noise, step)
    discriminator = gradients.adam(state.discriminator, gradient, hyper.discriminator_lr)
    return DiaynState(agent, discriminator, state.returns), {**learned, **metrics}


def observe(bindings: DiaynBindings, state: DiaynState, steps: Step) -> DiaynState:
    """With SMERL, keep account of what the skills return."""
    if not bindings.config.smerl:
        return state
    return state._replace(returns=smerl.record(bindings.skill, state.returns, steps))


def keep(bindings: DiaynBindings, step: Step) -> PyTree:
    """The descriptor of the state reached, unless the next observation says it."""
    return () if bindings.config.descriptor_full_state else step.descriptor


def measure(bindings: DiaynBindings, params: DiaynParams, step: Step) -> Mapping[str, Array]:
    """A step's diversity reward, in nats and without regard to `add_log_p_z`, and whether its skill is recognised."""
    features = _features(bindings, step.final_observation, step.descriptor)
    guessed = guess(bindings.skill, bindings.discriminator.apply(params.discriminator, features), step.pursued.skill)
    return {"diversity_return": guessed.log_ratio, "accuracy": guessed.accuracy}


def conclude(
    config: DiaynConfig, sums: Mapping[str, Array], returns: Array, lengths: Array
) -> tuple[Array, Mapping[str, Array]]:
    """The configured fitness; of each episode the share of steps that were recognised, and both returns."""
    accuracy = sums["accuracy"] / jnp.maximum(lengths, 1).astype(jnp.float32)
    told = {"accuracy": accuracy, "diversity_return": sums["diversity_return"], "true_return": returns}
    name = {"accuracy": "accuracy", "diversity": "diversity_return", "return": "true_return"}[config.fitness]
    return jnp.mean(told[name]), told


def _features(bindings: DiaynBindings, next_observation: Array, descriptor: Array) -> Array:
    """What the discriminator looks at; never the skill itself."""
    return next_observation[..., : -bindings.skill.size] if bindings.config.descriptor_full_state else descriptor


def _aim(config: DiaynConfig) -> smerl.Aim:
    return smerl.Aim(config.smerl_target, config.smerl_fraction, config.smerl_margin)


def inner_hyper(kind: Any, hyper: Hyper) -> Hyper:
    """The wrapped agent's own hyper-parameters, which come first; `kind` is their type."""
    return kind(*hyper[: len(kind._fields)])


def frozen(params: DiaynParams, spec: EnvSpec, skill: Array) -> PyTree:
    """The wrapped agent's genome for one skill and the world without skills: the same actions and the same values.

    Args:
      params: of a DIAYN agent.
      spec: of the world with skills that it lives in.
      skill: `[S]`.
    """
    return networks.freeze_inputs(params.agent, spec.sensed_size, skill)


def diayn(agent: Agent, spec: EnvSpec, config: DiaynConfig | None = None) -> Agent:
    """DIAYN around an off-policy agent that was built for `spec`; with `smerl` in the config, SMERL.

    Args:
      agent: SAC, TD3 or one of your own; it sees the skill at the end of its observations.
      spec: of a world with skills (`envs.skills.skills`).
      config: what skills are told apart by.

    Raises:
      ValueError: the world has no skills, or no descriptor and `descriptor_full_state` is off.
    """
    config = config or DiaynConfig()
    if spec.skill is None:
        raise ValueError(f"DIAYN needs a world with skills; wrap it: skills({spec.name}, num_skills=5).")
    if spec.descriptor is None and not config.descriptor_full_state:
        raise ValueError(
            f"{spec.name} has no descriptor to recognise skills by; choose a task that has one, or turn on "
            "descriptor_full_state (--descriptor-full-state), which looks at the whole observation."
        )
    size = spec.sensed_size if config.descriptor_full_state else spec.descriptor_size
    bindings = DiaynBindings(
        agent=agent,
        skill=spec.skill,
        config=config,
        # So small a last layer that a newborn discriminator is uniform, and the first rewards are 0.
        discriminator=networks.mlp((size,), config.discriminator_hidden_sizes, spec.skill.size, output_scale=1e-12),
        hyper=type(agent.space.defaults),
    )
    return Agent(
        init=partial(init, bindings),
        start=partial(start, bindings),
        explore=partial(explore, bindings),
        act=partial(act, bindings),
        noise=agent.noise,
        update=partial(update, bindings),
        space=space(agent.space, config.smerl),
        intrinsic_reward=IntrinsicReward(
            partial(keep, bindings), partial(observe, bindings), partial(measure, bindings), partial(conclude, config)
        ),
    )
