"""Which of three methods finds a name, a rate and a whole number that moves.

    python -m benchmarks.learning.mixed_space [--quick]

A member's score rises in each generation by how well its hyper-parameters suit: by 1 at most, by a fifth with a wrong
name, and by less the farther the rate and the whole number are from the best ones. The best whole number moves from 3
to 14 while the population climbs. Random search keeps the hyper-parameters of each member.

A population has found the space if, in most of the last tenth of the generations, most members have the right name and
the median of the whole numbers is within 2 of the best one. `members_right` is stricter: the share of the members that
have both.

Each finished run is kept in `benchmarks/results/curves/mixed_space` and is not repeated, so that the benchmark can be
stopped and continued; `--methods` trains some of the methods, and `--only-report` makes the table of what there is.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from rookery import hyperparams, trees
from rookery.hyperparams import Choice, Field, LogUniform, Whole
from rookery.populations import pb2, selection
from rookery.populations.config import PbtConfig
from rookery.populations.inheritance import perturb
from rookery.types import Array, Key

METHODS = ("pbt", "pb2", "random")
NAMES, RIGHT = ("relu", "tanh", "silu", "elu"), 2
MEMBERS, REPLACED, GENERATIONS, NOISE = 16, 4, 100, 0.1


class Hyper(NamedTuple):
    """The space: a name, a rate and a whole number."""

    layer: Array | float = 0.0
    rate: Array | float = 1e-3
    delay: Array | float = 1.0


DOMAINS = {"layer": Choice(*NAMES), "rate": LogUniform(1e-5, 1e-1), "delay": Whole(1, 16)}
SPACE = hyperparams.space(Hyper(), DOMAINS, {name: Field("", domain) for name, domain in DOMAINS.items()})


class Population(NamedTuple):
    """Scores `[P]`, hyper-parameters `[P]`, the scores before the generation, and what PB2 has observed."""

    score: Array
    hyper: Hyper
    before: Array
    history: pb2.History


def best_delay(generation: Array) -> Array:
    """The best whole number in a generation."""
    return jnp.round(3.0 + 11.0 * generation.astype(jnp.float32) / (GENERATIONS - 1))


def gain(hyper: Hyper, generation: Array) -> Array:
    """The rise of the scores `[P]`: at most 1."""
    suits = jnp.where(hyper.layer == RIGHT, 1.0, 0.2)
    rate = jnp.exp(-jnp.square((jnp.log10(hyper.rate) + 3.0) / 0.7))
    return suits * rate * jnp.exp(-jnp.square((hyper.delay - best_delay(generation)) / 3.0))


def generation(method: str, population: Population, inputs: tuple[Array, Key]) -> tuple[Population, dict[str, Array]]:
    """Train, select and perturb once; returns also whether the space is found, and the share of members right."""
    number, key = inputs
    noise_key, parent_key, change_key = jax.random.split(key, 3)
    hyper = population.hyper
    rise = gain(hyper, number)
    score = population.score + rise + NOISE * jax.random.normal(noise_key, (MEMBERS,))
    near = (hyper.layer == RIGHT) & (jnp.abs(hyper.delay - best_delay(number)) <= 2.0)
    is_named = jnp.mean(jnp.asarray(hyper.layer == RIGHT, jnp.float32)) > 0.5
    is_found = is_named & (jnp.abs(jnp.median(hyper.delay) - best_delay(number)) <= 2.0)
    seen = {"found": is_found, "right": jnp.mean(near.astype(jnp.float32))}
    if method == "random":
        return population._replace(score=score), seen
    history = pb2.record(population.history, SPACE, number, hyper, population.score, score)
    parents = selection.truncation(score, parent_key, REPLACED, REPLACED)
    is_child = parents != jnp.arange(MEMBERS)
    score, hyper = trees.take((score, hyper), parents)
    if method == "pb2":
        hyper = pb2.propose(history, SPACE, number + 1, hyper, score, is_child, change_key)
    else:
        hyper = perturb(PbtConfig(), SPACE, hyper, change_key, is_child)
    return Population(score, hyper, score, history), seen


def run(method: str, key: Key) -> dict[str, Array]:
    """One population; `found` and `right` `[G]`, and the final score `[]`."""
    first_key, key = jax.random.split(key)
    hyper = jax.vmap(partial(hyperparams.sample, SPACE))(jax.random.split(first_key, MEMBERS))
    scores = jnp.zeros(MEMBERS)
    population = Population(scores, hyper, scores, pb2.empty(SPACE, MEMBERS))
    inputs = jnp.arange(GENERATIONS), jax.random.split(key, GENERATIONS)
    population, seen = jax.lax.scan(partial(generation, method), population, inputs)
    return {**seen, "score": jnp.max(population.score)}


def main() -> None:
    """Run every method with every seed, print a table and write the results."""
    made = harness.learning_parser(__doc__, "mixed_space")
    made.add_argument("--seeds", type=int, default=20, help="runs of each method (%(default)s)")
    made.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="that run (all)")
    options = harness.parse(made)
    options.seeds = 2 if options.quick else options.seeds
    load, kept = harness.load(), Path("runs/mixed_space-quick" if options.quick else options.curves)
    kept.mkdir(parents=True, exist_ok=True)
    for method in [] if options.only_report else options.methods:
        compiled = jax.jit(partial(run, method))
        for seed in range(options.seeds):
            if not (path := kept / f"{method}-{seed}.json").exists():
                found = jax.tree.map(np.ndarray.tolist, jax.device_get(compiled(jax.random.key(seed))))
                path.write_text(json.dumps(found) + "\n")
                print(path.stem, f"{found['score']:.1f}", flush=True)
    harness.report("mixed_space", options, [row for row in map(partial(row_of, kept), METHODS) if row], load)


def row_of(kept: Path, method: str) -> dict[str, Any]:
    """The row of the table of a method, or nothing without runs."""
    runs = [json.loads(path.read_text()) for path in sorted(kept.glob(f"{method}-*.json"))]
    if not runs:
        return {}
    last = -GENERATIONS // 10
    right = [float(np.mean(one["right"][last:])) for one in runs]
    found = sum(np.mean(one["found"][last:]) > 0.5 for one in runs)
    scores = [one["score"] for one in runs]
    row = {"method": method, "runs": len(runs), "found": int(found)}
    row |= {"members_right": float(np.median(right)), "score": float(np.median(scores))}
    return row | {"right": right, "scores": scores}


if __name__ == "__main__":
    main()
