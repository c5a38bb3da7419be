"""One code path for 1 to N devices, on virtual devices."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding

from rookery.agents.sac import SacConfig, sac
from rookery.distributed import layout, programs
from rookery.distributed.mesh import AXIS, make_mesh, mesh_for
from rookery.envs import registry
from rookery.envs.base import EnvSpec
from rookery.learners.off_policy import off_policy
from rookery.populations.pbt import pbt
from rookery.populations.sharding import HERE
from rookery.qd.centroids import grid
from rookery.qd.emitters import iso_line
from rookery.qd.map_elites import map_elites
from rookery.qd.repertoire import empty
from rookery.qd.scoring import learner_scoring
from tests import apart, tiny, walks


@pytest.fixture(scope="module")
def layouts() -> dict:
    return apart.run_module("tests.distributed.layouts", timeout=900)


def test_with_exact_any_number_of_devices_gives_the_same_bits(layouts):
    assert len({result["digest"] for result in layouts["exact"].values()}) == 1


def test_other_strategies_give_the_same_bits_on_any_number_of_devices(layouts):
    one, four = (layouts["other"][count] for count in ("1", "4"))
    assert one == four
    assert any(parents != list(range(8)) for parents in one["parents"])


def test_rounds_give_the_same_bits(layouts):
    assert layouts["rounds"]["1"] == layouts["rounds"]["2"]
    assert layouts["rounds"]["1"]["round"] > 0, "no round ends, so the test has no effect"


def test_roles_with_separate_populations_give_the_same_bits(layouts):
    assert layouts["roles"]["1"] == layouts["roles"]["2"]


def test_distributions_of_cma_mae_give_the_same_bits(layouts):
    assert layouts["cma"]["1"] == layouts["cma"]["2"]


def test_emitters_that_learn_give_the_same_bits(layouts):
    assert layouts["emitters"]["1"] == layouts["emitters"]["2"]


def test_without_exact_devices_agree_to_rounding_and_select_the_same_parents(layouts):
    runs = layouts["vmap"].values()
    assert max(result["difference"] for result in runs) < 1e-5  # after the first generation
    assert len({str(result["parents"]) for result in runs}) == 1
    assert any(parent != member for member, parent in enumerate(layouts["vmap"]["1"]["parents"][0]))


@pytest.mark.parametrize("mode", ["exact", "vmap"])
def test_no_member_is_replicated(layouts, mode):
    assert all(result["replicated"] == 0 for result in layouts[mode].values())


@pytest.mark.parametrize("mode", ["exact", "vmap"])
def test_devices_exchange_the_rows_of_copied_members_and_scalars(layouts, mode):
    """The formula of docs/evidence/scaling.md: an eighth of the rows at a time, here 1 of 8."""
    one, eight = layouts[mode]["1"], layouts[mode]["8"]
    assert one["traffic"]["moved"] == one["traffic"]["scalars"] == 0
    assert eight["traffic"]["moved"] == eight["row"] + eight["buffer"]
    numbers_of_a_member = 64  # metrics, hyper-parameters, and the inputs of the selection
    assert 0 < eight["traffic"]["scalars"] <= 8 * 4 * numbers_of_a_member
    assert eight["traffic"]["floats_added"] == 0, "a sum over devices has other bits"


@pytest.mark.parametrize("mode", ["exact", "vmap"])
def test_memory_of_a_device_is_inversely_proportional_to_the_number_of_devices(layouts, mode):
    key = 8
    for count, result in layouts[mode].items():
        assert result["traffic"]["arguments"] == result["divided"] // int(count) + result["replicated_bytes"] + key
    one, eight = (layouts[mode][count]["traffic"]["temporary"] for count in ("1", "8"))
    assert eight < one / 2, "working memory of a generation"


def test_training_needs_no_communication(layouts):
    assert layouts["collectives"]["8"] == []


class TestRepertoire:
    """ME-PBT with a replicated repertoire, and with one that is divided by cells."""

    def test_any_layout_gives_the_same_bits(self, layouts):
        results = layouts["me_pbt"]
        assert len({result["digest"] for result in results.values()}) == 1
        assert results["1 False"]["revived"] == 2 * 3  # of 8 members 0.4, rounded, in every generation but the first
        assert results["1 False"]["occupied"] > 8

    def test_each_device_has_its_share_of_the_cells(self, layouts):
        for name, share in {"1 False": 232, "8 True": 29}.items():
            result = layouts["me_pbt"][name]
            assert (result["shares"], result["holders"]) == ([share], int(name[0]))

    def test_only_sampled_genotypes_are_moved(self, layouts):
        for result in layouts["me_pbt"].values():
            assert result["held"], "the genotypes are not found in the compiled text"
            assert result["gathered"] == []

    def test_moved_rows_keep_their_bits(self, layouts):
        assert all(wrong == [] for wrong in layouts["moved"].values()), layouts["moved"]

    def test_devices_that_do_not_divide_the_cells(self):
        with pytest.raises(ValueError, match="a repertoire of 9 cannot be divided evenly over 2 devices; use 8 or 10"):
            layout.placement(make_mesh(2), cells=9, divides_cells=True)
        assert layout.rows(make_mesh(1), divided=True) is HERE

    def test_devices_that_do_not_divide_the_batch(self):
        searched = learner_scoring(walks.learner(descriptor=True))
        cells = grid((2, 2), walks.PLACE.lower, walks.PLACE.upper)
        with pytest.raises(ValueError, match="of 3 cannot be divided evenly over 2 devices"):
            programs.compile_program(map_elites(searched, cells, iso_line(searched, 3)), make_mesh(2))

    def test_a_thousand_ants_are_divided_over_devices(self):
        """SAC genotypes with layers of 256 for Brax's ant, 27 observations and 8 actions: 0.93 GB; shapes only."""
        spec = EnvSpec("ant", observation_size=27, action_size=8, episode_length=1_000)
        params = jax.eval_shape(sac(spec, SacConfig(hidden_sizes=(256, 256))).init, jax.random.key(0))
        repertoire = jax.eval_shape(empty, params, jax.ShapeDtypeStruct((1_024, 2), jnp.float32))
        leaves = jax.tree.leaves(repertoire.genotypes)
        assert sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) == pytest.approx(0.93e9, rel=0.01)
        over = AbstractMesh((8,), (AXIS,))
        share = NamedSharding(over, programs.shardings(make_mesh(1), divides_cells=True).cells.spec)
        each = sum(math.prod(share.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
        assert each * 8 == sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def test_devices_that_do_not_divide_the_population():
    with pytest.raises(ValueError, match=r"5 cannot be divided evenly over 2 devices; use 4 or 6, or fewer devices"):
        programs.compile_program(pbt(tiny.learner(), population_size=5), make_mesh(2))
    with pytest.raises(ValueError, match="use 2, or fewer devices"):
        mesh_for(1, 2)


def test_a_mesh_has_a_number_of_devices_that_divides_the_population():
    assert mesh_for(4).devices.size == 2
    assert mesh_for(5).devices.size == 1
    with pytest.raises(ValueError, match="99 devices were requested, but there are 2"):
        make_mesh(99)


def request_cores(population: int, **variables: str) -> str:
    """In a process where JAX has not started: the number of requested devices, and of those that there are."""
    code = "from rookery.distributed import mesh as m; "
    code += f"print(m.use_cores({population}), m.make_mesh().devices.size, m.use_cores(2))"
    unset = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    run = [sys.executable, "-c", f"import os; os.sched_getaffinity = lambda _: range(4)\n{code}"]
    return subprocess.run(run, env=unset | variables, capture_output=True, text=True, check=True).stdout.strip()


def test_cores_become_as_many_devices_as_divide_the_population():
    assert request_cores(8) == "4 4 0"  # the second call has no effect, since JAX has started
    assert request_cores(9) == "3 3 0"
    assert request_cores(7) == "1 1 0"


def test_the_user_can_set_the_number_of_devices():
    assert request_cores(8, XLA_FLAGS="--xla_force_host_platform_device_count=2") == "0 2 0"
    assert request_cores(8, JAX_NUM_CPU_DEVICES="3") == "0 3 0"


def test_a_generation_traces_an_update_once():
    """Neither the shapes of the log and of the metrics nor the warm-up need another trace, which takes seconds."""
    traced: list[Any] = []
    environment = registry.make("point_room", episode_length=10)
    agent = sac(environment.spec, SacConfig(hidden_sizes=(8,)))

    def update(*arguments: Any) -> Any:
        traced.append(arguments)
        return agent.update(*arguments)

    learner = off_policy(agent._replace(update=update), environment, tiny.CONFIG)
    mesh = make_mesh(2)
    program = pbt(learner, population_size=2, placement=layout.placement(mesh))
    programs.compile_program(program, mesh).step.trace(programs.template(program, mesh), jax.random.key(0))
    assert len(traced) == 1


def test_the_donated_state_is_deleted():
    program = pbt(tiny.learner(), population_size=2)
    compiled = programs.compile_program(program, make_mesh(1))
    state = compiled.init(jax.random.key(0))
    after, _ = compiled.step(state, jax.random.key(1))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.members.buffer.rows))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_the_template_has_the_shapes_and_shardings_of_the_state():
    mesh = make_mesh(2)
    program = pbt(tiny.learner(), population_size=2, placement=layout.placement(mesh))
    state = programs.compile_program(program, mesh).init(jax.random.key(0))
    template = programs.template(program, mesh)
    for expected, leaf in zip(jax.tree.leaves(template), jax.tree.leaves(state), strict=True):
        assert (expected.shape, expected.dtype, expected.sharding) == (leaf.shape, leaf.dtype, leaf.sharding)


