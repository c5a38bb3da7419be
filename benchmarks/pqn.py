"""PQN, environments included: time and returns of whole trainings, Rookery against purejaxql.

    python -m benchmarks.pqn --purejaxql FOLDER [--quick] [--seeds 1 16]
    python -m benchmarks.pqn --purejaxql FOLDER --returns [--seeds 3] [--tasks Breakout-MinAtar] [--steps 1000000]

FOLDER is a clone of github.com/mttga/purejaxql (commit 47af6d7); its scripts need `pip install hydra-core wandb
safetensors` besides gymnax. Both train with the authors' settings, `config/alg/pqn_cartpole.yaml` and
`pqn_minatar.yaml`, and with equal networks: for MinAtar a convolution and 128 units. Theirs is
`jax.jit(jax.vmap(make_train(config)))` without tests during training; ours is the learner's initialisation and steps,
mapped over members. A call initialises and trains: environment steps per second are those of a whole training,
compilation apart.

`--returns` compares greedy episodes after the training: theirs by their own test (128 environments, one time limit of
steps, the mean of the episodes that ended), ours by 128 full episodes. Then `--seeds` is the number of seeds, which one
call trains at once.
"""

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import yaml

import rookery
from benchmarks import harness
from rookery import hyperparams
from rookery.agents.pqn import PqnConfig, pqn
from rookery.learners.base import Learner, Member, genotype
from rookery.learners.on_policy import on_policy
from rookery.report import statistics
from rookery.types import Array, Key

TESTED = 128  # environments of purejaxql's test, and our episodes


class Settings(NamedTuple):
    """The authors' settings of a group of tasks."""

    script: str  # module of purejaxql
    envs: int
    rollout: int
    config: PqnConfig
    hyper: dict[str, float]


CARTPOLE = Settings("pqn_gymnax", 32, 64, PqnConfig(), {})
MINATAR = Settings(
    "pqn_minatar",
    128,
    32,
    PqnConfig(hidden_sizes=(), minibatches=32, epochs=2, exploration_share=0.1),
    {"q_lambda": 0.65, "learning_rate": 5e-4, "epsilon": 0.05, "reward_scaling": 1.0},
)
TASKS = {
    "CartPole-v1": CARTPOLE,
    **{f"{name}-MinAtar": MINATAR for name in ("Breakout", "Asterix", "SpaceInvaders", "Freeway", "Seaquest")},
}


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--purejaxql", required=True, help="a clone of its repository")
    made.add_argument("--tasks", nargs="+", choices=TASKS, default=["CartPole-v1", "Breakout-MinAtar"])
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 16], help="trained at once (%(default)s)")
    made.add_argument("--updates", type=int, default=32, help="of all seeds of a timed training (%(default)s)")
    made.add_argument("--returns", action="store_true", help="compare returns instead of times")
    made.add_argument("--steps", type=int, default=1_000_000, help="of each seed, with --returns (%(default)s)")
    options = harness.parse(made)
    sys.path.insert(0, vars(options).pop("purejaxql"))  # a folder of this machine is no part of the record
    load, rows = harness.load(), []
    for task in options.tasks:
        for count in options.seeds:
            rows += returns(task, count, options) if options.returns else [speed(task, count, options)]
            harness.show(rows[-2:] if options.returns else rows[-1:])
    harness.report("pqn_returns" if options.returns else "pqn", options, rows, load)


