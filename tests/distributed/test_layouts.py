"""One code path for 1..N devices (law 10), on virtual ones."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding

from rookery.agents.sac import SacConfig, sac
from rookery.distributed import layout, programs
from rookery.distributed.mesh import AXIS, make_mesh, mesh_for
from rookery.envs.base import EnvSpec
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
    return apart.told_by("tests.distributed.layouts", timeout=900)


def test_member_by_member_any_number_of_devices_gives_the_same_bits(layouts):
    assert len({seen["digest"] for seen in layouts["exact"].values()}) == 1


def test_so_does_every_other_strategy(layouts):
    one, four = (layouts["else"][count] for count in ("1", "4"))
    assert one == four
    assert any(parents != list(range(8)) for parents in one["parents"])


def test_so_do_roles_that_are_bred_apart(layouts):
    assert layouts["roles"]["1"] == layouts["roles"]["2"]


def test_all_at_once_devices_agree_to_rounding_and_choose_the_same_parents(layouts):
    runs = layouts["vmap"].values()
    assert max(seen["difference"] for seen in runs) < 1e-5  # after the first generation
    assert len({str(seen["parents"]) for seen in runs}) == 1
    assert any(parent != member for member, parent in enumerate(layouts["vmap"]["1"]["parents"][0]))


@pytest.mark.parametrize("mode", ["exact", "vmap"])
def test_no_member_is_copied_to_every_device_and_nothing_compiles_twice(layouts, mode):
    for seen in layouts[mode].values():
        assert seen["replicated"] == 0
        assert seen["compiles"] == 1


@pytest.mark.parametrize("mode", ["exact", "vmap"])
def test_what_crosses_between_devices_is_the_rows_of_who_is_copied_and_scalars(layouts, mode):
    """The formula of docs/scaling.md: an eighth of the rows at a time, here 1 of 8."""
    alone, eight = layouts[mode]["1"], layouts[mode]["8"]
    assert alone["traffic"]["moved"] == alone["traffic"]["told"] == 0
    assert eight["traffic"]["moved"] == eight["row"] + eight["buffer"]
    numbers_of_a_member = 64  # metrics, hyper-parameters, and what decides who is copied
    assert 0 < eight["traffic"]["told"] <= 8 * 4 * numbers_of_a_member
    assert eight["traffic"]["floats_added"] == 0, "a sum over devices has other bits"


@pytest.mark.parametrize("mode", ["exact", "vmap"])
def test_memory_of_a_device_falls_as_one_over_their_number(layouts, mode):
    key = 8
    for count, seen in layouts[mode].items():
        assert seen["traffic"]["arguments"] == seen["divided"] // int(count) + seen["whole"] + key
    one, eight = (layouts[mode][count]["traffic"]["temporary"] for count in ("1", "8"))
    assert eight < one / 2, "what a generation works with"


def test_training_needs_no_communication(layouts):
    assert layouts["collectives"]["8"] == []


class TestRepertoire:
    """ME-PBT with its repertoire whole on every device, and divided by cells."""

    def test_any_layout_gives_the_same_bits(self, layouts):
        bred = layouts["bred"]
        assert len({seen["digest"] for seen in bred.values()}) == 1
        assert bred["1 False"]["revived"] == 2 * 3  # of 8 members 0.4, rounded, in every generation but the first
        assert bred["1 False"]["occupied"] > 8

    def test_each_device_holds_its_share_of_the_cells(self, layouts):
        for name, share in {"1 False": 232, "2 True": 116, "8 False": 232, "8 True": 29}.items():
            seen = layouts["bred"][name]
            assert (seen["shares"], seen["holders"]) == ([share], int(name[0]))

    def test_no_genotype_travels_but_those_asked_for(self, layouts):
        for seen in layouts["bred"].values():
            assert seen["held"], "the genotypes are not found in the compiled text"
            assert seen["gathered"] == []

    def test_rows_are_moved_bit_by_bit(self, layouts):
        assert all(wrong == [] for wrong in layouts["moved"].values()), layouts["moved"]

    def test_cells_that_the_devices_cannot_share_are_refused(self):
        with pytest.raises(ValueError, match="a repertoire of 9 cannot be divided evenly over 2 devices; use 8 or 10"):
            layout.placement(make_mesh(2), cells=9, divides_cells=True)
        assert layout.rows(make_mesh(1), divided=True) is HERE

    def test_a_batch_that_the_devices_cannot_share_is_refused(self):
        searched = learner_scoring(walks.learner(descriptor=True))
        cells = grid((2, 2), walks.PLACE.lower, walks.PLACE.upper)
        with pytest.raises(ValueError, match="of 3 cannot be divided evenly over 2 devices"):
            programs.compile_program(map_elites(searched, cells, iso_line(searched, 3)), make_mesh(2))

    def test_a_thousand_ants_need_not_lie_on_one_device(self):
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


def test_a_population_that_devices_cannot_share_is_refused():
    with pytest.raises(ValueError, match=r"5 cannot be divided evenly over 2 devices; use 4 or 6, or fewer devices"):
        programs.compile_program(pbt(tiny.learner(), population_size=5), make_mesh(2))
    with pytest.raises(ValueError, match="use 2, or fewer devices"):
        mesh_for(1, 2)


def test_a_mesh_takes_what_divides_the_population():
    assert mesh_for(4).devices.size == 2
    assert mesh_for(5).devices.size == 1
    with pytest.raises(ValueError, match="99 devices were requested, but there are 2"):
        make_mesh(99)


def ask_for_cores(population: int, **variables: str) -> str:
    """In a process where JAX has not started: how many devices were asked for, and how many there are."""
    code = "from rookery.distributed import mesh as m; "
    code += f"print(m.use_cores({population}), m.make_mesh().devices.size, m.use_cores(2))"
    unset = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    run = [sys.executable, "-c", f"import os; os.cpu_count = lambda: 4\n{code}"]
    return subprocess.run(run, env=unset | variables, capture_output=True, text=True, check=True).stdout.strip()


def test_cores_become_devices_as_many_as_divide_the_population():
    assert ask_for_cores(8) == "4 4 0"  # and nothing changes once JAX has started
    assert ask_for_cores(9) == "3 3 0"
    assert ask_for_cores(7) == "1 1 0"


def test_a_number_of_devices_that_the_user_chose_stays():
    assert ask_for_cores(8, XLA_FLAGS="--xla_force_host_platform_device_count=2") == "0 2 0"
    assert ask_for_cores(8, JAX_NUM_CPU_DEVICES="3") == "0 3 0"


def test_the_donated_state_is_gone_and_its_memory_reused():
    program = pbt(tiny.learner(), population_size=2, replace_count=0)
    compiled = programs.compile_program(program, make_mesh(1))
    state = compiled.init(jax.random.key(0))
    after, _ = compiled.step(state, jax.random.key(1))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.members.buffer.rows))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_the_template_is_the_state_without_its_values():
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
def test_what_the_user_says_of_xlas_passes_stands(flags, level, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    asked: list[dict] = []
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    programs.compile_lowered(SimpleNamespace(compile=lambda **given: asked.append(given["compiler_options"])))
    assert asked[0].get("xla_backend_optimization_level") == level
    assert asked[0]["xla_llvm_disable_expensive_passes"] is True
