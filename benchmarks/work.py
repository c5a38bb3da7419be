"""The same work for both sides: populations of SAC or TD3 agents with full replay buffers, ours and QDax's.

QDax is only called, through its public classes, and its calls are given what ours have: donated arguments and buffers
of the same number of finite rows.
"""

import argparse
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import buffers, hyperparams
from rookery.agents.base import Agent
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.envs.base import Environment, EnvSpec
from rookery.learners import off_policy
from rookery.learners.base import Learner, Member
from rookery.populations import base
from rookery.types import Array, Key, PyTree, Transition

INSTALL = "QDax is not installed; make an environment with it: benchmarks/peers.sh"
POLICY_DELAY = 2
PEERS = {
    "sac": ("qdax.baselines.sac_pbt", "PBTSAC", "PBTSacConfig", {}),
    "td3": ("qdax.baselines.td3_pbt", "PBTTD3", "PBTTD3Config", {"policy_delay": POLICY_DELAY}),
}
"""Agent -> QDax's module, class, class of its configuration, and what that must say besides the shapes."""


class Shapes(NamedTuple):
    """What decides the amount of work of an update."""

    population: int
    batch_size: int = 256
    hidden_sizes: tuple[int, ...] = (256, 256)
    observation_size: int = 17
    action_size: int = 6
    rows: int = 10_000
    agent: str = "sac"

    @property
    def spec(self) -> EnvSpec:
        """A world of these sizes that nobody steps."""
        return EnvSpec("shapes", self.observation_size, self.action_size, 1000)


def add_agents(made: argparse.ArgumentParser) -> None:
    """The flag that chooses among the agents; all of them by default."""
    made.add_argument("--agent", choices=PEERS, nargs="+", default=list(PEERS), help="(%(default)s)")


def agent_of(shapes: Shapes, spec: EnvSpec) -> Agent:
    """Our agent."""
    if shapes.agent == "td3":
        return td3(spec, Td3Config(hidden_sizes=shapes.hidden_sizes, policy_delay=POLICY_DELAY))
    return sac(spec, SacConfig(hidden_sizes=shapes.hidden_sizes))


def fill(state: buffers.BufferState, key: Key) -> buffers.BufferState:
    """A ring `[P, C, ...]` full of random rows; nothing has terminated."""
    keys = jax.random.split(key, len(jax.tree.leaves(state.rows)))
    keys = jax.tree.unflatten(jax.tree.structure(state.rows), list(keys))

    def draw(key: Key, leaf: Array) -> Array:
        return jnp.zeros_like(leaf) if leaf.dtype == bool else jax.random.normal(key, leaf.shape)

    size = jnp.full_like(state.size, jax.tree.leaves(state.rows)[0].shape[1])
    return state._replace(rows=jax.tree.map(draw, keys, state.rows), size=size)


def update_parts(shapes: Shapes, updates: int) -> off_policy.OffPolicyBindings:
    """A learner's parts whose block of updates counts `updates`; they have no environment."""
    agent = agent_of(shapes, shapes.spec)
    config = off_policy.OffPolicyConfig(
        num_envs=updates,
        steps_per_generation=updates,
        batch_size=shapes.batch_size,
        buffer_size=shapes.rows,
        warmup_steps=0,
    )
    nowhere: Any = None
    return off_policy.OffPolicyBindings(agent, nowhere, buffers.ring(shapes.rows), config)


def members(bindings: off_policy.OffPolicyBindings, shapes: Shapes, key: Key) -> Member:
    """A population `[P]` with full buffers and without environments."""

    def born(key: Key) -> Member:
        agent_key, hyper_key = jax.random.split(key)
        observation, action = jnp.zeros((shapes.observation_size,)), jnp.zeros((shapes.action_size,))
        row = Transition(observation, action, jnp.zeros(()), observation, jnp.asarray(False))
        state = bindings.agent.start(bindings.agent.init(agent_key))
        hyper = hyperparams.sample(bindings.agent.space, hyper_key)
        return Member(state, hyper, None, (), bindings.buffer.init(row))

    def all_born(key: Key) -> Member:
        born_key, fill_key = jax.random.split(key)
        made = jax.vmap(born)(base.member_keys(born_key, shapes.population))
        return made._replace(buffer=fill(made.buffer, fill_key))

    return jax.jit(all_born)(key)


