"""Check that the offsets of the QD score cover the rewards of bad policies.

    python -m benchmarks.qd_offsets [--quick] [--tasks ant_trap,ant_maze]

For every task with a descriptor, on its default backend, the benchmark measures the lowest reward of a step under five
families of policies: no action, uniform noise, full force with random signs, constant full force, and random networks
of 32 tanh units with large weights. Episodes reset automatically, so no step follows a termination. An offset covers a
family if the lowest reward plus the offset is at least 0, up to rounding: then no elite contributes a negative number
to the QD score.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import harness
from rookery.envs import registry
from rookery.envs.base import Environment
from rookery.envs.wrappers import auto_reset
from rookery.types import Array, Key

FAMILIES = ("none", "noise", "to_and_fro", "constant", "network")
HIDDEN = 32
GAIN = 2.0  # scale of the networks' weights, so that most of their actions are near full force
ROUNDING = 1e-4


class Policies(NamedTuple):
    """One policy of every family."""

    constant: Array  # [A] full force
    hidden: Array  # [O, HIDDEN]
    output: Array  # [HIDDEN, A]


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--tasks", default="", help="comma-separated task names; by default all tasks with a descriptor")
    made.add_argument(
        "--environments", type=int, default=24, help="number of environments of each family (%(default)s)"
    )
    made.add_argument("--steps", type=int, default=1000, help="steps of each environment (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.environments, options.steps = 4, 20
    load = harness.load()
    names = options.tasks.split(",") if options.tasks else [n for n in registry.names() if registry.find(n).descriptor]
    harness.report("qd_offsets", options, [measure(name, options.environments, options.steps) for name in names], load)


def measure(name: str, environments: int, steps: int) -> dict[str, Any]:
    """Result row of one task."""
    started = time.perf_counter()
    env, offset = registry.make(name), registry.find(name).qd_offset
    least = jax.jit(partial(least_rewards, env, environments, steps))(jax.random.key(0))
    worst = float(least.min())
    row: dict[str, Any] = {"task": name, "offset": offset, "least": worst, "covered": worst + offset >= -ROUNDING}
    row |= {family: float(value) for family, value in zip(FAMILIES, least, strict=True)}
    row["seconds"] = time.perf_counter() - started
    print(f"{name}: {worst:.3f}, offset {offset:g}", flush=True)
    return row


def least_rewards(env: Environment, environments: int, steps: int, key: Key) -> Array:
    """Lowest reward of each family over all its environments and steps, `[FAMILIES]`."""
    bank_key, policy_key, key = jax.random.split(key, 3)
    bank = auto_reset.start_bank(env, bank_key, environments)
    env = auto_reset.auto_reset(env, bank)
    shape = (len(FAMILIES), environments)
    states, starts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(FAMILIES), *leaf.shape)), bank)
    policies = jax.vmap(partial(draw_policies, env))(jax.random.split(policy_key, environments))

    def advance(carry: tuple[Any, Array, Array], key: Key) -> tuple[tuple[Any, Array, Array], None]:
        states, observations, least = carry
        action_keys, step_keys = jax.random.split(key, (2, *shape))
        actions = jax.vmap(act, in_axes=(0, None, 0, 0))(jnp.arange(shape[0]), policies, observations, action_keys)
        states, steps_taken = jax.vmap(jax.vmap(env.step))(states, actions, step_keys)
        return (states, steps_taken.observation.features, jnp.minimum(least, steps_taken.reward.min(axis=1))), None

    carry = states, starts.observation.features, jnp.full((shape[0],), jnp.inf)
    return jax.lax.scan(advance, carry, jax.random.split(key, steps))[0][2]


def draw_policies(env: Environment, key: Key) -> Policies:
    """Draw one policy of every family."""
    keys = jax.random.split(key, 3)
    size, actions = env.spec.observation_size, env.spec.action_size
    return Policies(
        constant=jax.random.rademacher(keys[0], (actions,), jnp.float32),
        hidden=GAIN * jax.random.normal(keys[1], (size, HIDDEN)) / size**0.5,
        output=GAIN * jax.random.normal(keys[2], (HIDDEN, actions)) / HIDDEN**0.5,
    )


def act(family: Array, policies: Policies, observations: Array, keys: Key) -> Array:
    """Actions `[E, A]` of a family (`[]` int, index in `FAMILIES`) in its environments."""
    return jax.vmap(partial(_act_once, family))(policies, observations, keys)


def _act_once(family: Array, policies: Policies, observation: Array, key: Key) -> Array:
    noise = jax.random.uniform(key, policies.constant.shape, minval=-1.0)
    network = jnp.tanh(jnp.tanh(observation @ policies.hidden) @ policies.output)
    return jnp.stack([jnp.zeros_like(noise), noise, jnp.sign(noise), policies.constant, network])[family]


if __name__ == "__main__":
    main()
