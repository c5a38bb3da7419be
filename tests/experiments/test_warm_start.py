"""Runs that begin with what another run learned: its skills, its members, its repertoire."""

import contextlib
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import trees
from rookery.agents.diayn import DiaynConfig
from rookery.agents.sac import SacConfig
from rookery.agents.td3 import Td3Config
from rookery.deploy.evaluate import evaluate
from rookery.envs.wrappers.skills import SkillsConfig, listed
from rookery.experiments import build, warm_start
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import EnvironmentConfig, RunConfig
from rookery.experiments.config_io import to_record
from rookery.experiments.kinds import KINDS, configure
from rookery.experiments.warm_start_settings import warm_start_defaults
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.rollout import EvaluationConfig
from rookery.qd.map_elites import repertoire_of
from rookery.qd.pbt_emitter import MePbtConfig
from rookery.storage import run_dir
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import RunLog, read_csv
from tests.agents.common import compiled
from tests.tiny import assert_equal

WORLD = EnvironmentConfig(env="point_room", episode_length=10, devices=1)
LIFE = OffPolicyConfig(
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
MIND = SacConfig(hidden_sizes=(8,))
SMALL = {"environment": WORLD, "learner": LIFE, "agent": MIND}
DISCOVERING = configure(
    "pbt-diayn", population=3, skills=SkillsConfig(3), diayn=DiaynConfig(discriminator_hidden_sizes=(8,)), **SMALL
)
BREEDING = configure(
    "me-pbt-sac",
    population=2,
    ga_population=2,
    cells=CellsConfig(grid=(4, 4)),
    me_pbt=MePbtConfig(replace_fraction=0.5, best_fraction=0.5, sample_fraction=0.0),
    **SMALL,
)


def kept(config, path: Path) -> str:
    """The folder of a run whose only checkpoint is its beginning; the second member was best."""
    config = dataclasses.replace(config, run=RunConfig(generations=1, run_dir=str(path), quiet=True))
    state = first_state(begun(config))
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(run_dir.create(path, to_record(config)))
        checkpoints = stack.enter_context(Checkpointer(opened.checkpoints, keep=1))
        log = stack.enter_context(RunLog(opened))
        size = config.population
        members = {"parent": np.arange(size), "fitness": np.where(np.arange(size) == 1, 2.0, 1.0)}
        log.write(0, {"env_steps": 40 * size}, members)
        checkpoints.save(1, state, {})
    return str(path)


def begun(config) -> rookery.Program:
    return warm_start.begin(config, build.build(config))


def first_state(program: rookery.Program):
    return compiled(program.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def skilled(tmp_path_factory) -> str:
    """A run of three members with three skills."""
    return kept(DISCOVERING, tmp_path_factory.mktemp("origins") / "skilled")


@pytest.fixture(scope="module")
def bred(tmp_path_factory, skilled) -> str:
    """A repertoire that begins with the skills of `skilled`."""
    return kept(dataclasses.replace(BREEDING, init_from=skilled), tmp_path_factory.mktemp("origins") / "bred")


def test_each_skill_is_an_agent_that_sees_the_room_as_it_is(skilled):
    origin = warm_start.open_origin(skilled)
    assert origin.built.learner is not None
    spec = origin.built.learner.spec
    assert spec.skill is not None
    whole = rookery.genotype(trees.take(origin.state.members, 1))
    policies = rookery.skill_policies(skilled, member=1)
    with_skill = rookery.diayn(rookery.sac(spec, MIND), spec, DISCOVERING.diayn)
    alone = rookery.sac(rookery.make("point_room").spec, MIND)
    actions = []
    for number, skill in enumerate(listed(spec.skill)):
        observation = jnp.asarray([0.3, -0.7])
        shown = rookery.act(with_skill, whole, jnp.concatenate([observation, jnp.asarray(skill)]))
        actions.append(rookery.act(alone, trees.take(policies, number), observation))
        np.testing.assert_allclose(actions[-1], shown, atol=1e-6)
    assert not np.allclose(actions[0], actions[1], atol=1e-6)


def test_the_best_member_is_meant_unless_one_is_named(skilled):
    policies, named = rookery.skill_policies(skilled), rookery.skill_policies(skilled, 1)
    assert_equal(policies, named)
    with pytest.raises(ValueError, match=r"member 3 does not exist; choose one in 0\.\.2"):
        rookery.skill_policies(skilled, 3)


@pytest.mark.parametrize("kind", ["sac", "pbt-sac"])
def test_everybody_begins_as_the_skill_with_hyper_parameters_of_their_own(kind, skilled):
    config = configure(kind, population=2, init_from=skilled, skill=2, **SMALL)
    members, plain = first_state(begun(config)).members, first_state(build.build(config).program).members
    wanted = trees.take(rookery.skill_policies(skilled), 2)
    for member in range(2):
        mine = rookery.genotype(trees.take(members, member))
        assert_equal((mine.params, mine.normalizer), (wanted.params, wanted.normalizer))
    for name in members.hyper._fields:
        assert np.array_equal(getattr(members.hyper, name), getattr(plain.hyper, name))
    assert float(jnp.abs(jax.tree.leaves(members.state.policy.moments)[1]).max()) == 0.0


def test_a_repertoire_begins_with_every_skill_where_it_ends(skilled):
    config = dataclasses.replace(BREEDING, init_from=skilled)
    repertoire = repertoire_of(first_state(begun(config)))
    policies = rookery.skill_policies(skilled)
    occupied = np.flatnonzero(repertoire.occupied)
    assert 1 <= len(occupied) <= 3
    assert not repertoire_of(first_state(build.build(config).program)).occupied.any()
    kernels = np.asarray(policies.params.policy["params"]["Dense_0"]["kernel"])
    biases = np.asarray(policies.params.policy["params"]["Dense_0"]["bias"])
    assert np.array_equal(kernels[0], kernels[1]), "what differs between skills is the bias alone"
    for cell in occupied:
        elite = np.asarray(repertoire.genotypes.params.policy["params"]["Dense_0"]["bias"][cell])
        assert (elite == biases).all(axis=1).any()


def test_a_repertoire_begins_with_another(bred):
    # Elsewhere, so that what was judged there says nothing; and with a discount that is held.
    maze = EnvironmentConfig(env="point_maze", episode_length=10, devices=1)
    config = dataclasses.replace(BREEDING, init_from=bred, environment=maze, space={"space.discount": 0.9})
    repertoire, there = repertoire_of(first_state(begun(config))), rookery.repertoire(bred)
    occupied, known = np.flatnonzero(repertoire.occupied), np.flatnonzero(there.occupied)
    assert len(occupied)
    assert (repertoire.fitnesses[occupied] < -10.0).all(), "ten steps of at least 1 from the maze's goal"
    assert (there.fitnesses[known] > -1.0).all(), "the room only costs control"
    assert np.allclose(repertoire.genotypes.hyper.discount[occupied], 0.9)
    biases = (np.asarray(one.genotypes.params.policy["params"]["Dense_0"]["bias"]) for one in (repertoire, there))
    here, theirs = next(biases)[occupied], next(biases)[known]
    assert all((elite == theirs).all(axis=1).any() for elite in here)


def test_an_agent_begins_as_the_best_elite_or_the_best_member(bred, tmp_path):
    members = first_state(begun(configure("sac", init_from=bred, **SMALL))).members
    best = rookery.best(rookery.repertoire(bred)).genotype
    assert_equal(trees.take(members.state.params, 0), best.params)
    plain = kept(configure("sac", population=2, **SMALL), tmp_path / "plain")
    members = first_state(begun(configure("sac", init_from=plain, **SMALL))).members
    origin = warm_start.open_origin(plain)
    assert_equal(trees.take(members.state.params, 0), trees.take(origin.state.members.state.params, 1))


def test_discovery_goes_on_from_discovery(skilled):
    members = first_state(begun(dataclasses.replace(DISCOVERING, population=1, init_from=skilled))).members
    origin = warm_start.open_origin(skilled)
    mine, theirs = members.state.discriminator.params, origin.state.members.state.discriminator.params
    assert_equal(trees.take(mine, 0), trees.take(theirs, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: configure("sac", init_from=run, **SMALL), "has 3 skills; choose one by --skill 0 to 2"),
        (lambda run: configure("sac", init_from=run, skill=3, **SMALL), "choose one by --skill 0 to 2, got 3"),
        (lambda _: configure("sac", skill=1, **SMALL), "give the run that discovered it, or leave skill out"),
        (
            lambda run: configure(
                "sac",
                init_from=run,
                skill=1,
                **{**SMALL, "environment": EnvironmentConfig(env="probe_value", devices=1)},
            ),
            r"observations of 2 numbers \(point_room\), but probe_value has 1",
        ),
        (
            lambda run: configure("sac", init_from=run, skill=1, **{**SMALL, "agent": SacConfig(hidden_sizes=(4,))}),
            r"has shape \(8,\), expected \(4,\); use the same widths",
        ),
        (
            lambda run: configure("sac", init_from=run, skill=1, **{**SMALL, "learner": OffPolicyConfig()}),
            "keeps observation statistics where this one does not",
        ),
        (
            lambda run: configure("td3", init_from=run, skill=1, **{**SMALL, "agent": Td3Config(hidden_sizes=(8,))}),
            "is a run of kind pbt-diayn, from which a run of kind td3 cannot start",
        ),
        (
            lambda run: dataclasses.replace(DISCOVERING, init_from=run, skills=SkillsConfig(4)),
            r"has the skills .*size=3.*, this run .*size=4.*; give this run the same",
        ),
        (
            lambda run: dataclasses.replace(DISCOVERING, init_from=run, skill=1),
            "has no skills to choose from here; leave skill out",
        ),
        (
            lambda run: configure(
                "map-elites", init_from=run, environment=WORLD, evaluation=EvaluationConfig(eval_episodes=2)
            ),
            "map-elites can start only from a map-elites run",
        ),
        (lambda run: configure("sac", init_from=run + "-no", **SMALL), "is not a run directory"),
    ],
)
def test_what_does_not_fit_is_refused(change, message, skilled):
    with pytest.raises(ValueError, match=message):
        begun(change(skilled))


def test_nobody_begins_with_itself(skilled):
    run = RunConfig(run_dir=skilled)
    with pytest.raises(ValueError, match="cannot start from itself; choose another folder"):
        begun(dataclasses.replace(DISCOVERING, init_from=skilled, run=run))


def test_the_best_is_sought_among_those_who_were_not_replaced(skilled):
    origin = warm_start.open_origin(skilled)
    assert warm_start.best_member(origin) == 1
    replaced = origin.state.shared._replace(parents=jnp.asarray([0, 2, 2]))
    assert warm_start.best_member(origin._replace(state=origin.state._replace(shared=replaced))) == 0


def test_discovery_needs_a_run_that_knows_skills(bred):
    with pytest.raises(ValueError, match="is a run of kind me-pbt-sac and has no skills to start from"):
        begun(dataclasses.replace(DISCOVERING, init_from=bred))
    with pytest.raises(ValueError, match="is a run of kind me-pbt-sac, which discovers no skills"):
        rookery.skill_policies(bred)


def test_a_run_from_python_says_how_to_begin_with_it(tmp_path):
    run_dir.create(tmp_path / "run", {"kind": "python", "space": None}).release()
    with pytest.raises(ValueError, match="start from it there with begin_as"):
        warm_start.open_origin(tmp_path / "run")


def test_what_is_not_given_is_that_runs():
    run = configure(
        "diayn",
        skills=SkillsConfig(7),
        **{**SMALL, "environment": EnvironmentConfig(env="walker2d_uni", episode_length=100)},
    )
    default = warm_start_defaults(run, KINDS["sac"])
    assert (default.environment.env, default.environment.episode_length) == ("walker2d_uni", None)
    assert default.kind == "sac"
    assert default.agent == MIND
    assert default.learner == dataclasses.replace(OffPolicyConfig(), normalize_observations=True)
    breeding = warm_start_defaults(run, KINDS["me-pbt-sac"])
    assert breeding.kind == "me-pbt-sac"
    assert (breeding.agent.hidden_sizes, breeding.agent.output_scale) == ((8,), 1.0)
    again = warm_start_defaults(run, KINDS["pbt-diayn"])
    assert again.kind == "pbt-diayn"
    assert again.skills is not None
    assert again.skills.num_skills == 7
    other = warm_start_defaults(run, KINDS["td3"])
    assert other.kind == "td3"
    assert other.agent == Td3Config()
    assert warm_start_defaults(None, KINDS["sac"]) == configure("sac")


def test_an_evaluation_tells_where_each_skill_goes(skilled):
    generation, metrics = evaluate(skilled, episodes=4, seed=3)
    assert generation == 1
    assert metrics["best_member"] == 1, "who was best when last judged: the one that everything else begins with"
    assert metrics["skill"].tolist() == [0, 1, 2, 0, 1, 2], "four episodes are rounded up to two of each skill"
    assert metrics["accuracy"].shape == metrics["returns"].shape == (3, 6)
    np.testing.assert_allclose(metrics["fitness"], metrics["accuracy"].mean(axis=1), rtol=1e-6)
    table = read_csv(Path(skilled) / "skills.csv")
    assert list(table) == ["skill", "episode", "step", "descriptor/0", "descriptor/1"]
    assert len(table["skill"]) == 6 * (10 + 1)
    ends = table["step"] == 10
    reached = np.stack([table["descriptor/0"][ends], table["descriptor/1"][ends]], axis=1)
    assert table["skill"][ends].tolist() == metrics["skill"].tolist()
    assert table["episode"][ends].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(reached, metrics["descriptors"][1], atol=1e-5)
