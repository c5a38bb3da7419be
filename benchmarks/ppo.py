"""PPO, environments included: many seeds at once, Rookery against rejax.

    python -m benchmarks.ppo [--quick] [--seeds 1 16 128 1024]

CartPole-v1 with rejax's preset: 5 environments for 100 steps, 5 epochs of 5 minibatches of 100 rows for each network,
tanh (64, 64), clipped critic values, no evaluations. rejax trains with `jax.vmap(PPO.train)` and an empty callback;
`ours` is the learner's step, mapped over members, with the start states of a generation drawn in the same call. Both
use one process, one device and the same version of JAX, without donation, as in rejax's examples. `ours_cores` is the
configuration of the command line: members divided over one device per core, donated, in a separate process in which it
also alternates with rejax.

`cpu_ratio` compares the processor time of all threads, which other processes on the machine disturb less.

The number of updates per call decreases with the number of seeds, so that a call takes seconds.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from rookery import hyperparams
from rookery.agents.ppo import PpoConfig, ppo
from rookery.distributed.layout import population_map
from rookery.distributed.mesh import make_mesh, mesh_for, use_cores
from rookery.distributed.programs import shardings
from rookery.learners.base import Learner, Member
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.populations import base
from rookery.types import Key, Metrics

TASK, ENVS, ROLLOUT, EPOCHS, MINIBATCHES = "CartPole-v1", 5, 100, 5, 5
CHOSEN = {"actor_lr": 7.5e-4, "critic_lr": 7.5e-4}  # all other values equal the defaults
PRESET = {
    **{"num_envs": ENVS, "num_steps": ROLLOUT, "num_epochs": EPOCHS, "num_minibatches": MINIBATCHES},
    **{"learning_rate": 0.00075, "max_grad_norm": 0.5, "gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2},
    **{"ent_coef": 0.01, "vf_coef": 0.5},
}
"""rejax's preset, from `configs/gymnax/cartpole.yaml` in its repository."""
SEED_UPDATES = 4_096
"""Total updates of all seeds in a call, if each seed makes at least `FEWEST`."""
FEWEST, MOST = 8, 400
INSTALL = "rejax is not installed; create an environment with it: benchmarks/peers.sh"
MODULE = "benchmarks.ppo"


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 16, 128, 1024], help="(%(default)s)")
    made.add_argument("--one-device", action="store_true", help="leave out `ours_cores`")
    made.add_argument("--cores", action="store_true", help=argparse.SUPPRESS)  # one row in this process, in JSON
    options = harness.parse(made)
    if options.cores:
        use_cores(options.seeds[0])
        print(json.dumps(measure("ours_cores", options.seeds[0], options)))
        return
    if options.quick:
        options.seeds = options.seeds[:2]
    load = harness.load()
    rows: list[dict[str, Any]] = []
    for count in options.seeds:
        row = measure("ours", count, options)
        if count > 1 and not options.one_device:
            quick = ("--quick",) if options.quick else ()
            flags = ("--seeds", str(count), "--rounds", str(options.rounds), *quick, "--cores")
            spread = harness.in_process(MODULE, *flags)
            row |= {"cores_ratio": spread["ratio"], "ours_cores/s": spread["ours_cores/s"], "cores": spread}
        rows.append(row)
        harness.show([row])
    harness.report("ppo", options, rows, load)