def speed(task: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row: environment steps per second of whole trainings, summed over the seeds."""
    updates = 2 if options.quick else max(2, options.updates // count)
    keys = jax.random.split(jax.random.PRNGKey(0), count)
    programs = {
        "ours": harness.compile_program(jax.vmap(partial(trained, TASKS[task], learner_of(task, updates))), keys),
        "purejaxql": harness.compile_program(jax.vmap(purejaxql(task, updates)), keys),
    }
    calls = {name: lambda made=made: jax.block_until_ready(made.call(keys)) for name, made in programs.items()}
    times = harness.interleave(calls, options.rounds)
    settings = TASKS[task]
    steps = count * updates * settings.envs * settings.rollout
    return {
        "task": task,
        "seeds": count,
        "updates": updates,
        **{f"{name}/s": steps / value.median for name, value in times.items()},
        **harness.speedup(times["ours"], times["purejaxql"]),
        "cpu_ratio": float(np.median(times["purejaxql"].cpu_seconds) / np.median(times["ours"].cpu_seconds)),
        **{f"{name}_compile_s": made.seconds for name, made in programs.items()},
        "seconds": {name: value.seconds for name, value in times.items()},
    }


def returns(task: str, count: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each contender: returns of greedy episodes after the training."""
    settings = TASKS[task]
    updates = 4 if options.quick else options.steps // (settings.envs * settings.rollout)
    keys, learner = jax.random.split(jax.random.PRNGKey(count), count), learner_of(task, updates)
    scored = jax.vmap(partial(evaluated, settings, learner))
    theirs = jax.jit(jax.vmap(purejaxql(task, updates, tests=True)))(keys)
    found = {
        "ours": np.asarray(jax.jit(scored)(keys)),
        "purejaxql": np.asarray(theirs["metrics"]["test/returned_episode_returns"])[:, -1],
    }
    rows = []
    for name, each in found.items():
        middle = statistics.estimate(statistics.interquartile_mean, each)
        row = {"task": task, "contender": name, "steps": updates * settings.envs * settings.rollout}
        rows.append(row | {"return": middle.value, "low": middle.low, "high": middle.high, "returns": each.tolist()})
    return rows


def learner_of(task: str, updates: int) -> Learner:
    """The training loop of a member that learns for so many updates in all, which are one generation."""
    settings, env = TASKS[task], rookery.make(task)
    explored = round(settings.config.exploration_share * updates)
    agent = pqn(env.spec, dataclasses.replace(settings.config, exploration_updates=explored, anneal_updates=updates))
    return on_policy(
        agent,
        env,
        num_envs=settings.envs,
        rollout_length=settings.rollout,
        evaluate_every=updates,
        normalize_observations=False,
        eval_episodes=TESTED,
        start_states=TESTED,
    )


def trained(settings: Settings, learner: Learner, key: Key) -> Member:
    """Initialise and train one member."""
    bank_key, member_key, train_key = jax.random.split(key, 3)
    bank = learner.start_states(bank_key)
    hyper = hyperparams.defaults(rookery.choose(learner.space, **settings.hyper))
    member = learner.init(member_key, hyper, bank)
    return learner.step(member, bank, train_key, jnp.zeros((), jnp.int32))[0]


def evaluated(settings: Settings, learner: Learner, key: Key) -> Array:
    """Train one member; returns the mean return of its greedy episodes, `[]`."""
    train_key, bank_key, evaluate_key = jax.random.split(key, 3)
    member = trained(settings, learner, train_key)
    return learner.evaluate(genotype(member), learner.start_states(bank_key), evaluate_key).fitness


def purejaxql(task: str, updates: int, tests: bool = False) -> Callable[[Key], Any]:
    """Their training function for one seed; `tests`: with a test before and after the training.

    Raises:
      SystemExit: it cannot be imported.
    """
    settings = TASKS[task]
    try:
        module = importlib.import_module(f"purejaxql.{settings.script}")
    except ImportError as error:
        raise SystemExit(f"purejaxql cannot be imported ({error}); see --help") from error
    vars(module)["LogWrapper"] = FiveResults
    kind = "minatar" if settings is MINATAR else "cartpole"
    folder = Path(str(module.__file__)).parent
    config = yaml.safe_load((folder / "config" / "alg" / f"pqn_{kind}.yaml").read_text())
    total = updates * settings.envs * settings.rollout
    steps = {"TOTAL_TIMESTEPS": total, "TOTAL_TIMESTEPS_DECAY": total, "ENV_NAME": task, "WANDB_MODE": "disabled"}
    numbers = {name: float(value) for name, value in config.items() if name in ("LR", "EPS_TEST")}
    tested = {"TEST_DURING_TRAINING": tests, "TEST_INTERVAL": 1.0, "TEST_NUM_ENVS": TESTED}
    return module.make_train({**config, **numbers, **steps, **tested})


class FiveResults:
    """Gymnax's wrapper with a step of five results, as purejaxql expects: one flag `done` instead of two."""

    def __init__(self, env: Any):
        from gymnax.wrappers.purerl import LogWrapper

        self._env = LogWrapper(env)
        self.reset, self.action_space = self._env.reset, env.action_space
        self.observation_space = env.observation_space

    def step(self, key: Key, state: Any, action: Any, params: Any) -> tuple:
        observation, state, reward, terminated, truncated, info = self._env.step(key, state, action, params)
        scalars = {
            name: value for name, value in info.items() if name.startswith("returned_")
        }  # of which a test is made
        return observation, state, reward, terminated | truncated, scalars


if __name__ == "__main__":
    main()
