"""The factories of the emitters PGA-ME and DCRL-ME."""

from functools import partial

import jax

from rookery import buffers
from rookery.agents.td3 import networks_of, td3
from rookery.envs.base import EnvSpec
from rookery.envs.wrappers.teams import check_alone
from rookery.populations.config import rounded
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.qd import emitters
from rookery.qd.base import Emitter, Scoring
from rookery.qd.policy_gradient import conditions, critics, emitter
from rookery.qd.policy_gradient.conditions import Conditions
from rookery.qd.policy_gradient.config import DcrlMeConfig, PgaMeConfig
from rookery.qd.policy_gradient.critics import Critics
from rookery.qd.policy_gradient.emitter import GradientBindings
from rookery.qd.policy_gradient.variation import Ascent
from rookery.qd.scoring import PolicyConfig
from rookery.qd.staged import StagedAsk
from rookery.qd.variation import VariationConfig
from rookery.settings import SettingError, config_from


def pga_me(
    scoring: Scoring,
    batch_size: int = 256,
    config: PgaMeConfig | None = None,
    policy: PolicyConfig | None = None,
    variation: VariationConfig | None = None,
    placement: Placement = ONE_DEVICE,
) -> Emitter:
    """The emitter of PGA-ME: iso+line variations, policies varied by the gradient of TD3's critics, and one actor.

    The actor is trained with the critics, and proposed in every generation (Nilsson 2021, Algorithm 1). Each device
    stores the replay buffer.

    Args:
      scoring: `policy_scoring(environment, policy)`.
      batch_size: B, at least 2.
      config: the critics, the gradient steps and the shares of the batch.
      policy: the network of the policies, as given to `policy_scoring`.
      variation: the standard deviations of iso+line.
      placement: the placement of evaluations and repertoire.

    Returns:
      The emitter.

    Raises:
      ValueError: the scoring runs no episodes of a single-agent environment with continuous actions, `policy` is not
        that of the scoring, the buffer is too small, or the batch is too small for its shares.

    Example:
      >>> scoring = rookery.qd.policy_scoring(rookery.make("point_trap"))
      >>> emitter = rookery.qd.pga_me(scoring, batch_size=16)
    """
    config = config_from(PgaMeConfig, config, {})
    counts = _counts(batch_size, config.variation_share, 1)
    return _build(scoring, counts, config, policy, variation, placement, "pga_me")


def dcrl_me(
    scoring: Scoring,
    batch_size: int = 256,
    config: DcrlMeConfig | None = None,
    policy: PolicyConfig | None = None,
    variation: VariationConfig | None = None,
    placement: Placement = ONE_DEVICE,
) -> Emitter:
    """The emitter of DCRL-ME: as `pga_me`, with critics and an actor that are conditioned on a descriptor.

    A policy follows the value of reaching its own descriptor. The actor is proposed for the descriptors of random
    elites, with the condition frozen into its first layer, so that it is a policy like all others (Faldor 2024).

    Args:
      scoring: `policy_scoring(environment, policy)`.
      batch_size: B, at least 3.
      config: the critics, the gradient steps and the shares of the batch.
      policy: the network of the policies, as given to `policy_scoring`.
      variation: the standard deviations of iso+line.
      placement: the placement of evaluations and repertoire.

    Returns:
      The emitter.

    Raises:
      ValueError: the scoring, the policy, the buffer or the batch does not fit, as for `pga_me`.

    Example:
      >>> scoring = rookery.qd.policy_scoring(rookery.make("point_trap"))
      >>> emitter = rookery.qd.dcrl_me(scoring, batch_size=16)
    """
    config = config_from(DcrlMeConfig, config, {})
    counts = _counts(batch_size, config.variation_share, rounded(config.actor_share, batch_size))
    return _build(scoring, counts, config, policy, variation, placement, "dcrl_me")


def gradient_count(batch_size: int, config: PgaMeConfig) -> int:
    """The number of proposals that are not iso+line variations, which the devices must divide."""
    return batch_size - rounded(config.variation_share, batch_size)


