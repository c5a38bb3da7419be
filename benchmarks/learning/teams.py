"""Learning of teams: Rookery against JaxMARL's feed-forward IPPO on simple_spread, and both sides of simple_tag.

    python -m benchmarks.learning.teams --jaxmarl CHECKOUT --runs runs/teams --picture docs/evidence/learning_teams.png

`spread`: the unmodified training function of `baselines/IPPO/ippo_ff_mpe.py` in a checkout of JaxMARL, against
Rookery's IPPO with parameters shared by all agents, like JaxMARL (`shared`; in `shared, told apart` the observations
also contain the agent's index), and with separate parameters (`independent`). All use JaxMARL's hyper-parameters and
the same number of environment steps; other settings are Rookery's defaults. All runs use one process, with five seeds
at once. At the end, Rookery evaluates all policies from the same start states: a team's return is the mean over its
agents of the rewards of the environment's step in an episode (JaxMARL's log multiplies it by the number of agents; its
curve is divided by it). The curves show the returns during exploration, which both record.

`tag`: independent agents, with adversaries and prey both learning; at the end each side plays against random actions.

Existing runs are not repeated.
"""

import argparse
import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from rookery.agents import multi_agent
from rookery.agents.base import OnPolicyAgent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.envs.wrappers import auto_reset
from rookery.envs.wrappers.teams import identify
from rookery.learners import evaluation, rollout
from rookery.learners.base import Member
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.report import statistics
from rookery.report.figures import style
from rookery.types import Array, Key, Observation, PyTree

SPREAD, TAG = "MPE_simple_spread_v3", "MPE_simple_tag_v3"
SCRIPT = "baselines/IPPO/ippo_ff_mpe.py"
SEEDS, FRESH = 5, 256  # members, and the episodes of the final evaluation of each
ENVS, ROLLOUT, EVERY, EPOCHS, MINIBATCHES = 16, 128, 10, 4, 4
GENERATIONS = 50  # of EVERY updates: 1.02 million environment steps
CONTENDERS = ("JaxMARL", "shared", "shared, told apart", "independent")
MATCHES = {
    "both learned": (True, True),
    "adversaries learned": (True, False),
    "prey learned": (False, True),
    "both random": (False, False),
}
"""Whether the adversaries and the prey use their trained policies; otherwise they take random actions."""


class Policy(NamedTuple):
    """Trained policies of a contender."""

    learned: PyTree  # [SEEDS, ...]
    best: Callable[[PyTree, Observation, Key], Array]  # of one seed, observation [N, I, ...], key -> action [N, I]
    drawn: Callable[[PyTree, Observation, Key], Array]  # likewise, the exploring action of training


def main() -> None:
    made = harness.learning_parser(__doc__)
    made.add_argument("--experiments", nargs="+", default=["spread", "tag"], choices=["spread", "tag"])
    made.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    made.add_argument("--jaxmarl", help="checkout of JaxMARL's repository; without it JaxMARL is skipped")
    made.add_argument("--generations", type=int, default=GENERATIONS, help="generations of 20,480 steps (%(default)s)")
    made.add_argument(
        "--seed", type=int, default=0, help="seed from which the seeds of the five members are derived (%(default)s)"
    )
    made.add_argument("--runs", default="runs/teams")
    options = harness.parse(made)
    if options.quick:
        options.generations, options.runs = 1, f"{options.runs}/quick"
    load = harness.load()
    Path(options.runs).mkdir(parents=True, exist_ok=True)
    for experiment, contender in [] if options.only_report else work(options):
        path = path_of(options, experiment, contender)
        if not path.exists():
            row = (spread if experiment == "spread" else tag)(contender, options)
            path.write_text(json.dumps(row | {"commit": harness.commit()}) + "\n")
            print(experiment, contender, {name: row[name] for name in ("seconds", "steps")}, flush=True)
    made_runs = [job for job in work(options) if path_of(options, *job).exists()]
    found = [(*job, json.loads(path_of(options, *job).read_text())) for job in made_runs]
    lines = [line for job in found for line in summary(*job)]
    lines += comparisons({contender: row for experiment, contender, row in found if experiment == "spread"})
    options.jaxmarl = bool(options.jaxmarl)  # keep the local path out of the results
    harness.report("learning_teams", options, lines, load)
    if options.picture:
        draw(found, options.picture)


