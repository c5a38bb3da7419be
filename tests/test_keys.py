"""No key is consumed twice in any program of the library: their jaxprs are traced, not compiled."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents.ppo import PpoConfig
from rookery.agents.skills.diayn import DiaynConfig
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments import build
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.kinds import configure
from rookery.experiments.methods.roles import OpponentsConfig
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.base import Program
from rookery.populations.pbt import pbt
from rookery.populations.replay import replay
from rookery.qd.centroids import grid
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.emitters import iso_line, mix
from rookery.qd.initial import begin_from
from rookery.qd.map_elites import map_elites
from rookery.qd.pbt_emitter import MePbtConfig, pbt_emitter
from rookery.qd.policy_gradient.config import DcrlMeConfig, PgaMeConfig
from rookery.qd.scoring import learner_scoring
from tests import key_trace, walks
from tests.tiny import CONFIG

OFF_POLICY = dataclasses.replace(CONFIG, steps_per_generation=8, updates_per_step=0.5, warmup_steps=4)
ON_POLICY = OnPolicyConfig(num_envs=2, rollout_length=2, evaluate_every=2, eval_episodes=2, start_states=2)
PREDATOR = dataclasses.replace(ON_POLICY, fitness="predator")


def config_of(kind: str, **options: Any) -> Any:
    """The config of a minimal run of this kind."""
    config = configure(kind)
    on_policy = isinstance(config.flat.get("learner"), OnPolicyConfig)
    env = "pursuit_continuous" if "ippo" in kind else "CartPole-v1" if "qn" in kind else "point_room"
    tiny = {
        "environment": EnvironmentConfig(env=env, episode_length=3, devices=1),
        "learner": ON_POLICY if on_policy else OFF_POLICY,
        "population": 2 if "me-pbt" in kind else 4,
        "ga_population": 2,
        "batch_size": 4,
        "cells": CellsConfig(grid=(2, 2)),
        "skills": SkillsConfig(2),
    }
    agent: Any = config.agent
    if agent is not None:
        few = {"minibatches": 2} if on_policy else {}
        tiny["agent"] = dataclasses.replace(agent, hidden_sizes=(2,), **few)
    return config.replace(**{name: value for name, value in {**tiny, **options}.items() if name in config.flat})


def built(kind: str, **options: Any) -> Program:
    return build.build(config_of(kind, **options)).program


def reused_in(program: Program) -> list[str]:
    """Keys that are consumed twice in two generations and an evaluation, derived as the training loop derives them."""
    step = jax.jit(program.step)

    def generations(key):
        first_key, run_key, examine_key = jax.random.split(key, 3)
        state = program.init(first_key)
        for generation in range(2):
            state, _ = step(state, jax.random.fold_in(run_key, generation))
        return state, program.evaluate(state, examine_key)

    return key_trace.reused(generations)


def _begun() -> Program:
    """ME-PBT's emitter mixed with another one, from initial genotypes that are evaluated first."""
    learner = walks.learner(descriptor=True)
    scoring = learner_scoring(learner)
    config = MePbtConfig(replace_fraction=0.5, best_fraction=0.5, sample_fraction=0.0)
    population = pbt_emitter(learner, scoring, population_size=2, ga_population=2, config=config)
    cells = grid((2, 2), walks.PLACE.lower, walks.PLACE.upper)
    program = map_elites(scoring, cells, mix([iso_line(scoring, 2), population]))
    shapes = jax.eval_shape(program.init, jax.random.key(0)).cells
    return begin_from(program, scoring, jax.tree.map(lambda leaf: jnp.zeros((3, *leaf.shape[1:]), leaf.dtype), shapes))


