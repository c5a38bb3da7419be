"""Parts of SAC's update with the fused kernels of `fused_mlp`, and with plain networks, for a population.

`KINDS` of work: the gradient of the critics' loss (half the mean square error of twin critics, here against fixed
targets); their step, with Adam; and the whole update, of which the networks alone are replaced. `benchmarks.on_gpu`
measures them, `benchmarks.gpu_compile` compiles them for a described GPU.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import fused_mlp, harness, population_update, work
from rookery import gradients, networks, trees
from rookery.agents.base import OffPolicyAgent
from rookery.agents.sac import SacNetworks
from rookery.networks import Precision, computing_in
from rookery.types import Array, Observation, PyTree

TILES = {
    "fused": fused_mlp.Tiles(),
    "fused_chunks_of_32": fused_mlp.Tiles(chunk=32),
    "fused_partial_sums": fused_mlp.Tiles(stored=False),
}
PLAIN: dict[str, Precision] = {"bfloat16": "bfloat16", "auto": "auto"}
KINDS = {"gradient": (*TILES, *PLAIN), "step": (*TILES, *PLAIN), "update": ("fused", *PLAIN)}
"""Kind of work -> its contenders."""
RATE = 3e-4


class Loop(NamedTuple):
    """A compiled block of work."""

    call: Callable[[], None]
    gradient: Callable[[], PyTree]
    """After a call, the last gradient, or Adam's mean of gradients."""
    temporary_gb: float


def loop(shapes: work.Shapes, updates: int, kind: str, contender: str, interpret: bool) -> Loop:
    """Compile a block of work; its batches, or buffers, are random.

    Args:
      shapes: sizes of networks and batches.
      updates: number of repetitions in the block.
      kind: one of `KINDS`.
      contender: one of the kind's.
      interpret: compute the kernels without a GPU.
    """
    with computing_in(precision_of(contender)):
        if kind == "update":
            return _update(shapes, updates, contender, interpret)
        params, batches = draw(shapes, updates)
        held, run = harness.Held(start(params, kind)), block(shapes, kind, contender, interpret)
        made = harness.compile_program(run, batches, params, held.state, donate=(2,))
    gradient = (lambda: held.state) if kind == "gradient" else (lambda: held.state.moments.mu)
    return Loop(harness.Loop(made.call, held, batches, params), gradient, made.temporary_gb)


def _update(shapes: work.Shapes, updates: int, contender: str, interpret: bool) -> Loop:
    agent = with_kernels(shapes, contender, interpret)
    made, run = population_update.ours(shapes, updates, agent)

    def gradient() -> PyTree:
        state = run.held.state[0].state
        return state.critic.moments.mu, state.policy.moments.mu

    return Loop(run, gradient, made.temporary_gb)


def precision_of(contender: str) -> Precision:
    """The precision of a contender's plain networks."""
    return PLAIN.get(contender, "bfloat16")


def with_kernels(shapes: work.Shapes, contender: str, interpret: bool = False) -> OffPolicyAgent:
    """SAC, with the contender's kernels in its update."""
    agent: Any = work.agent_of(shapes, shapes.spec)
    if contender not in TILES:
        return agent
    nets, *others = agent.update.args
    tiles = TILES[contender]._replace(interpret=interpret)
    policy, critic = (
        one._replace(apply=partial(apply, tiles)) for apply, one in zip((_one, _twins), nets, strict=True)
    )
    return agent._replace(update=partial(agent.update.func, SacNetworks(policy, critic), *others))


