"""IPPO, environments included: ours against jaxagents' on the same pursuit.

    python -m benchmarks.ippo [--quick] [--peer .venv-peers-jaxagents/bin/python]

One predator and one prey, continuous headings: an update is 200 steps of 128 environments, 10 epochs of the actors and
10 of the critics in 8 minibatches, independent networks of tanh (128, 64) for both agents, nobody judged. A minibatch
has 3,200 rows on both sides: for jaxagents whole rollouts of 16 environments, for ours rows drawn from all of them anew
in every epoch. Early stops are out of reach on both sides; jaxagents is asked for 11 epochs of the actors, of which it
makes 10 (the number of its actors' steps is kept with the result).

jaxagents 0.2.5 runs with the JAX of its time and ours does not, so each has a process of its own, pinned to nothing,
and the two take turns: while one trains the other waits for a line. Seconds are taken here, around the turn. Peak
memory is that of either process in the end. `documented/s` is what jaxagents was measured at before, on two cores.
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
"""jaxagents' example's, whose critic's loss is not halved."""
DOCUMENTED = 34_000  # environment steps per second
PEER = ".venv-peers-jaxagents/bin/python"
INSTALL = "there is no {}; make jaxagents' environment: benchmarks/peers.sh, with Python 3.12 for PYTHON_JAXAGENTS"


class Worker:
    """A contender in a process: a line of JSON when it is ready, and one for every line that it is sent."""

    def __init__(self, *command: str):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, as long as the process lives
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, cwd=harness.ROOT, text=True, **pipes)
        self.ready = self._told()
        self.last: dict[str, Any] = {}

    def __call__(self) -> None:
        """Train once, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.last = self._told()

    def _told(self) -> dict[str, Any]:
        """What it says next.

        Raises:
          RuntimeError: it has ended; the message ends with what it wrote to standard error.
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
    made.add_argument("--updates", type=int, default=10, help="of one timed call (%(default)s)")
    made.add_argument("--peer", default=PEER, help="the interpreter that has jaxagents (%(default)s)")
    made.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)  # be our contender
    options = harness.parse(made)
    if options.quick:
        options.updates = 1
    if options.serve:
        serve(options.updates)
        return
    peer = harness.ROOT / options.peer
    if not peer.exists():
        raise SystemExit(INSTALL.format(options.peer))
    options.peer = "jaxagents 0.2.5"  # where it lies is nobody's business
    load = harness.load()
    harness.report("ippo", options, [measure(peer, options.updates, options.rounds)], load)


def measure(peer: Path, updates: int, rounds: int) -> dict[str, Any]:
    """The row: environment steps per second with training; a step moves both agents."""
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
    """Be our contender: the learner's own step, donated, on one device as for any single agent."""
    env = rookery.make(TASK, episode_length=ROLLOUT)
    config = PpoConfig(HIDDEN, actor_epochs=EPOCHS, critic_epochs=EPOCHS, minibatches=MINIBATCHES)
    life = OnPolicyConfig(num_envs=ENVS, rollout_length=ROLLOUT, evaluate_every=updates)
    learner = on_policy(independent(ppo(env.spec, config), env.spec), env, life)
    carry = jax.jit(partial(begin, learner))(jax.random.key(0))
    program = harness.compile_program(partial(train, learner), carry, donate=(0,))
    say({"compile_s": program.seconds, "jax": jax.__version__, "temporary_gb": program.temporary_gb})
    for _ in sys.stdin:
        started = time.perf_counter()
        carry, metrics = jax.block_until_ready(program.call(carry))
        seconds = time.perf_counter() - started
        finite = bool(jnp.isfinite(metrics["reward"]))
        say({"seconds": seconds, "finite": finite, "peak_gb": harness.peak_memory()})


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def begin(learner: Learner, key: Key) -> tuple[Member, Key]:
    """A newborn team, and a key."""
    bank_key, member_key, key = jax.random.split(key, 3)
    hyper = hyperparams.defaults(learner.space)._replace(**{name: jnp.asarray(v) for name, v in CHOSEN.items()})
    return learner.init(member_key, hyper, learner.start_states(bank_key)), key


def train(learner: Learner, carry: tuple[Member, Key]) -> tuple[tuple[Member, Key], Metrics]:
    """A generation's start states and its learning."""
    member, key = carry
    key, bank_key, step_key = jax.random.split(key, 3)
    member, metrics = learner.step(member, learner.start_states(bank_key), step_key, jnp.zeros((), jnp.int32))
    return (member, key), metrics


if __name__ == "__main__":
    main()