PROGRAMS = {
    "seeds of TD3, replayed": lambda: replay(built("td3"), {"policy_lr": np.full(2, 1e-3, np.float32)}),
    "PBT of SAC": lambda: built("pbt-sac"),
    "PB2 after tournaments": lambda: pbt(walks.learner(), population_size=3, exploit="tournament", perturb="pb2"),
    "PBT in rounds": lambda: pbt(walks.learner(), population_size=3, exploit_interval="auto"),
    "threshold": lambda: pbt(walks.learner(), population_size=3, exploit="threshold"),
    "MF-PBT, resampled": lambda: pbt(
        walks.learner(), population_size=8, exploit="multi-frequency", frequencies=(1, 2), perturb="resample"
    ),
    "PBT of SMERL": lambda: built("pbt-diayn", diayn=DiaynConfig(discriminator_hidden_sizes=(2,), smerl=True)),
    "PPO with a memory": lambda: built("ppo", agent=PpoConfig(hidden_sizes=(2,), minibatches=2, recurrent=True)),
    "PBT of PQN": lambda: built("pbt-pqn"),
    "PBT of DQN": lambda: built("pbt-dqn"),
    "PBT of teams that share": lambda: built("pbt-ippo", learner=PREDATOR, parameters="shared"),
    "PBT of roles": lambda: built("pbt-ippo", member="agent"),
    "PBT of roles, rated": lambda: built("pbt-ippo", member="agent", select_by="rating"),
    "PBT of roles with a league": lambda: built(
        "pbt-ippo", member="agent", league=OpponentsConfig(2, 1.0, 1, opponents="league")
    ),
    "PBT of teams, rated": lambda: built("pbt-ippo", select_by="rating"),
    "MAP-Elites": lambda: built("map-elites"),
    "CMA-MAE": lambda: built("cma-mae", cma_mae=CmaMaeConfig(emitters=2, covariance="diagonal")),
    "PGA-ME": lambda: built("pga-me", pga_me=PgaMeConfig(2, 2, 4, 16, critic_hidden_sizes=(2,))),
    "DCRL-ME": lambda: built("dcrl-me", dcrl_me=DcrlMeConfig(2, 2, 4, 16, critic_hidden_sizes=(2,))),
    "ME-PBT of TD3": lambda: built("me-pbt-td3", me_pbt=MePbtConfig(0.5, 0.5, 0.0, inherit_buffer=True)),
    "two emitters, begun from genotypes": _begun,
}
"""Every population method, every way to begin, and every agent at least once."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_key_is_consumed_twice(name):
    assert reused_in(PROGRAMS[name]()) == []


def bits(key):
    return jax.random.bits(key)


def unknown(key):
    return bits(jax.random.fold_in(key, 99)).astype(jnp.int32)


def loop(count, draw):
    return jax.lax.fori_loop(0, count, lambda i, total: total + draw(i), jnp.uint32(0))


def test_the_trace_finds_every_reuse():
    reuses = {
        "two draws": lambda key: (bits(key), bits(key)),
        "a draw and a split": lambda key: (bits(key), jax.random.split(key)),
        "a split and a fold": lambda key: (jax.random.split(key, 3), jax.random.fold_in(key, 2)),
        "elsewhere in an array": lambda key: (bits(jax.random.split(key)[::-1][0]), bits(jax.random.fold_in(key, 1))),
        "all members alike": lambda key: jax.vmap(bits)(jnp.broadcast_to(key, (3,))),
        "every turn alike": lambda key: loop(3, lambda _: bits(key)),
        "every turn of unknown many alike": lambda key: loop(unknown(key), lambda _: bits(jax.random.fold_in(key, 1))),
        "the same unknown number": lambda key: [jax.random.fold_in(key, n) for n in [unknown(key)] * 2],
    }
    assert [name for name, function in reuses.items() if not key_trace.reused(function)] == []


def test_the_trace_finds_no_reuse_where_there_is_none():
    fine = {
        "a key for each turn": lambda key: loop(3, lambda i: bits(jax.random.fold_in(key, i))),
        "for each of unknown many": lambda key: loop(unknown(key), lambda i: bits(jax.random.fold_in(key, i))),
        "one branch or the other": lambda key: jax.lax.cond(
            unknown(key) > 0, lambda: bits(jax.random.fold_in(key, 1)), lambda: bits(jax.random.split(key)[1])
        ),
        "a key handed on": lambda key: jax.lax.scan(lambda k, _: (jax.random.split(k)[0], ()), key, length=3)[0],
    }
    assert {name: found for name, function in fine.items() if (found := key_trace.reused(function))} == {}
