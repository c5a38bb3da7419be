"""Runs that start from the results of another run: its skills, its members or its repertoire."""

import dataclasses
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import trees
from rookery.agents.ppo_settings import PpoConfig
from rookery.agents.sac import SacConfig
from rookery.agents.skills.diayn import DiaynConfig
from rookery.agents.td3 import Td3Config
from rookery.deploy.evaluate import evaluate
from rookery.deploy.policy import select
from rookery.envs.wrappers.skills import SkillsConfig, enumerate_skills
from rookery.experiments import build, warm_start
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.kinds import configure, kind_of
from rookery.experiments.spec import RunSpec
from rookery.experiments.warm_start_settings import on_task, warm_start_defaults
from rookery.learners.base import EvaluationConfig
from rookery.learners.off_policy import OffPolicyConfig
from rookery.qd.map_elites import repertoire_of
from rookery.qd.pbt_emitter import MePbtConfig
from rookery.storage import run_dir
from rookery.storage.csv_log import RunLog, TableWarning, read_csv
from rookery.training.config import RunConfig
from rookery.types import Observation
from tests.deploy import untrained_runs
from tests.tiny import assert_equal

ENVIRONMENT = EnvironmentConfig(env="point_room", episode_length=10, devices=1)
LEARNER = OffPolicyConfig(
    num_envs=4,
    steps_per_generation=40,
    updates_per_step=0.25,
    batch_size=8,
    buffer_size=64,
    warmup_steps=8,
    normalize_observations=True,
    eval_episodes=3,
    start_states=4,
)
AGENT = SacConfig(hidden_sizes=(8,))
SMALL = {"environment": ENVIRONMENT, "learner": LEARNER, "agent": AGENT}
DIAYN_RUN = configure(
    "pbt-diayn", population=3, skills=SkillsConfig(3), diayn=DiaynConfig(discriminator_hidden_sizes=(8,)), **SMALL
)
ME_PBT_RUN = configure(
    "me-pbt-sac",
    population=2,
    ga_population=2,
    cells=CellsConfig(grid=(4, 4)),
    me_pbt=MePbtConfig(replace_fraction=0.5, best_fraction=0.5, sample_fraction=0.0),
    **SMALL,
)


def save_run(config, path: Path) -> str:
    """Write a run directory with the initial state as its only checkpoint; the second member is the best."""
    fitness = [1.0 + (member == 1) for member in range(config.method.population)]
    return str(untrained_runs.save_run(config, path, fitness, untrained_runs.unchanged))


def initial_program(config) -> rookery.Program:
    return warm_start.start_from(config, build.build(config))


def initial_state(program: rookery.Program, part=lambda state: state):
    """The initial state, or a part of it, for which less is compiled."""
    return jax.jit(lambda key: part(program.init(key)))(jax.random.key(0))


def members_of(state):
    members = state.members
    return members._replace(buffer=(), env_state=())


@pytest.fixture(scope="module")
def diayn_run(tmp_path_factory) -> str:
    """A run of three members with three skills."""
    return save_run(DIAYN_RUN, tmp_path_factory.mktemp("origins") / "diayn_run")


@pytest.fixture(scope="module")
def me_pbt_run(tmp_path_factory, diayn_run) -> str:
    """A repertoire that starts from the skills of `diayn_run`."""
    return save_run(ME_PBT_RUN.replace(init_from=diayn_run), tmp_path_factory.mktemp("origins") / "me_pbt_run")


@pytest.fixture(scope="module")
def policies(diayn_run):
    return rookery.experiments.skill_policies(diayn_run)


