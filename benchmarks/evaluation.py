"""A generation of MAP-Elites in small groups of episodes and with all episodes together.

    python -m benchmarks.evaluation [--quick] [--task walker2d_uni] [--after 1 10 30]

Both programs begin from the same repertoire with the same key, so that they evaluate the same policies. `share` is the
part of all steps of full episodes that the episodes really take: the least time that leaving out what has ended could
need, relative to stepping everything to the end.
"""

from functools import partial
from typing import Any

import jax

import rookery
from benchmarks import harness
from rookery.distributed import mesh
from rookery.learners import episode_loop
from rookery.learners.evaluation import EvaluationConfig
from rookery.qd import centroids


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--task", default="walker2d_uni", help="a task with a descriptor (%(default)s)")
    made.add_argument("--batch-size", type=int, default=256, help="policies of a generation (%(default)s)")
    made.add_argument(
        "--after",
        type=int,
        nargs="+",
        default=[1, 10, 30],
        help="generations before the timed ones (by default 1 10 30)",
    )
    options = harness.parse(made)
    if options.quick:
        options.task, options.batch_size, options.after = "point_trap", 64, [1]
    load = harness.load()
    mesh.use_cores(1)
    harness.report("evaluation", options, measure(options), load)


def measure(options: Any) -> list[dict[str, Any]]:
    """One row for each number of generations before the timed one."""
    env = rookery.make(options.task)
    scoring = rookery.qd.policy_scoring(env, evaluation=EvaluationConfig(eval_episodes=1))
    cells = centroids.cvt(jax.random.key(0), 256, scoring.descriptor.lower, scoring.descriptor.upper)
    program = rookery.map_elites(scoring, cells, rookery.qd.iso_line(scoring, options.batch_size))
    state, rows = jax.jit(program.init)(jax.random.key(0)), []
    groups = harness.compile_program(program.step, state, jax.random.key(0))
    lanes, episode_loop.LANES = episode_loop.LANES, options.batch_size
    together = harness.compile_program(partial(program.step), state, jax.random.key(0))  # traced anew
    episode_loop.LANES = lanes
    for generation in range(max(options.after) + 1):
        key = jax.random.key(generation)
        if generation in options.after:
            contenders = {"groups": groups.call, "together": together.call}
            calls = {
                name: lambda call=call, at=state, key=key: jax.block_until_ready(call(at, key))
                for name, call in contenders.items()
            }
            times = harness.interleave(calls, options.rounds)
            _, metrics = groups.call(state, key)
            steps = int(metrics["evaluation_steps"])
            rows.append(
                {
                    "task": options.task,
                    "generations": generation,
                    "share": steps / (options.batch_size * env.spec.episode_length),
                    "groups_s": times["groups"].median,
                    "together_s": times["together"].median,
                    **harness.speedup(times["groups"], times["together"]),
                    "compile_groups_s": groups.seconds,
                    "compile_together_s": together.seconds,
                }
            )
        state, _ = groups.call(state, key)
    return rows


if __name__ == "__main__":
    main()
