"""Planned memory, and measured memory; the expected sizes are calculated here."""

import dataclasses
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import monitoring
from jax.experimental.compilation_cache import compilation_cache

from rookery.distributed import device_memory, layout, mesh, programs
from rookery.populations.base import Program, ProgramState
from rookery.populations.pbt import pbt
from rookery.qd.centroids import grid
from rookery.qd.emitters import iso_line
from rookery.qd.map_elites import map_elites
from rookery.qd.me_pbt import me_pbt
from rookery.qd.scoring import learner_scoring
from rookery.storage import leaf_specs
from rookery.training import loop, memory_plan
from rookery.training.compilation import Compiler
from rookery.training.config import RunConfig
from rookery.training.memory_plan import Part, Plan
from tests import tiny, walks
from tests.commandline import call

# SAC in the point room: 2 observations, 2 actions, 8 hidden units, numbers of 4 bytes.
POLICY, CRITICS = (2 * 8 + 8) + (8 * 4 + 4), 2 * ((4 * 8 + 8) + (8 + 1))
PARAMETERS = 4 * (POLICY + CRITICS + 1)
OPTIMISERS = 4 * (2 * (POLICY + CRITICS + 1) + CRITICS + 3)  # two moments each, the targets, three counters
BUFFER = 64 * (4 * (2 + 2 + 1 + 2) + 1) + 8  # rows of floats and a flag; a position and a size
ENVIRONMENTS = 4 * (4 * (2 + 1 + 2 + 2) + 1)  # four states: position, time, observation; return and length, a flag
HYPER = 4 * 6
MEMBER = PARAMETERS + OPTIMISERS + BUFFER + ENVIRONMENTS + HYPER
SHARED_4 = 4 + 4 * 4 + 4 * 4  # a counter; parents and recent fitness of four


def shares(planned: Plan) -> dict[str, int]:
    return {part.name: part.share for part in planned.parts}


def test_each_of_two_devices_has_half_of_the_members_and_the_state_and_its_copy_are_as_predicted():
    over = mesh.make_mesh(2)
    program = pbt(tiny.learner(), population_size=4, placement=layout.placement(over))
    state, planned = programs.compile_program(program, over).init(jax.random.key(0)), memory_plan.plan(program, over)
    assert shares(planned) == {
        "parameters": 2 * PARAMETERS,
        "optimisers and targets": 2 * OPTIMISERS,
        "hyper-parameters and statistics": 2 * HYPER,
        "replay buffers": 2 * BUFFER,
        "environment states": 2 * ENVIRONMENTS,
        "shared by all": SHARED_4,
    }
    assert (planned.held, planned.devices, planned.working) == (2 * MEMBER + SHARED_4, 2, None)
    assert planned.parts[3] == Part("replay buffers", total=4 * BUFFER, share=2 * BUFFER)
    assert planned.parts[5] == Part("shared by all", total=2 * SHARED_4, share=SHARED_4)
    copied = leaf_specs.copy({str(i): leaf for i, leaf in enumerate(jax.tree.leaves(state))})
    for tree in (state, copied):
        shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
        for device in over.devices:
            assert sum(shard.data.nbytes for shard in shards if shard.device == device) == planned.held
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == 4 * MEMBER + SHARED_4


def test_a_repertoire_is_replicated_or_divided():
    over = mesh.make_mesh(2)
    searched = learner_scoring(walks.learner(descriptor=True))
    cells = grid((4, 4), walks.PLACE.lower, walks.PLACE.upper)
    genotype = 4 * (3 + 4)  # a position, and four hyper-parameters
    for divided, share in ((False, 16 * genotype), (True, 8 * genotype)):
        placement = layout.placement(over, cells=16, divides_cells=divided)
        program = map_elites(searched, cells, iso_line(searched, 4, rows=placement.cells), placement)
        planned = memory_plan.plan(program, over)
        assert planned.parts[0] == Part("repertoire", total=2 * share, share=share)
        assert shares(planned) == {"repertoire": share, "shared by all": 16 * 4 * (1 + 2 + 2)}


def test_me_pbt_has_members_and_a_repertoire():
    learner, over = walks.learner(descriptor=True), mesh.make_mesh(1)
    program = me_pbt(learner, grid((4, 4), walks.PLACE.lower, walks.PLACE.upper), None, 10, 4)
    planned = memory_plan.plan(program, over)
    assert shares(planned)["parameters"] == 10 * 4 * 3
    assert shares(planned)["optimisers and targets"] == 10 * 4 * 3
    assert shares(planned)["replay buffers"] == 10 * 4 * 5
    assert shares(planned)["repertoire"] == 16 * 4 * (3 + 4)


