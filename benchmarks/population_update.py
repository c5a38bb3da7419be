"""Gradient updates of a whole population: ours, QDax's, and what the matrix products alone would take.

    python -m benchmarks.population_update [--quick] [--agent sac td3]

Ours is the learner's own block of 50 updates for P vmapped members: indices and noise drawn at once, a batch gathered
per update. QDax's is `PBTSAC.update` or `PBTTD3.update`, vmapped, in a scan of 50. Both read buffers of 10 thousand
random rows. The ceiling is the agent's own sequence of matrix products, forward and backward, for the same P, without
anything in between (no activation, optimiser, noise or gather); its forward passes all read different inputs, or XLA
would merge them. It falls with P, so a fraction of it says how near the vmapped products are, not how full the machine
is. TD3's policy moves every second update on both sides; the ceiling, like ours, leaves its products out in between.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

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
    work.add_agents(made)
    options = harness.parse(made)
    load = harness.load()
    if options.quick:
        options.populations = [1, 4]
    rows = [
        measure(work.Shapes(population, agent=agent, **sizes), options.rounds, 10 if options.quick else UPDATES)
        for agent in options.agent
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
        "agent": shapes.agent,
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


class Networks(NamedTuple):
    """The weights of linear networks, layer by layer, `[P, inputs, outputs]`."""

    policy: PyTree
    critics: PyTree  # two
    goal_policy: PyTree  # acts in the targets: SAC's policy itself, TD3's target
    goal_critics: PyTree  # two


def ceiling(shapes: work.Shapes, updates: int) -> tuple[harness.Compiled, harness.Loop]:
    """The products of a block of updates; the weights stay, the gradients are what a call returns."""
    networks = _networks(shapes)
    widths = (shapes.observation_size, shapes.observation_size, shapes.action_size)
    batches = tuple(
        jax.random.normal(jax.random.key(1 + index), (shapes.population, updates, shapes.batch_size, width))
        for index, width in enumerate(widths)
    )
    gradients = jax.tree.map(jnp.zeros_like, networks[:2])
    program = harness.compile_program(
        jax.vmap(partial(_products, shapes.agent)), networks, batches, gradients, donate=(2,)
    )
    return program, harness.Loop(program.call, harness.Held(gradients), networks, batches)


def _networks(shapes: work.Shapes) -> Networks:
    outputs = shapes.action_size if shapes.agent == "td3" else 2 * shapes.action_size
    sizes = (shapes.observation_size, *shapes.hidden_sizes, outputs)
    twin_sizes = (shapes.observation_size + shapes.action_size, *shapes.hidden_sizes, 1)
    policy, goal_policy, *twins = (
        _weights(key, shapes.population, widths)
        for key, widths in zip(jax.random.split(jax.random.key(0), 6), (*[sizes] * 2, *[twin_sizes] * 4), strict=True)
    )
    return Networks(policy, tuple(twins[:2]), goal_policy if shapes.agent == "td3" else policy, tuple(twins[2:]))


def _weights(key: Key, population: int, sizes: Sequence[int]) -> list[Array]:
    shapes = itertools.pairwise(sizes)
    keys = jax.random.split(key, len(sizes) - 1)
    return [jax.random.normal(k, (population, *shape)) / shape[0] ** 0.5 for k, shape in zip(keys, shapes, strict=True)]


def _products(agent: str, networks: Networks, batches: PyTree, gradients: PyTree) -> tuple[PyTree, tuple]:
    """The matrix products of the updates of one member, gradient by gradient of linear networks."""
    delay, judges = (work.POLICY_DELAY, networks.critics[:1]) if agent == "td3" else (1, networks.critics)

    def update(gradients: PyTree, inputs: tuple[Array, tuple]) -> tuple[PyTree, None]:
        step, (observation, next_observation, action) = inputs
        size = action.shape[1]
        goal = _values(
            networks.goal_critics, next_observation, _linear(networks.goal_policy, next_observation)[:, :size]
        )

        def critic_loss(critics: PyTree) -> Array:
            return jnp.sum((_values(critics, observation, action) - goal) ** 2)

        def policy_loss(policy: PyTree) -> Array:
            return jnp.sum(_values(judges, observation, _linear(policy, observation)[:, :size]) ** 2)

        due = (step + 1) % delay == 0  # the same for all members: what is left out costs nothing
        move = partial(jax.grad(policy_loss), networks.policy)
        policy_gradient = move() if delay == 1 else jax.lax.cond(due, move, lambda: gradients[0])
        return (policy_gradient, jax.grad(critic_loss)(networks.critics)), None

    steps = jnp.arange(jax.tree.leaves(batches)[0].shape[0])
    return jax.lax.scan(update, gradients, (steps, batches))[0], ()


def _linear(weights: Sequence[Array], inputs: Array) -> Array:
    for weight in weights:
        inputs = inputs @ weight
    return inputs


def _values(critics: Sequence, observation: Array, action: Array) -> Array:
    inputs = jnp.concatenate([observation, action], axis=-1)
    return jnp.concatenate([_linear(weights, inputs) for weights in critics], axis=-1)


if __name__ == "__main__":
    main()
