"""A whole generation of PBT for different population sizes: seconds, agents per second, memory, and the largest size.

    python -m benchmarks.population [--quick] [--populations 1 8 64 512 2048] [--env halfcheetah]

SAC with two layers of 256 and batch size 256 on one device: training, evaluation and exploit in one compiled call.
Memory is the estimate of the run's memory plan, and the peak that the device reports, if it does. The first population
that does not fit is reported and ends the list.
"""

from typing import Any

import jax

from benchmarks import harness
from rookery.agents.sac import SacConfig, sac
from rookery.distributed import device_memory, layout, mesh, programs
from rookery.envs import registry
from rookery.learners.base import Learner
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.populations.pbt import pbt
from rookery.training import memory_plan


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--populations", type=int, nargs="+", default=[1, 8, 64, 512, 1_024, 2_048])
    made.add_argument("--env", default="halfcheetah", help="task (%(default)s); --quick uses point_maze")
    made.add_argument("--hidden", type=int, default=256, help="width of both layers (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.populations, options.env, options.hidden = [1, 4], "point_maze", 16
    load = harness.load()
    environment = registry.make(options.env)
    config = OffPolicyConfig(
        num_envs=10, steps_per_generation=100 if options.quick else 1_000, warmup_steps=0, eval_episodes=2
    )
    agent = sac(environment.spec, SacConfig(hidden_sizes=(options.hidden,) * 2))
    learner = off_policy(agent, environment, config)
    rows: list[dict[str, Any]] = []
    for population in options.populations:
        rows.append(measure(learner, population, options.rounds))
        if "did_not_fit" in rows[-1]:
            break
    harness.report("population", options, rows, load)


def measure(learner: Learner, population: int, rounds: int) -> dict[str, Any]:
    """Time a generation of one population on the first device."""
    over = mesh.make_mesh(1)
    program = pbt(learner, population_size=population, placement=layout.placement(over))
    planned = memory_plan.plan(program, over)
    row: dict[str, Any] = {"population": population, "state_gb": planned.held / 1e9}
    try:
        compiled = programs.compile_program(program, over)
        state = compiled.init(jax.random.key(0))
        step = compiled.step.lower(state, jax.random.key(0)).compile()
        analysis = step.memory_analysis()
        row["working_gb"] = analysis.temp_size_in_bytes / 1e9 if analysis else float("nan")
        held = harness.Held(state)
        times = harness.interleave({"generation": lambda: advance(step, held)}, rounds)["generation"]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {**row, "did_not_fit": str(error).splitlines()[0][:100]}
    used = device_memory.Gauge(over).read() if device_memory.device_limit(over) else None
    return {
        **row,
        "generation_s": times.median,
        "agents_per_s": population / times.median,
        "updates_per_s": population * learner.steps_per_generation / times.median,
        "used_gb": used.size / 1e9 if used else float("nan"),
        "seconds": list(times.seconds),
    }


def advance(step: Any, held: harness.Held) -> None:
    """Run a generation; the constant key does not affect its time."""
    held.state, _ = jax.block_until_ready(step(held.state, jax.random.key(1)))


if __name__ == "__main__":
    main()
