"""Run tiny populations on 1 to 8 virtual devices, in a separate process that `distributed/test_layouts.py` starts.

Prints a JSON object with the results of each layout: digests after two generations, and the largest difference from
one device after the first generation.
"""

import hashlib
import json
import math
import os
import re
import sys
from functools import partial

COUNTS = {"exact": (1, 8), "vmap": (1, 8)}  # `main` runs other strategies on fewer
LAYOUTS = ((1, False), (8, True))  # devices, and whether they divide the cells

# LLVM optimises as in runs (`programs.compile_lowered`): without, code that differs in what is fused rounds alike.
FLAGS = os.environ.get("XLA_FLAGS", "").replace("optimization_level=0", "optimization_level=1")
os.environ["XLA_FLAGS"] = FLAGS + " --xla_force_host_platform_device_count=8"
os.environ["NPROC"] = "32"  # XLA's thread pool; 8 devices on few cores starve the default one

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.distributed import layout, programs
from rookery.distributed.mesh import Mesh, make_mesh
from rookery.envs import registry
from rookery.envs.tasks import functions
from rookery.hyperparams import choose
from rookery.learners.base import EvaluationConfig, Learner
from rookery.populations import pb2
from rookery.populations import sharding as populations_sharding
from rookery.populations.base import Program
from rookery.populations.config import LeagueConfig, PbtConfig
from rookery.populations.pbt import pbt
from rookery.populations.role_pbt import pbt_roles
from rookery.qd.archives import annealed, dominated_novelty
from rookery.qd.centroids import grid
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.cma.emitter import cma_mae
from rookery.qd.map_elites import map_elites
from rookery.qd.pbt_emitter import pbt_emitter
from rookery.qd.policy_gradient.config import DcrlMeConfig
from rookery.qd.policy_gradient.factories import dcrl_me
from rookery.qd.scoring import PolicyConfig, learner_scoring, named_scoring, policy_scoring
from tests import tiny, walks

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


TRUNCATION = PbtConfig(best_count=2, replace_count=3, inherit_buffer=True)
pb2.FIT_STEPS, pb2.CANDIDATES = 2, 16  # the quality of the fit does not matter, and shared cores are slow
pb2.empty = partial(pb2.empty, rows=32)  # all of 4 generations
ROUNDS = PbtConfig(exploit_interval="auto", round_patience=1)
OTHER_STRATEGIES = PbtConfig(exploit="multi-frequency", frequencies=(1, 2), perturb="pb2", smooth=2)


def run_roles(count: int) -> str:
    """Three generations of two roles with separate populations, with ratings and a league that begins to play in the
    second: a digest of the state and the metrics."""
    mesh = make_mesh(count)
    program = pbt_roles(
        tiny.team(capture_radius=0.3),
        None,
        4,
        PbtConfig(best_count=1, replace_count=2),
        layout.placement(mesh, True),
        rating_opponents=2,
        league=LeagueConfig(league_size=3, league_share=0.5, league_every=1),
    )
    compiled = programs.compile_program(program, mesh)
    state, metrics = compiled.init(jax.random.key(0)), {}
    for generation in range(3):
        state, metrics = compiled.step(state, jax.random.fold_in(jax.random.key(1), generation))
    return digest([np.asarray(leaf) for leaf in jax.tree.leaves((state, metrics))])


def run_rounds(count: int) -> dict:
    """Eight generations in rounds on `count` devices, with a fitness of at most 1, so that a round ends. No
    hyper-parameter evolves: proposals for any number of devices are tested by `OTHER_STRATEGIES`."""
    walk = walks.learner()._replace(space=choose(walks.SPACE, rate=0.1, discount=0.9, noise=0.5))

    def evaluate(genotype: walks.Genotype, bank: jax.Array, key: jax.Array) -> walks.Evaluation:
        evaluation = walk.evaluate(genotype, bank, key)
        return evaluation._replace(fitness=jnp.minimum(evaluation.fitness, 1.0))

    leaves, result = run(True, count, ROUNDS, walk._replace(evaluate=evaluate), generations=8)
    return {"digest": digest(leaves), "round": result["round"], "parents": result["parents"]}


def run(
    exact: bool, count: int, config: PbtConfig = TRUNCATION, learner: Learner | None = None, generations: int = 2
) -> tuple[list, dict]:
    """Some generations on `count` devices: the leaves of the state, and properties of the layout."""
    mesh = make_mesh(count)
    program = pbt(learner or tiny.learner(), None, 8, config, layout.placement(mesh, exact))
    compiled = programs.compile_program(program, mesh)
    # It refuses a state that has other shardings than the one before it.
    step = compiled.step.lower(programs.template(program, mesh), jax.random.key(1)).compile()
    state = compiled.init(jax.random.key(0))
    parents, first = [], []
    for generation in range(generations):
        state, _ = step(state, jax.random.fold_in(jax.random.key(1), generation))
        parents.append(state.shared.parents.tolist())
        first = first or [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    measured = {"traffic": traffic(step), **shapes(program, mesh)}
    replicated = [str(leaf.sharding) for leaf in jax.tree.leaves(state.members) if leaf.sharding.is_fully_replicated]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)], {
        "first": first,
        "parents": parents,
        "round": int(state.shared.rounds.number) if state.shared.rounds else 0,
        "replicated": len(replicated) if count > 1 else 0,
        **measured,
    }


