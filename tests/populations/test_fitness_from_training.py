"""Fitness from training episodes: selection by hand, and the populations, learners and runs that use it."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.agents.multi_agent import independent
from rookery.distributed.mesh import make_mesh
from rookery.islands.migration import migration
from rookery.learners.base import Learner
from rookery.learners.iterations import divisible
from rookery.learners.on_policy import on_policy
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import pbt
from rookery.settings import SettingError
from rookery.storage.csv_log import read_csv
from rookery.types import Evaluation
from tests import tiny, walks
from tests.learners.fixed_agents import CONFIG, spy
from tests.learners.rollouts import ERRAND, errand

NAN = float("nan")
# Of each generation and member.
EPISODES = [[0, 1, 2, 1], [1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 1, 1]]
RETURNS = [[9, 3, 5, 1], [4, 3, 9, 1], [4, 3, 0, 9], [4, 9, 0, 7]]
BROKEN = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]


def scripted() -> Learner:
    """A learner whose training episodes are those of the tables; a member's slot is its environment state."""
    tables = {"train_episodes": EPISODES, "train_return": RETURNS, "broken_steps": BROKEN}

    def step(member: Any, bank: Any, key: Any, generation: Any) -> tuple[Any, dict[str, jax.Array]]:
        slot = member.env_state[0].astype(jnp.int32)
        rows = {name: jnp.asarray(table, jnp.float32)[generation, slot] for name, table in tables.items()}
        return walks.learner().step(member, bank, key, generation)[0], rows

    def rate(log: Any) -> Evaluation:
        broken = log["broken_steps"][0].astype(jnp.int32)
        known = (log["train_episodes"][0] > 0) & (broken == 0)
        fitness = jnp.where(known, log["train_return"][0], jnp.nan)
        return Evaluation(fitness, jnp.zeros((0,)), fitness[None], jnp.ones((1,), jnp.int32), broken)

    learner = walks.learner()._replace(step=step, rate_training=rate, evaluate=None)
    return learner._replace(restart=lambda member, *_: member)


def test_members_without_an_episode_keep_their_fitness_and_are_not_replaced() -> None:
    program = pbt(scripted(), population_size=4, best_count=1, replace_count=1)
    state = program.init(jax.random.key(0))
    slots = jnp.broadcast_to(jnp.arange(4.0)[:, None], (4, 2))
    state = state._replace(members=state.members._replace(env_state=slots))
    expected = [
        ([NAN, 3, 5, 1], [0, 1, 2, 2]),  # member 0 has no fitness yet and is not replaced, but the worst of the others
        ([4, 3, 5, 1], [0, 1, 2, 2]),  # member 2 keeps the 5 and is a parent
        ([4, 3, 0, NAN], [0, 1, 0, 3]),  # no episode of the child has ended
        ([4, NAN, 0, 7], [0, 3, 2, 3]),  # the physics broke in the training of member 1
    ]
    step = jax.jit(program.step)
    for generation, (fitness, parents) in enumerate(expected):
        state, metrics = step(state, jax.random.key(generation))
        np.testing.assert_array_equal(metrics["fitness"], fitness)
        assert state.shared.parents.tolist() == parents
        assert not metrics["diverged"].any()
    assert np.asarray(state.shared.unproven).tolist() == [False, True, False, False]
    # What a member learned counts, with an episode and without.
    again = state.shared._replace(generation=jnp.asarray(1, jnp.int32))
    state, metrics = step(walks.poison(state, 2)._replace(shared=again), jax.random.key(9))
    assert metrics["diverged"].tolist() == [False, False, True, False]
    assert state.shared.parents[2] != 2


def test_the_roles_of_a_team() -> None:
    config = dataclasses.replace(CONFIG, fitness_from="training", evaluate_every=2)
    learner = on_policy(independent(spy(ERRAND), ERRAND), errand(), config)
    program = rookery.populations.pbt_roles(learner._replace(evaluate=None), population_size=2)
    state, metrics = jax.jit(program.step)(jax.jit(program.init)(jax.random.key(0)), jax.random.key(1))
    by_member = np.asarray(metrics["fitness"]).reshape(2, 2)
    assert len(np.unique(by_member[np.isfinite(by_member)])) == 4
    for i, name in enumerate(learner.spec.team.names if learner.spec.team else ()):
        np.testing.assert_array_equal(np.sort(by_member[:, i]), np.sort(metrics[f"train_return/{name}"]))
    assert state.shared.unproven.shape == (2, 2)


