"""A package's own agent and method: SAC with layer normalisation, and a hill climber."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.flatten_util import ravel_pytree

import rookery
from rookery import trees
from rookery.agents.sac import SPACE, SacConfig
from rookery.experiments.agents import AGENTS, AgentRow
from rookery.experiments.methods import METHODS
from rookery.experiments.parts import environment_of, mesh_of
from rookery.experiments.spec import Built, Method, RunSpec
from rookery.hyperparams import Field, LogUniform, declared
from rookery.learners.base import EvaluationConfig, Learner, Member
from rookery.learners.evaluation import evaluation_of, evaluator
from rookery.learners.off_policy import OffPolicyConfig
from rookery.qd.scoring import PolicyConfig, policy
from rookery.settings import Within, check_fields
from rookery.storage.csv_log import read_csv
from rookery.types import Genotype, Scalar
from tests.commandline import call
from tests.training.test_resume import COMMAND, assert_same_run, await_saving, environment


def layer_norm_sac(spec: Any, config: SacConfig) -> Any:
    module: Any = nn.Sequential([nn.Dense(8), nn.LayerNorm(), nn.relu])
    encoder = rookery.agents.Encoder(lambda key: module.init(key, jnp.zeros(spec.observation_size)), module.apply)
    return rookery.sac(spec, config, encoder=encoder)


ROW = AgentRow("sac-ln", "layer-normalised SAC", "Ba 2016", SacConfig, layer_norm_sac, SPACE, OffPolicyConfig())


class ClimbHyper(NamedTuple):
    noise_scale: Annotated[Scalar, Field("deviation of the perturbations", LogUniform(1e-2, 1.0))] = 0.3


@dataclass(frozen=True)
class Settings:
    """The settings of a hill climber."""

    population: Annotated[int, Within(1)] = 1
    """Number of independent climbers (at least 1)."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=2))

    def __post_init__(self) -> None:
        check_fields(self)


def climber(settings: Settings, env: Any) -> Learner:
    actor = policy(env.spec, settings.policy)
    parts: Any = evaluation_of(evaluator(actor.act, env, settings.evaluation))

    def init(key: Any, hyper: ClimbHyper, bank: Any) -> Member:
        return Member(Genotype(actor.init(key), (), None), hyper, None, (), ())

    def step(member: Member, bank: Any, key: Any, generation: Any) -> tuple[Member, dict]:
        noise_key, episode_key = jax.random.split(key)
        params, unravel = ravel_pytree(member.state.params)
        changed = unravel(params + member.hyper.noise_scale * jax.random.normal(noise_key, params.shape))
        both = [Genotype(one, member.hyper, None) for one in (member.state.params, changed)]
        old, new = (parts["evaluate"](one, bank, episode_key).fitness for one in both)
        kept = trees.where(new > old, changed, member.state.params)
        return member._replace(state=Genotype(kept, (), None)), {}

    def load(member: Member, genotype: Genotype) -> Member:
        return member._replace(state=Genotype(genotype.params, (), None), hyper=genotype.hyper)

    return Learner(
        **parts,
        init=init,
        load_genotype=load,
        restart=lambda member, bank, key, needed: member,  # noqa: ARG005
        step=step,
        spec=env.spec,
        space=declared(ClimbHyper),
        steps_per_generation=2 * parts["evaluator"].steps,
        settings={**env.settings, "agent": {"name": "climb"}},
    )


def build(spec: RunSpec[Settings], schedule: Any, over: Any, populations: int) -> Built:
    mesh, count = mesh_of(spec.environment, over, population=spec.method.population), spec.method.population
    learner = climber(spec.method, environment_of(spec.environment))
    return Built(rookery.seeds(learner, population_size=count), mesh, learner.space, learner, spec)


METHOD = Method(
    name="climb",
    title="A hill climber.",
    sources=(),
    subject="evolution",
    guide="single_agents",
    settings=Settings(),
    build=build,
    describe=lambda spec: f"{spec.method.population} climbers",
)


def register() -> None:  # the entry point
    AGENTS[ROW.name] = ROW
    METHODS.append(METHOD)


TINY = "--env point_goal --episode-length 10 --devices 1 --hidden-sizes 4 --eval-episodes 2".split()
SAC_LN = (
    "--population 2 --steps-per-generation 40 --num-envs 4 --batch-size 4 --buffer-size 64 --warmup-steps 4".split()
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(AGENTS, ROW.name, ROW)
    monkeypatch.setattr("rookery.experiments.kinds.METHODS", [*METHODS, METHOD])


def commands(run):
    for words in (["evaluate", run, "--episodes", "3"], ["export", run], ["report", run]):
        assert call(*words)[0] == 0, words


def test_an_agent_of_a_package_is_trained_and_used_by_every_command(tmp_path):
    run = str(tmp_path / "run")
    assert call("train", "pbt-sac-ln", *TINY, *SAC_LN, "--generations", "2", "--run-dir", run)[::2] == (0, "")
    commands(run)


def test_a_method_of_a_package_is_killed_and_resumed(tmp_path):
    (info := tmp_path / "own-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Name: own")
    (info / "entry_points.txt").write_text(f"[rookery.kinds]\nown = {__name__}:register\n")
    whole, run = tmp_path / "whole", tmp_path / "run"
    flags = [*TINY, *"--start-states 4 --objective approach --generations 6 --checkpoint-every 1 --seed 3".split()]
    assert call("train", "climb", *flags, "--run-dir", str(whole))[::2] == (0, "")
    (file := tmp_path / "run.toml").write_text(call("train", "climb", *flags, "--print-config")[1])
    command = [sys.executable, "-c", COMMAND, "train", "--config", file, "--run-dir", run]
    process = subprocess.Popen(command, env=environment() | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"})
    await_saving(process, run)
    process.kill()
    assert process.wait() < 0
    assert call("resume", str(run))[0] == 0
    commands(str(run))
    assert_same_run(whole, run)
    fitness = read_csv(whole / "metrics.csv")["best_fitness"]
    assert fitness[-1] > fitness[0], "it learns"