def _counts(batch_size: int, variation_share: float, injected: int) -> tuple[int, int, int]:
    """The numbers of iso+line variations, of policies varied by the gradient, and of actors.

    Raises:
      ValueError: one of the numbers would be 0.
    """
    varied = rounded(variation_share, batch_size)
    counts = varied, batch_size - varied - injected, injected
    if min(counts) < 1:
        problem = f"gives {varied} variations, {counts[1]} gradient policies and {injected} actors, but each needs 1"
        raise SettingError("batch_size", batch_size, problem, "enlarge it, or change the shares")
    return counts


def _build(
    scoring: Scoring,
    counts: tuple[int, int, int],
    config: PgaMeConfig,
    policy: PolicyConfig | None,
    variation: VariationConfig | None,
    placement: Placement,
    name: str,
) -> Emitter:
    spec, policy = _checked(scoring, name), policy or PolicyConfig()
    evaluator = scoring.evaluator
    assert evaluator is not None  # `_checked` raises without one
    critics.check_capacity(config.buffer_size, sum(counts), evaluator.episodes, spec.episode_length)
    is_conditioned = isinstance(config, DcrlMeConfig)
    seen = conditions.conditioned(spec, scoring.descriptor.size) if is_conditioned else spec
    settings = config.td3(policy)
    agent, (nets, read) = td3(seen, settings), networks_of(seen, settings)
    first_input = read.encoded_size or spec.observation_size
    limits = None
    if isinstance(config, DcrlMeConfig):
        limits = Conditions(scoring.descriptor, config.length_scale, first_input, spec.qd_offset)
    trained = Critics(agent, buffers.ring(config.buffer_size), config.critic_steps, config.gradient_batch_size)
    ascent = Ascent(evaluator.act, nets.policy_value, trained.buffer, config.gradient_batch_size, config.policy_lr)
    variations = emitters.iso_line(scoring, counts[0], variation, placement.cells)
    bindings = GradientBindings(
        scoring, trained, config.hyper, ascent, config.policy_gradient_steps, variations, *counts[1:], placement, limits
    )
    _check_policy(bindings, spec)
    return Emitter(
        init=partial(emitter.init, bindings),
        ask=StagedAsk(
            partial(emitter.begin, bindings),
            partial(emitter.advance, bindings),
            partial(emitter.propose, bindings),
            trained.iterations,
        ),
        tell=partial(emitter.tell, bindings),
        batch_size=sum(counts),
        learns_from_transitions=True,
        settings={name: vars(config), **variations.settings},
    )


def _checked(scoring: Scoring, name: str) -> EnvSpec:
    """The spec of a scoring's environment.

    Raises:
      ValueError: the scoring has no environment, or one with discrete actions or several agents.
    """
    title = name.upper().replace("_", "-")
    if scoring.evaluator is None:
        raise ValueError(
            f"{title} learns from the transitions of episodes, but {scoring.name} is a function; use MAP-Elites or "
            "CMA-MAE."
        )
    spec = scoring.evaluator.environment.spec
    check_alone(spec)
    if spec.discrete:
        raise ValueError(f"{title} needs continuous actions, but {spec.name} has discrete ones; use MAP-Elites.")
    return spec


def _check_policy(bindings: GradientBindings, spec: EnvSpec) -> None:
    """Check that the actor has the network of the policies.

    Raises:
      ValueError: it has another one.
    """
    bank = jax.eval_shape(bindings.scoring.start_states, jax.random.key(0))
    genotype = jax.eval_shape(bindings.scoring.init_genotype, jax.random.key(0), bank)
    actor = jax.eval_shape(bindings.critics.agent.init, jax.random.key(0)).policy
    if bindings.conditions is not None:
        target = jax.ShapeDtypeStruct((bindings.scoring.descriptor.size,), "float32")
        actor = jax.eval_shape(partial(conditions.freeze, bindings.conditions), actor, target)
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree) for tree in (genotype.params, actor)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"the policies of the scoring for {spec.name} have another network than the actor; give the same "
            "PolicyConfig to policy_scoring and to the emitter."
        )