def test_an_objective_and_a_broken_step() -> None:
    env = rookery.make("point_goal", episode_length=4)
    measure = next(iter(env.spec.measures or ()))
    config = dataclasses.replace(tiny.CONFIG, fitness_from="training", objective=measure)
    learner = rookery.off_policy(rookery.sac(env.spec, hidden_sizes=(4,)), env, config)
    bank = learner.start_states(jax.random.key(0))
    member = jax.jit(learner.init)(jax.random.key(1), rookery.hyperparams.defaults(learner.space), bank)
    *rest, broken, finished = divisible(learner.step).start(member, bank)
    scores = {"return": jnp.full_like(broken, 2.0, jnp.float32), measure: jnp.full_like(broken, 6.0, jnp.float32)}
    assert {*finished.ended_scores} == {*scores}
    finished = finished._replace(ended_episodes=jnp.ones_like(finished.ended_episodes), ended_scores=scores)
    rate: Any = learner.rate_training
    assert float(rate((*rest, broken, finished)).fitness) == 6.0
    unknown = finished._replace(ended_scores=scores | {measure: scores[measure].at[1].set(NAN)})
    for log in ((*rest, broken.at[3].set(1), finished), (*rest, broken, unknown)):
        rated = rate(log)
        assert (bool(jnp.isnan(rated.fitness)), int(rated.broken)) == (True, 1)


def test_islands_exchange_no_member_without_an_episode() -> None:
    config = PbtConfig(best_count=1, replace_count=1)
    program = pbt(scripted(), population_size=4, config=config)
    exchanged = migration(program, make_mesh(1), 0.5, config)
    state = program.init(jax.random.key(0))
    shared = state.shared._replace(
        recent=jnp.asarray([[9.0], [NAN], [2.0], [1.0]]), unproven=jnp.asarray([True, True, False, False])
    )
    state = state._replace(shared=shared)
    published = exchanged.publish(state, jax.random.key(1))
    assert published is not None
    assert published.fitness.tolist() == [2.0]
    assert {*exchanged.choose(state, [5.0, 6.0], jax.random.key(2))} <= {2, 3}


def _refused(kind: str) -> Any:
    env = rookery.make("point_room", episode_length=5)
    config = dataclasses.replace(tiny.CONFIG, fitness_from="training")
    if kind == "skills":
        env = rookery.skills(env, 2)
        return rookery.off_policy(rookery.diayn(rookery.sac(env.spec), env.spec), env, config)
    if kind == "ratings":
        learner = tiny.team(dataclasses.replace(tiny.TEAM_CONFIG, fitness_from="training"))
        return rookery.pbt(learner, population_size=2, rating_opponents=1)
    if kind == "parameters":
        env = rookery.make("point_goal", episode_length=5)
        learner = rookery.off_policy(rookery.sac(env.spec), env, config)
        parameters: Any = env.spec.parameters
        evolved: Any = {f"env_{parameters.defaults._fields[0]}": "evolve"}
        return rookery.pbt(learner, rookery.choose(learner.space, **evolved), population_size=2)
    learner = rookery.off_policy(rookery.sac(env.spec), env, config)
    if kind == "train":
        return rookery.learners.train(learner, jax.random.key(0))
    return rookery.me_pbt(learner, rookery.qd.grid((2, 2), (0.0, 0.0), (1.0, 1.0)), population_size=2)


@pytest.mark.parametrize("kind", ["skills", "ratings", "parameters", "train", "repertoire"])
def test_what_needs_evaluations_refuses(kind: str) -> None:
    with pytest.raises(SettingError) as error:
        _refused(kind)
    assert (error.value.field, error.value.value) == ("fitness_from", "training")


def test_a_run_is_evaluated_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = rookery.make("point_room", episode_length=50)
    config = dataclasses.replace(tiny.CONFIG, fitness_from="training")
    learner = rookery.off_policy(rookery.sac(env.spec, hidden_sizes=(8,)), env, config)
    rookery.run(rookery.seeds(learner), generations=6, run_dir=str(tmp_path / "run"))
    metrics = read_csv(tmp_path / "run/metrics.csv")
    assert metrics["train_episodes"].tolist() == [0, 0, 0, 0, 4, 0]  # of 50 steps, 10 of each environment a generation
    assert np.isnan(metrics["best_fitness"][:4]).all()
    assert metrics["best_fitness"][5] == metrics["best_fitness"][4] == metrics["train_return"][4]
    assert len(read_csv(tmp_path / "run/evaluation.csv")["return"]) == config.eval_episodes
    assert "no training episode ended" in capsys.readouterr().out
