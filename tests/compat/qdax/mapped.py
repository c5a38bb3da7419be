"""Documented populations on 1 and 4 virtual devices; called in a separate process by `test_mapped.py`.

Prints a JSON object of digests, largest differences to one device, and what a generation did.
"""

import hashlib
import json
import os
import warnings
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ["NPROC"] = "16"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from rookery.compat.qdax import (
    PBT,
    PBTTD3,
    DistributedMAPElites,
    PBTEmitter,
    PBTEmitterConfig,
    compute_euclidean_centroids,
    default_qd_metrics,
    td3_pbt_variation_fn,
)
from tests.compat.qdax.documented import agent, population, reshaped, room

P = 8
RETURNS = (3.0, 1.0, float("nan"), 2.0, 5.0, 5.0, 0.0, 4.0)


def digest(tree: Any) -> str:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def difference(left: Any, right: Any) -> float:
    """The largest, of numbers that are not keys."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    kept = [(np.asarray(a, float), np.asarray(b, float)) for a, b in pairs if a.dtype != jnp.uint32]
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in kept)


def by_device(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), tree)


def joined(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def pmapped(function: Any, count: int) -> Any:
    """As a function of whole populations."""
    mapped = jax.pmap(function, axis_name="p", devices=jax.devices()[:count])
    return lambda *arguments: joined(mapped(*(by_device(tree, count) for tree in arguments)))


def sharded(function: Any, count: int) -> Any:
    over = Mesh(np.array(jax.devices()[:count]), ("p",))
    spec = PartitionSpec("p")
    return jax.jit(jax.shard_map(function, mesh=over, in_specs=spec, out_specs=spec, check_vma=True))


def exploits() -> dict[str, str]:
    """A digest of the next population by each layout; the keys of devices differ, and the first one's counts."""
    _, states, buffers = population(PBTTD3, P)
    pbt, told = PBT(P, 2, 3), (jnp.array(RETURNS), states, buffers)

    def update(keys: Any, *told: Any) -> Any:
        return pbt.update_states_and_buffer_pmap(keys[0], *told)

    raw = jnp.stack([jax.random.PRNGKey(seed) for seed in range(4)])
    typed = jnp.stack([jax.random.key(seed) for seed in range(4)])
    return {
        "before": digest((states, buffers)),
        "plain": digest(jax.jit(pbt.update_states_and_buffer)(jax.random.key(0), *told)),
        "pmap 1": digest(pmapped(update, 1)(typed[:1], *told)),
        "pmap 4": digest(pmapped(update, 4)(raw, *told)),
        "checked": digest(sharded(update, 4)(typed, *told)),
    }


def lives() -> dict[str, float]:
    """Differences of members that have trained and were judged to those on one device."""
    learner, states, buffers = population(PBTTD3, 4, 64)
    env = room(4 * 4)
    first = reshaped(env.reset(jax.random.key(2)), 4, 4)
    train, evaluator = learner.get_train_fn(env, 3, 4, 0.5), learner.get_eval_fn(env)

    def live(states: Any, first: Any, buffers: Any) -> Any:
        (trained, after, filled), told = train(states, first, buffers)
        return trained, after.obs, filled, told, evaluator(trained, first)

    plain = jax.jit(live)(states, first, buffers)
    return {
        "trained": difference(plain[0], states),
        "pmap 4": difference(pmapped(live, 4)(states, first, buffers), plain),
        "checked": difference(sharded(live, 4)(states, first, buffers), plain),
    }


CELLS = compute_euclidean_centroids((6, 6), -1.0, 1.0)
PG, GA, E = 2, 2, 4


def score(genotypes: Any, key: jax.Array) -> tuple:
    """Cheap, and different for whatever differs."""
    del key
    weights = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(genotypes.policy_params)], 1)
    return jnp.sum(weights**2, axis=1), jnp.tanh(weights[:, -2:]), {}


def parts(count: int) -> tuple[PBTEmitter, Any]:
    fractions = {"fraction_best_to_replace_from": 0.5, "fraction_to_replace_from_best": 0.0}
    fractions |= {"fraction_to_replace_from_samples": 0.5, "fraction_sort_exchange": 0.1}
    config = PBTEmitterConfig(
        buffer_size=64,
        num_training_iterations=2,
        env_batch_size=E,
        grad_updates_per_step=0.25,
        pg_population_size_per_device=PG,
        ga_population_size_per_device=GA,
        num_devices=count,
        **fractions,
    )
    vary = partial(td3_pbt_variation_fn, iso_sigma=0.05, line_sigma=0.1)
    return PBTEmitter(agent(PBTTD3), config, room(PG * E), vary), partial(default_qd_metrics, qd_offset=0.0)


def newborns(count: int) -> Any:
    states = population(PBTTD3, count * (PG + GA))[1]
    return by_device(states.empty_optimizers_states(states), count)


def illuminate(count: int) -> dict[str, Any]:
    """ME-PBT with the same keys in each of two calls, as notebooks have it."""
    emitter, measure = parts(count)
    search, devices = DistributedMAPElites(score, emitter, measure), jax.devices()[:count]
    keys = jnp.stack([jax.random.PRNGKey(seed) for seed in range(count)])
    told = search.get_distributed_init_fn(centroids=CELLS, devices=devices)(genotypes=newborns(count), key=keys)
    update = search.get_distributed_update_fn(num_iterations=2, devices=devices)
    coverage, members = [float(told[2]["coverage"][0])], []
    for _ in range(2):
        told = update(*told[:2], keys)
        coverage += told[2]["coverage"][0].tolist()
        members.append(np.asarray(told[1].training_states.discount).tolist())
    shares = [digest(jax.tree.map(lambda leaf, i=i: leaf[i], (told[0], told[2]))) for i in range(count)]
    return {"shares": shares, "coverage": coverage, "discounts": members}


def main() -> None:
    """Everything, as JSON."""
    warnings.simplefilter("error")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    print(json.dumps({"exploits": exploits(), "lives": lives(), "bred": illuminate(4)}))


if __name__ == "__main__":
    main()