def test_each_skill_of_the_best_member_is_an_agent_for_the_environment_without_skills(diayn_run, policies):
    origin = warm_start.restore_run(diayn_run)
    assert origin.built.learner is not None
    spec = origin.built.learner.spec
    assert spec.skill is not None
    whole = rookery.genotype(trees.take(origin.state.members, 1))
    assert_equal(rookery.experiments.skill_policies(diayn_run, member=1), policies)
    with pytest.raises(ValueError, match=r"member must be in 0\.\.2, got 3"):
        rookery.experiments.skill_policies(diayn_run, 3)
    with_skill = rookery.diayn(rookery.sac(spec, AGENT), spec, DIAYN_RUN.wrapper.diayn)
    agent = rookery.sac(rookery.make("point_room").spec, AGENT)
    act_with_skill, act = jax.jit(partial(rookery.act, with_skill)), jax.jit(partial(rookery.act, agent))
    actions = []
    for number, skill in enumerate(enumerate_skills(spec.skill)):
        observation = Observation(jnp.asarray([0.3, -0.7]))
        expected = act_with_skill(whole, observation._replace(skill=jnp.asarray(skill)))
        actions.append(act(trees.take(policies, number), observation))
        np.testing.assert_allclose(actions[-1], expected, atol=1e-6)
    assert not np.allclose(actions[0], actions[1], atol=1e-6)


def test_every_member_starts_from_the_skill_with_separate_hyper_parameters(diayn_run, policies):
    config = configure("pbt-sac", population=2, init_from=diayn_run, skill=2, **SMALL)
    members = initial_state(initial_program(config), members_of)
    plain = initial_state(build.build(config).program, lambda state: state.members.hyper)
    wanted = trees.take(policies, 2)
    for member in range(2):
        loaded = rookery.genotype(trees.take(members, member))
        assert_equal((loaded.params, loaded.normalizer), (wanted.params, wanted.normalizer))
    for name in members.hyper._fields:
        assert np.array_equal(getattr(members.hyper, name), getattr(plain, name))
    assert float(jnp.abs(jax.tree.leaves(members.state.policy.moments)[1]).max()) == 0.0
    built, spoiled = build.build(config), jax.tree.map(lambda leaf: leaf * jnp.nan, wanted)
    assert built.learner is not None
    with pytest.raises(ValueError, match=r"that are not finite; choose another member, or an earlier checkpoint\.$"):
        rookery.populations.begin_as(built.program, built.learner, spoiled)


def test_a_repertoire_starts_from_every_skill_at_its_descriptor(policies, me_pbt_run):
    repertoire = rookery.experiments.repertoire(me_pbt_run)
    occupied = np.flatnonzero(repertoire.occupied)
    assert 1 <= len(occupied) <= 3, "without the run, none is"
    kernels = np.asarray(policies.params.policy["params"]["Dense_0"]["kernel"])
    biases = np.asarray(policies.params.policy["params"]["Dense_0"]["bias"])
    assert np.array_equal(kernels[0], kernels[1]), "skills differ only in the bias"
    for cell in occupied:
        elite = np.asarray(repertoire.genotypes.params.policy["params"]["Dense_0"]["bias"][cell])
        assert (elite == biases).all(axis=1).any()


def test_a_repertoire_starts_from_another(me_pbt_run):
    # In another environment, so that the stored fitness does not apply; and with a fixed discount.
    maze = EnvironmentConfig(env="point_maze", episode_length=10, devices=1)
    config = ME_PBT_RUN.replace(init_from=me_pbt_run, environment=maze, space={"discount": 0.9})
    repertoire = initial_state(initial_program(config), repertoire_of)
    there = rookery.experiments.repertoire(me_pbt_run)
    occupied, known = np.flatnonzero(repertoire.occupied), np.flatnonzero(there.occupied)
    assert len(occupied)
    assert (repertoire.fitnesses[occupied] < -10.0).all(), "ten steps at a distance of at least 1 from the goal"
    assert (there.fitnesses[known] > -1.0).all(), "the only cost in point_room is that of control"
    assert np.allclose(repertoire.genotypes.hyper.discount[occupied], 0.9)
    biases = (np.asarray(one.genotypes.params.policy["params"]["Dense_0"]["bias"]) for one in (repertoire, there))
    here, theirs = next(biases)[occupied], next(biases)[known]
    assert all((elite == theirs).all(axis=1).any() for elite in here)


