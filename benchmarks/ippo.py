"""IPPO, environments included: Rookery against jaxagents on the same pursuit task.

    python -m benchmarks.ippo [--quick] [--peer .venv-peers-jaxagents/bin/python]

One predator and one prey, continuous headings: an update is 200 steps of 128 environments, 10 epochs of the actors and
10 of the critics in 8 minibatches, independent networks of tanh (128, 64) for both agents, no evaluations. A minibatch
has 3,200 rows: in jaxagents whole rollouts of 16 environments, in Rookery rows drawn from all environments in every
epoch. Early stopping is disabled; jaxagents is configured with 11 epochs of the actors, of which it makes 10 (the
result contains the number of its actor steps).

jaxagents 0.2.5 needs an older version of JAX, so each contender runs in a separate process, without CPU pinning, and
the two alternate: while one trains, the other waits for a line of input. The benchmark measures the seconds of each
turn. Peak memory is that of each process at its end. `documented/s` is an earlier measurement of jaxagents, on two
cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import rookery
from benchmarks import harness
from rookery import hyperparams
from rookery.agents.multi_agent import independent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.learners.base import Learner, Member
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.types import Key, Metrics

TASK, ENVS, ROLLOUT, EPOCHS, MINIBATCHES, HIDDEN = "pursuit_continuous", 128, 200, 10, 8, (128, 64)
CHOSEN = {
    **{"discount": 0.99, "gae_lambda": 0.97, "clip_epsilon": 0.2, "entropy_coefficient": 0.005, "kl_threshold": 1e9},
    **{"value_coefficient": 2.0, "actor_lr": 3e-4, "critic_lr": 5e-4, "max_grad_norm": 1.0},
}
"""Hyper-parameters of jaxagents' example; the value coefficient is 2 because its critic loss has no factor 1/2."""
DOCUMENTED = 34_000  # environment steps per second
PEER = ".venv-peers-jaxagents/bin/python"
INSTALL = "there is no {}; create jaxagents' environment: benchmarks/peers.sh, with Python 3.12 for PYTHON_JAXAGENTS"


class Worker:
    """A contender in a process, which prints a line of JSON when it is ready and after every line that it receives."""

    def __init__(self, *command: str):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, open as long as the process runs
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, cwd=harness.ROOT, text=True, **pipes)
        self.ready = self._read()
        self.last: dict[str, Any] = {}

    def __call__(self) -> None:
        """Train once, and await the result."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.last = self._read()

    def _read(self) -> dict[str, Any]:
        """Read the next message.

        Raises:
          RuntimeError: the process has ended; the message ends with its standard error.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._errors.seek(0)
        raise RuntimeError(f"{self._process.args} failed:\n{self._errors.read()[-2000:]}")

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--updates", type=int, default=10, help="updates of one timed call (%(default)s)")
    made.add_argument("--peer", default=PEER, help="interpreter with jaxagents installed (%(default)s)")
    made.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)  # run as Rookery's contender
    options = harness.parse(made)
    if options.quick:
        options.updates = 1
    if options.serve:
        serve(options.updates)
        return
    peer = harness.ROOT / options.peer
    if not peer.exists():
        raise SystemExit(INSTALL.format(options.peer))
    options.peer = "jaxagents 0.2.5"  # keep the local path out of the results
    load = harness.load()
    harness.report("ippo", options, [measure(peer, options.updates, options.rounds)], load)


def measure(peer: Path, updates: int, rounds: int) -> dict[str, Any]:
    """The row of results: environment steps per second with training; a step moves both agents."""
    workers = {
        "ours": Worker(sys.executable, "-m", "benchmarks.ippo", "--serve", "--updates", str(updates)),
        "jaxagents": Worker(str(peer), "benchmarks/peers_ippo.py", str(updates)),
    }
    times = harness.interleave(workers, rounds)
    for worker in workers.values():
        worker.stop()
    steps = updates * ENVS * ROLLOUT
    return {
        "updates": updates,
        **{f"{name}/s": steps / value.median for name, value in times.items()},
        **harness.speedup(times["ours"], times["jaxagents"]),
        "documented/s": DOCUMENTED,
        **{f"{name}_gb": worker.last["peak_gb"] for name, worker in workers.items()},
        **{f"{name}_compile_s": worker.ready["compile_s"] for name, worker in workers.items()},
        "told": {name: {**worker.ready, **worker.last} for name, worker in workers.items()},
        "seconds": {name: value.seconds for name, value in times.items()},
    }


def serve(updates: int) -> None:
    """Run as Rookery's contender: the learner's step, donated, on one device as for any single agent."""
    env = rookery.make(TASK, episode_length=ROLLOUT)
    config = PpoConfig(HIDDEN, actor_epochs=EPOCHS, critic_epochs=EPOCHS, minibatches=MINIBATCHES)
    learner_config = OnPolicyConfig(num_envs=ENVS, rollout_length=ROLLOUT, evaluate_every=updates)
    learner = on_policy(independent(ppo(env.spec, config), env.spec), env, learner_config)
    carry = jax.jit(partial(begin, learner))(jax.random.key(0))
    program = harness.compile_program(partial(train, learner), carry, donate=(0,))
    print_message({"compile_s": program.seconds, "jax": jax.__version__, "temporary_gb": program.temporary_gb})
    for _ in sys.stdin:
        started = time.perf_counter()
        carry, metrics = jax.block_until_ready(program.call(carry))
        seconds = time.perf_counter() - started
        finite = bool(jnp.isfinite(metrics["reward"]))
        print_message({"seconds": seconds, "finite": finite, "peak_gb": harness.peak_memory()})


def print_message(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def begin(learner: Learner, key: Key) -> tuple[Member, Key]:
    """An initial team, and a key."""
    bank_key, member_key, key = jax.random.split(key, 3)
    hyper = hyperparams.defaults(learner.space)._replace(**{name: jnp.asarray(v) for name, v in CHOSEN.items()})
    return learner.init(member_key, hyper, learner.start_states(bank_key)), key


def train(learner: Learner, carry: tuple[Member, Key]) -> tuple[tuple[Member, Key], Metrics]:
    """Draw the start states of a generation, and train."""
    member, key = carry
    key, bank_key, step_key = jax.random.split(key, 3)
    member, metrics = learner.step(member, learner.start_states(bank_key), step_key, jnp.zeros((), jnp.int32))
    return (member, key), metrics


if __name__ == "__main__":
    main()
