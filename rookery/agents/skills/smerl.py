"""SMERL: skills that learn the environment's reward, and are rewarded for diversity if they return enough.

Source: Kumar 2020, "One Solution is Not All You Need: Few-Shot Extrapolation via Structured MaxEnt RL"
(arXiv:2010.14484).
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax.numpy as jnp

from rookery import hyperparams
from rookery.envs.base import SkillSpec, Step
from rookery.hyperparams import Field, LogUniform, Space
from rookery.settings import SettingError, Within, check_fields
from rookery.types import Array, Hyper, Metrics, PyTree, Scalar

RATE = 0.2  # of the running means, which average about the last ten episodes


@dataclass(frozen=True, kw_only=True)
class SmerlConfig:
    """Whether skills learn the environment's reward too, and which of them are rewarded for diversity.

    Raises:
      ValueError: a setting out of range, or a setting without `smerl`.
    """

    smerl: bool = False
    """Learn the environment's reward, and add the method's own reward for skills whose return is near the best; with
    fitness `return`, selection uses the reward that is learned."""
    smerl_target: float | None = None
    """Target return of SMERL; by default a fraction of the greatest running mean return of any skill, which one absurd
    reward would raise for the rest of the run."""
    smerl_fraction: Annotated[float, Within(0, 1, excluded=(0,))] = 0.9
    """Fraction of the greatest running mean return that is the target if smerl_target is not set."""
    smerl_margin: Annotated[float, Within(0)] = 0.0
    """Amount by which a skill's return may miss the target and still be rewarded for diversity."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)
        fraction_set = self.smerl_fraction != SmerlConfig.smerl_fraction
        if self.smerl_target is not None and fraction_set:
            problem = "applies only without {smerl_target}"
            raise SettingError("smerl_fraction", None, problem, "give it or {smerl_target}, not both")
        given = {"smerl_target": self.smerl_target is not None, "smerl_margin": self.smerl_margin > 0}
        unused = [name for name, is_given in {**given, "smerl_fraction": fraction_set}.items() if is_given]
        if unused and not self.smerl:
            raise SettingError(unused[0], None, "has no effect without {smerl}", "turn it on, or leave this out")

    @property
    def threshold(self) -> "ReturnThreshold":
        """The return above which a skill is rewarded for diversity."""
        return ReturnThreshold(self.smerl_target, self.smerl_fraction, self.smerl_margin)


class SmerlHyper(NamedTuple):
    """The hyper-parameter that SMERL adds to those of the wrapped agent."""

    diversity_scale: Annotated[Scalar, Field("weight of the diversity reward in SMERL", LogUniform(0.1, 10.0))] = 1.0


class ReturnThreshold(NamedTuple):
    """The return above which a skill is rewarded for diversity, in units of return."""

    target: float | None
    """Target return; None for a fraction of the best running mean of any skill."""
    fraction: float
    """That fraction, in (0, 1]."""
    margin: float
    """Amount by which a return may miss the target, at least 0."""


class Returns(NamedTuple):
    """Running statistics of the skills' returns; M one-hot skills, or one entry for all skills of a sphere."""

    mean: Array
    """`[M]`, running mean over the finished episodes."""
    known: Array
    """`[M]` bool: whether an episode has finished."""
    best: Array
    """`[]`, greatest mean so far; 0 before the first finished episode, since a state must be finite."""


def init(skill: SkillSpec) -> Returns:
    """Return the statistics before the first episode."""
    count = skill.size if skill.kind == "one-hot" else 1
    return Returns(jnp.zeros((count,)), jnp.zeros((count,), bool), jnp.zeros(()))


