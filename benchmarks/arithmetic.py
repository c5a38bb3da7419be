"""Estimated cost of a population of thousands on hundreds of devices; calculated, not measured.

    python -m benchmarks.arithmetic [--device-speed 1 100]

Bytes are exact: they are counted from the shapes of the real programs. The speed of a device is the measured speed of
two cores (`docs/evidence/performance.md`, `docs/reference/tasks.md`), times `--device-speed`; network bandwidths are
those stated by vendors, the bandwidth of the file system is an assumption. The formulas are those of
`docs/evidence/scaling.md`, which
`tests/distributed/test_layouts.py` compares with the compiled programs.
"""

import argparse
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import harness
from rookery.agents.sac import SacConfig, sac
from rookery.envs.base import DescriptorSpec, EnvSpec
from rookery.learners.base import Genotype
from rookery.populations.sharding import rows_at_once

UPDATES, STEPS = 245.0, 77_000.0  # per second, measured on two cores: SAC 256 x 256, batch size 256, P = 10; walker2d
LINK, DISK = 50e9, 10e9  # bytes per second: 400 Gbit/s InfiniBand for each device; a shared file system, assumed
ROUND = 50e-6  # minimum seconds of a collective, assumed
CELLS, VARIATIONS, ROW = 1_024, 3, 4 * (2 * 17 + 6 + 1) + 1  # cells; variations per member; bytes of a transition
SPEC = EnvSpec("halfcheetah", 17, 6, 1_000, descriptor=DescriptorSpec("feet", "mean", (0.0, 0.0), (1.0, 1.0)))


class Scale(NamedTuple):
    """Size of a population, its devices and its work."""

    population: int
    devices: int
    steps: int = 10_000  # environment steps and updates of each member in a generation
    episodes: int = 10  # evaluation episodes of each member, of 1,000 steps
    buffer_rows: int = 100_000


SCALES = (Scale(8, 1), Scale(320, 8), Scale(2_560, 64), Scale(10_240, 256))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--device-speed",
        type=float,
        nargs="+",
        default=[1.0, 100.0],
        help="speed of a device relative to two cores (%(default)s)",
    )
    options = made.parse_args()
    for speed in options.device_speed:
        print(
            f"\nSpeed of a device: {speed:g} times two cores; values are seconds per generation unless a unit is named"
        )
        harness.show([seconds(scale, speed) for scale in SCALES])


def seconds(scale: Scale, speed: float) -> dict[str, Any]:
    """Time of the parts of a generation, and memory of a device."""
    row, genotype, at_once = sizes(scale.population)
    members = scale.population // scale.devices
    ring = 2 * (scale.devices - 1) / scale.devices
    children = scale.population // 4
    rounds = -(-children // at_once)
    state = scale.population * (row + scale.buffer_rows * ROW)
    proposals = scale.population * genotype
    return {
        "agents": scale.population,
        "devices": scale.devices,
        "train": members * scale.steps * (1 / UPDATES + 1 / STEPS) / speed,
        "evaluate": members * scale.episodes * SPEC.episode_length / STEPS / speed,
        "exchange": (ring * rounds * at_once * row / LINK + rounds * ROUND) * (scale.devices > 1),
        "exchange_gb": ring * rounds * at_once * row / 1e9,
        "repertoire": ring / 2 * proposals / LINK,
        "repertoire_gb_held": (CELLS * genotype + (1 + VARIATIONS) * proposals) / 1e9,
        "checkpoint": scale.population * row / DISK,
        "checkpoint_with_buffers": state / DISK,
        "state_gb_of_device": state / scale.devices / 1e9,
    }


def sizes(population: int) -> tuple[int, int, int]:
    """Bytes that a child inherits, bytes of a genotype, and number of rows moved at once."""
    agent = sac(SPEC, SacConfig(hidden_sizes=(256, 256)))
    state = jax.eval_shape(lambda key: agent.start(agent.init(key)), jax.random.key(0))
    genotype = Genotype(state.params, agent.space.defaults, None)
    row, copied = (
        sum(math.prod(np.shape(leaf)) * np.dtype(getattr(leaf, "dtype", np.float32)).itemsize for leaf in leaves)
        for leaves in (jax.tree.leaves(state), jax.tree.leaves(genotype))
    )
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((population, *leaf.shape), leaf.dtype), state)
    return row, copied, rows_at_once(stacked, population)


if __name__ == "__main__":
    main()