def update_block(
    bindings: off_policy.OffPolicyBindings, buffer: PyTree, carry: tuple[Member, Key]
) -> tuple[tuple, PyTree]:
    """The learner's own block of updates for a population; `carry` is the members without their buffers, and a key."""
    people, key = carry
    key, update_key = jax.random.split(key)
    keys = base.member_keys(update_key, people.hyper.discount.shape[0])

    def learn(member: Member, buffer: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        return off_policy.learn(bindings, member._replace(buffer=buffer), key, jnp.zeros((), jnp.int32))

    state, metrics = base.vmap(learn, (people, buffer, keys), ())
    return (people._replace(state=state), key), metrics


def learner(environment: Environment, shapes: Shapes, num_envs: int, iterations: int) -> Learner:
    """A learner that makes one update per environment step and has no warm-up, as QDax's training has none."""
    config = off_policy.OffPolicyConfig(
        num_envs=num_envs,
        steps_per_generation=num_envs * iterations,
        batch_size=shapes.batch_size,
        buffer_size=shapes.rows,
        warmup_steps=0,
    )
    agent = agent_of(shapes, environment.spec)
    return off_policy.off_policy(agent, environment, config)


class Peer(NamedTuple):
    """QDax's population."""

    agent: Any  # its PBTSAC or PBTTD3
    states: Any  # [P, ...]
    buffers: Any  # [P, ...]


def qdax_peer(shapes: Shapes, key: Key, episode_length: int = 1000, full: bool = True) -> Peer:
    """QDax's PBT agent for the same shapes, its buffers full of random rows unless `full` is False.

    Raises:
      SystemExit: QDax is not installed.
    """
    module, agent_class, config_class, besides = PEERS[shapes.agent]
    try:
        baseline = importlib.import_module(module)
    except ImportError as error:
        raise SystemExit(f"{INSTALL} ({error})") from error
    config = getattr(baseline, config_class)(
        batch_size=shapes.batch_size,
        episode_length=episode_length,
        policy_hidden_layer_size=shapes.hidden_sizes,
        critic_hidden_layer_size=shapes.hidden_sizes,
        **besides,
    )
    agent = getattr(baseline, agent_class)(config, shapes.action_size)
    start = agent.get_init_fn(shapes.population, shapes.action_size, shapes.observation_size, shapes.rows)
    states, stores = jax.jit(start)(jax.random.key_data(key))  # raw keys: its exploit writes into them
    return Peer(agent, states, jax.jit(fill_qdax, donate_argnums=0)(stores, key) if full else stores)


def qdax_environment(task: str, num_envs: int | None, episode_length: int = 1000) -> Any:
    """QDax's environment on the spring backend; `num_envs` at once, or one where it is None."""
    from qdax.tasks.brax.v2 import create

    return create(task, episode_length=episode_length, batch_size=num_envs, backend="spring")


def fill_qdax(stores: Any, key: Key) -> Any:
    """Random rows for a population's stores, or for one's; the flags of an episode's end, before the actions, are 0."""
    sample = stores.transition
    first_flag = 2 * sample.observation_dim + 1
    data = jax.random.normal(key, stores.data.shape).at[..., first_flag : first_flag + 2].set(0.0)
    size = jnp.full_like(stores.current_size, stores.data.shape[-2])
    return stores.replace(data=data, current_size=size)


def qdax_update_block(agent: Any, updates: int, stores: Any, states: Any) -> tuple[Any, Any]:
    """`updates` calls of QDax's own update for a population, in a scan as its training has them."""

    def learn(state: Any, store: Any) -> tuple[Any, Any]:
        def update(carry: tuple, _: None) -> tuple:
            state, store, metrics = agent.update(*carry)
            return (state, store), metrics

        (state, _), metrics = jax.lax.scan(update, (state, store), None, length=updates)
        return state, metrics

    return jax.vmap(learn)(states, stores)