def test_an_agent_starts_from_the_best_elite(me_pbt_run):
    members = initial_state(initial_program(configure("sac", init_from=me_pbt_run, **SMALL)), members_of)
    best = rookery.qd.best(rookery.experiments.repertoire(me_pbt_run)).genotype
    assert_equal(trees.take(members.state.params, 0), best.params)


def test_skill_discovery_starts_from_the_best_member_of_skill_discovery(diayn_run):
    members = initial_state(initial_program(DIAYN_RUN.replace(population=2, init_from=diayn_run)), members_of)
    origin = warm_start.restore_run(diayn_run)
    loaded, theirs = (found.state.params for found in (members, origin.state.members))
    assert_equal(trees.take(loaded, 0), trees.take(theirs, 1))
    loaded, theirs = (found.state.discriminator.params for found in (members, origin.state.members))
    assert_equal(trees.take(loaded, 0), trees.take(theirs, 1))


def sac(run: str | None, skill: int | None = 1, kind: str = "sac", **changes: Any) -> RunSpec:
    return configure(kind, init_from=run, skill=skill, **{**SMALL, **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: sac(run, None), "has 3 skills; choose one by --skill 0 to 2"),
        (lambda run: sac(run, 3), "choose one by --skill 0 to 2, got 3"),
        (
            lambda run: sac(run, environment=EnvironmentConfig(env="probe_value", devices=1)),
            r"observations of 2 numbers \(point_room\), but probe_value has 1",
        ),
        (lambda run: sac(run, agent=SacConfig(hidden_sizes=(4,))), r"has shape \(8,\), expected \(4,\); use the same"),
        (lambda run: sac(run, learner=OffPolicyConfig()), "keeps observation statistics where this one does not"),
        (lambda run: sac(run, kind="td3", agent=Td3Config(hidden_sizes=(8,))), "kind pbt-diayn, .* kind td3 cannot"),
        (lambda run: DIAYN_RUN.replace(init_from=run, skills=SkillsConfig(4)), r"skills .*size=3.*, this run .*size=4"),
        (
            lambda run: configure(
                "map-elites", init_from=run, environment=ENVIRONMENT, evaluation=EvaluationConfig(eval_episodes=2)
            ),
            "choose a run of map-elites, pga-me, dcrl-me or cma-mae",
        ),
        (lambda run: DIAYN_RUN.replace(init_from=run, run=RunConfig(run_dir=run)), "init_from is the run itself, "),
    ],
)
def test_an_incompatible_run_is_rejected(change, message, diayn_run):
    with pytest.raises(ValueError, match=message):
        initial_program(change(diayn_run))


def test_the_best_member_is_one_that_was_not_replaced(diayn_run):
    origin = warm_start.restore_run(diayn_run)
    assert warm_start.best_member(origin) == 1
    replaced = origin.state.shared._replace(parents=jnp.asarray([0, 2, 2]))
    assert warm_start.best_member(origin._replace(state=origin.state._replace(shared=replaced))) == 0


def test_skill_discovery_needs_a_run_with_skills(me_pbt_run):
    with pytest.raises(ValueError, match="is a run of kind me-pbt-sac and has no skills to start from"):
        initial_program(DIAYN_RUN.replace(init_from=me_pbt_run))
    with pytest.raises(ValueError, match="is a run of kind me-pbt-sac, which discovers no skills"):
        rookery.experiments.skill_policies(me_pbt_run)


