"""Hyper-parameters that are names or whole numbers, in a real run: names wherever a person reads."""

import csv
import shutil
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.envs import EnvSpec, first_step, limit_episode, next_step
from rookery.hyperparams import Choice, Field, Whole, declared
from rookery.report.figures.curves import draw_curves
from rookery.report.readers import open_run
from rookery.report.sections.run import chapters
from rookery.report.sections.summary import space as space_texts
from rookery.report.tables import summary
from rookery.storage.csv_log import read_csv
from rookery.tracking.records import recorded, values
from rookery.training import loop
from rookery.training.callbacks import Generation, Start
from tests.commandline import call

SHAPES = ("flat", "away", "toward")


class Parameters(NamedTuple):
    shape: Annotated[jax.Array | float, Field("shape of the reward", Choice(*SHAPES))] = 0.0
    power: Annotated[jax.Array | float, Field("power of the distance", Whole(1, 3), low=1.0, high=9.0)] = 1.0


SPEC = EnvSpec("line", 1, 1, episode_length=4, parameters=declared(Parameters), measures={"success": "at the end"})


def make() -> rookery.Environment:
    return limit_episode(shaped(Parameters()), SPEC.episode_length)


def shaped(parameters: Any) -> rookery.Environment:
    return rookery.Environment(reset, partial(step, parameters), SPEC, parameterize=shaped)


def reset(key: jax.Array) -> Any:
    position = jax.random.uniform(key, (1,), minval=-1.0, maxval=-0.9)
    return position, first_step(position, jnp.zeros(0), measures={"success": jnp.zeros(())})


def step(parameters: Any, state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
    del key
    moved = jnp.clip(state + 0.2 * action, -1.0, 1.0)
    sign = jnp.asarray([0.0, -1.0, 1.0])[jnp.asarray(parameters.shape, jnp.int32)]
    reward = sign * jnp.power(jnp.abs(moved[0] + 1.0), parameters.power)
    return moved, next_step(moved, reward, jnp.asarray(False), jnp.zeros(0), measures={"success": moved[0]})


class Trained(NamedTuple):
    run: Path
    seen: list[Generation]
    program: Any
    learner: Any


def train(program: Any, run: Path, generations: int, **options: Any) -> Any:
    return loop.run(program, generations=generations, run_dir=run, quiet=True, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    env = make()
    agent = rookery.ppo(env.spec, hidden_sizes=(4,), actor_epochs=1, critic_epochs=1, minibatches=1)
    learner = rookery.on_policy(agent, env, num_envs=2, rollout_length=4, objective="success", eval_episodes=2)
    space = rookery.choose(learner.space, env_shape=("toward", "flat"), env_power="evolve", actor_lr=1e-3)
    program = rookery.pbt(learner, space, population_size=4, replace_count=2)
    whole, seen = tmp_path_factory.mktemp("named") / "whole", []
    train(program, whole, 5, checkpoint_every=2)
    run = Path(shutil.copytree(whole, whole.with_name("run")))
    for path in (run / "checkpoints").glob("generation_0000000[45]*"):  # as if killed before these were saved
        path.unlink() if path.is_file() else shutil.rmtree(path)
    train(program, run, 5, callbacks=[seen.append], resume=True)
    return Trained(run, seen, program, learner)


def test_tables_have_names_and_a_resumed_run_has_the_same(trained: Trained) -> None:
    rows = list(csv.DictReader((trained.run / "lineage.csv").read_text().splitlines()))
    assert {row["env_shape"] for row in rows} == {"flat", "toward"}
    assert {float(row["env_power"]) for row in rows} <= {1.0, 2.0, 3.0}
    assert (trained.run / "lineage.csv").read_bytes() == (trained.run.with_name("whole") / "lineage.csv").read_bytes()
    with pytest.raises(ValueError, match="column env_shape is damaged"):
        read_csv(trained.run / "lineage.csv")
    with pytest.raises(ValueError, match="column env_shape is damaged"):
        read_csv(trained.run / "lineage.csv", {"env_shape": ["flat", "away"]})


def test_a_lineage_has_places_and_its_schedule_names(trained: Trained, tmp_path: Path) -> None:
    lineage = rookery.experiments.lineage(trained.run)
    assert lineage.choices == {"env_shape": list(SHAPES)}
    assert set(np.unique(lineage.hyper["env_shape"])) == {0.0, 2.0}
    schedule = lineage.schedule()
    assert set(schedule.values["env_shape"]) <= {"flat", "toward"}
    # Replayed: names of the other program, whatever their places are there.
    space = rookery.choose(trained.learner.space, env_shape="flat", env_power=1)
    replayed = rookery.populations.replay(rookery.seeds(trained.learner, space, 2), schedule.values)
    train(replayed, tmp_path / "replayed", 3)
    again = rookery.experiments.lineage(tmp_path / "replayed")
    assert again.schedule(0).values["env_shape"].tolist() == schedule.values["env_shape"][:3].tolist()
    with pytest.raises(ValueError, match="there is no choice of env_shape named 'towards'; did you mean toward"):
        rookery.populations.replay(rookery.seeds(trained.learner, space, 2), {"env_shape": np.array(["towards"])})


def test_callbacks_and_trackers_have_names(trained: Trained) -> None:
    last = trained.seen[-1]
    assert set(last.members["hyper/env_shape"]) <= {"flat", "toward"}
    found = values(last)
    shares = [found[f"members/hyper/env_shape/{name}"] for name in SHAPES]
    assert sum(shares) == 1.0
    assert shares[1] == 0.0
    assert "member/0/hyper/env_shape" not in found
    start = Start(rookery.load(trained.run, program=trained.program).config, trained.run, 5, 5)
    again = [*recorded(start, 3)][-1]
    assert again.members["hyper/env_shape"].tolist() == last.members["hyper/env_shape"].tolist()


def test_reports_have_names(trained: Trained) -> None:
    record = open_run(trained.run)
    population = chapters(record)["populations"][0]
    assert population["choices"] == {"env_shape": list(SHAPES)}
    texts = dict(space_texts(record.config))
    assert texts["env_shape"] == "evolves among toward, flat"
    assert texts["env_power"] == "evolves in [1, 3]"
    table = summary(trained.run)
    cells = {str(cell) for column in table.columns for cell in column.cells}
    assert cells & {"flat", "toward"}
    assert draw_curves(trained.run).is_file()


def test_names_on_the_command_line(tmp_path: Path) -> None:
    task = f"{Path(__file__)}:make"
    command = f"train pbt-ppo --env {task} --objective success --plan --run-dir {tmp_path / 'run'}"
    for choice, text in {
        "env.shape towrd": "--space.env.shape: there is no choice named 'towrd'; did you mean toward?",
        "env.power 1.5": "--space.env.power must be a whole number, got 1.5.",
    }.items():
        code, _, errors = call(*f"{command} --space.{choice}".split())
        assert (code, text in errors) == (2, True)
    assert not (tmp_path / "run").exists()