class UserMembers(NamedTuple):
    """Members of a user-defined program."""

    weights: jax.Array
    keys: jax.Array


def test_the_members_of_a_user_defined_program_are_one_part():
    def init(key: jax.Array) -> ProgramState:
        return ProgramState(UserMembers(jnp.zeros((4, 3)), jax.random.split(key, 4)), jnp.zeros((5,), jnp.int8))

    program = Program(init, init, init, population_size=4, steps_per_generation=1)  # pyright: ignore[reportArgumentType]
    planned = memory_plan.plan(program, mesh.make_mesh(2))
    assert shares(planned) == {"members": 2 * (3 * 4 + 8), "shared by all": 5}, "a key is two words"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Any, Plan]]:
    """A program, its mesh and its plan, compiled into a separate cache."""
    cache = str(tmp_path_factory.mktemp("cache"))
    settings = {"jax_compilation_cache_dir": cache, "jax_persistent_cache_min_compile_time_secs": 0}
    usual = {name: jax.config.values[name] for name in settings}

    def use(values: dict[str, Any]) -> None:
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    use(settings)
    over = mesh.make_mesh(2)
    program = pbt(walks.learner(), population_size=4, placement=layout.placement(over))
    yield program, over, loop.plan(program, RunConfig(seed=3), over)
    use(usual)


@pytest.fixture
def cache_hits() -> Iterator[list[str]]:
    """Programs found in JAX's cache on the disk, one entry each."""
    hits: list[str] = []

    def listen(event: str, **_: Any) -> None:
        hits.extend([event] * event.endswith("/cache_hits"))

    monitoring.register_event_listener(listen)
    yield hits
    monitoring.unregister_event_listener(listen)


def stages_with(**compiled: Any) -> programs.Stages:
    """The stages of a program, of which some are compiled."""
    return programs.Stages(**{name: compiled.get(name) for name in programs.Stages._fields})


def stage(temporary: int, arguments: int, results: int, reused: int) -> Any:
    """A compiled program with these sizes in bytes."""
    sizes = {"temp": temporary, "argument": arguments, "output": results, "alias": reused}
    report = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})
    return SimpleNamespace(memory_analysis=lambda: report)


@pytest.mark.parametrize(
    ("compiled", "expected"),
    [
        ({"create": stage(30, 4, 1_000, 0)}, 34),  # its result is the state of 1,000 bytes
        ({"advance": stage(70, 1_200, 1_200, 1_200)}, 270),  # the state, and 200 bytes of a generation in progress
        ({"begin": stage(5, 1_050, 1_200, 1_050)}, 205),
        ({"finish": stage(40, 1_200, 1_008, 1_000)}, 248),
        ({"start_states": stage(11, 8, 50, 0)}, 69),  # beside the state
        ({"start_states": stage(11, 8, 50, 0), "create": stage(30, 50, 1_000, 0)}, 80),
        ({"advance": SimpleNamespace(memory_analysis=lambda: None)}, None),
    ],
)
def test_the_state_does_not_count_as_working_memory(compiled: dict[str, Any], expected: int | None):
    assert memory_plan.working_memory(stages_with(**compiled), held=1_000) == expected


def test_large_buffers_do_not_enlarge_the_working_memory():
    learner = tiny.learner(config=dataclasses.replace(tiny.CONFIG, buffer_size=100_000))
    program, over = pbt(learner, population_size=2), mesh.make_mesh(1)
    compiler = Compiler(program, over)
    planned = memory_plan.plan(program, over, compiler.template)
    working = memory_plan.working_memory(compiler.compile(creates=False), planned.held)
    assert working is not None
    assert working < 0.1 * shares(planned)["replay buffers"]


class TestCompiled:
    """The plan of a compiled generation, compared with the run."""

    def test_the_compiler_reports_the_same_sizes(self, made):
        program, over, planned = made
        compiler = Compiler(program, over)
        work, compiled = sum(map(memory_plan._share, jax.tree.leaves(compiler.work))), compiler.compile()
        reports = {name: stage.memory_analysis() for name, stage in compiled._asdict().items()}
        assert reports["advance"].argument_size_in_bytes == planned.held + work
        assert reports["advance"].alias_size_in_bytes == planned.held + work, "state and work are donated"
        assert reports["finish"].alias_size_in_bytes == planned.held, "the state is donated"
        assert planned.working == memory_plan.working_memory(compiled, planned.held)
        assert planned.working >= reports["advance"].temp_size_in_bytes + work

    def test_a_run_uses_the_programs_that_its_plan_compiled_and_reports_its_memory(self, made, cache_hits):
        program, over, planned = made
        cache = Path(str(jax.config.values["jax_compilation_cache_dir"]))
        stages = {"jit_create", "jit_begin", "jit_advance", "jit_finish"}
        kept = set(cache.iterdir())
        assert {path.name.split("-")[0] for path in kept} >= stages
        jax.clear_caches()  # as in another process
        usage = loop.run(program, RunConfig(seed=4, generations=1, quiet=True), over).memory
        assert not {path.name.split("-")[0] for path in set(cache.iterdir()) - kept} & stages
        assert len(cache_hits) >= len(stages)
        assert usage is not None
        assert (usage.held, usage.peak) == (planned.held, planned.peak)
        assert usage.used is not None
        assert usage.used.size >= 2 * planned.held


