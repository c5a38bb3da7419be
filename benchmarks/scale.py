"""A generation sharded over 1, 2, 4 and 8 devices: overhead of the sharding, and transfers between devices.

    python -m benchmarks.scale [--quick]

The devices are virtual and share one processor, so the times show overhead only, never a speed-up. The benchmark counts
in the compiled programs: collectives in the training step (expected: none), leaves of the members that are returned
replicated on every device (expected: none), copies of the replay buffers, and each device's share of the members
(expected: 1/N).
"""

import os

DEVICES = 8
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import collections  # noqa: E402 - JAX counts the devices when it is imported
import re  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402
from jax.sharding import Mesh  # noqa: E402

from benchmarks import harness  # noqa: E402
from rookery.agents.sac import SacConfig, sac  # noqa: E402
from rookery.distributed import mesh, programs  # noqa: E402
from rookery.distributed.layout import placement, population_map  # noqa: E402
from rookery.envs import registry  # noqa: E402
from rookery.learners.base import Learner  # noqa: E402
from rookery.learners.off_policy import OffPolicyConfig, off_policy  # noqa: E402
from rookery.populations.base import ProgramState  # noqa: E402
from rookery.populations.pbt import pbt  # noqa: E402
from rookery.types import Key  # noqa: E402

COLLECTIVES = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")
ROWS = 20_011  # a prime, so that buffers can be identified in a program by their shape


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--env", default="walker2d_uni", help="task (%(default)s); --quick uses point_maze")
    made.add_argument("--inherit-buffer", action="store_true", help="children also copy their parents' replay buffers")
    options = harness.parse(made)
    if options.quick:
        options.env = "point_maze"
    load = harness.load()
    config = OffPolicyConfig(
        num_envs=25,
        steps_per_generation=100 if options.quick else 500,
        batch_size=64,
        buffer_size=ROWS,
        warmup_steps=50,
        eval_episodes=2,
    )
    environment = registry.make(options.env, episode_length=50)
    learner = off_policy(sac(environment.spec, SacConfig(hidden_sizes=(64, 64))), environment, config)
    counts = (1, 2) if options.quick else (1, 2, 4, DEVICES)
    spread = {count: Spread(learner, mesh.make_mesh(count), options.inherit_buffer) for count in counts}
    times = harness.interleave({str(count): one for count, one in spread.items()}, options.rounds)
    rows = [
        {
            "devices": count,
            "generation_s": times[str(count)].median,
            "overhead": times[str(count)].median / times["1"].median,
            "best_overhead": times[str(count)].best / times["1"].best,
            **one.facts(),
            "seconds": list(times[str(count)].seconds),
        }
        for count, one in spread.items()
    ]
    harness.report("scale", options, rows, load)


class Spread:
    """A population of 8 on a mesh; a call runs a generation."""

    def __init__(self, learner: Learner, over: Mesh, inherit_buffer: bool):
        program = pbt(learner, population_size=DEVICES, placement=placement(over), inherit_buffer=inherit_buffer)
        compiled = programs.compile_program(program, over)
        self._state, self._key, self._count = compiled.init(jax.random.key(0)), jax.random.key(1), over.devices.size
        self._step = compiled.step.lower(self._state, self._key).compile()
        self._training = compile_training(learner, over, self._state, self._key)

    def __call__(self) -> None:
        self._key, key = jax.random.split(self._key)
        self._state, _ = jax.block_until_ready(self._step(self._state, key))

    def facts(self) -> dict[str, Any]:
        """Properties of the compiled programs and of the returned state."""
        members = jax.tree.leaves(self._state.members)
        whole = sum(leaf.nbytes for leaf in members)
        first = sum(leaf.addressable_shards[0].data.nbytes for leaf in members)
        generation = self._step.as_text()
        collectives = collections.Counter(COLLECTIVES.findall(generation))
        return {
            "training_collectives": len(COLLECTIVES.findall(self._training)),
            "generation_collectives": sum(collectives.values()),
            "whole_leaves": sum(leaf.sharding.is_fully_replicated for leaf in members) if self._count > 1 else 0,
            "share": first / whole,
            "training_buffer_copies": buffer_copies(self._training, self._count),
            "generation_buffer_copies": buffer_copies(generation, self._count),
            "temporary_gb": self._step.memory_analysis().temp_size_in_bytes / 1e9,
            "collectives": dict(collectives),
        }


def compile_training(learner: Learner, over: Mesh, state: ProgramState, key: Key) -> str:
    """The compiled text of the learner's step alone, mapped over the mesh as a generation maps it."""
    bank = jax.eval_shape(learner.start_states, key)
    keys = jax.eval_shape(lambda key: jax.random.split(key, DEVICES), key)

    def train(members: Any, keys: Key, bank: Any, generation: Any) -> Any:
        def step(member: Any, key: Key, bank: Any, generation: Any) -> Any:
            return learner.step(member, bank, key, generation)

        return population_map(over)(step, (members, keys), (bank, generation))

    layout = programs.shardings(over)
    jitted = jax.jit(
        train,
        donate_argnums=0,
        in_shardings=(layout.members, layout.members, layout.shared, layout.shared),
        out_shardings=layout.members,
    )
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    return jitted.lower(shapes.members, keys, bank, shapes.shared.generation).compile().as_text()


def buffer_copies(text: str, count: int) -> int:
    """Number of instructions that copy, gather or select whole buffers of a device's members."""
    held = f"{DEVICES // count},{ROWS}"
    return len(re.findall(rf"= \w+\[(?:{held}|{DEVICES},{ROWS})[^ ]* (?:copy|all-gather|select|broadcast)\(", text))


if __name__ == "__main__":
    main()