def test_settings_that_are_not_given_come_from_the_other_run():
    environment = EnvironmentConfig(env="walker2d_uni", episode_length=100)
    run = configure("diayn", skills=SkillsConfig(7), **{**SMALL, "environment": environment})
    default, evolved, again, other = (
        warm_start_defaults(run, kind_of(name)) for name in ("sac", "me-pbt-sac", "pbt-diayn", "td3")
    )
    kinds = [config.kind.name for config in (default, evolved, again, other)]
    assert kinds == ["sac", "me-pbt-sac", "pbt-diayn", "td3"]
    assert (default.environment.env, default.environment.episode_length) == ("walker2d_uni", None)
    assert default.agent == evolved.agent == AGENT
    assert default.learner == dataclasses.replace(OffPolicyConfig(), normalize_observations=True)
    assert again.wrapper.skills.num_skills == 7
    assert other.agent == Td3Config()
    assert warm_start_defaults(None, kind_of("sac")) == configure("sac")
    # The settings of training are those of the new kind.
    agent = PpoConfig(hidden_sizes=(8,), actor_epochs=1, minibatches=2, anneal_updates=0)
    run = configure("pbt-ppo", agent=agent, environment=EnvironmentConfig(env="Breakout-MinAtar", frame_stack=4))
    default = warm_start_defaults(run, kind_of("ppo"))
    assert default.agent == PpoConfig(hidden_sizes=(8,))
    assert default.environment.frame_stack == 4


@pytest.mark.parametrize(
    ("env", "options"),
    [(None, ("mass=2",)), ("./mass.py:make", ("mass=2",)), ("./other.py:make", ()), ("point_room", ())],
)
def test_options_of_another_task_are_not_taken(env, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mass.py").touch()
    (tmp_path / "other.py").touch()
    environment = EnvironmentConfig(env=f"{tmp_path}/mass.py:make", option=("mass=2",), frame_stack=2)
    run = on_task(configure("sac", environment=environment), env)
    assert run is not None
    default = warm_start_defaults(run, kind_of("sac")).environment
    assert (default.option, default.frame_stack) == (options, 2 if options else 1)


def test_an_evaluation_records_the_trajectory_of_each_skill(diayn_run):
    generation, metrics = evaluate(diayn_run, episodes=4, seed=3)
    assert generation == 1
    assert metrics["best_member"] == 1, "the best of the last evaluation, from which other runs start"
    assert metrics["skill"].tolist() == [0, 1, 2, 0, 1, 2], "four episodes are rounded up to two of each skill"
    assert metrics["accuracy"].shape == metrics["returns"].shape == (3, 6)
    np.testing.assert_allclose(metrics["fitness"], metrics["accuracy"].mean(axis=1), rtol=1e-6)
    table = read_csv(Path(diayn_run) / "skills.csv")
    assert list(table) == ["skill", "episode", "step", "descriptor/0", "descriptor/1"]
    assert len(table["skill"]) == 6 * (10 + 1)
    ends = table["step"] == 10
    reached = np.stack([table["descriptor/0"][ends], table["descriptor/1"][ends]], axis=1)
    assert table["skill"][ends].tolist() == metrics["skill"].tolist()
    assert table["episode"][ends].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(reached, metrics["descriptors"][1], atol=1e-5)


def test_a_table_without_some_members_of_the_last_generation_names_no_best_member(diayn_run, tmp_path):
    copy = shutil.copytree(diayn_run, tmp_path / "copy")
    origin = warm_start.restore_run(copy)
    lines = (copy / "lineage.csv").read_text().splitlines(keepends=True)
    for kept in (2, 1, 0):
        (copy / "lineage.csv").write_text("".join(lines[: kept + (kept > 0)]))
        with pytest.raises(ValueError, match=r"lineage\.csv has lost rows of generation 0, by which the best member"):
            warm_start.best_member(origin)
    # The rows that a resumed run fills in are unknown; those of generation 1 show how many there are.
    later = ["1" + line.removeprefix("0") for line in lines[1:]]
    (copy / "lineage.csv").write_text("".join([*lines[:2], *later]))
    with pytest.warns(TableWarning, match="has lost the rows of generation"), RunLog(run_dir.RunFolder(copy), 2):
        pass
    assert read_csv(copy / "lineage.csv")["parent"][:3].tolist() == [-1, -1, -1]
    with pytest.raises(ValueError, match=r"lineage\.csv has lost rows of generation 0, by which the best member"):
        warm_start.best_member(origin)
    assert select(origin, member=1).fitness is None