def example(available: int | None, separate_memory: bool = True) -> Plan:
    """Two devices: 400 bytes of parameters, 4000 of buffers, 10 of the shared part, 100 of working memory on each."""
    parts = (Part("parameters", 800, 400), Part("replay buffers", 8_000, 4_000), Part("shared by all", 20, 10))
    return Plan(parts, 2, available, separate_memory, working=100)


def test_the_message_of_a_plan_that_does_not_fit_names_the_largest_part():
    planned = example(available=5_000)
    assert planned.peak == 2 * 4_410 + 100
    assert memory_plan.remedy(planned) == (
        "the run needs 8.92 kB on each device while it saves, but 5 kB are available; the largest part, replay "
        "buffers, needs 8 kB; give a smaller buffer_size or population, or use devices with more memory."
    )
    assert memory_plan.remedy(example(available=8_920)) is None
    assert memory_plan.remedy(example(available=None)) is None
    assert memory_plan.remedy(example(available=8_919)) is not None
    # Devices with common memory hold the serialised copy.
    planned = example(available=5_000, separate_memory=False)
    assert planned.peak == 3 * 4_410 + 100
    assert "replay buffers, needs 12 kB" in str(memory_plan.remedy(planned))
    repertoire = Plan((Part("repertoire", 16_000, 8_000),), 2, 9_000, True, working=300)
    assert "repertoire, needs 16 kB; give fewer cells" in str(memory_plan.remedy(repertoire))
    league = Plan((Part("shared by all", 16_000, 8_000),), 2, 9_000, True, working=300)
    assert "shared by all, needs 16 kB; give a smaller league_size, buffer_size, critic or" in str(
        memory_plan.remedy(league)
    )
    assert "a generation, needs 30 kB; give fewer num_envs" in str(memory_plan.remedy(league._replace(working=30_000)))


def accelerators(*counters: dict | None, platform: str = "gpu") -> Any:
    """A mesh of devices with memory counters, or None for devices without."""
    devices = [SimpleNamespace(platform=platform, memory_stats=lambda counter=counter: counter) for counter in counters]
    return SimpleNamespace(local_devices=devices)


def use_memory(size: int) -> mmap.mmap:
    """`size` bytes of new resident memory; an array may get memory that the process freed before and that counts."""
    memory = mmap.mmap(-1, size)
    memory[:: mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))
    return memory


