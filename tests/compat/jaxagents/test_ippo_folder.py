"""Checkpoints of the documented IPPO: written at every evaluation, restored, continued from, and never deleted."""

import inspect
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.compat.jaxagents import IPPO, checkpoint_metrics
from rookery.storage import manifest
from tests.compat.jaxagents.goals import CONFIG, EVAL_KEY, HYPER, Continuous, Goals, Params, numbers
from tests.compat.jaxagents.test_ippo import METHODS
from tests.tiny import assert_equal


def agent(folder: Path | None, **changes: Any) -> IPPO:
    config = CONFIG._replace(n_steps=4, actor_epochs=1, critic_epochs=1, checkpoint_dir=folder)
    return Continuous(Goals(), Params(), config._replace(**changes))


def steps(folder: Path) -> list[int]:
    return sorted(manifest.generations(folder))


def test_a_restored_training_continues_as_if_it_had_never_stopped(tmp_path: Path):
    first = agent(tmp_path)
    runner, metrics = first.train(jax.random.key(0), HYPER)
    first.collect_training(runner, metrics)
    assert steps(tmp_path) == [0, 2, 4]
    assert "batch_size: 8" in (tmp_path / "training_configuration.txt").read_text()
    assert "gamma: 0.9" in (tmp_path / "hyperparameters.txt").read_text()
    first.log_hyperparams(HYPER._replace(gamma=0.5))
    assert "gamma: 0.5" in (tmp_path / "hyperparameters.txt").read_text()
    configured = tmp_path / "training_configuration.txt"
    agent(tmp_path, n_steps=6, restore_agent=True)
    assert "n_steps: 4" in configured.read_text(), "of the training that began there"
    configured.unlink()
    agent(tmp_path, n_steps=6, restore_agent=True)
    assert "n_steps: 6" in configured.read_text()

    second = agent(tmp_path, restore_agent=True)
    second.restore("last")
    assert_equal(numbers(second.training_runner), numbers(runner))
    assert_equal(second.training_metrics, metrics)
    assert (second.agent_trained, second.previous_training_max_step) == (True, 4)
    with pytest.raises(ValueError, match=r'has checkpoints up to step 4; call restore\("last"\) to continue'):
        agent(tmp_path, restore_agent=True).train(jax.random.key(0), HYPER)
    with pytest.raises(ValueError, match=r"has checkpoints already; set restore_agent=True to continue from them"):
        agent(tmp_path)

    further, metrics = second.train(jax.random.key(9), HYPER)
    assert steps(tmp_path) == [0, 2, 4, 6, 8]
    whole, all_metrics = agent(None, n_steps=8).train(jax.random.key(0), HYPER)
    assert_equal(numbers(further), numbers(whole))
    for name in ("returns", "terminated", "truncated", "final_rewards"):
        np.testing.assert_array_equal(metrics[name], all_metrics[name][2:])
    with pytest.raises(ValueError, match=r"has checkpoints up to step 8"):
        second.train(jax.random.key(9), HYPER)
    assert steps(tmp_path) == [0, 2, 4, 6, 8]

    third = agent(tmp_path, restore_agent=True)
    for wrong in (lambda metrics: metrics["score"], lambda _: 9, lambda metrics: metrics["returns"]):
        with pytest.raises(ValueError, match=r"Error.* in best_fn, which is given the metrics .* of 5 checkpoints"):
            third.restore("best", wrong)
    third.restore("best", lambda metrics: metrics["returns"].shape[0] - 4)
    assert third.training_metrics is not None
    assert np.asarray(third.eval_steps_in_training).tolist() == [0, 2, 4, 6, 8]
    np.testing.assert_array_equal(third.training_metrics["returns"], all_metrics["returns"])
    found = third.eval(EVAL_KEY, 6)["returns"]
    np.testing.assert_allclose(found, all_metrics["returns"][1], rtol=1e-5, atol=1e-6)


CALLED: list[str] = []


def counting(name: str) -> Any:
    """The method of `Continuous`, which records that it is called."""
    method = getattr(Continuous, name)
    method = inspect.unwrap(method) if name == "_log_prob" else method

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        CALLED.append(name)
        return method(self, *given, **named)

    return counted


def returns_as_targets(self: Any, update_runner: Any, traj_batch: Any) -> tuple:
    CALLED.append("_critic_loss_input")
    chosen, last = update_runner.hyperparams, traj_batch.next_value[:, -1]
    returns = self._returns(traj_batch, last, chosen.gamma, chosen.gae_lambda)
    return self._shuffled(update_runner, (traj_batch.obs, returns))


def test_every_documented_method_of_a_subclass_is_called(tmp_path: Path):
    methods = {name: counting(name) for name in METHODS} | {"_critic_loss_input": returns_as_targets}
    kind: Any = type("Mine", (Continuous,), methods)
    config = CONFIG._replace(n_steps=1, checkpoint_dir=tmp_path, restore_agent=True)
    mine = kind(Goals(), Params(), config)
    assert (mine.checkpointing, mine.checkpoint_manager.all_steps()) == (True, [])
    mine.collect_training(*mine.train(jax.random.key(0), HYPER))
    mine.summarize(mine.eval(jax.random.key(1), 6)["returns"].T)
    assert (mine.checkpoint_manager.all_steps(), mine.checkpoint_manager.latest_step()) == ([0, 1], 1)
    mine.restore("last")
    assert sorted(set(CALLED)) == sorted(METHODS)


def test_the_state_of_an_agent_is_documented_on_its_class():
    assert (IPPO.agent_trained, IPPO.previous_training_max_step, IPPO.eval_during_training) == (False, 0, True)
    nothing = IPPO.training_runner, IPPO.training_metrics, IPPO.actor_training, IPPO.critic_training
    assert nothing == (None, None, None, None)
    plain = agent(None)
    assert (plain.checkpointing, plain.checkpoint_manager) == (False, None)


def test_an_agent_that_trains_nothing_deletes_nothing(tmp_path: Path):
    """Another process may be training in the folder."""
    saving = tmp_path / "generation_00000002.orbax-checkpoint-tmp"
    saving.mkdir()
    reading = agent(tmp_path, restore_agent=True)
    with pytest.raises(ValueError, match="has no whole checkpoint; train first"):
        reading.restore("last")
    assert saving.is_dir()
    assert reading.checkpoint_manager is not None
    with reading.checkpoint_manager:  # as a training does
        assert not saving.exists()


def test_metrics_of_all_checkpoints_are_those_that_each_has_in_one_shape(tmp_path: Path):
    """A training may be continued with another number of evaluation episodes, or without evaluations."""
    with checkpoint_metrics.CheckpointManager(tmp_path) as store:
        for step, metrics in enumerate(({"loss": [1.0], "returns": [[1.0, 2.0]]}, {"loss": [3.0], "returns": [[4.0]]})):
            checkpoint_metrics.save(store, step, {"x": np.zeros(1)}, metrics)
        store.wait()
        steps, found = checkpoint_metrics.read(store)
        assert (steps, {name: values.tolist() for name, values in found.items()}) == ([0, 1], {"loss": [[1.0], [3.0]]})
        checkpoint_metrics.save(store, 2, {"x": np.zeros(1)}, {})
        store.wait()
        assert checkpoint_metrics.read(store) == ([0, 1, 2], {})
