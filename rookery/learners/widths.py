"""Hidden layers whose width is a hyper-parameter of each member, in one program for all members.

Every member has arrays of the full width. The units of a layer beyond a member's width have weights of 0 to and from
them, and biases of 0: their output is 0 and so are the gradients of their weights, so that Adam leaves them at 0 and no
update needs a mask. A member that becomes wider keeps what it computes, since the weights from its new units are 0
(Chen 2016, "Net2Net", arXiv:1511.05641, has the same requirement).
"""

import collections
import itertools
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from rookery import hyperparams
from rookery.agents.base import Agent, OnPolicyAgent
from rookery.hyperparams import Field, LogWhole, Space
from rookery.learners.base import Bank, InitFn, Learner, Member
from rookery.networks import Encoded
from rookery.types import Array, Key, PyTree

Network = dict[str, PyTree]
"""flax's parameters of a network: name of a layer -> its parameters."""

NAME = "hidden_size"
"""The hyper-parameter."""
MEANING = "units of each hidden layer"


_Width = collections.namedtuple("_Width", [NAME])


def field(largest: float = math.inf) -> Field:
    """The declaration of the hyper-parameter; `largest` is the width of the widest layer."""
    return Field(MEANING, LogWhole, low=1.0, high=largest, remedy="use larger hidden_sizes")


def space(agent: Agent) -> Space | None:
    """The search space that has the hyper-parameter alone; None for an agent whose networks cannot be narrower.

    These are teams, agents with an intrinsic reward, which have networks of other kinds, agents with memory, and agents
    with normalised layers, whose means would contain the missing units; and agents that declare a hyper-parameter of
    this name.
    """
    is_on_policy = isinstance(agent, OnPolicyAgent)
    others = (agent.team or agent.carry_sizes) if is_on_policy else agent.intrinsic_reward
    if others or NAME in agent.space.defaults._fields:
        return None
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    if any("LayerNorm" in jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(shapes)):
        return None
    widths = [layer["kernel"].shape[-1] for layers in _networks(shapes) for layer in layers[:-1]]
    if not widths:
        return None
    return hyperparams.space(_Width(float(max(widths))), {}, {NAME: field(float(max(widths)))})


def is_chosen(hyper: PyTree) -> bool:
    """Whether hyper-parameters have a width."""
    return hasattr(hyper, NAME)


def evolves(learner: Learner, hyper: PyTree) -> bool:
    """Whether members with these hyper-parameters have to be resized when those change."""
    return learner.resize is not None and is_chosen(hyper)


def narrow_init(agent: Agent, init: InitFn, key: Key, hyper: PyTree, bank: Bank) -> Member:
    """`init` of a learner, whose member has the width that its hyper-parameters say.

    The weights from hidden units are scaled, so that their variance is that of a network created with this width.
    """
    member = init(key, hyper, bank)
    if not is_chosen(hyper):
        return member
    params = _map_networks(partial(_narrow, hyper.hidden_size, True), member.state.params)
    return member._replace(state=agent.start(params))


def resize(agent: Agent, member: Member, key: Key) -> Member:
    """Give a member the width that its hyper-parameters say; one that has it already is unchanged.

    New units get the weights to them that `agent.init` draws, weights of 0 from them, and optimisers without memory of
    them; a member that becomes narrower loses its last units.
    """
    width = member.hyper.hidden_size
    narrowed = _map_networks(partial(_narrow, width, False), member.state)
    return member._replace(state=_map_networks(partial(_widen, width), narrowed, agent.start(agent.init(key))))


def _is_network(node: PyTree) -> bool:
    """Whether a node is a multi-layer perceptron: dense layers only, each of which reads the one before."""
    if not isinstance(node, dict) or not node or set(node) != {f"Dense_{layer}" for layer in range(len(node))}:
        return False
    layers = _layers(node)
    if not all(isinstance(layer, dict) and {"kernel", "bias"} <= set(layer) for layer in layers):
        return False
    return all(one["kernel"].shape[-1] == two["kernel"].shape[-2] for one, two in itertools.pairwise(layers))


def _layers(network: Network) -> list[dict[str, Array]]:
    """The layers of a multi-layer perceptron, first to last: `kernel` `[..., I, O]` and `bias` `[..., O]`."""
    return [network[f"Dense_{layer}"] for layer in range(len(network))]


def _networks(tree: PyTree) -> list[list[dict[str, Array]]]:
    """The layers of every multi-layer perceptron in a tree; encoders of features are left out."""
    found: list[list[dict[str, Array]]] = []
    _map_networks(lambda network: found.append(_layers(network)) or network, tree)
    return found


def _map_networks(change: Callable[..., Network], tree: PyTree, *others: PyTree) -> PyTree:
    """Apply `change` to every multi-layer perceptron in a tree, such as those in the state of an optimiser or of a
    target, and to the same one in `others`."""

    def visit(node: PyTree, *rest: PyTree) -> PyTree:
        if isinstance(node, Encoded):
            return node._replace(head=_map_networks(change, node.head, *(other.head for other in rest)))
        return change(node, *rest) if _is_network(node) else node

    return jax.tree.map(visit, tree, *others, is_leaf=lambda node: isinstance(node, Encoded) or _is_network(node))


def _exists(width: Array, size: int) -> Array:
    """`[size]` bool: the units of a layer that a member of this width has."""
    return jnp.arange(size, dtype=jnp.float32) < width


def _narrow(width: Array, rescale: bool, network: Network) -> Network:
    """Set all that belongs to units beyond the width to 0."""
    layers = _layers(network)
    changed = {}
    for index, layer in enumerate(layers):
        kernel, bias = layer["kernel"], layer["bias"]
        if index > 0:
            inputs = kernel.shape[-2]
            scale = jnp.sqrt(inputs / jnp.minimum(width, float(inputs))) if rescale else 1.0
            kernel = jnp.where(_exists(width, inputs)[:, None], kernel * scale, 0.0)
        if index < len(layers) - 1:
            exists = _exists(width, bias.shape[-1])
            kernel, bias = jnp.where(exists, kernel, 0.0), jnp.where(exists, bias, 0.0)
        changed[f"Dense_{index}"] = {**layer, "kernel": kernel, "bias": bias}
    return changed


def _widen(width: Array, network: Network, fresh: Network) -> Network:
    """Draw the weights to the units below the width that have none; `fresh` is a network of the full width."""
    changed = dict(network)
    for index, (layer, drawn) in enumerate(zip(_layers(network)[:-1], _layers(fresh), strict=False)):
        kernel, bias, given = layer["kernel"], layer["bias"], drawn["kernel"]
        missing = (kernel == 0.0).all(axis=-2) & (bias == 0.0) & _exists(width, bias.shape[-1])
        if index > 0:
            given = jnp.where(_exists(width, kernel.shape[-2])[:, None], given, 0.0)
        changed[f"Dense_{index}"] = {**layer, "kernel": jnp.where(missing[..., None, :], given, kernel)}
    return changed
