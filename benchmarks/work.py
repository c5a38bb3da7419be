"""Equal work for Rookery and QDax: populations of SAC or TD3 agents with full replay buffers.

QDax is called through its public classes, with donated arguments and buffers of the same number of finite rows as
Rookery's.
"""

import argparse
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import buffers, hyperparams
from rookery.agents.base import OffPolicyAgent
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.envs.base import Environment, EnvSpec
from rookery.learners.base import Learner, Member
from rookery.learners.off_policy import OffPolicyBindings, OffPolicyConfig, off_policy
from rookery.learners.off_policy import learn as off_policy_learn
from rookery.populations import base
from rookery.types import Array, Key, Observation, PyTree, Transition

INSTALL = "QDax is not installed; create an environment with it: benchmarks/peers.sh"
POLICY_DELAY = 2
PEERS = {
    "sac": ("qdax.baselines.sac_pbt", "PBTSAC", "PBTSacConfig", {}),
    "td3": ("qdax.baselines.td3_pbt", "PBTTD3", "PBTTD3Config", {"policy_delay": POLICY_DELAY}),
}
"""Agent -> QDax's module, class, configuration class, and additional configuration values."""


class Shapes(NamedTuple):
    """Sizes that determine the work of an update."""

    population: int
    batch_size: int = 256
    hidden_sizes: tuple[int, ...] = (256, 256)
    observation_size: int = 17
    action_size: int = 6
    rows: int = 10_000
    agent: str = "sac"

    @property
    def spec(self) -> EnvSpec:
        """Specification of an environment with these sizes, which is never stepped."""
        return EnvSpec("shapes", self.observation_size, self.action_size, 1000)


def add_agents(made: argparse.ArgumentParser) -> None:
    """Add the flag that selects the agents; the default is all."""
    made.add_argument("--agent", choices=PEERS, nargs="+", default=list(PEERS), help="(%(default)s)")


def agent_of(shapes: Shapes, spec: EnvSpec) -> OffPolicyAgent:
    """Rookery's agent."""
    if shapes.agent == "td3":
        return td3(spec, Td3Config(hidden_sizes=shapes.hidden_sizes, policy_delay=POLICY_DELAY))
    return sac(spec, SacConfig(hidden_sizes=shapes.hidden_sizes))


def fill(state: buffers.BufferState, key: Key) -> buffers.BufferState:
    """Fill a ring buffer `[P, C, ...]` with random rows without terminations."""
    keys = jax.random.split(key, len(jax.tree.leaves(state.rows)))
    keys = jax.tree.unflatten(jax.tree.structure(state.rows), list(keys))

    def draw(key: Key, leaf: Array) -> Array:
        return jnp.zeros_like(leaf) if leaf.dtype == bool else jax.random.normal(key, leaf.shape)

    size = jnp.full_like(state.size, jax.tree.leaves(state.rows)[0].shape[1])
    return state._replace(rows=jax.tree.map(draw, keys, state.rows), size=size)


def update_parts(shapes: Shapes, updates: int, agent: OffPolicyAgent | None = None) -> OffPolicyBindings:
    """The bindings of a learner that makes `updates` updates per block; without an environment. Another agent may
    replace the default one of these shapes."""
    agent = agent or agent_of(shapes, shapes.spec)
    config = OffPolicyConfig(
        num_envs=updates,
        steps_per_generation=updates,
        batch_size=shapes.batch_size,
        buffer_size=shapes.rows,
        warmup_steps=0,
    )
    no_environment: Any = None
    return OffPolicyBindings(agent, no_environment, buffers.ring(shapes.rows), config)


def members(bindings: OffPolicyBindings, shapes: Shapes, key: Key) -> Member:
    """A population `[P]` with full buffers and without environments."""

    def init_member(key: Key) -> Member:
        agent_key, hyper_key = jax.random.split(key)
        observation = Observation(jnp.zeros((shapes.observation_size,)))
        action = jnp.zeros((shapes.action_size,))
        row = Transition(observation, action, jnp.zeros(()), observation, jnp.asarray(False))
        state = bindings.agent.start(bindings.agent.init(agent_key))
        hyper = hyperparams.sample(bindings.agent.space, hyper_key)
        return Member(state, hyper, None, (), bindings.buffer.init(row))

    def init_population(key: Key) -> Member:
        init_key, fill_key = jax.random.split(key)
        made = jax.vmap(init_member)(base.member_keys(init_key, shapes.population))
        return made._replace(buffer=fill(made.buffer, fill_key))

    return jax.jit(init_population)(key)


