"""An agent of functions of one's own in a world of one's own, and a life in stages, without any adapter."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rookery.compat.jaxagents import agent, checkpoint_metrics, learner, losses, stages
from rookery.compat.jaxagents.environment import TimeLimit
from rookery.learners import base
from rookery.storage.checkpoint import Checkpointer
from rookery.types import Genotype

SIZES = learner.Sizes(num_envs=4, rollout_length=3, actor_epochs=2, critic_epochs=1, minibatches=2)


class Echo:
    """Two agents are paid for saying what is shown to both, 0.5 always; nobody's task ends."""

    n_actors = 2

    def reset_env(self, _: jax.Array, shown: float) -> tuple[jax.Array, tuple]:
        return jnp.full((1,), shown), ()

    def step_env(self, _: jax.Array, __: tuple, actions: jax.Array, shown: float) -> tuple:
        return jnp.full((1,), shown), (), -((actions - shown) ** 2), False, {}


class Constant(NamedTuple):
    """A network of two numbers, whatever it sees."""

    def init(self, _: jax.Array, __: jax.Array) -> jax.Array:
        return jnp.zeros((2,))

    def apply(self, params: jax.Array, _: jax.Array) -> jax.Array:
        return params


class Hyper(NamedTuple):
    discount: float = 0.0
    kl_threshold: float = 1e6
    rate: float = 0.25


def sample(key: jax.Array, training: Any, observation: jax.Array) -> jax.Array:
    return training.params + jax.random.normal(key, (2,))


def density(training: Any, params: jax.Array, observation: jax.Array, action: jax.Array) -> jax.Array:
    return -0.5 * (action - params) ** 2


def rows(rollouts: agent.Rollouts, minds: agent.TrainStates, hyper: Hyper, key: jax.Array) -> tuple:
    return *losses.whole_rollouts(key, (rollouts.action, rollouts.advantage), 2), hyper


def towards_half(training: Any, action: jax.Array, advantage: jax.Array, hyper: Hyper) -> tuple:
    return jnp.sum(jnp.abs(training.params - 0.5)), jnp.zeros((2,))


def still(training: Any, action: jax.Array, advantage: jax.Array, hyper: Hyper) -> jax.Array:
    return 0.0 * jnp.sum(training.params) + hyper.rate


OWN = agent.UserFunctions(
    sample=sample,
    policy=lambda training, _: training.params,
    log_prob=density,
    advantages=lambda rollouts, hyper: losses.advantages(losses.advantage_step, rollouts, hyper.discount, 1.0),
    actor_rows=rows,
    critic_rows=rows,
    actor_loss=towards_half,
    critic_loss=still,
    optimizers=lambda hyper: (optax.sgd(hyper.rate), optax.sgd(hyper.rate)),
)


def life(own: agent.UserFunctions = OWN) -> learner.TrainingSetup:
    networks = (Constant(), Constant())
    return learner.training_setup(own, networks, TimeLimit(Echo(), 5), 0.5, SIZES, episodes=3, key=jax.random.key(1))


def test_functions_of_ones_own_are_an_agent_that_learns_and_is_judged():
    runner, told = learner.train(life(), [1], jax.random.key(0), Hyper(rate=1 / 16))
    # Two epochs of two minibatches, each a step of 1/16 towards a half.
    np.testing.assert_allclose(runner.actor_training.params, [0.25, 0.25], rtol=1e-6)
    np.testing.assert_allclose(told["returns"][:, 0, 0], [-5 * 0.25, -5 * 0.0625], rtol=1e-6)
    np.testing.assert_allclose(told["critic_loss"][:, 0], [0.0, 1 / 16], rtol=1e-6)
    assert told["truncated"].all()
    assert not told["terminated"].any()
    assert (int(runner.actor_training.step), int(runner.critic_training.step)) == (4, 2)


def test_the_genome_alone_can_be_judged_by_the_learner():
    there = life()
    bank = there.learner.start_states(jax.random.key(2))
    genotype = Genotype((jnp.asarray([0.5, 0.0]), jnp.zeros((2,))), None, None)
    evaluation = there.learner.evaluate(genotype, bank, jax.random.key(3))
    np.testing.assert_allclose(evaluation.roles, [0.0, -1.25], atol=1e-6)


def test_who_was_given_no_optimiser_is_told_how():
    there = life()
    hyper = agent.Hyper(Hyper(), jnp.ones(()))
    born: base.Member = stages.begin(there.learner, jax.random.key(0), hyper).member
    bank = there.learner.start_states(jax.random.key(2))
    with pytest.raises(ValueError, match=r"^these agents have no optimizer states; create them with init_optimizers\."):
        there.learner.step(born, bank, jax.random.key(1), jnp.zeros((), jnp.int32))


def three(key: jax.Array, training: Any, observation: jax.Array) -> jax.Array:
    return jnp.zeros((3,))


def test_a_function_that_does_not_fit_is_called_by_its_name():
    with pytest.raises(
        ValueError, match=r"^three gives actions of shape \(3,\) for 2 actors; make it \(2, \.\.\.\)\.$"
    ):
        life(OWN._replace(sample=three))


# --- stages


def stage(count: int, at: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    return at + count, {"at": at + count}


@pytest.mark.parametrize(("updates", "every", "counts"), [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 7, [3]), (1, 1, [1])])
def test_stages_are_as_many_updates_as_were_asked_for_here_and_within_a_trace(updates: int, every: int, counts: list):
    assert stages.stage_counts(updates, every) == counts
    begun, seen = jnp.asarray(10), []
    here = stages.run_stages(stage, counts, begun, {"at": begun}, lambda *told: seen.append(told[0]))
    traced = jax.jit(partial(stages.scan_stages, stage, counts))(begun, {"at": begun})
    for now, rows in (here, traced):
        assert int(now) == 10 + updates
        assert rows["at"].tolist() == [10 + sum(counts[:i]) for i in range(len(counts) + 1)]
    assert seen == counts


def test_a_training_gone_on_with_adds_its_checkpoints_to_those_before(tmp_path: Any):
    store, begun = Checkpointer(tmp_path, keep=checkpoint_metrics.ALL), jnp.asarray(0)
    assert checkpoint_metrics.read(store) == ([], {})
    now, first = checkpoint_metrics.train(stage, [2, 1], (begun, {"at": begun}), store)
    _, second = checkpoint_metrics.train(stage, [2], (now, {"at": now}), store, done=3)
    assert first["at"].tolist() == [0, 2, 3]
    assert second["at"].tolist() == [3, 5]
    steps, measured = checkpoint_metrics.read(store)
    assert steps == measured["at"].tolist() == [0, 2, 3, 5]
    assert int(store.restore(begun, 2)[0]) == 2