def traffic(step: jax.stages.Compiled) -> dict:
    """Bytes that a generation moves between devices, and its memory, according to the compiled program."""
    found = {"moved": 0, "scalars": 0, "floats_added": 0}
    for line in str(step.as_text()).splitlines():
        if match := re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", line):
            arrays = re.findall(r"([a-z]+)(\d*)\[([\d,]*)\]", match[1])
            sizes = [math.prod(map(int, shape.split(","))) if shape else 1 for _, _, shape in arrays]
            widths = [max(int(bits or 8) // 8, 1) for _, bits, _ in arrays]
            count = sum(size * width for size, width in zip(sizes, widths, strict=True))
            found["moved" if "while/body" in line else "scalars"] += count
            found["floats_added"] += match[2] == "all-reduce" and any(kind == "f" for kind, _, _ in arrays)
    memory = step.memory_analysis()
    assert memory is not None
    return {**found, "arguments": memory.argument_size_in_bytes, "temporary": memory.temp_size_in_bytes}


def shapes(program: Program, mesh: Mesh) -> dict:
    """Bytes of a population: of a row that is moved, of its buffer, and of the sharded and the replicated state."""
    state = programs.template(program, mesh)
    members = state.members
    inherited, buffer, divided, whole = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in ((members.state, members.normalizer, members.hyper), members.buffer, members, state.shared)
    )
    return {"row": inherited // 8, "buffer": buffer // 8, "divided": divided, "replicated_bytes": whole}


def collectives(count: int) -> list[str]:
    """The collectives in the compiled training and evaluation of a population."""
    from rookery.populations.base import member_keys

    mesh = make_mesh(count)
    learner = tiny.learner()
    spread = layout.population_map(mesh)
    state = programs.template(pbt(learner, population_size=8, placement=layout.placement(mesh)), mesh)
    bank = jax.eval_shape(learner.start_states, jax.random.key(0))
    keys = jax.eval_shape(lambda key: member_keys(key, 8), jax.random.key(0))
    generation = jax.ShapeDtypeStruct((), np.int32)
    train = jax.jit(lambda m, k, b, g: spread(partial(tiny.train_and_evaluate, learner), (m, k), (b, g)))
    text = str(train.lower(state.members, keys, bank, generation).compile().as_text())
    return [name for name in COLLECTIVES if name in text]


CELLS = (8, 29)  # 232: no other array has as many rows, or a share of 29


def me_pbt_program(count: int, divided: bool) -> tuple[Program, Mesh]:
    """ME-PBT over walkers on `count` devices."""
    mesh = make_mesh(count)
    placement = layout.placement(mesh, True, 8 * 29, divided)
    learner = walks.learner(descriptor=True)
    scoring = learner_scoring(learner)
    emitter = pbt_emitter(learner, scoring, population_size=8, ga_population=8, placement=placement)
    return map_elites(scoring, grid(CELLS, walks.PLACE.lower, walks.PLACE.upper), emitter, placement), mesh


def run_emitters(count: int) -> str:
    """Three generations of an emitter that learns, without cells, on `count` devices: a digest of the state."""
    mesh = make_mesh(count)
    placement = layout.placement(mesh, True, 16)
    policy = PolicyConfig(hidden_sizes=(4,))
    evaluation = EvaluationConfig(eval_episodes=1, start_states=2)
    scoring = policy_scoring(registry.make("point_room", episode_length=5), policy, evaluation)
    config = DcrlMeConfig(4, 2, 4, 64, critic_hidden_sizes=(4,))
    emitter = dcrl_me(scoring, 8, config, policy, placement=placement)
    cells = grid((4, 4), scoring.descriptor.lower, scoring.descriptor.upper)
    program = map_elites(scoring, dominated_novelty(cells), emitter, placement)
    compiled = programs.compile_program(program, mesh)
    state = compiled.init(jax.random.key(0))
    for generation in range(3):
        state, _ = compiled.step(state, jax.random.fold_in(jax.random.key(1), generation))
    return digest([np.asarray(leaf) for leaf in jax.tree.leaves(state)])


def run_cma(count: int) -> str:
    """Ten generations of CMA-MAE on `count` devices: a digest of the state."""
    mesh = make_mesh(count)
    placement = layout.placement(mesh, True, 16)
    scoring = named_scoring(functions.function("sphere", 20))
    cells = grid((4, 4), scoring.descriptor.lower, scoring.descriptor.upper)
    emitter = cma_mae(scoring, 60, CmaMaeConfig(emitters=6), placement=placement)
    compiled = programs.compile_program(map_elites(scoring, annealed(cells), emitter, placement), mesh)
    state = compiled.init(jax.random.key(0))
    for generation in range(10):
        state, _ = compiled.step(state, jax.random.fold_in(jax.random.key(1), generation))
    return digest([np.asarray(leaf) for leaf in jax.tree.leaves(state)])


def run_me_pbt(count: int, divided: bool) -> dict:
    """Three generations: results, layout of the repertoire, and the parts of it that are moved between devices."""
    program, mesh = me_pbt_program(count, divided)
    compiled = programs.compile_program(program, mesh)
    step = compiled.step.lower(programs.template(program, mesh), jax.random.key(0)).compile()
    state = compiled.init(jax.random.key(0))
    revived = 0
    for generation in range(3):
        state, metrics = step(state, jax.random.fold_in(jax.random.key(1), generation))
        revived += int(metrics["revived"])
    shards = [shard for leaf in jax.tree.leaves(state.cells) for shard in leaf.addressable_shards]
    rows = f"{8 * 29 // count if divided else 8 * 29},3]"  # shape of the genotypes on a device
    lines = str(step.as_text()).splitlines()
    moving = [line for line in lines if any(f" {name}" in line for name in COLLECTIVES)]
    return {
        "digest": digest([np.asarray(leaf) for leaf in jax.tree.leaves(state)]),
        "revived": revived,
        "occupied": int(jnp.sum(state.shared.fitnesses > -jnp.inf)),
        "shares": sorted({shard.data.shape[0] for shard in shards}),
        "holders": len({shard.device for shard in shards}),
        "held": any(f"[{rows}" in line for line in lines),
        "gathered": [line for line in moving if "[232,3]" in line or "[8,29,3]" in line or f"[{rows}" in line],
    }


def moved(count: int, divided: bool) -> list[str]:
    """Names of the leaves whose bits change when they are written and read on a mesh."""
    mesh = make_mesh(count)
    rows = layout.rows(mesh, divided)
    numbers = np.arange(16)
    tree = {
        "float": np.where(numbers % 3, numbers, -0.0).astype(np.float32)[:, None],
        "nan": np.where(numbers % 2, np.nan, np.inf).astype(np.float32),
        "half": -numbers.astype(np.float16),
        "int": (numbers - 8).astype(np.int32) * 2**27,
        "byte": numbers.astype(np.uint8).reshape(16, 1, 1) * 15,
        "flag": numbers % 2 == 1,
    }
    sharding = programs.shardings(mesh, divided).cells
    placed = jax.device_put(jax.tree.map(jnp.asarray, tree), sharding)
    cells = jnp.asarray([3, 15, 0, 0, 9], jnp.int32)
    taken = jax.jit(rows.take)(placed, cells)
    expected = jax.tree.map(lambda leaf: leaf[np.asarray(cells)], tree)
    wrong = [f"take {name}" for name in tree if np.asarray(taken[name]).tobytes() != expected[name].tobytes()]

    target = jnp.asarray([7, 16, 0, 99, 14], jnp.int32)  # two are beyond the cells
    put = jax.jit(rows.put, donate_argnums=0)(placed, target, trees.take(taken, jnp.arange(5)))
    for name, leaf in tree.items():
        written = leaf.copy()
        written[[7, 0, 14]] = expected[name][[0, 2, 4]]
        wrong += [f"put {name}"] if np.asarray(put[name]).tobytes() != written.tobytes() else []
        wrong += [f"layout {name}"] if not put[name].sharding.is_equivalent_to(sharding, leaf.ndim) else []
    return wrong


def digest(leaves: list) -> str:
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


def main() -> None:
    """Print the results."""
    found: dict[str, dict] = {"exact": {}, "vmap": {}, "other": {}, "collectives": {"8": collectives(8)}}
    for count in (1, 4):  # PB2 on 8 devices that share two cores would take minutes
        leaves, result = run(True, count, OTHER_STRATEGIES, walks.learner(), generations=4)
        found["other"][str(count)] = {"digest": digest(leaves), "parents": result["parents"]}
    found["rounds"] = {str(count): run_rounds(count) for count in (1, 2)}
    found["roles"] = {str(count): run_roles(count) for count in (1, 2)}
    found["cma"] = {str(count): run_cma(count) for count in (1, 2)}
    found["emitters"] = {str(count): run_emitters(count) for count in (1, 2)}
    found["me_pbt"] = {f"{count} {divided}": run_me_pbt(count, divided) for count, divided in LAYOUTS}
    found["moved"] = {f"{count} {divided}": moved(count, divided) for count, divided in LAYOUTS}
    # From here on rows are moved as those of a large population; those above are gathered.
    populations_sharding._GATHERED_BYTES = 0
    for mode in ("exact", "vmap"):
        reference = None
        for count in COUNTS[mode]:
            learner = tiny.learner()
            if mode == "exact":  # every kind of state
                learner = tiny.discoverer("point_goal")
                learner = learner._replace(space=choose(learner.space, env_x_weight="evolve"))
            leaves, result = run(mode == "exact", count, learner=learner)
            first = result.pop("first")
            reference = reference or first
            floats = [(a, b) for a, b in zip(first, reference, strict=True) if a.dtype.kind == "f"]
            difference = max(float(np.abs(a - b).max(initial=0.0)) for a, b in floats)
            found[mode][str(count)] = {"digest": digest(leaves), "difference": difference, **result}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
