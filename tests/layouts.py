"""Run one tiny population on 1, 2, 4 and 8 virtual devices; called in a process of its own by `test_devices.py`.

Prints a JSON object: what each layout gave, as digests after two generations and as the largest difference to
one device after the first.
"""

import hashlib
import json
import os
import sys

COUNTS = (1, 2, 8)

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["NPROC"] = "32"  # XLA's thread pool; 8 devices on few cores starve the default one

import jax
import numpy as np

from rookery import devices
from rookery.learners.api import Learner
from rookery.populations import bandit
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import pbt
from tests import tiny, walks

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


TRUNCATION = PbtConfig(best_count=2, replace_count=3)
bandit.FIT_STEPS, bandit.CANDIDATES = 2, 16  # how well it fits does not matter, and shared cores are slow
EVERYTHING_ELSE = PbtConfig(exploit="multi-frequency", frequencies=(1, 2), perturb="pb2", smooth=2)


def play(
    exact: bool, count: int, config: PbtConfig = TRUNCATION, learner: Learner | None = None, generations: int = 2
) -> tuple[list, dict]:
    """Some generations on `count` devices: the state's leaves, and what was seen of the layout."""
    mesh = devices.mesh(count)
    program = pbt(learner or tiny.learner(), None, 8, config, devices.population_map(mesh, exact))
    compiled = devices.compile_program(program, mesh)
    state = compiled.init(jax.random.key(0))
    parents, first = [], []
    for generation in range(generations):
        state, _ = compiled.step(state, jax.random.fold_in(jax.random.key(1), generation))
        parents.append(state.shared.parents.tolist())
        first = first or [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    replicated = [str(leaf.sharding) for leaf in jax.tree.leaves(state.members) if leaf.sharding.is_fully_replicated]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)], {
        "first": first,
        "parents": parents,
        "replicated": len(replicated) if count > 1 else 0,
        "compiles": compiled.step._cache_size(),
    }


def collectives(count: int) -> list[str]:
    """Which collectives the compiled training and evaluation of a population holds."""
    from functools import partial

    from rookery.populations.api import member_keys
    from rookery.populations.pbt import live

    mesh = devices.mesh(count)
    learner = tiny.learner()
    spread = devices.population_map(mesh)
    state = devices.template(pbt(learner, population_size=8, population_map=spread), mesh)
    bank = jax.eval_shape(learner.start_states, jax.random.key(0))
    keys = jax.eval_shape(lambda key: member_keys(key, 8), jax.random.key(0))
    generation = jax.ShapeDtypeStruct((), np.int32)
    train = jax.jit(lambda m, k, b, g: spread(partial(live, learner), (m, k), (b, g)))
    text = str(train.lower(state.members, keys, bank, generation).compile().as_text())
    return [name for name in COLLECTIVES if name in text]


def digest(leaves: list) -> str:
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def main() -> None:
    """Print the findings."""
    found: dict[str, dict] = {"exact": {}, "vmap": {}, "else": {}, "collectives": {"8": collectives(8)}}
    for count in (1, 2):  # a bandit on 8 devices that share two cores would take minutes
        leaves, seen = play(True, count, EVERYTHING_ELSE, walks.learner(), generations=4)
        found["else"][str(count)] = {"digest": digest(leaves), "parents": seen["parents"]}
    for mode in ("exact", "vmap"):
        reference = None
        for count in COUNTS:
            leaves, seen = play(mode == "exact", count)
            first = seen.pop("first")
            reference = reference or first
            floats = [(a, b) for a, b in zip(first, reference, strict=True) if a.dtype.kind == "f"]
            difference = max(float(np.abs(a - b).max(initial=0.0)) for a, b in floats)
            found[mode][str(count)] = {"digest": digest(leaves), "difference": difference, **seen}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
