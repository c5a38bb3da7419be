"""PGA-ME and DCRL-ME by Rookery and by QDax, on Rookery's tasks and with equal settings.

QDax's emitters and its MAP-Elites are called through their public classes. Its scoring function is Rookery's
evaluation of QDax's policies, so that both have the same task, descriptor and start states; in QDax's own foot
contacts NaN stands for every policy that falls. QDax stores a fixed number of transitions per episode: those after an
early end are replaced by earlier ones of the same episode, since what its own evaluation stores there is no experience.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import rookery
from benchmarks import harness, work
from benchmarks.qdax_me_pbt import patch_import
from rookery.envs.base import Environment
from rookery.learners import evaluation
from rookery.learners.base import EvaluationConfig
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.qd.scoring import PolicyConfig
from rookery.types import Array, Genotype, Key, Observation, PyTree

METHODS = ("pga-me", "dcrl-me")


class Settings(NamedTuple):
    """The settings of one method on one task; rates, noise and discount are the defaults, which both share."""

    method: str = "pga-me"
    task: str = "walker2d_uni"
    episode_length: int = 250
    batch_size: int = 128
    """Evaluations of a generation: half iso+line; for DCRL-ME a quarter each of gradients and of the actor."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Of the policies, the actor and the critics."""
    critic_steps: int = 300
    policy_gradient_steps: int = 100
    gradient_batch_size: int = 100
    buffer_size: int = 1_000_000
    grid: tuple[int, int] = (16, 16)

    @property
    def environment(self) -> Environment:
        """Rookery's task."""
        return rookery.make(self.task, episode_length=self.episode_length)

    @property
    def policy(self) -> PolicyConfig:
        """Rookery's policy network."""
        return PolicyConfig(self.hidden_sizes)


def dcrl_settings(**more: Any) -> Settings:
    """DCRL-ME's own numbers of gradient steps, but a third of the 3,000 steps of its critics."""
    settings: dict[str, Any] = {"critic_steps": 1_000, "policy_gradient_steps": 150}
    return Settings("dcrl-me", **(settings | more))


def cells(settings: Settings, environment: Environment) -> Array:
    """The cells of both, `[C, D]`."""
    descriptor = environment.spec.descriptor
    assert descriptor is not None
    return rookery.qd.grid(settings.grid, descriptor.lower, descriptor.upper)


def program(settings: Settings, episodes: int = 1, placement: Placement = ONE_DEVICE) -> rookery.Program:
    """Rookery's PGA-ME or DCRL-ME."""
    env = settings.environment
    scoring = rookery.qd.policy_scoring(env, settings.policy, EvaluationConfig(eval_episodes=episodes))
    make, config = {
        "pga-me": (rookery.qd.pga_me, rookery.qd.PgaMeConfig),
        "dcrl-me": (rookery.qd.dcrl_me, rookery.qd.DcrlMeConfig),
    }[settings.method]
    chosen = config(
        critic_steps=settings.critic_steps,
        policy_gradient_steps=settings.policy_gradient_steps,
        gradient_batch_size=settings.gradient_batch_size,
        buffer_size=settings.buffer_size,
        critic_hidden_sizes=settings.hidden_sizes,
    )
    emitter = make(scoring, settings.batch_size, chosen, settings.policy, placement=placement)
    return rookery.map_elites(scoring, cells(settings, env), emitter, placement)


class Peer(NamedTuple):
    """QDax's compiled method."""

    begin: Callable[[Key], Any]
    """Key -> the carry of the first generation: `(repertoire, emitter state, key)`."""
    generation: Callable[[Any], Any]
    """Carry -> carry; the argument is donated."""
    compiled: harness.Compiled


def qdax(settings: Settings, seeds: int | None = None) -> Peer:
    """Build and compile QDax's PGA-ME or DCRL-ME.

    Args:
      settings: of the method.
      seeds: runs that one program advances together, of keys `[seeds]`; by default one run, of a key `[]`.

    Raises:
      SystemExit: QDax is not installed.
    """
    try:
        from qdax.core.map_elites import MAPElites
        from qdax.utils.metrics import default_qd_metrics
    except ImportError as error:
        raise SystemExit(f"{work.INSTALL} ({error})") from error
    env = settings.environment
    emitter = _emitter(settings, env)
    method = MAPElites(partial(_score, settings, env), emitter, partial(default_qd_metrics, qd_offset=0.0))
    begin, generation = partial(_begin, settings, env, method), partial(_generation, method)
    key = jax.random.key(0)
    if seeds is not None:
        begin, generation, key = jax.vmap(begin), jax.vmap(generation), jax.random.split(key, seeds)
    begin = jax.jit(begin)
    compiled = harness.compile_program(generation, jax.eval_shape(begin, key), donate=(0,))
    return Peer(begin, compiled.call, compiled)


