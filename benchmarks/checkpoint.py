"""Cost of a checkpoint of a large population for its run.

    python -m benchmarks.checkpoint [--quick] [--population 1000] [--hidden 256]

SAC agents with small buffers, so that the state is mainly parameters and optimizer states. In each round a generation
runs alone; then the state is saved, and another generation runs while the checkpoint is written in the background; then
the write is awaited. Training is delayed by the duration of the call of `save`, and by sharing disk and cores with the
write.
"""

import dataclasses
import shutil
import tempfile
import time
from pathlib import Path

import jax

from benchmarks import harness
from rookery.agents.sac import SacConfig, sac
from rookery.distributed import layout, mesh, programs
from rookery.envs import registry
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.populations.pbt import pbt
from rookery.storage.checkpoint import Checkpointer

LEARNER_CONFIG = OffPolicyConfig(
    num_envs=5, steps_per_generation=25, batch_size=64, buffer_size=100, warmup_steps=0, eval_episodes=1, start_states=8
)


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--population", type=int, default=1_000, help="agents (%(default)s)")
    made.add_argument("--hidden", type=int, default=256, help="width of both layers (%(default)s)")
    made.add_argument(
        "--updates-per-step",
        type=float,
        default=1.0,
        help="updates per environment step (%(default)s); each agent makes 25 steps per generation",
    )
    options = harness.parse(made)
    if options.quick:
        options.population, options.hidden = 16, 64
    load = harness.load()
    mesh.use_cores(options.population)
    environment = registry.make("point_maze", episode_length=50)
    agent = sac(environment.spec, SacConfig(hidden_sizes=(options.hidden,) * 2))
    learner_config = dataclasses.replace(LEARNER_CONFIG, updates_per_step=options.updates_per_step)
    over = mesh.mesh_for(options.population)
    program = pbt(
        off_policy(agent, environment, learner_config), None, options.population, placement=layout.placement(over)
    )
    compiled = programs.compile_program(program, over)
    state = compiled.init(jax.random.key(0))
    step = compiled.step.lower(state, jax.random.key(0)).compile()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e9
    alone, blocked, beside, whole = [], [], [], []
    directory = Path(tempfile.mkdtemp(dir=harness.ROOT / "benchmarks"))
    try:
        with Checkpointer(directory) as checkpoints:
            for turn in range(-1, options.rounds):
                seconds = []
                for action in ("generation", "save", "generation", "wait"):
                    started = time.perf_counter()
                    if action == "generation":
                        state, _ = jax.block_until_ready(step(state, jax.random.key(turn + 1)))
                    elif action == "save":
                        checkpoints.save(turn + 1, state, {})
                    else:
                        checkpoints.wait()
                    seconds.append(time.perf_counter() - started)
                if turn >= 0:
                    for kept, value in zip((alone, blocked, beside, whole), seconds, strict=True):
                        kept.append(value)
    finally:
        shutil.rmtree(directory)
    middle = {
        "generation_s": harness.Times(tuple(alone)).median,
        "save_blocks_s": harness.Times(tuple(blocked)).median,
        "generation_beside_s": harness.Times(tuple(beside)).median,
        "whole_after_s": harness.Times(tuple(whole)).median,
    }
    lost = middle["save_blocks_s"] + middle["generation_beside_s"] - middle["generation_s"]
    row = {
        "population": options.population,
        "hidden": options.hidden,
        "state_gb": size,
        **middle,
        "blocked_share": middle["save_blocks_s"] / middle["generation_s"],
        "lost_share": lost / middle["generation_s"],
        "peak_memory_gb": harness.peak_memory(),
        "seconds": {"alone": alone, "blocked": blocked, "beside": beside, "whole": whole},
    }
    harness.report("checkpoint", options, [row], load)


if __name__ == "__main__":
    main()
