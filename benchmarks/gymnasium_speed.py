"""Training on Gymnasium's Hopper-v5: Rookery against SBX (JAX) and stable-baselines3 (PyTorch).

    python -m benchmarks.gymnasium_speed [--quick] [--only sac ppo parts] [--widths 256 64]

SAC: one environment, one update per step, batches of 256, two layers of `--widths`, buffers of 1 million rows; all have
passed `learning_starts`. PPO: SBX's default settings with 8 environments, so 256 steps of each, 10 epochs of 32
minibatches of 64 rows, two layers of 64. `ours` is one member, `ours_5` are five members at once, which are compared
with five runs of SBX one after the other: five times the time of one, since SBX trains one agent in a process.

Rookery is a generation of its training loop in one compiled call, with new start states, without evaluation; the host
steps the environments while the device updates the agent. SBX and stable-baselines3 are `model.learn` of as many steps,
with their default wrappers (`Monitor`, `DummyVecEnv`). All are called in turn in one process.

Parts: microseconds of an iteration of SAC. `hopper`: in Hopper. `in_turn`: in Hopper, which is stepped after the
update instead of meanwhile. `idle`: in an environment on the host whose step does nothing. `native`: in one that does
nothing in the compiled program, so without the host. `update`: the update alone. `step`: a step of Hopper in a plain
loop. `host` = idle - native: what the calls of the host cost. `overhead` = idle - update: acting, storing and the host.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness, work
from benchmarks.peers_gymnasium import Settings, learner_of, peer, ppo_settings
from rookery import hyperparams
from rookery.envs import base as envs
from rookery.envs.base import Environment
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from rookery.learners.base import Learner, Member
from rookery.populations import base
from rookery.types import Array, Key, Metrics

TASK, POPULATION = "Hopper-v5", 5
harness.PACKAGES = (*harness.PACKAGES, "gymnasium", "mujoco", "sbx-rl", "stable-baselines3", "torch")


class Made(NamedTuple):
    """A contender."""

    call: Callable[[], Any]
    compile_seconds: float
    """For SBX and stable-baselines3, of the first call, which includes the work of a call."""


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--only", nargs="+", default=["sac", "ppo", "parts"], choices=["sac", "ppo", "parts"])
    made.add_argument("--widths", type=int, nargs="+", default=[256, 64], help="of SAC's layers (%(default)s)")
    made.add_argument("--steps", type=int, default=1_000, help="environment steps of SAC in a call (%(default)s)")
    made.add_argument("--rollouts", type=int, default=2, help="rollouts of PPO in a call (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.steps, options.rollouts = 100, 1
    load, rows = harness.load(), []
    cases = [Settings("sac", TASK, (width, width)) for width in options.widths]
    if "sac" in options.only:
        rows += [measure(settings, options.steps, options.rounds) for settings in cases]
    if "ppo" in options.only:
        settings = ppo_settings(TASK)
        steps = options.rollouts * settings.num_envs * settings.rollout_length
        rows.append(measure(settings, steps, options.rounds))
    if "parts" in options.only:
        rows += [parts(settings, count, options) for settings in cases for count in (1, POPULATION)]
    harness.report("gymnasium_speed", options, rows, load)


def measure(settings: Settings, steps: int, rounds: int) -> dict[str, Any]:
    """One row of results: environment steps with training per second, of all members together."""
    environment = partial(rookery.make, f"gym:{TASK}")
    contenders = {
        "ours": ours(settings, environment(), 1, steps),
        f"ours_{POPULATION}": ours(settings, environment(), POPULATION, steps),
        "sbx": theirs("sbx", settings, steps),
        "sb3": theirs("sb3", settings, steps),
    }
    times = harness.interleave({name: made.call for name, made in contenders.items()}, rounds)
    several = harness.speedup(times[f"ours_{POPULATION}"], times["sbx"])
    row = {
        "agent": settings.agent,
        "width": settings.hidden_sizes[0],
        **{f"{name}/s": steps / value.median for name, value in times.items()},
        f"ours_{POPULATION}/s": POPULATION * steps / times[f"ours_{POPULATION}"].median,
        **harness.speedup(times["ours"], times["sbx"]),
        f"ratio_{POPULATION}": POPULATION * several["ratio"],
        f"best_ratio_{POPULATION}": POPULATION * several["best_ratio"],
        "ratio_sb3": times["sb3"].median / times["ours"].median,
        **{f"{name}_compile_s": made.compile_seconds for name, made in contenders.items()},
        "seconds": {name: value.seconds for name, value in times.items()},
    }
    harness.show([row])
    return row


def ours(settings: Settings, environment: Environment, count: int, steps: int) -> Made:
    """Rookery's generation for `count` members; the warm-up has passed and the program is compiled."""
    learner, space = learner_of(settings, environment, steps)
    carry = jax.jit(partial(begin, learner, space, count))(jax.random.key(0))
    program = harness.compile_program(partial(train, learner, count), carry, donate=(0,))
    loop = harness.Loop(program.call, harness.Held(carry))
    for _ in range(-(-settings.learning_starts // steps)):
        loop()
    return Made(loop, program.seconds)


def begin(learner: Learner, space: hyperparams.Space, count: int, key: Key) -> tuple[Member, Key, Array]:
    """Initial members, a key, and the number of the generation."""
    bank_key, member_key, key = jax.random.split(key, 3)
    init = partial(learner.init, hyper=hyperparams.defaults(space), bank=learner.start_states(bank_key))
    return jax.vmap(init)(base.member_keys(member_key, count)), key, jnp.zeros((), jnp.int32)


def train(learner: Learner, count: int, carry: tuple[Member, Key, Array]) -> tuple[tuple[Member, Key, Array], Metrics]:
    """Draw the start states of a generation, and train."""
    members, key, generation = carry
    key, bank_key, step_key = jax.random.split(key, 3)
    bank, keys = learner.start_states(bank_key), base.member_keys(step_key, count)
    members, metrics = base.vmap(partial(step_once, learner), (members, keys), (bank, generation))
    return (members, key, generation + 1), metrics


def step_once(learner: Learner, member: Member, key: Key, bank: Any, generation: Array) -> tuple[Member, Metrics]:
    return learner.step(member, bank, key, generation)


def theirs(library: str, settings: Settings, steps: int) -> Made:
    """SBX or stable-baselines3, past `learning_starts` and compiled."""
    model = peer(library, settings, seed=0)
    if settings.agent != "ppo":
        model.learn(settings.learning_starts)
    call = partial(model.learn, steps, reset_num_timesteps=False)
    started = time.perf_counter()
    call()
    return Made(call, time.perf_counter() - started)


def parts(settings: Settings, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row of results: microseconds per iteration of `count` members with an environment each."""
    steps = options.steps
    contenders = {
        "hopper": ours(settings, rookery.make(f"gym:{TASK}"), count, steps).call,
        "in_turn": ours(settings, rookery.make(f"gym:{TASK}")._replace(announce=announce_nothing), count, steps).call,
        "idle": ours(settings, from_gymnasium(idle_gymnasium, episode_length=1_000), count, steps).call,
        "native": ours(settings, native(), count, steps).call,
        "update": updates(settings, count, steps),
        "step": partial(plain_steps, made_hopper(), steps),
    }
    times = harness.interleave(contenders, options.rounds)
    micro = {name: 1e6 * value.median / steps for name, value in times.items()}
    row = {
        "agent": settings.agent,
        "width": settings.hidden_sizes[0],
        "members": count,
        **{f"{name}_us": value for name, value in micro.items()},
        "host_us": micro["idle"] - micro["native"],
        "overhead_us": micro["idle"] - micro["update"],
        "seconds": {name: value.seconds for name, value in times.items()},
    }
    harness.show([row])
    return row


def announce_nothing(state: envs.EnvState, action: Array) -> envs.EnvState:
    """In place of `Environment.announce`: the step begins when its results are awaited; they are the same."""
    del action
    return state


def made_hopper() -> Any:
    """The object of Gymnasium that Rookery steps."""
    import gymnasium

    env = gymnasium.make(TASK, disable_env_checker=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    return env


def idle_gymnasium() -> Any:
    """Hopper without its wrappers, whose step and reset do nothing."""
    env = made_hopper().unwrapped
    observation = env.reset(seed=0)[0]
    env.step, env.reset = partial(_idle_step, observation), partial(_idle_reset, observation)
    return env


def _idle_step(observation: np.ndarray, _: np.ndarray) -> tuple:
    return observation, 1.0, False, False, {}


def _idle_reset(observation: np.ndarray, **_: Any) -> tuple:
    return observation, {}


def native() -> Environment:
    """An environment with Hopper's spaces in the compiled program, which does nothing."""
    spec = rookery.make(f"gym:{TASK}").spec
    return rookery.envs.limit_episode(Environment(_native_reset, _native_step, spec), spec.episode_length)


def _native_reset(key: Key) -> tuple[Array, envs.Step]:
    del key
    size = rookery.make(f"gym:{TASK}").spec.observation_size
    return jnp.ones(size), envs.first_step(jnp.ones(size), jnp.zeros(0))


def _native_step(state: Array, action: Array, key: Key) -> tuple[Array, envs.Step]:
    del key
    state = state + 0.0 * action[0]
    return state, envs.next_step(state, jnp.ones(()), jnp.zeros((), bool), jnp.zeros(0))


def updates(settings: Settings, count: int, steps: int) -> Callable[[], None]:
    """The updates of a call, one after the other, without acting, storing and stepping."""
    spec = native().spec
    sizes = {"observation_size": spec.observation_size, "action_size": spec.action_size, "rows": 100_000}
    shapes = work.Shapes(count, settings.batch_size, settings.hidden_sizes, agent=settings.agent, **sizes)
    bindings = work.update_parts(shapes, 1)
    members = work.members(bindings, shapes, jax.random.key(0))
    step = jax.jit(partial(update_often, bindings, steps), donate_argnums=1)
    return harness.Loop(step, harness.Held((members._replace(buffer=()), jax.random.key(1))), members.buffer)


def update_often(bindings: Any, steps: int, buffer: Any, carry: Any) -> tuple[Any, None]:
    """Call the block of one update for each step, as the training loop does."""

    def once(_: Array, carry: Any) -> Any:
        return work.update_block(bindings, buffer, carry)[0]

    return jax.lax.fori_loop(0, steps, once, carry), None


def plain_steps(env: Any, steps: int) -> None:
    """Step an environment with random actions in a plain loop."""
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


if __name__ == "__main__":
    main()