def record(skill: SkillSpec, returns: Returns, steps: Step) -> Returns:
    """Add the episodes that end in the steps `[E]`; unfinished and broken episodes, and non-finite returns, are
    ignored."""
    chosen = steps.final_observation.skill
    assert steps.episode_return is not None
    assert chosen is not None
    ended = steps.ended & ~steps.broken & jnp.isfinite(steps.episode_return)
    value = jnp.where(ended, steps.episode_return, 0.0)
    weight = ended[:, None].astype(jnp.float32)
    if skill.kind == "one-hot":
        weight = weight * chosen  # [E, M]
    count = jnp.sum(weight, axis=0)
    mean = jnp.sum(weight * value[:, None], axis=0) / jnp.maximum(count, 1.0)
    rate = 1.0 - (1.0 - RATE) ** count  # episodes that end together weigh as much as consecutive ones
    updated = jnp.where(returns.known, returns.mean + rate * (mean - returns.mean), mean)
    known = returns.known | (count > 0.0)
    mean = jnp.where(count > 0.0, updated, returns.mean)
    previous_best = jnp.where(returns.known.any(), returns.best, -jnp.inf)
    best = jnp.maximum(previous_best, jnp.max(jnp.where(known, mean, -jnp.inf)))
    return Returns(
        mean=mean,
        known=known,
        best=jnp.where(known.any(), best, 0.0),
    )


def near_best(threshold: ReturnThreshold, returns: Returns, chosen: Array) -> Array:
    """Return whether skills are rewarded for diversity: `R(z) >= target - margin` (Kumar 2020, Eq. 6).

    Args:
      threshold: target and margin.
      returns: statistics of the skills' returns.
      chosen: `[B, S]`, the skills to test.

    Returns:
      `[B]` bool; False for a skill without a finished episode.
    Deviation: R(z) is the running mean of the skill's finished episodes; the paper's algorithm uses the return of the
    episode that contains the transition. The condition is about the current policy, and replayed transitions do not
    show its current return. Without a target, the paper uses the return of a policy trained on the task beforehand;
    here the target is a fraction of the greatest running mean of any skill, so that a single lucky episode of an
    exploring policy does not set it.
    """
    target = threshold.target
    if target is None:
        target = returns.best - (1.0 - threshold.fraction) * jnp.abs(returns.best)
    near = returns.known & (returns.mean >= target - threshold.margin)
    if near.shape[0] == 1:  # skills on a sphere share one entry
        return jnp.broadcast_to(near, chosen.shape[:1])
    return near[jnp.argmax(chosen, axis=-1)]


def space(inner: Space, with_smerl: bool) -> Space:
    """Extend a search space by the weight of the diversity reward, with SMERL."""
    return hyperparams.join(inner, hyperparams.declared(SmerlHyper)) if with_smerl else inner


def start(config: SmerlConfig, skill: SkillSpec) -> PyTree:
    """Return a member's statistics before the first episode, or () without SMERL."""
    return init(skill) if config.smerl else ()


def observe(config: SmerlConfig, skill: SkillSpec, state: PyTree, steps: Step) -> PyTree:
    """With SMERL, update the running means in `state.returns` by the episodes that end in the steps `[E]`."""
    return state._replace(returns=record(skill, state.returns, steps)) if config.smerl else state


def mix(
    config: SmerlConfig, returns: PyTree, hyper: Hyper, rewards: tuple[Array, Array], chosen: Array
) -> tuple[Array, Metrics]:
    """The reward that is learned: the diversity reward, or SMERL's sum with the environment's (Kumar 2020, Eq. 6).

    Args:
      config: the settings.
      returns: statistics of the skills' returns; () without SMERL.
      hyper: the member's hyper-parameters.
      rewards: the environment's and the diversity reward of a batch, `[B]` each.
      chosen: `[B, S]`, the skills of the rows.

    Returns:
      `[B]`; and, with SMERL, the metric `diverse`, `[]`: the share of rows that are rewarded for diversity.
    """
    reward, diversity = rewards
    if not config.smerl:
        return diversity, {}
    near = near_best(config.threshold, returns, chosen)
    scale = hyperparams.select(SmerlHyper(), hyper).diversity_scale
    return reward + scale * jnp.where(near, diversity, 0.0), {"diverse": jnp.mean(near.astype(jnp.float32))}
