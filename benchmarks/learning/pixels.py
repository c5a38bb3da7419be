"""PPO on images: makes every run, the figure and the table of docs/evidence/learning.md.

    python -m benchmarks.learning.pixels --runs runs/pixels --picture docs/evidence/learning_pixels.png

MinAtar's Breakout (Young 2019, in gymnax) with default settings, read by MinAtar's convolutional encoder, and with
`--encoder none` by dense layers alone. Existing runs are not repeated. Members are scored by the last evaluation of the
run, 10 full deterministic episodes of each; no selection used it. `random` is the mean return of uniform actions.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from benchmarks.learning.defaults import Run, line, train
from rookery.report.compare import compare

TASK = "Breakout-MinAtar"
RUNS = {
    "convolutional encoder": Run("ppo", TASK, 5, 49),
    "dense layers": Run("ppo", TASK, 5, 49, more=("--encoder", "none")),
}


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--runs", default="runs/pixels", help="folder of the run directories (%(default)s)")
    made.add_argument("--picture", help="output file of the figure of the learning curves")
    options = harness.parse(made)
    load, rows = harness.load(), []
    folders = {name: Path(options.runs) / name.replace(" ", "-") for name in RUNS}
    runs = {name: run._replace(seeds=2, generations=1) for name, run in RUNS.items()} if options.quick else RUNS
    for name, run in runs.items():
        rows.append({"network": name, **line(run, folders[name], train(run, folders[name]))})
        print({name: value for name, value in rows[-1].items() if not isinstance(value, list)}, flush=True)
    rows.append({"network": "random", "return": random_return(20 if options.quick else 1_000)})
    harness.report("learning_pixels", options, rows, load)
    if options.picture:
        compare([*folders.values()], options.picture)


def random_return(episodes: int) -> float:
    """The mean return of uniform actions over `episodes` complete episodes."""
    env = rookery.make(TASK)

    def episode(key: jax.Array) -> jax.Array:
        first, key = jax.random.split(key)

        def step(carry, key):
            state, total, alive = carry
            act, simulate = jax.random.split(key)
            state, made = env.step(state, jax.random.randint(act, (), 0, env.spec.action_size), simulate)
            return (state, total + alive * made.reward, alive * ~made.over), None

        keys = jax.random.split(key, env.spec.episode_length)
        return jax.lax.scan(step, (env.reset(first)[0], jnp.zeros(()), jnp.ones(())), keys)[0][1]

    return float(np.mean(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), episodes))))


if __name__ == "__main__":
    main()