class TestMemory:
    def test_a_device_with_dedicated_memory_reports_its_limit_and_peak(self):
        counters = [{"bytes_limit": 900, "peak_bytes_in_use": 100}, {"bytes_limit": 800, "peak_bytes_in_use": 300}]
        over = accelerators(*counters)
        assert (device_memory.device_limit(over), device_memory.available(over)) == (800, 800)
        gauge = device_memory.Gauge(over)
        gauge.watch(held=50)
        assert gauge.read() == device_memory.Used(300, "on one device")
        assert device_memory.available(accelerators(counters[0], None)) is None
        assert device_memory.available(accelerators({})) is None

    def test_cores_divide_the_memory_of_the_machine_or_cgroup(self, monkeypatch, tmp_path):
        cores = accelerators(None, None, platform="cpu")
        for file, text in (("v2", "max\n"), ("v1", "5000001\n")):
            (tmp_path / file).write_text(text)
        monkeypatch.setattr(device_memory, "_CGROUPS", (tmp_path / "v2",))
        physical = device_memory.machine()
        assert physical is not None
        assert device_memory.available(cores) == physical // 2
        monkeypatch.setattr(device_memory, "_CGROUPS", (tmp_path / "v2", tmp_path / "absent", tmp_path / "v1"))
        assert (device_memory.machine(), device_memory.available(cores), device_memory.device_limit(cores)) == (
            5_000_001,
            2_500_000,
            None,
        )

    def test_growth_is_measured_from_the_memory_that_includes_the_state(self):
        gauge = device_memory.Gauge(mesh.make_mesh(2))
        use_memory(320_000_000).close()  # as if used by compilation
        gauge.watch(held=7_000_000)
        with use_memory(80_000_000):
            used = gauge.read()
        assert used is not None
        assert 87_000_000 - 2**20 <= used.size <= 87_000_000 + 2**24
        assert used.meaning == "by this process"

    def test_where_the_peak_is_late_the_state_counts_and_where_it_cannot_be_reset_compilation(
        self, monkeypatch, tmp_path
    ):
        gauge = device_memory.Gauge(mesh.make_mesh(1))
        with monkeypatch.context() as patched:
            patched.setattr(device_memory, "resident", {"VmRSS": 50_000_000, "VmHWM": 42_000_000}.get)
            gauge.watch(held=7_000_000)
            assert getattr(gauge.read(), "size", None) == 7_000_000
        monkeypatch.setattr(device_memory, "_RESET", tmp_path / "absent" / "clear_refs")
        gauge = device_memory.Gauge(mesh.make_mesh(1))
        use_memory(320_000_000).close()
        gauge.watch(held=7_000_000)
        assert getattr(gauge.read(), "meaning", None) == "by this process, compilation included"
        monkeypatch.setattr(device_memory, "_STATUS", tmp_path / "absent")
        assert device_memory.Gauge(mesh.make_mesh(1)).read() is None

    def test_bytes_as_text(self):
        sizes = {0: "0 bytes", 999: "999 bytes", 1_234: "1.23 kB", 999_600: "1 MB", 24e9: "24 GB", 3.2e15: "3,200 TB"}
        assert {count: device_memory.size(int(count)) for count in sizes} == sizes


ARM = "train map-elites --env arm --dimensions 3 --batch-size 16 --grid 6 5 --generations 1 --devices 2".split()


@pytest.fixture
def train(monkeypatch, tmp_path):
    """`rookery train map-elites` in an empty folder; gives its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return partial(call, *ARM)


def test_a_plan_creates_no_folder_and_its_exit_code_shows_whether_it_fits(train, tmp_path, monkeypatch):
    code, out, err = train("--plan")
    assert (code, err) == (0, "")
    # 30 cells of 3 numbers on each of two devices, and fitness, descriptor and centroid of each.
    assert re.search(r"repertoire +│ +720 bytes │ +360 bytes", out)
    assert re.search(r"shared by all +│ +1.2 kB │ +600 bytes", out)
    assert re.search(r"its copies while saving +│ +3.84 kB │ +1.92 kB", out)
    assert train("--plan", "--best-by", "returns")[0::2] == train("--best-by", "returns")[0::2]

    monkeypatch.setattr(device_memory, "available", lambda _: 959)
    message = r"error: the run needs [\d.]+ kB on each device while it saves, but 959 bytes are available; .*\.\n"
    code, out, err = train("--plan", "--quiet")
    assert (code, out) == (1, "")
    assert re.fullmatch(message, err)
    monkeypatch.setattr(programs, "compile_lowered", None)  # the run itself ends before it compiles
    code, _, err = train("--quiet")
    assert code == 1
    assert re.fullmatch(message, err)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_for_the_devices_of_the_run(tmp_path):
    free = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    free |= {"JAX_COMPILATION_CACHE_DIR": os.environ["ROOKERY_TEST_CACHE"], "COLUMNS": "100"}
    command = [sys.executable, "-m", "rookery", *ARM[:-2], "--plan"]
    done = subprocess.run(command, env=free, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    count = max(divisor for divisor in range(1, (os.cpu_count() or 1) + 1) if 16 % divisor == 0)
    assert f"on {count} cpu device{'s' * (count > 1)}\n" in done.stdout


def test_a_run_reports_its_memory(train, tmp_path):
    code, out, err = train()
    assert (code, err) == (0, "")
    assert re.search(
        r"memory     960 bytes on each device, [\d.]+ kB while a checkpoint is saved; at most [\d.]+ ([kMG]B|bytes) "
        r"in use by this process\n",
        out,
    )
    assert "plan" not in (tmp_path / "runs/map-elites-arm-0/config.json").read_text()


def test_too_little_memory_is_one_sentence():
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 74 bytes.\nBufferAssignment ...")
    message = r"^the device has too little memory for this run \(Out of memory allocating 74 b"
    with pytest.raises(MemoryError, match=message), device_memory.named_errors():
        raise error
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), device_memory.named_errors():
        raise jax.errors.JaxRuntimeError("INTERNAL: lost")
