"""MAP-Elites with a user-defined function: `python examples/map_elites_arm.py [--small]`.

The repertoire collects joint angles of a planar arm that reach different end positions, with joints as equal as
possible. Any pytree can be a genotype.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import rookery


def reach(joints: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Fitness (equality of the joints) and descriptor (end position) of one arm; the key is for noisy functions."""
    del key
    angles = jnp.cumsum((2 * joints - 1) * jnp.pi)
    end = jnp.stack([jnp.mean(jnp.cos(angles)), jnp.mean(jnp.sin(angles))])
    return -jnp.std(joints), (end + 1) / 2


def main(small: bool, run_dir: str) -> None:
    """Fill a repertoire, and look up an arm in it."""
    lower, upper = (0.0, 0.0), (1.0, 1.0)
    scoring = rookery.qd.function_scoring(
        reach, lambda key: jax.random.uniform(key, (8,)), lower, upper, qd_offset=-0.5, bounds=(0.0, 1.0), name="my arm"
    )
    cells = rookery.qd.grid((10, 10) if small else (50, 50), lower, upper)
    emitter = rookery.qd.iso_line(scoring, batch_size=64 if small else 1024)
    program = rookery.map_elites(scoring, cells, emitter)
    result = rookery.run(program, generations=20 if small else 300, run_dir=run_dir, overwrite=True)
    repertoire = rookery.qd.repertoire_of(result.state)

    last = result.history[-1]
    print(f"coverage {last['coverage']:.1f} %, QD score {last['qd_score']:.1f}, best {last['max_fitness']:.4f}")
    elite = rookery.nearest(repertoire, (0.9, 0.5))
    print(f"nearest to (0.9, 0.5): end position {rounded(elite.descriptor)}, joints {rounded(elite.genotype)}")
    rookery.experiments.save_repertoire(f"{run_dir}/arms.npz", repertoire, scoring)
    assert (rookery.experiments.load_repertoire(f"{run_dir}/arms.npz", scoring).fitnesses == repertoire.fitnesses).all()


def rounded(array: jax.Array) -> np.ndarray:
    """Round a vector for printing."""
    return np.asarray(array, np.float64).round(2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of a minute")
    parser.add_argument("--run-dir", default="runs/example-arm", help="run directory")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