def block(shapes: work.Shapes, kind: str, contender: str, interpret: bool = False) -> Callable:
    """A loop over batches: `batches, params, carry -> carry, ()`, where the carry is that of `start`.

    The kind is "gradient", of which the carry is the last one and the parameters are fixed, or "step".
    """
    plain = partial(_plain_loss, critics(shapes))
    loss = partial(_fused_loss, TILES[contender]._replace(interpret=interpret)) if contender in TILES else plain

    def gradient(params: PyTree, last: PyTree, batch: tuple[Array, Array]) -> tuple[PyTree, None]:
        params, _ = jax.lax.optimization_barrier((params, last))  # their rounding stays in the loop, as in an update
        return jax.grad(loss)(params, *batch), None

    def step(params: PyTree, learned: gradients.Learned, batch: tuple[Array, Array]) -> tuple[PyTree, None]:
        del params
        found = jax.grad(loss)(learned.params, *batch)
        return jax.vmap(partial(gradients.adam, learning_rate=jnp.float32(RATE)))(learned, found), None

    def run(batches: tuple[Array, Array], params: PyTree, carry: PyTree) -> tuple[PyTree, tuple]:
        return jax.lax.scan(partial(gradient if kind == "gradient" else step, params), carry, batches)[0], ()

    return run


def start(params: PyTree, kind: str) -> PyTree:
    """The first carry of a block."""
    return jax.tree.map(jnp.zeros_like, params) if kind == "gradient" else jax.vmap(gradients.start)(params)


def critics(shapes: work.Shapes) -> networks.Network:
    """Twin critics of one member; observation and action are one input."""
    return networks.twin(networks.mlp([shapes.observation_size + shapes.action_size], shapes.hidden_sizes, 1))


def draw(shapes: work.Shapes, updates: int) -> tuple[PyTree, tuple[Array, Array]]:
    """Critics' parameters `[P, 2, ...]`, and batches: inputs `[updates, P, B, I]` and targets `[updates, P, B]`."""
    keys = jax.random.split(jax.random.key(0), shapes.population)
    params = jax.vmap(lambda key: networks.stack_twins(critics(shapes).init(key)))(keys)
    inputs_key, targets_key = jax.random.split(jax.random.key(1))
    rows = updates, shapes.population, shapes.batch_size
    inputs = jax.random.normal(inputs_key, (*rows, shapes.observation_size + shapes.action_size))
    return params, (inputs, jax.random.normal(targets_key, rows))


def difference(gradient: PyTree, other: PyTree) -> float:
    """Norm of the difference of two gradients, divided by the norm of the other."""
    between = jax.tree.map(jnp.subtract, gradient, other)
    part, whole = (sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)) for tree in (between, other))
    return float(jnp.sqrt(part / whole))


def _plain_loss(network: networks.Network, params: PyTree, inputs: Array, target: Array) -> Array:
    residual = jax.vmap(network.apply)(params, inputs) - target[..., None]
    return 0.5 * jnp.sum(jnp.mean(residual**2, axis=1))


def _fused_loss(tiles: fused_mlp.Tiles, params: PyTree, inputs: Array, target: Array) -> Array:
    weights = _weights(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), params.all))
    return jnp.sum(fused_mlp.loss(tiles, weights, inputs, target[..., None]))


def _weights(params: PyTree) -> fused_mlp.Weights:
    layers = [params["params"][f"Dense_{index}"] for index in range(3)]
    return fused_mlp.Weights(*(layer[name] for layer in layers for name in ("kernel", "bias")))


def _one(tiles: fused_mlp.Tiles, params: PyTree, observation: Observation) -> Array:
    """Outputs `[B, O]` of one network."""
    weights = _weights(jax.tree.map(lambda leaf: leaf[None], params))
    return jnp.squeeze(fused_mlp.mlp(tiles, weights, networks.input_vector(observation)[None]), 0)


def _twins(tiles: fused_mlp.Tiles, params: PyTree, observation: Observation, action: Array) -> Array:
    """Values `[B, 2]` of twin critics."""
    stacked = params if isinstance(params, networks.Stacked) else networks.Stacked(trees.stack(params))
    inputs = jnp.concatenate([networks.input_vector(observation), action], axis=-1)
    return jnp.squeeze(fused_mlp.mlp(tiles, _weights(stacked.all), inputs[None]), 2).T
