"""Documented populations on 1 and 4 virtual devices; called in a separate process by `test_mapped.py`.

Prints a JSON object of digests, and of the results of two generations that train.
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
    compute_euclidean_centroids,
    default_qd_metrics,
)
from tests.compat.qdax.documented import make_emitter, population

P = 8
RETURNS = (3.0, 1.0, float("nan"), 2.0, 5.0, 5.0, 0.0, 4.0)


def digest(tree: Any) -> str:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def by_device(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), tree)


def without_device_axis(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def with_pmap(function: Any, count: int) -> Any:
    """Map a function over devices; the arguments are whole populations."""
    mapped = jax.pmap(function, axis_name="p", devices=jax.devices()[:count])
    return lambda *arguments: without_device_axis(mapped(*(by_device(tree, count) for tree in arguments)))


def with_shard_map(function: Any, count: int) -> Any:
    over = Mesh(np.array(jax.devices()[:count]), ("p",))
    spec = PartitionSpec("p")
    return jax.jit(jax.shard_map(function, mesh=over, in_specs=spec, out_specs=spec, check_vma=True))


def exploits() -> dict[str, str]:
    """Digests of the next population on each layout; devices have different keys, and the first one is used."""
    _, states, buffers = population(PBTTD3, P)
    pbt, arguments = PBT(P, 2, 3), (jnp.array(RETURNS), states, buffers)

    def update(keys: Any, *arguments: Any) -> Any:
        return pbt.update_states_and_buffer_pmap(keys[0], *arguments)

    raw = jnp.stack([jax.random.PRNGKey(seed) for seed in range(4)])
    typed = jnp.stack([jax.random.key(seed) for seed in range(4)])
    return {
        "before": digest((states, buffers)),
        "plain": digest(jax.jit(pbt.update_states_and_buffer)(jax.random.key(0), *arguments)),
        "pmap 4": digest(with_pmap(update, 4)(raw, *arguments)),
        "checked": digest(with_shard_map(update, 4)(typed, *arguments)),
    }


CELLS = compute_euclidean_centroids((6, 6), -1.0, 1.0)
PG, GA, E = 2, 2, 4


def score(genotypes: Any, key: jax.Array) -> tuple:
    """A cheap score that differs for different parameters."""
    del key
    weights = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(genotypes.policy_params)], 1)
    return jnp.sum(weights**2, axis=1), jnp.tanh(weights[:, -2:]), {}


def build(count: int) -> PBTEmitter:
    sizes = {"buffer_size": 64, "num_training_iterations": 2, "env_batch_size": E, "grad_updates_per_step": 0.25}
    sizes |= {"pg_population_size_per_device": PG, "ga_population_size_per_device": GA, "num_devices": count}
    return make_emitter(sigmas=(0.05, 0.1), **sizes)


def initial_genotypes(count: int) -> Any:
    states = population(PBTTD3, count * (PG + GA))[1]
    return by_device(states.empty_optimizers_states(states), count)


def run_map_elites(count: int) -> dict[str, Any]:
    """ME-PBT with the same keys in each of two calls, as in notebooks."""
    emitter, measure = build(count), partial(default_qd_metrics, qd_offset=0.0)
    search, devices = DistributedMAPElites(score, emitter, measure), jax.devices()[:count]
    keys = jnp.stack([jax.random.PRNGKey(seed) for seed in range(count)])
    result = search.get_distributed_init_fn(centroids=CELLS, devices=devices)(
        genotypes=initial_genotypes(count), key=keys
    )
    update = search.get_distributed_update_fn(num_iterations=2, devices=devices)
    coverage, members = [float(result[2]["coverage"][0])], []
    for _ in range(2):
        result = update(*result[:2], keys)
        coverage += result[2]["coverage"][0].tolist()
        members.append(np.asarray(result[1].training_states.discount).tolist())
    shares = [digest(jax.tree.map(lambda leaf, i=i: leaf[i], (result[0], result[2]))) for i in range(count)]
    return {"shares": shares, "coverage": coverage, "discounts": members}


def main() -> None:
    """Print all results as JSON."""
    warnings.simplefilter("error")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    print(json.dumps({"exploits": exploits(), "map_elites": run_map_elites(4)}))


if __name__ == "__main__":
    main()