@pytest.mark.parametrize(
    ("flags", "level"),
    [("", 1), ("--xla_cpu_enable_fast_math=false", 1), ("--xla_backend_optimization_level=3", None)],
)
def test_the_flags_of_the_user_take_precedence(flags, level, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    options: list[dict] = []
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    programs.compile_lowered(SimpleNamespace(compile=lambda **arguments: options.append(arguments["compiler_options"])))
    assert options[0].get("xla_backend_optimization_level") == level
    assert options[0]["xla_llvm_disable_expensive_passes"] is True


@pytest.mark.parametrize("exact", [False, True])
def test_arrays_without_elements_are_mapped_and_are_no_arguments_of_the_mapped_function(exact):
    spread = layout.population_map(make_mesh(2), exact)
    members = {"params": jnp.arange(12.0).reshape(4, 3), "descriptor": jnp.zeros((4, 0))}
    bank = (jnp.ones((5, 3)), jnp.zeros((5, 0)))

    def add(member, *bank):
        return {"params": member["params"] + bank[0][0], "descriptor": member["descriptor"] + bank[1][0]}

    def mapped(members, bank):
        return spread(add, (members,), bank)

    found = jax.jit(mapped)(members, bank)
    assert jnp.array_equal(found["params"], members["params"] + 1.0)
    assert found["descriptor"].shape == (4, 0)
    (call,) = [e for e in jax.make_jaxpr(mapped)(members, bank).eqns if e.primitive.name == "shard_map"]
    assert all(argument.aval.size for argument in call.invars)


def test_rows_without_elements_are_moved_between_devices():
    move = layout.placement(make_mesh(2)).move
    members = {"params": jnp.arange(4.0), "descriptor": jnp.zeros((4, 0))}
    found = jax.jit(move)(members, jnp.asarray([2, 1, 2, 0]))
    assert found["params"].tolist() == [2.0, 1.0, 2.0, 0.0]
    assert found["descriptor"].shape == (4, 0)
