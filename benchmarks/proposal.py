"""Cost of PB2's proposals compared with a generation.

    python -m benchmarks.proposal [--quick]

The benchmark times the compiled proposals for a quarter of 64 members with 10 hyper-parameters each, from a full
history of 256 rows: the fit of the Gaussian process and the search. The generation is one of the README's run: 8
members on hopper, 12,500 steps and 5,000 updates each, on one device; with 64 members it would take eight times as
long.
"""

from collections import namedtuple
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import harness
from rookery import hyperparams
from rookery.agents.sac import SacConfig, sac
from rookery.distributed import layout, mesh
from rookery.envs import registry
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.populations import pb2
from rookery.populations.pbt import pbt

MEMBERS, FIELDS, CHILDREN = 64, 10, 16


def main() -> None:
    options = harness.parse(harness.parser(__doc__, rounds=5))
    load = harness.load()
    proposal, generation = timed_proposal(), timed_generation(options.quick)
    times = harness.interleave({"proposal": proposal[1], "generation": generation[1]}, options.rounds)
    row = {
        "members": MEMBERS,
        "hyper_parameters": FIELDS,
        "children": CHILDREN,
        "proposal_s": times["proposal"].median,
        "generation_s": times["generation"].median,
        "share": times["proposal"].median / times["generation"].median,
        "proposal_compile_s": proposal[0].seconds,
        "seconds": {name: value.seconds for name, value in times.items()},
    }
    harness.report("proposal", options, [row], load)


def timed_proposal() -> tuple[harness.Compiled, harness.Loop]:
    """The compiled proposal, from a full history of random gains."""
    names = [f"field_{index}" for index in range(FIELDS)]
    hyper_type: Any = namedtuple("Hyper", names)
    defaults = hyper_type(*[0.1] * FIELDS)
    space = hyperparams.space(defaults, dict.fromkeys(names, hyperparams.LogUniform(1e-3, 1.0)))
    history = pb2.empty(space, MEMBERS)
    draw = jax.jit(jax.vmap(partial(hyperparams.sample, space)))
    for generation in range(len(history.time) // MEMBERS):
        keys = jax.random.split(jax.random.key(generation), 3)
        before, after = jax.random.normal(keys[0], (MEMBERS,)), jax.random.normal(keys[1], (MEMBERS,))
        hyper = draw(jax.random.split(keys[2], MEMBERS))
        history = pb2.record(history, space, jnp.int32(generation), hyper, before, after)
    is_child = jnp.arange(MEMBERS) < CHILDREN

    def propose(history: pb2.History, carry: Any) -> tuple[Any, tuple]:
        hyper, before, key = carry
        key, now = jax.random.split(key)
        return (pb2.propose(history, space, jnp.int32(4), hyper, before, is_child, now), before, key), ()

    carry = (hyper, after, jax.random.key(7))
    program = harness.compile_program(propose, history, carry, donate=(1,))
    return program, harness.Loop(program.call, harness.Held(carry), history)


def timed_generation(quick: bool) -> tuple[harness.Compiled, harness.Loop]:
    """The compiled generation of the README's run."""
    env = registry.make("hopper")
    learner_config = OffPolicyConfig(
        steps_per_generation=1_250 if quick else 12_500, updates_per_step=0.4, batch_size=64, warmup_steps=0
    )
    learner = off_policy(sac(env.spec, SacConfig(hidden_sizes=(64, 64))), env, learner_config)
    program = pbt(learner, population_size=8, placement=layout.placement(mesh.make_mesh(1)))

    def generation(_: tuple, carry: Any) -> tuple[Any, Any]:
        state, key = carry
        key, now = jax.random.split(key)
        state, metrics = program.step(state, now)
        return (state, key), metrics

    carry = (jax.jit(program.init)(jax.random.key(0)), jax.random.key(1))
    compiled = harness.compile_program(generation, (), carry, donate=(1,))
    return compiled, harness.Loop(compiled.call, harness.Held(carry), ())


if __name__ == "__main__":
    main()
