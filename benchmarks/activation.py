"""What a choice of PPO's activation costs: a member with four activations to choose from, beside one with one.

    python -m benchmarks.activation [--quick] [--members 16] [--rounds 7]

CartPole-v1, default settings, 32 environments for 128 steps, without evaluations; both are the learner's step, mapped
over members. With a choice all four activations are computed, and an index selects the result.
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from rookery.agents.ppo import ppo
from rookery.learners.base import Member
from rookery.learners.on_policy import on_policy
from rookery.types import Key

CHOICES: dict[str, dict[str, Any]] = {"one": {}, "four": {"activation": ("tanh", "relu", "silu", "elu")}}


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--members", type=int, default=16, help="(%(default)s)")
    made.add_argument("--hidden-sizes", type=int, nargs="+", default=[64, 64], help="(%(default)s)")
    options = harness.parse(made)
    load = harness.load()
    programs = {name: program(chosen, options) for name, chosen in CHOICES.items()}
    calls = {name: harness.Loop(made.call, harness.Held(state)) for name, (made, state) in programs.items()}
    times = harness.interleave(calls, options.rounds)
    row = {
        "hidden_sizes": " ".join(map(str, options.hidden_sizes)),
        "members": options.members,
        **{f"{name}_ms": 1e3 * value.median for name, value in times.items()},
        "cost": times["four"].median / times["one"].median,
        "cpu_cost": float(np.median(times["four"].cpu_seconds) / np.median(times["one"].cpu_seconds)),
        "seconds": {name: value.seconds for name, value in times.items()},
    }
    harness.report("activation", options, [row], load)


def program(chosen: dict[str, Any], options: argparse.Namespace) -> tuple[harness.Compiled, tuple[Member, Key]]:
    """A generation of all members, and its first arguments."""
    env = rookery.make("CartPole-v1")
    agent = ppo(env.spec, hidden_sizes=tuple(options.hidden_sizes))
    learner = on_policy(agent, env, num_envs=32, rollout_length=128, evaluate_every=1 if options.quick else 4)
    space = rookery.choose(learner.space, **chosen)

    def begin(key: Key) -> tuple[Member, Key]:
        keys = jax.random.split(key, options.members)
        hyper = jax.vmap(partial(rookery.hyperparams.sample, space))(keys)
        bank = learner.start_states(key)
        return jax.vmap(learner.init, in_axes=(0, 0, None))(keys, hyper, bank), key

    def advance(carry: tuple[Member, Key]) -> tuple[tuple[Member, Key], Any]:
        members, key = carry
        key, bank_key, step_key = jax.random.split(key, 3)
        keys, bank = jax.random.split(step_key, options.members), learner.start_states(bank_key)
        step = jax.vmap(learner.step, in_axes=(0, None, 0, None))
        members, metrics = step(members, bank, keys, jnp.zeros((), jnp.int32))
        return (members, key), metrics

    state = jax.jit(begin)(jax.random.key(0))
    return harness.compile_program(advance, state, donate=(0,)), state


if __name__ == "__main__":
    main()
