"""Gradient updates of a whole population: ours, QDax's, and what the matrix products alone would take.

    python -m benchmarks.population_update [--quick]

Ours is the learner's own block of 50 updates for P vmapped SAC members: indices and noise drawn at once, a batch
gathered per update. QDax's is `PBTSAC.update`, vmapped, in a scan of 50. Both read buffers of 10 thousand random rows.
The ceiling is the same sequence of matrix products, forward and backward, for the same P, without anything in between
(no activation, optimiser, noise or gather); its forward passes all read different inputs, or XLA would merge them. It
falls with P, so a fraction of it says how near the vmapped products are, not how full the machine is.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import harness, work
from rookery.types import Array, Key, PyTree

UPDATES = 50
WIDE = {"batch_size": 256, "hidden_sizes": (256, 256)}
SMALL = {"batch_size": 64, "hidden_sizes": (64, 64)}


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--populations", type=int, nargs="+", default=[1, 4, 10, 32, 64])
    options = harness.parse(made)
    load = harness.load()
    if options.quick:
        options.populations = [1, 4]
    rows = [
        measure(work.Shapes(population, **sizes), options.rounds, 10 if options.quick else UPDATES)
        for sizes in (WIDE, SMALL)
        for population in options.populations
    ]
    harness.report("population_update", options, rows, load)


def measure(shapes: work.Shapes, rounds: int, updates: int) -> dict[str, Any]:
    """One row: updates per second of the three contenders, summed over the members."""
    programs = {
        "ours": ours(shapes, updates),
        "qdax": qdax(shapes, updates),
        "ceiling": ceiling(shapes, updates),
    }
    times = harness.interleave({name: loop for name, (_, loop) in programs.items()}, rounds)
    count = shapes.population * updates
    return {
        "P": shapes.population,
        "hidden": shapes.hidden_sizes[0],
        "batch": shapes.batch_size,
        "ours/s": count / times["ours"].median,
        "qdax/s": count / times["qdax"].median,
        "ceiling/s": count / times["ceiling"].median,
        **harness.speedup(times["ours"], times["qdax"]),
        "of_ceiling": times["ceiling"].median / times["ours"].median,
        "best_of_ceiling": times["ceiling"].best / times["ours"].best,
        "compile_s": programs["ours"][0].seconds,
        "qdax_compile_s": programs["qdax"][0].seconds,
        "seconds": {name: value.seconds for name, value in times.items()},
    }


def ours(shapes: work.Shapes, updates: int) -> tuple[harness.Compiled, harness.Loop]:
    """The learner's block, its members donated."""
    parts = work.update_parts(shapes, updates)
    people = work.members(parts, shapes, jax.random.key(0))
    carry = (people._replace(buffer=None), jax.random.key(1))
    program = harness.compile_program(partial(work.update_block, parts), people.buffer, carry, donate=(1,))
    return program, harness.Loop(program.call, harness.Held(carry), people.buffer)


def qdax(shapes: work.Shapes, updates: int) -> tuple[harness.Compiled, harness.Loop]:
    """The peer's block, its training states donated."""
    peer = work.qdax_peer(shapes, jax.random.key(0))
    block = partial(work.qdax_update_block, peer.agent, updates)
    program = harness.compile_program(block, peer.buffers, peer.states, donate=(1,))
    return program, harness.Loop(program.call, harness.Held(peer.states), peer.buffers)


def ceiling(shapes: work.Shapes, updates: int) -> tuple[harness.Compiled, harness.Loop]:
    """The products of a block of updates; the weights stay, the gradients are what a call returns."""
    key = jax.random.key(0)
    sizes = (shapes.observation_size, *shapes.hidden_sizes, 2 * shapes.action_size)
    twin_sizes = (shapes.observation_size + shapes.action_size, *shapes.hidden_sizes, 1)
    policy, *twins = (
        _weights(jax.random.fold_in(key, index), shapes.population, widths)
        for index, widths in enumerate((sizes, *[twin_sizes] * 4))
    )
    networks = (policy, tuple(twins[:2]), tuple(twins[2:]))
    widths = (shapes.observation_size, shapes.observation_size, shapes.action_size)
    batches = tuple(
        jax.random.normal(jax.random.fold_in(key, 10 + index), (shapes.population, updates, shapes.batch_size, width))
        for index, width in enumerate(widths)
    )
    gradients = jax.tree.map(jnp.zeros_like, networks[:2])
    program = harness.compile_program(_products, networks, batches, gradients, donate=(2,))
    return program, harness.Loop(program.call, harness.Held(gradients), networks, batches)


def _weights(key: Key, population: int, sizes: Sequence[int]) -> list[Array]:
    shapes = itertools.pairwise(sizes)
    keys = jax.random.split(key, len(sizes) - 1)
    return [jax.random.normal(k, (population, *shape)) / shape[0] ** 0.5 for k, shape in zip(keys, shapes, strict=True)]


@jax.vmap
def _products(networks: PyTree, batches: PyTree, gradients: PyTree) -> tuple[PyTree, tuple]:
    """The matrix products of the updates of one member, gradient by gradient of linear networks."""
    policy, critics, targets = networks

    def update(_: PyTree, batch: tuple[Array, Array, Array]) -> tuple[PyTree, None]:
        observation, next_observation, action = batch
        goal = _twin(targets, next_observation, _linear(policy, next_observation)[:, : action.shape[1]])

        def critic_loss(critics: PyTree) -> Array:
            return jnp.sum((_twin(critics, observation, action) - goal) ** 2)

        def policy_loss(policy: PyTree) -> Array:
            return jnp.sum(_twin(critics, observation, _linear(policy, observation)[:, : action.shape[1]]) ** 2)

        return (jax.grad(policy_loss)(policy), jax.grad(critic_loss)(critics)), None

    return jax.lax.scan(update, gradients, batches)[0], ()


def _linear(weights: Sequence[Array], inputs: Array) -> Array:
    for weight in weights:
        inputs = inputs @ weight
    return inputs


def _twin(critics: Sequence, observation: Array, action: Array) -> Array:
    inputs = jnp.concatenate([observation, action], axis=-1)
    return jnp.concatenate([_linear(weights, inputs) for weights in critics], axis=-1)


if __name__ == "__main__":
    main()
