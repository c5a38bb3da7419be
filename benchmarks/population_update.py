"""Gradient updates of a whole population: Rookery, QDax, and the matrix products alone.

    python -m benchmarks.population_update [--quick] [--agent sac td3]

`ours` is the learner's block of 50 updates for P vmapped members: indices and noise are drawn at once, and a batch is
gathered per update. `qdax` is `PBTSAC.update` or `PBTTD3.update`, vmapped, in a scan of 50. Both read buffers of 10
thousand random rows. `ceiling` is the agent's sequence of matrix products, forward and backward, for the same P,
without any other operation (no activation, optimizer, noise or gather); its forward passes read different inputs,
because XLA would merge equal ones. The ceiling decreases with P, so the fraction of it shows how close an update is to
the vmapped products, not the utilisation of the machine. TD3's policy is updated every second step in all contenders;
the ceiling, like `ours`, omits its products in the other steps.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import harness, work
from rookery.agents.base import OffPolicyAgent
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
    """One row of results: updates per second of the three contenders, summed over the members."""
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


def ours(
    shapes: work.Shapes, updates: int, agent: OffPolicyAgent | None = None
) -> tuple[harness.Compiled, harness.Loop]:
    """Rookery's block of updates, with donated members; for the agent see `work.update_parts`."""
    parts = work.update_parts(shapes, updates, agent)
    population = work.members(parts, shapes, jax.random.key(0))
    carry = (population._replace(buffer=None), jax.random.key(1))
    program = harness.compile_program(partial(work.update_block, parts), population.buffer, carry, donate=(1,))
    return program, harness.Loop(program.call, harness.Held(carry), population.buffer)


def qdax(shapes: work.Shapes, updates: int) -> tuple[harness.Compiled, harness.Loop]:
    """QDax's block of updates, with donated training states."""
    peer = work.qdax_peer(shapes, jax.random.key(0))
    block = partial(work.qdax_update_block, peer.agent, updates)
    program = harness.compile_program(block, peer.buffers, peer.states, donate=(1,))
    return program, harness.Loop(program.call, harness.Held(peer.states), peer.buffers)


class Networks(NamedTuple):
    """The weights of linear networks, layer by layer, `[P, inputs, outputs]`."""

    policy: PyTree
    critics: PyTree  # two
    goal_policy: PyTree  # policy in the targets: SAC's policy, TD3's target policy
    goal_critics: PyTree  # two


def ceiling(shapes: work.Shapes, updates: int) -> tuple[harness.Compiled, harness.Loop]:
    """The matrix products of a block of updates; the weights stay constant, and a call returns the gradients."""
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
    """The matrix products of the updates of one member, as gradients of linear networks."""
    delay, policy_critics = (work.POLICY_DELAY, networks.critics[:1]) if agent == "td3" else (1, networks.critics)

    def update(gradients: PyTree, inputs: tuple[Array, tuple]) -> tuple[PyTree, None]:
        step, (observation, next_observation, action) = inputs
        size = action.shape[1]
        goal = _values(
            networks.goal_critics, next_observation, _linear(networks.goal_policy, next_observation)[:, :size]
        )

        def critic_loss(critics: PyTree) -> Array:
            return jnp.sum((_values(critics, observation, action) - goal) ** 2)

        def policy_loss(policy: PyTree) -> Array:
            return jnp.sum(_values(policy_critics, observation, _linear(policy, observation)[:, :size]) ** 2)

        due = (step + 1) % delay == 0  # equal for all members, so that the skipped branch costs nothing
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