def measure(name: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row of results: environment steps per second with training, summed over the seeds."""
    updates = 2 if options.quick else min(MOST, max(FEWEST, SEED_UPDATES // count))
    made = {name: ours(count, updates, name == "ours_cores"), "rejax": rejax(count, updates)}
    programs = {contender: job[0] for contender, job in made.items()}
    calls = {
        contender: harness.Loop(program.call, harness.Held(made[contender][1]))
        for contender, program in programs.items()
    }
    times = harness.interleave(calls, options.rounds)
    steps = count * updates * ENVS * ROLLOUT
    return {
        "seeds": count,
        "updates": updates,
        **{f"{contender}/s": steps / value.median for contender, value in times.items()},
        **harness.speedup(times[name], times["rejax"]),
        "cpu_ratio": float(np.median(times["rejax"].cpu_seconds) / np.median(times[name].cpu_seconds)),
        **{f"{contender}_compile_s": program.seconds for contender, program in programs.items()},
        "temporary_gb": {contender: program.temporary_gb for contender, program in programs.items()},
        "seconds": {contender: value.seconds for contender, value in times.items()},
        "cpu_seconds": {contender: value.cpu_seconds for contender, value in times.items()},
    }


def ours(count: int, updates: int, spread: bool) -> tuple[harness.Compiled, tuple]:
    """Rookery's program with its initial members and key; `spread` divides the members over all devices.

    The members are initialised on one device: on several devices, the matrix decompositions of orthogonal
    initialisation can deadlock.
    """
    config = PpoConfig(
        actor_epochs=EPOCHS,
        critic_epochs=EPOCHS,
        minibatches=MINIBATCHES,
        clip_value=True,
        normalize_rewards=False,
    )
    learner_config = OnPolicyConfig(
        num_envs=ENVS, rollout_length=ROLLOUT, evaluate_every=updates, normalize_observations=False
    )
    env = rookery.make(TASK)
    learner = on_policy(ppo(env.spec, config), env, learner_config)
    mesh = mesh_for(count) if spread else make_mesh(1)
    layout = shardings(mesh)
    place = (
        layout.members,
        layout.shared,
    )
    carry = jax.device_put(jax.jit(partial(begin, learner, count))(jax.random.key(0)), place)
    step = partial(train, learner, population_map(mesh) if spread else base.vmap, count)
    return harness.compile_program(step, carry, donate=(0,) if spread else ()), carry


def begin(learner: Learner, count: int, key: Key) -> tuple[Member, Key]:
    """Initial members with rejax's learning rates, and a key."""
    bank_key, member_key, key = jax.random.split(key, 3)
    hyper = hyperparams.defaults(rookery.choose(learner.space, **CHOSEN))
    init_member = partial(learner.init, hyper=hyper, bank=learner.start_states(bank_key))
    return jax.vmap(init_member)(base.member_keys(member_key, count)), key


def train(
    learner: Learner, over: base.PopulationMap, count: int, carry: tuple[Member, Key]
) -> tuple[tuple[Member, Key], Metrics]:
    """Draw the start states of a generation, and train."""
    members, key = carry
    key, bank_key, step_key = jax.random.split(key, 3)
    keys, bank = base.member_keys(step_key, count), learner.start_states(bank_key)
    members, metrics = over(partial(step_once, learner), (members, keys), (bank,))
    return (members, key), metrics


def step_once(learner: Learner, member: Member, key: Key, bank: Any) -> tuple[Member, Metrics]:
    return learner.step(member, bank, key, jnp.zeros((), jnp.int32))


def rejax(count: int, updates: int) -> tuple[harness.Compiled, Any]:
    """Program of rejax with its initial training states.

    Raises:
      SystemExit: rejax is not installed.
    """
    try:
        from rejax import PPO
    except ImportError as error:
        raise SystemExit(f"{INSTALL} ({error})") from error
    steps = updates * ENVS * ROLLOUT
    sizes = {"total_timesteps": steps, "eval_freq": steps, "skip_initial_evaluation": True}
    agent = PPO.create(env=FiveResults(TASK), agent_kwargs={"activation": "tanh"}, **PRESET, **sizes)
    agent = agent.replace(eval_callback=no_evaluation)
    states = jax.jit(jax.vmap(agent.init_state))(jax.random.split(jax.random.PRNGKey(0), count))
    return harness.compile_program(jax.vmap(partial(continue_training, agent.train)), states), states


class FiveResults:
    """Gymnax's environment with a step of five results, as rejax 0.1.3 expects: one flag `done` instead of two."""

    def __init__(self, name: str):
        import gymnax

        self._env, self.default_params = gymnax.make(name)
        self.reset, self.action_space = self._env.reset, self._env.action_space
        self.observation_space = self._env.observation_space

    def step(self, key: Key, state: Any, action: Any, params: Any) -> tuple:
        observation, state, reward, terminated, truncated, info = self._env.step(key, state, action, params)
        return observation, state, reward, terminated | truncated, info


def no_evaluation(*_: Any) -> tuple:
    """Replace the evaluation callback by one without effect."""
    return ()


def continue_training(train: Callable, state: Any) -> tuple[Any, Any]:
    return train(train_state=state)


if __name__ == "__main__":
    main()
