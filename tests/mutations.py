"""Small faults of the core, each of which the suite must detect: `python -m tests.mutations [NAME ...]`.

The tracked files are copied once. The tests of a fault must pass on the copy; then the fault is put into the copy, and
one of them must fail. Errors while tests are collected, and of imports and names, are no detection. The exit code is 1
if a fault is not detected.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TIMEOUT = 900  # seconds of one call of pytest

# FILE in `rookery/` | TESTS in `tests/`, files or ids, separated by blanks; then the faults that these tests detect:
#     NAME | a text that occurs once in FILE | the text that replaces it
TABLE = """
returns.py | test_returns.py
    gae-sign | value_tp1) - value_t | value_tp1) + value_t
    gae-after-the-end | jnp.where(ended, 0.0, advantage_tp1) | advantage_tp1
    target-after-the-end | jnp.where(terminated_t, 0.0, value_tp1) | value_tp1
    lambda-after-the-end | jnp.where(ended, value, | jnp.where(terminated, value,
returns.py | agents/test_sac.py
    larger-twin | jnp.min(twin | jnp.max(twin
    entropy-sign | - alpha * log_prob | + alpha * log_prob
agents/sac.py | agents/test_sac.py
    temperature-sign | return -jnp.exp | return jnp.exp
agents/td3.py | agents/test_td3.py
    delay-off-by-one | due = (step + 1) % | due = step %
distributions.py | test_distributions.py
    parts-cut-late | np.cumsum(categories)[:-1] | np.cumsum(categories)[1:]
networks/residual.py | test_networks.py
    residual-left-out | return inputs + layer | return layer
returns.py | agents/test_sac.py
    three-critics | top_k(numbers[0], 2) | top_k(numbers[0], 3)
gradients.py | test_gradients.py
    tau-swapped | old + tau * (new - old) | new + tau * (old - new)
agents/ppo.py | agents/test_ppo_losses.py
    ppo-clip | jnp.minimum(ratio | jnp.maximum(ratio
agents/ppo.py | agents/test_ppo.py agents/test_ppo_losses.py
    ppo-entropy-sign | -objective - hyper | -objective + hyper
agents/ppo.py | agents/test_ppo.py
    memory-reset-early | jnp.concatenate([jnp.zeros_like(extras.ended[:1]), extras.ended[:-1]]) | extras.ended
agents/discrete.py | agents/test_discrete.py
    random-beyond-the-mask | available(jnp.zeros(action_size), action_mask) | jnp.zeros(action_size)
agents/pqn.py | agents/test_pqn.py
    value-beyond-the-mask | batch.next_observation.action_mask | None
    gradient-without-limit | gradient = gradients.clip_norm(gradient, hyper.max_grad_norm) | gradient = gradient
agents/dqn.py | agents/test_dqn.py
    single-learning | if double else | if not double else
    quantiles-mirrored | (error < 0.0) | (error > 0.0)
agents/skills/diayn.py | agents/test_diayn.py
    diayn-sign | log_prob + math.log | log_prob - math.log
agents/skills/metra.py | agents/test_metra.py
    metra-sign | both[size:] - both[:size] | both[:size] - both[size:]
    dual-sign | log_dual, jnp.mean | log_dual, -jnp.mean
agents/skills/smerl.py | agents/test_smerl.py
    broken-returns | ended & ~steps.broken & | ended &
agents/multi_agent.py | agents/test_multi_agent.py
    agents-reversed | AGENTS, 0), batch) | AGENTS, 0)[::-1], batch)
    agents-one-key | count), observation, jax.random.split(key, count) | count), observation, jnp.stack([key] * count)
learners/n_step.py | learners/test_n_step.py
    return-beyond-the-end | follows[1:] & ~place.ended[:-1] | follows[1:]
buffers.py | test_buffers.py
    ring-position | position + added) % cap | position + added + 1) % cap
    unwritten-rows | jnp.maximum(state.size, 1) | _capacity(state)
normalize.py | test_normalize.py
    variance | (seen * added / count) | (seen / count)
    masked-rows | counts & jnp.isfinite(rows) | jnp.isfinite(rows)
envs/wrappers/frame_stack.py | envs/test_frame_stack.py
    oldest-frame | state.frames[1:] | state.frames[:-1]
envs/wrappers/time_limit.py | envs/test_envs.py
    time-limit | (time >= length) | (time > length)
envs/wrappers/skills.py | envs/test_skills.py
    skills-in-turn | last.turn + 1 | last.turn
learners/evaluation.py | learners/test_evaluation.py
    rewards-after-the-end | jnp.where(run.active, step.reward, 0.0) | step.reward
    places-after-the-end | step.descriptor, active & ~step.broken | step.descriptor, ~step.broken
    breaks-after-the-end | (active & step.broken) | step.broken
    actions-after-the-end | ~run.active).all | False).all
