"""A user-defined callback: `python examples/tracker.py [--small]`.

It writes one line of JSON for each generation, with the best member and the hyper-parameters that it trains with, and
stops a run that no longer improves. `docs/guides/tracking.md` describes callbacks and the trackers of this package.
"""

import argparse
import json
from pathlib import Path
from typing import IO

import rookery
from rookery.training import Generation, Start


class JsonLines:
    """Appends generations to `best.jsonl` in the run directory; `begin` and `end` are optional."""

    def begin(self, start: Start) -> None:
        assert start.run_dir is not None
        self.path: Path = start.run_dir / "best.jsonl"
        self.file: IO[str] = self.path.open("a" if start.finished else "w")
        print(f"generations {start.finished} to {start.total} of {start.config['environment']['env']}")

    def __call__(self, generation: Generation) -> None:
        members = generation.members  # name -> [P]
        best = int(members["fitness"].argmax())
        hyper = {name: float(values[best]) for name, values in members.items() if name.startswith("hyper/")}
        line = {"generation": generation.number, "env_steps": generation.env_steps, "member": best}
        json.dump({**line, "fitness": float(members["fitness"][best]), **hyper}, self.file)
        self.file.write("\n")

    def end(self, error: BaseException | None) -> None:
        self.file.close()
        print(f"{'finished' if error is None else f'ended by {error!r}'}; see {self.path}")


class Patience:
    """Ends a run, as Ctrl-C does, when its best fitness has not risen for some generations."""

    def __init__(self, generations: int):
        self.generations, self.best, self.reached = generations, float("-inf"), 0

    def __call__(self, generation: Generation) -> None:
        if generation.metrics["best_fitness"] > self.best:
            self.best, self.reached = generation.metrics["best_fitness"], generation.finished
        if generation.finished - self.reached >= self.generations:
            raise KeyboardInterrupt  # the run is saved, and can be resumed


def main(small: bool, run_dir: str) -> None:
    """Train a population in an empty room, with callbacks."""
    env = rookery.make("point_room", episode_length=20)
    agent = rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=(8,) if small else (64, 64)))
    config = rookery.learners.OffPolicyConfig(
        num_envs=4,
        steps_per_generation=40 if small else 1_000,
        batch_size=8 if small else 64,
        warmup_steps=20 if small else 500,
        eval_episodes=2 if small else 10,
    )
    program = rookery.pbt(rookery.off_policy(agent, env, config), population_size=4)
    callbacks = [
        JsonLines(),
        Patience(100),
        # rookery.training.Required(JsonLines()),  # an exception in it would end the run, not only warn
        # rookery.tracking.WandbTracker("my-project", tags=["example"]),  # pip install "rookery[wandb]"
        # rookery.tracking.MlflowTracker("mlruns"),  # pip install "rookery[mlflow]"
    ]
    rookery.run(program, generations=3 if small else 40, run_dir=run_dir, overwrite=True, callbacks=callbacks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of a minute")
    parser.add_argument("--run-dir", default="runs/example-tracker", help="run directory")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