def _emitter(settings: Settings, env: Environment) -> Any:
    """QDax's emitter."""
    patch_import()
    from qdax.core.emitters.dcrl_me_emitter import DCRLMEConfig, DCRLMEEmitter
    from qdax.core.emitters.mutation_operators import isoline_variation
    from qdax.core.emitters.pga_me_emitter import PGAMEConfig, PGAMEEmitter
    from qdax.core.neuroevolution.networks.networks import MLPDC

    spec, defaults = env.spec, rookery.qd.VariationConfig()
    assert spec.descriptor is not None
    limits = jnp.asarray(spec.descriptor.lower), jnp.asarray(spec.descriptor.upper)
    sizes: Any = SimpleNamespace(
        observation_size=spec.observation_size,
        action_size=spec.action_size,
        state_descriptor_length=spec.descriptor_size,
        descriptor_length=spec.descriptor_size,
        descriptor_limits=limits,
    )
    variation = partial(isoline_variation, iso_sigma=defaults.iso_sigma, line_sigma=defaults.line_sigma)
    common = {
        "num_critic_training_steps": settings.critic_steps,
        "num_pg_training_steps": settings.policy_gradient_steps,
        "batch_size": settings.gradient_batch_size,
        "replay_buffer_size": settings.buffer_size,
        "critic_hidden_layer_size": settings.hidden_sizes,
    }
    if settings.method == "pga-me":
        config = PGAMEConfig(env_batch_size=settings.batch_size, **common)
        return PGAMEEmitter(config, _network(settings, env), sizes, variation)
    half, quarter = settings.batch_size // 2, settings.batch_size // 4
    config = DCRLMEConfig(ga_batch_size=half, dcrl_batch_size=quarter, ai_batch_size=quarter, **common)
    actor = MLPDC((*settings.hidden_sizes, spec.action_size), final_activation=jnp.tanh)
    return DCRLMEEmitter(config, _network(settings, env), actor, sizes, variation)


def _network(settings: Settings, env: Environment) -> Any:
    """QDax's policy network."""
    from qdax.core.neuroevolution.networks.networks import MLP

    return MLP((*settings.hidden_sizes, env.spec.action_size), final_activation=jnp.tanh)


def act(network: Any, params: PyTree, observation: Observation) -> Array:
    """An action `[A]` of QDax's policy."""
    return network.apply(params, observation.features)


def _begin(settings: Settings, env: Environment, method: Any, key: Key) -> Any:
    """The carry of the first generation; QDax needs raw keys."""
    init_key, method_key, key = jax.random.split(key, 3)
    keys = jax.random.split(init_key, settings.batch_size)
    first = jax.vmap(_network(settings, env).init, in_axes=(0, None))(keys, jnp.zeros((env.spec.observation_size,)))
    repertoire, emitter_state, _ = method.init(first, cells(settings, env), jax.random.key_data(method_key))
    return repertoire, emitter_state, jax.random.key_data(key)


def _generation(method: Any, carry: Any) -> Any:
    return method.scan_update(carry, None)[0]


def evaluator_of(settings: Settings, env: Environment, episodes: int) -> Callable[..., Any]:
    """Parameters `[B, ...]` of QDax's policies, a key, `record` -> Rookery's evaluations `[B, ...]`."""
    config = EvaluationConfig(eval_episodes=episodes, start_states=episodes)
    evaluates = evaluation.evaluator(partial(act, _network(settings, env)), env, config)

    def evaluate(params: PyTree, key: Key, record: bool = False) -> Any:
        bank_key, key = jax.random.split(key)
        bank = evaluation.evaluation_of(evaluates)["start_states"](bank_key)
        one = partial(evaluation.evaluate, evaluates, bank=bank, key=key, record=record)
        return jax.vmap(lambda params: one(Genotype(params, (), None)))(params)

    return evaluate


def _score(settings: Settings, env: Environment, genotypes: PyTree, key: Array) -> tuple[Array, Array, dict[str, Any]]:
    """QDax's scoring function: fitness `[B]`, descriptors `[B, D]`, and transitions `[B, T, ...]`."""
    found = evaluator_of(settings, env, 1)(genotypes, jax.random.wrap_key_data(key), record=True)
    return found.fitness, found.descriptor, {"transitions": _transitions(settings, env, found.transitions)}


def _transitions(settings: Settings, env: Environment, recorded: evaluation.Recorded) -> Any:
    from qdax.core.neuroevolution.buffers.buffer import DCRLTransition, QDTransition

    lengths = jnp.maximum(jnp.sum(recorded.valid, axis=1), 1)  # [B]; a broken episode is its first row
    times = jnp.arange(recorded.valid.shape[1])[None] % lengths[:, None]
    rows = jax.vmap(lambda row, time: jax.tree.map(lambda leaf: leaf[time], row))(recorded.transitions, times)
    none = jnp.zeros((*rows.reward.shape, env.spec.descriptor_size))
    values = {
        "obs": rows.observation.features,
        "next_obs": rows.next_observation.features,
        "rewards": rows.reward,
        "dones": rows.terminated.astype(jnp.float32),
        "actions": rows.action,
        "truncations": jnp.zeros_like(rows.reward),
        "state_desc": none,
        "next_state_desc": none,
    }
    if settings.method == "pga-me":
        return QDTransition(**values)
    return DCRLTransition(**values, desc=none, desc_prime=none)