def update_block(
    bindings: OffPolicyBindings, buffer: PyTree, carry: tuple[Member, Key], first: Array | int = 0
) -> tuple[tuple, PyTree]:
    """The learner's block of updates for a population.

    `carry` is the members without their buffers, and a key; `first` is the number of updates before the block.
    """
    population, key = carry
    key, update_key = jax.random.split(key)
    keys = base.member_keys(update_key, population.hyper.discount.shape[0])

    def learn(member: Member, buffer: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        counts = bindings.config.updates, bindings.config.batch_size
        member = member._replace(buffer=buffer)
        return off_policy_learn(bindings.agent, bindings.buffer, member, key, jnp.asarray(first, jnp.int32), *counts)

    state, metrics = base.vmap(learn, (population, buffer, keys), ())
    return (population._replace(state=state), key), metrics


def learner(environment: Environment, shapes: Shapes, num_envs: int, iterations: int) -> Learner:
    """A learner that makes one update per environment step, without warm-up, like QDax's training."""
    config = OffPolicyConfig(
        num_envs=num_envs,
        steps_per_generation=num_envs * iterations,
        batch_size=shapes.batch_size,
        buffer_size=shapes.rows,
        warmup_steps=0,
    )
    agent = agent_of(shapes, environment.spec)
    return off_policy(agent, environment, config)


class Peer(NamedTuple):
    """QDax's agent and population."""

    agent: Any  # PBTSAC or PBTTD3
    states: Any  # [P, ...]
    buffers: Any  # [P, ...]


def qdax_peer(shapes: Shapes, key: Key, episode_length: int = 1000, full: bool = True) -> Peer:
    """QDax's PBT agent for the same shapes; buffers contain random rows unless `full` is False.

    Raises:
      SystemExit: QDax is not installed.
    """
    module, agent_class, config_class, extra = PEERS[shapes.agent]
    try:
        baseline = importlib.import_module(module)
    except ImportError as error:
        raise SystemExit(f"{INSTALL} ({error})") from error
    config = getattr(baseline, config_class)(
        batch_size=shapes.batch_size,
        episode_length=episode_length,
        policy_hidden_layer_size=shapes.hidden_sizes,
        critic_hidden_layer_size=shapes.hidden_sizes,
        **extra,
    )
    agent = getattr(baseline, agent_class)(config, shapes.action_size)
    start = agent.get_init_fn(shapes.population, shapes.action_size, shapes.observation_size, shapes.rows)
    states, stores = jax.jit(start)(jax.random.key_data(key))  # raw keys: QDax's exploit writes into them
    return Peer(agent, states, jax.jit(fill_qdax, donate_argnums=0)(stores, key) if full else stores)


def qdax_environment(task: str, num_envs: int | None, episode_length: int = 1000) -> Any:
    """QDax's environment on the spring backend: a batch of `num_envs`, or a single one if it is None."""
    from qdax.tasks.brax.v2 import create

    return create(task, episode_length=episode_length, batch_size=num_envs, backend="spring")


def fill_qdax(stores: Any, key: Key) -> Any:
    """Fill the buffers of a population, or of one agent, with random rows; the flags of an episode's end are 0."""
    sample = stores.transition
    first_flag = 2 * sample.observation_dim + 1
    data = jax.random.normal(key, stores.data.shape).at[..., first_flag : first_flag + 2].set(0.0)
    size = jnp.full_like(stores.current_size, stores.data.shape[-2])
    return stores.replace(data=data, current_size=size)


def qdax_update_block(agent: Any, updates: int, stores: Any, states: Any) -> tuple[Any, Any]:
    """`updates` calls of QDax's update for a population, in a scan as in its training."""

    def learn(state: Any, store: Any) -> tuple[Any, Any]:
        def update(carry: tuple, _: None) -> tuple:
            state, store, metrics = agent.update(*carry)
            return (state, store), metrics

        (state, _), metrics = jax.lax.scan(update, (state, store), None, length=updates)
        return state, metrics

    return jax.vmap(learn)(states, stores)
