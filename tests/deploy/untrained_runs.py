"""Small runs for tests of exports: configs, run directories, and scripts run without this library."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from rookery import normalize, trees
from rookery.agents.ppo import PpoConfig
from rookery.agents.pqn import PqnConfig
from rookery.agents.sac import SacConfig
from rookery.envs import registry
from rookery.envs.base import Environment, Step
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments import build, warm_start
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.config_io import to_record
from rookery.experiments.kinds import configure
from rookery.learners.base import EvaluationConfig
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.base import ProgramState
from rookery.qd.scoring import PolicyConfig
from rookery.storage import run_dir
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import RunLog
from rookery.training.config import RunConfig

ENVIRONMENT = EnvironmentConfig(env="point_room", episode_length=6, devices=1)
LEARNER = OffPolicyConfig(
    num_envs=2,
    steps_per_generation=20,
    batch_size=4,
    buffer_size=32,
    warmup_steps=4,
    eval_episodes=1,
    start_states=2,
    normalize_observations=True,
)
AGENT = SacConfig(hidden_sizes=(4,))
SAC_RUN = configure("sac", population=2, environment=ENVIRONMENT, learner=LEARNER, agent=AGENT)
DIAYN_RUN = configure("diayn", environment=ENVIRONMENT, learner=LEARNER, agent=AGENT, skills=SkillsConfig(3))


def two_directions(episode_length: int = 6) -> Environment:
    """`point_room` with two discrete actions, left and right; needs no other package."""
    room = registry.make("point_room", episode_length=episode_length)

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Step]:
        return room.step(state, jnp.array([[-1.0, 0.0], [1.0, 0.0]])[action], key)

    return room._replace(step=step, spec=room.spec._replace(action_size=2, discrete=True))


PQN_RUN = configure(
    "pqn",
    learner=OnPolicyConfig(num_envs=2, rollout_length=4, eval_episodes=1, start_states=2),
    environment=EnvironmentConfig(env=f"{__name__}:two_directions", episode_length=6, devices=1),
    agent=PqnConfig(hidden_sizes=(4,), minibatches=1),
)
MAP_ELITES_RUN = configure(
    "map-elites",
    environment=ENVIRONMENT,
    batch_size=2,
    cells=CellsConfig(grid=(2, 2)),
    policy=PolicyConfig(hidden_sizes=(4,)),
    evaluation=EvaluationConfig(eval_episodes=1, start_states=2),
)
PURSUIT = EnvironmentConfig(env="pursuit_discrete", episode_length=5, devices=1)
TEAM_LEARNER = OnPolicyConfig(num_envs=2, rollout_length=4, eval_episodes=1, start_states=2)
RECURRENT_TEAM_RUN = configure(
    "ippo",
    environment=PURSUIT,
    parameters="shared",
    learner=dataclasses.replace(TEAM_LEARNER, normalize_observations=True),
    agent=PpoConfig(hidden_sizes=(4,), minibatches=1, recurrent=True, memory_size=3),
)
ROLES_RUN = configure(
    "pbt-ippo",
    population=2,
    environment=PURSUIT,
    learner=TEAM_LEARNER,
    member="agent",
    agent=PpoConfig(hidden_sizes=(4,), minibatches=1),
)


_STATES: dict[str, ProgramState] = {}  # of configs, whose initial states several files of tests change


def save_run(
    config: Any,
    path: Path,
    fitness: Sequence[float],
    change: Callable[[ProgramState], ProgramState],
    rating: Sequence[float] = (),
) -> Path:
    """Write a run directory with the changed initial state as its only checkpoint, and the fitnesses (and ratings) of
    its members."""
    if (name := repr(config)) not in _STATES:
        program = warm_start.start_from(config, build.build(config))
        _STATES[name] = jax.jit(program.init)(jax.random.key(0))
    state = change(_STATES[name])
    config = dataclasses.replace(config, run=RunConfig(generations=1, run_dir=str(path), quiet=True))
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(run_dir.create(path, to_record(config)))
        checkpoints = stack.enter_context(Checkpointer(opened.checkpoints, keep=1))
        log = stack.enter_context(RunLog(opened))
        members = {"parent": np.arange(len(fitness)), "fitness": np.asarray(fitness)}
        members |= {"rating": np.asarray(rating)} if rating else {}
        log.write(0, {"env_steps": 40}, members if len(fitness) else {})
        checkpoints.save(1, state, {})
    return path


def unchanged(state: ProgramState) -> ProgramState:
    return state


def with_statistics(state: ProgramState) -> ProgramState:
    """Every member gets observation statistics with mean 1 and variance 4."""
    statistics = state.members.normalizer
    squares = jnp.broadcast_to(4.0 * statistics.count[..., None] + 40.0, statistics.squares.shape)
    known = normalize.RunningStatistics(statistics.count + 10.0, jnp.ones_like(statistics.mean), squares)
    return state._replace(members=state.members._replace(normalizer=known))


def with_elites(state: ProgramState) -> ProgramState:
    """Every cell gets a different policy, except for the second, which is empty."""
    shared = state.shared._replace(
        fitnesses=jnp.asarray([1.0, -jnp.inf, 3.0, 2.0]),
        descriptors=jnp.asarray([[-0.9, -0.9], [0.0, 0.0], [0.25, -0.5], [0.1, 0.2]]),
    )
    cells = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape), state.cells)
    return state._replace(shared=shared, cells=cells)


OBSERVATIONS = np.random.default_rng(0).uniform(-4.0, 6.0, (5, 2)).astype(np.float32)
_SCRIPT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rookery", "flax", "jax2onnx"):
            raise ImportError(name + " must not be needed")

sys.meta_path.insert(0, Blocker())
import importlib, json

act = importlib.import_module(sys.argv[1]).act
print(json.dumps(act(json.loads(sys.argv[2])).tolist()))
"""


def run_script(path: Path, script: str, observations: np.ndarray) -> np.ndarray:
    """The result of a script of an exported policy in a process that cannot import this library."""
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", _SCRIPT, script, json.dumps(observations.tolist())]
    done = subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return np.asarray(json.loads(done.stdout.splitlines()[-1]))


def best_actions(sac_run: Path) -> list[jax.Array]:
    """The actions of the second member of a run of `SAC_RUN` for `OBSERVATIONS`."""
    agent = rookery.sac(rookery.make("point_room").spec, AGENT)
    member = rookery.genotype(trees.take(warm_start.restore_run(sac_run).state.members, 1))
    return [rookery.act(agent, member, jnp.asarray(observation)) for observation in OBSERVATIONS]