learners/evaluation.py | learners/test_diayn_training.py
    measures-after-the-end | counts = run.active & ~step.broken | counts = ~step.broken
learners/evaluation.py | learners/test_missing_data.py
    broken-fitness | all() & ~end.broken.any() | all()
learners/off_policy.py | learners/test_learners.py
    updates-one-key | index_key, noise_key = jax.random.split(key) | index_key = noise_key = key
    updates-in-warm-up | (count - config.warmup_iterations) | count
learners/evolution.py | learners/test_evolution.py
    gradient-of-the-noise | (2 * config.directions * member.hyper.noise_scale) | (2 * config.directions)
    other-starts | jnp.tile(jnp.arange(config.directions), 2) | jnp.arange(2 * config.directions)
learners/on_policy.py | learners/test_on_policy.py
    sum-after-the-end | jnp.where(ended, 0.0, accumulated) | accumulated
populations/selection.py | populations/test_selection.py
    parent-of-rank | jnp.argsort(rank)[drawn] | rank[drawn]
    slower-donor | (interval < interval | (interval > interval
    leaders-at-the-threshold | scaled > mean + distance | scaled >= mean + distance
    one-threshold | jnp.maximum(stds * std, | jnp.minimum(stds * std,
populations/selection.py | populations/test_rounds.py::TestAdvance
    round-too-long | waited >= patience | waited > patience
populations/inheritance.py | populations/test_rounds.py
    shrink-swapped | SHRINK * own + PERTURB * new | PERTURB * own + SHRINK * new
populations/inheritance.py | populations/test_pbt.py
    hyper-of-the-parent | (members.hyper, donors) | (members.hyper, parents)
    survivors-perturbed | (is_child, changed, hyper) | (is_child, hyper, changed)
populations/pbt.py | populations/test_pbt.py
    fitness-of-the-slot | shared.recent, parents) | shared.recent, jnp.arange(size))
populations/pbt.py | experiments/test_defaults.py
    selected-too-early | (generation + 1) % when.every | generation % when.every
populations/replay.py | populations/test_pbt.py
    schedule-index | shared.generation, len | shared.generation + 1, len
populations/role_pbt.py | populations/test_league.py
    easiest-opponents | log1p(-jnp.where(there, league.beaten | log(jnp.where(there, league.beaten
    hardest-replaced | easy == jnp.max(easy) | easy == jnp.min(easy)
    unknown-enters | trees.where(known, changed, league) | changed
populations/role_pbt.py | populations/test_role_pbt.py
    lineage-of-roles | (parents * bindings.role_count | (parents
populations/pb2.py | populations/test_pb2.py::TestProposals
    pb2-sign | mean(current) + optimism | mean(current) - optimism
populations/ratings.py | populations/test_ratings.py
    rating-sign | None] > value | None] < value
experiments/search.py | qd/test_search.py
    keys-of-one-batch | np.int32(self._generation) | np.int32(1)
    patience-too-long | self._generation >= self._config.patience | self._generation > self._config.patience
    other-solutions | self._digest(self._propose()) != digest | not self._digest(self._propose())
experiments/tuner.py | populations/test_tuner.py
    tuner-generation | shared.generation + 1, parents | shared.generation, parents
hyperparams.py | test_hyperparams.py
    whole-number-stays | jnp.ceil(jnp.abs(step)) | jnp.floor(jnp.abs(step))
    same-name-again | 1.0 + jnp.minimum(jnp.floor(others | jnp.minimum(jnp.floor(others
    fields-one-draw | domain.another(fractions[i], value) | domain.another(fractions[0], value)
    chance-of-the-value | chances < resample_probability | fractions < resample_probability
qd/repertoire.py | qd/test_repertoire.py
    worse-replaces | fitnesses > incumbent | fitnesses != incumbent
qd/centroids.py | qd/test_centroids.py
    next-centroid | 0.5 * (side[1:] + side[:-1]) | side[1:]
qd/variation.py | qd/test_variation.py
    sigmas-swapped | config.line_sigma * line[0], config.iso_sigma | config.iso_sigma * line[0], config.line_sigma
qd/thresholds.py | qd/test_archives.py
    threshold-rate | kept * thresholds + (1.0 - kept) * mean | (1.0 - kept) * thresholds + kept * mean
qd/cma/emitter.py | qd/test_cma_mae.py
    cma-order | jnp.argsort(-values | jnp.argsort(values
qd/cma/distribution.py | qd/test_cma_mae.py
    cma-weights | jnp.log(number + 0.5) | jnp.log(number + 1.0)
qd/policy_gradient/variation.py | qd/test_policy_gradient.py::TestVariation
    pga-sign | return -jnp.mean | return jnp.mean
qd/policy_gradient/emitter.py | qd/test_policy_gradient.py::TestProposals
    pga-target-critic | state.critic.params | state.target_critic
qd/pbt_emitter.py | qd/test_pbt_emitter.py
    first-rows | leaf[-bindings.population_size :] | leaf[: bindings.population_size]
storage/manifest.py | storage/test_manifest.py
    checksum-ignored | hexdigest() != digest | hexdigest() == ""
storage/csv_log.py | storage/test_csv_log.py
    later-rows-kept | ["generation"] < generation | ["generation"] <= generation
    steps-of-lost-rows | np.arange(1, generations + 1) * | np.arange(generations) *
islands/store.py | islands/test_store.py
    own-publications | number != island | number == island
islands/exchange.py | islands/test_exchange.py
    best-replaced | (fitness) >= size - count | (fitness) < count
distributed/layout.py | distributed/test_layouts.py::test_rows_without_elements_are_moved_between_devices
    row-of-the-next-device | (local < count) | (local <= count)
"""


class Fault(NamedTuple):
    """A fault: one text of the package that is replaced by another."""

    name: str
    file: str
    """In `rookery/`."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: str
    """Files or ids in `tests/`, separated by blanks, of which at least one must fail."""


def faults() -> list[Fault]:
    """The faults of the table."""
    found, file, tests = [], "", ""
    for line in TABLE.strip().splitlines():
        if line.startswith(" "):
            name, old, new = line.strip().split(" | ")
            found.append(Fault(name, file, old, new, tests))
        else:
            file, tests = line.split(" | ")
    return found


def copy_to(root: Path) -> None:
    """Copy the tracked files of the package and of its tests, and check that Python imports this copy.

    Raises:
      RuntimeError: it imports another one.
    """
    command = ["git", "ls-files", "-z", "rookery", "tests", "pyproject.toml"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    command = [sys.executable, "-P", "-c", "import rookery; print(rookery.__file__)"]
    imported = subprocess.run(command, env=environment(root), capture_output=True, text=True, check=True).stdout.strip()
    if Path(imported) != root / "rookery/__init__.py":
        raise RuntimeError(f"Python imports {imported} instead of the copy in {root}.")


def environment(root: Path) -> dict[str, str]:
    """Variables with which Python imports the copy, and all calls share their compiled programs."""
    cache = os.environ.get("ROOKERY_TEST_CACHE", str(root / "cache"))
    return os.environ | {"PYTHONPATH": str(root), "ROOKERY_TEST_CACHE": cache, "COLUMNS": "300"}


def run_tests(root: Path, tests: str) -> tuple[str, str]:
    """Run tests of the copy: "passed", "failed" with the first test that failed, or "error" with the last output."""
    options = ["-n0", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests.split())]
    try:
        ran = subprocess.run(
            command, cwd=root, env=environment(root), capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "error", f"no end after {TIMEOUT} seconds"
    if ran.returncode == 0:
        return "passed", ""
    found = re.search(r"(?m)^(?:FAILED|ERROR) tests/(\S+?::.*)$", ran.stdout)  # what cannot be collected has no `::`
    test, _, reason = found[1].partition(" - ") if found else ("", "", "")
    if ran.returncode != 1 or not test or reason.startswith(("ImportError", "ModuleNotFoundError", "NameError")):
        return "error", f"exit code {ran.returncode}: {(ran.stdout + ran.stderr).strip()[-500:]}"
    return "failed", test


def detect(root: Path, fault: Fault) -> tuple[bool, str]:
    """Whether the tests of a fault detect it, and a text that says so; the copy is restored."""
    path = root / "rookery" / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        return False, f"ERROR {fault.old!r} occurs {text.count(fault.old)} times in {fault.file}"
    path.write_text(text.replace(fault.old, fault.new))
    outcome, detail = run_tests(root, fault.tests)
    path.write_text(text)
    words = {"failed": f"caught by {detail}", "passed": f"SURVIVED {fault.tests}", "error": f"ERROR {detail}"}
    return outcome == "failed", words[outcome]


def main(names: list[str]) -> int:
    """Try the faults of these names, or all; returns the exit code."""
    if unknown := set(names) - {fault.name for fault in faults()}:
        raise SystemExit(f"there is no fault {' or '.join(sorted(unknown))}.")
    undetected, unchanged = 0, {}
    with tempfile.TemporaryDirectory(prefix="rookery-mutations-") as folder:
        root = Path(folder).resolve()
        copy_to(root)
        for fault in [fault for fault in faults() if not names or fault.name in names]:
            if fault.tests not in unchanged:
                unchanged[fault.tests] = run_tests(root, fault.tests)
            begin, (outcome, detail) = time.monotonic(), unchanged[fault.tests]
            detected, text = False, f"ERROR {fault.tests}, without a fault: {outcome} {detail}"
            if outcome == "passed":
                detected, text = detect(root, fault)
            undetected += not detected
            print(f"{fault.name:23} {time.monotonic() - begin:4.0f} s  {text}", flush=True)
    print(f"{undetected} not detected")
    return int(undetected > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