def work(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Selected experiments and contenders."""
    contenders = [name for name in options.contenders if name != "JaxMARL" or options.jaxmarl]
    jobs = [("spread", name) for name in contenders] if "spread" in options.experiments else []
    return jobs + ([("tag", "independent")] if "tag" in options.experiments else [])


def path_of(options: argparse.Namespace, experiment: str, contender: str) -> Path:
    return Path(options.runs) / f"{experiment}-{contender.replace(', ', '-').replace(' ', '-').lower()}.json"


def spread(contender: str, options: argparse.Namespace) -> dict[str, Any]:
    """A contender's curve, and the final evaluation of its policies."""
    environment = rookery.make(SPREAD)
    if contender == "JaxMARL":
        policy, row = jaxmarl_run(options)
    else:
        environment = identify(environment) if contender == "shared, told apart" else environment
        policy, row = our_run(environment, contender, options)
    keys = jax.random.split(jax.random.key(10_000 + options.seed), SEEDS)
    for name, act in (("best", policy.best), ("drawn", policy.drawn)):
        returns = jax.jit(jax.vmap(partial(play, environment, act)))(policy.learned, keys)
        row[name] = np.asarray(returns).mean(axis=(1, 2)).tolist()
    return row


def tag(contender: str, options: argparse.Namespace) -> dict[str, Any]:
    """A team's curve, and the returns of each side against random actions."""
    environment = rookery.make(TAG)
    policy, row = our_run(environment, contender, options)
    keys = jax.random.split(jax.random.key(10_000 + options.seed), SEEDS)
    prey = np.array(prey_of(environment))
    row["matches"] = {}
    for name, (adversaries_learned, prey_learned) in MATCHES.items():
        learned = np.where(prey, prey_learned, adversaries_learned)
        act = partial(against_random, policy.best, environment.spec.action_size, learned)
        returns = np.asarray(jax.jit(jax.vmap(partial(play, environment, act)))(policy.learned, keys)).mean(axis=1)
        sides = {"adversaries": returns[:, ~prey], "prey": returns[:, prey]}
        row["matches"][name] = {side: values.mean(axis=1).tolist() for side, values in sides.items()}
    return row


def prey_of(environment: rookery.Environment) -> list[bool]:
    """Whether each agent of the team is prey, `[I]`."""
    assert environment.spec.team is not None
    return [not name.startswith("adversary") for name in environment.spec.team.names]


def our_run(
    environment: rookery.Environment, contender: str, options: argparse.Namespace
) -> tuple[Policy, dict[str, Any]]:
    """Rookery's team after training, and its curve."""
    config = PpoConfig(
        actor_epochs=EPOCHS,
        critic_epochs=EPOCHS,
        minibatches=MINIBATCHES,
        anneal_updates=EVERY * options.generations,
    )
    form = multi_agent.independent if contender == "independent" else multi_agent.shared
    agent = form(ppo(environment.spec, config), environment.spec)
    learner_config = OnPolicyConfig(num_envs=ENVS, rollout_length=ROLLOUT, evaluate_every=EVERY, eval_episodes=1)
    program = rookery.seeds(on_policy(agent, environment, learner_config), population_size=SEEDS)
    started = time.perf_counter()
    result = rookery.run(program, seed=options.seed, generations=options.generations, quiet=True)
    seconds = time.perf_counter() - started
    rewards = np.array([metrics["reward"] for metrics in result.history])
    curve = rewards * environment.spec.episode_length
    policy = Policy(result.state.members, partial(best_of_ours, agent), partial(drawn_by_ours, agent))
    steps = learner_config.steps_per_generation * (np.arange(options.generations) + 1)
    return policy, {"seconds": seconds, "steps": steps.tolist(), "earned": curve.tolist()}


def best_of_ours(agent: OnPolicyAgent, member: Member, observation: Observation, key: Key) -> Array:
    del key
    return jax.vmap(agent.act, in_axes=(None, 0))(member.state.params, observation)


def drawn_by_ours(agent: OnPolicyAgent, member: Member, observation: Observation, key: Key) -> Array:
    keys = jax.random.split(key, observation.features.shape[0])
    explore = jax.vmap(agent.explore, in_axes=(None, None, 0, 0))
    return explore(member.state, member.hyper, observation, keys)[0]


def against_random(
    best: Callable, action_size: int, learned: np.ndarray, member: Member, observation: Observation, key: Key
) -> Array:
    """Actions of the trained policies for agents with `learned` `[I]`, random actions for the others."""
    chosen = best(member, observation, key)
    return jnp.where(jnp.asarray(learned), chosen, jax.random.randint(key, chosen.shape, 0, action_size))


def jaxmarl_run(options: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    """JaxMARL's team after training, and its curve."""
    script = jaxmarl_script(Path(options.jaxmarl))
    updates = EVERY * options.generations
    config = {
        **{"LR": 2.5e-4, "ANNEAL_LR": True, "NUM_ENVS": ENVS, "NUM_STEPS": ROLLOUT, "UPDATE_EPOCHS": EPOCHS},
        **{"NUM_MINIBATCHES": MINIBATCHES, "TOTAL_TIMESTEPS": updates * ENVS * ROLLOUT, "GAMMA": 0.99},
        **{"GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5},
        **{"ACTIVATION": "tanh", "ENV_NAME": SPREAD, "ENV_KWARGS": {}},
    }
    keys = jax.random.split(jax.random.PRNGKey(options.seed), SEEDS)
    started = time.perf_counter()
    out = jax.block_until_ready(jax.jit(jax.vmap(script.make_train(config)))(keys))
    seconds = time.perf_counter() - started
    agents = config["NUM_ACTORS"] // ENVS
    logged = np.asarray(out["metrics"]["returned_episode_returns"]).T / agents  # [U, SEEDS]
    logged[0] = logged[1]  # the first update's log contains zeros from before the first episode's end
    curve = logged.reshape(options.generations, EVERY, SEEDS).mean(axis=1)
    network = script.ActorCritic(rookery.make(SPREAD).spec.action_size, activation=config["ACTIVATION"])
    params = out["runner_state"][0].params
    policy = Policy(params, partial(best_of_jaxmarl, network), partial(drawn_by_jaxmarl, network))
    steps = EVERY * ENVS * ROLLOUT * (np.arange(options.generations) + 1)
    return policy, {"seconds": seconds, "steps": steps.tolist(), "earned": curve.tolist()}


def jaxmarl_script(checkout: Path) -> Any:
    """Import the script as a module; its configuration and logging packages are replaced by stubs."""
    stubs = {
        "hydra": {"main": lambda **_: lambda function: function},
        "omegaconf": {"OmegaConf": None},
        "wandb": {"log": lambda _: None},
    }
    for name, content in stubs.items():
        if name == "wandb" or importlib.util.find_spec(name) is None:  # always replaced, so that nothing is uploaded
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__dict__.update(content)
    spec = importlib.util.spec_from_file_location("ippo_ff_mpe", checkout / SCRIPT)
    if spec is None or spec.loader is None or not (checkout / SCRIPT).exists():
        raise SystemExit(f"there is no {SCRIPT} in {checkout}; clone JaxMARL's repository.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def best_of_jaxmarl(network: Any, params: PyTree, observation: Observation, key: Key) -> Array:
    del key
    return network.apply(params, observation.features)[0].mode().astype(jnp.int32)


def drawn_by_jaxmarl(network: Any, params: PyTree, observation: Observation, key: Key) -> Array:
    return network.apply(params, observation.features)[0].sample(seed=key).astype(jnp.int32)


def play(environment: rookery.Environment, act: Callable, learned: PyTree, key: Key) -> Array:
    """Returns `[FRESH, I]` of full episodes from new start states; episodes of these tasks only end by truncation."""
    bank_key, key = jax.random.split(key)
    env_states = evaluation.start_episodes(environment, auto_reset.start_bank(environment, bank_key, FRESH), FRESH)
    keys = jax.random.split(key, environment.spec.episode_length)
    return jnp.sum(jax.lax.scan(partial(advance, environment, act, learned), env_states, keys)[1], axis=0)


def advance(
    environment: rookery.Environment, act: Callable, learned: PyTree, env_states: rollout.EnvBatchState, key: Key
) -> tuple[rollout.EnvBatchState, Array]:
    """Step all episodes; also return the rewards `[FRESH, I]`."""
    act_key, env_key = jax.random.split(key)
    env_states, _, common = rollout.advance(
        environment, env_states, act(learned, env_states.observation, act_key), env_key
    )
    return env_states, common.reward


def summary(experiment: str, contender: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table of one run."""
    common = {"commit": row["commit"], "seconds": row["seconds"], "steps": row["steps"][-1]}
    if experiment == "spread":
        measures = {"best actions": row["best"], "drawn actions": row["drawn"]}
    else:
        measures = {f"{m}: {side}": v for m, sides in row["matches"].items() for side, v in sides.items()}
    return [line(experiment, contender, name, values) | common for name, values in measures.items()]


def line(experiment: str, contender: str, measure: str, *samples: Sequence[float]) -> dict[str, Any]:
    """A row of the table: the interquartile mean, or for two samples the probability that the first is better."""
    statistic = statistics.interquartile_mean if len(samples) == 1 else statistics.probability_of_improvement
    found = statistics.estimate(statistic, *samples)
    row = {"experiment": experiment, "contender": contender, "measure": measure, "value": found.value}
    return row | {"low": found.low, "high": found.high, "values": list(samples)}


def comparisons(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Probability that a run of Rookery is better than one of JaxMARL."""
    if "JaxMARL" not in rows:
        return []
    pairs = [(name, measure) for name in rows if name != "JaxMARL" for measure in ("best", "drawn")]
    return [
        line("spread", name, f"{measure} actions, better than JaxMARL", *(rows[of][measure] for of in both))
        for name, measure in pairs
        for both in [(name, "JaxMARL")]
    ]


def draw(found: Sequence[tuple[str, str, dict[str, Any]]], picture: str) -> None:
    """Plot a team's return per episode during training: a thin line for each seed, a thick line for their mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for experiment, contender, row in found:
        if experiment == "spread":
            colour, steps, curves = CONTENDERS.index(contender), np.asarray(row["steps"]) / 1e6, row["earned"]
            axes.plot(steps, curves, color=style.PALETTE[colour], linewidth=0.5, alpha=0.4)
            label = contender if contender == "JaxMARL" else f"ours, {contender}"
            mean = np.mean(curves, axis=1)
            axes.plot(steps, mean, color=style.PALETTE[colour], linewidth=2.2, label=f"{label} ({SEEDS} seeds)")
    axes.set_title("simple_spread, return of an agent while it explores", fontsize=10, color=style.INK, loc="left")
    axes.set_xlabel("million environment steps", fontsize=8)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    style.tidy(axes)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
