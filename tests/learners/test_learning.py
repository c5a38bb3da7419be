"""SAC learns a task in which greed fails: the direct way to the goal of `point_maze` ends at a wall."""

from rookery.agents.sac import SacConfig, sac
from rookery.envs import registry
from rookery.hyperparams import choose
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.populations.independent import seeds
from rookery.training.loop import run


def test_sac_reaches_the_goal_of_the_maze(monkeypatch):
    # With these settings 12 of 12 members find the way in 40,000 steps, so that another machine's rounding, which
    # changes what a seed does, changes nothing here. With the defaults 3 of 12 do.
    monkeypatch.delenv("XLA_FLAGS")  # as in a run: what takes longest here is not compiling
    environment = registry.make("point_maze")
    config = OffPolicyConfig(
        num_envs=10, steps_per_generation=10_000, batch_size=64, warmup_steps=10_000, eval_episodes=4
    )
    learner = off_policy(sac(environment.spec, SacConfig(hidden_sizes=(64, 64))), environment, config)
    space = choose(learner.space, policy_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3, discount=0.97)
    history = run(seeds(learner, space, population_size=2), generations=4, quiet=True).history
    first, last = history[0], history[-1]
    assert (first["episode_length"] == 200).all()  # no member has found the way yet
    best = last["fitness"].argmax()
    assert last["episode_length"][best] < 60  # the shortest way takes 24 steps
    assert last["fitness"][best] > -60  # either dead end costs more than 130
