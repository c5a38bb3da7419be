"""A package's own agent and method: SAC with layer normalisation, and an evolution strategy (Salimans 2017)."""

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
from rookery.agents.sac import SPACE, SacConfig
from rookery.experiments.agents import AGENTS, AgentRow
from rookery.experiments.methods import METHODS
from rookery.experiments.parts import environment_of, mesh_of
from rookery.experiments.spec import Built, Method, RunSpec
from rookery.factories import Within, check_fields
from rookery.hyperparams import Field, LogUniform, declared
from rookery.learners.base import EvaluationConfig, Learner, Member
from rookery.learners.evaluation import evaluation_of, evaluator
from rookery.learners.off_policy import OffPolicyConfig
from rookery.qd.scoring import PolicyConfig, policy
from rookery.storage.csv_log import read_csv
from rookery.types import Genotype, Scalar
from tests.commandline import call
from tests.training.test_resume import COMMAND, assert_same_run, await_saving, environment


def layer_norm_sac(spec: Any, config: SacConfig) -> Any:
    module: Any = nn.Sequential([nn.Dense(8), nn.LayerNorm(), nn.relu])
    encoder = rookery.agents.Encoder(lambda key: module.init(key, jnp.zeros(spec.observation_size)), module.apply)
    return rookery.sac(spec, config, encoder=encoder)


ROW = AgentRow("sac-ln", "layer-normalised SAC", "Ba 2016", SacConfig, layer_norm_sac, SPACE, OffPolicyConfig())


class EsHyper(NamedTuple):
    learning_rate: Annotated[Scalar, Field("step size", LogUniform(1e-3, 1.0))] = 0.1
    noise_scale: Annotated[Scalar, Field("deviation of the perturbations", LogUniform(1e-2, 1.0))] = 0.1


@dataclass(frozen=True)
class Settings:
    """The settings of an evolution strategy."""

    population: Annotated[int, Within(1)] = 1
    """Number of independent searches (at least 1)."""
    directions: Annotated[int, Within(2)] = 16
    """Random directions of a generation, each tried in both ways (at least 2)."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=2))

    def __post_init__(self) -> None:
        check_fields(self)


def es(settings: Settings, env: Any) -> Learner:
    actor = policy(env.spec, settings.policy)
    parts: Any = evaluation_of(evaluator(actor.act, env, settings.evaluation))

    def init(key: Any, hyper: EsHyper, bank: Any) -> Member:
        return Member(Genotype(actor.init(key), (), None), hyper, None, (), ())

    def step(member: Member, bank: Any, key: Any, generation: Any) -> tuple[Member, dict]:
        keys = jax.random.split(key)
        mean, unravel = ravel_pytree(member.state.params)
        noise = jax.random.normal(keys[0], (settings.directions, len(mean)))
        noise = jnp.concatenate([noise, -noise])

        def score(one: Any) -> Any:
            params = unravel(mean + member.hyper.noise_scale * one)
            return parts["evaluate"](Genotype(params, member.hyper, None), bank, keys[1])

        fitness = jnp.nan_to_num(jax.vmap(score)(noise).fitness, nan=-jnp.inf)
        ranks = jnp.argsort(jnp.argsort(fitness)) / (len(noise) - 1) - 0.5
        mean += member.hyper.learning_rate * ranks @ noise / (len(noise) * member.hyper.noise_scale)
        return member._replace(state=Genotype(unravel(mean), (), None)), {}

    def load(member: Member, genotype: Genotype) -> Member:
        return member._replace(state=Genotype(genotype.params, (), None), hyper=genotype.hyper)

    return Learner(
        **parts,
        init=init,
        load_genotype=load,
        restart=lambda member, bank, key, needed: member,  # noqa: ARG005
        step=step,
        spec=env.spec,
        space=declared(EsHyper),
        steps_per_generation=2 * settings.directions * parts["evaluator"].steps,
        settings={**env.settings, "agent": {"name": "es"}},
    )


def build(spec: RunSpec[Settings], schedule: Any, over: Any, populations: int) -> Built:
    mesh, count = mesh_of(spec.environment, over, population=spec.method.population), spec.method.population
    learner = es(spec.method, environment_of(spec.environment))
    return Built(rookery.seeds(learner, population_size=count), mesh, learner.space, learner, spec)


METHOD = Method(
    name="es",
    title="An evolution strategy.",
    sources=("Salimans 2017 (arXiv:1703.03864)",),
    subject="evolution",
    guide="single_agents",
    settings=Settings(),
    build=build,
    describe=lambda spec: f"{spec.method.population} searches",
)


def register() -> None:  # the entry point
    AGENTS[ROW.name] = ROW
    METHODS.append(METHOD)


TINY = "--env point_goal --episode-length 10 --devices 1 --generations 6 --checkpoint-every 1"
KINDS = {
    "es": f"{TINY} --hidden-sizes 4 --directions 24 --eval-episodes 2 --start-states 4 --objective approach",
    "pbt-sac-ln": f"{TINY} --population 2 --hidden-sizes 4 --steps-per-generation 40 --num-envs 4 --batch-size 4 "
    "--buffer-size 64 --warmup-steps 4 --eval-episodes 2",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_adds_a_kind_of_run_to_every_command(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(AGENTS, ROW.name, ROW)
    monkeypatch.setattr("rookery.experiments.kinds.METHODS", [*METHODS, METHOD])
    (info := tmp_path / "own-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Name: own")
    (info / "entry_points.txt").write_text(f"[rookery.kinds]\nown = {__name__}:register\n")
    whole, run, flags = tmp_path / "whole", tmp_path / "run", [*KINDS[kind].split(), "--seed", "3"]
    assert call("train", kind, *flags, "--run-dir", str(whole))[::2] == (0, "")
    (file := tmp_path / "run.toml").write_text(call("train", kind, *flags, "--print-config")[1])
    command = [sys.executable, "-c", COMMAND, "train", "--config", file, "--run-dir", run]
    process = subprocess.Popen(command, env=environment() | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"})
    await_saving(process, run)
    process.kill()
    assert process.wait() < 0
    for words in (["resume"], ["evaluate", "--episodes", "3"], ["export"], ["report"]):
        assert call(words[0], str(run), *words[1:])[0] == 0, words
    assert_same_run(whole, run)
    fitness = read_csv(whole / "metrics.csv")["best_fitness"]
    assert kind != "es" or fitness[-1] > fitness[0], "it learns"
