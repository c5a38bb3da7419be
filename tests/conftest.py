"""Tests run with two devices, strict dtypes, and no silent rank promotion; warnings are errors (pyproject.toml).

They run side by side (pytest-xdist), a file at a time, with one compilation cache. Most of their time is compiling, so
XLA optimises little here; what is compiled for a run has separate options
(`rookery.distributed.programs.compile_lowered`). A worker drops its compiled programs when they fill its memory.
"""

import ctypes
import gc
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join(
    (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
        # A context of MLIR for each fusion takes as long as all the rest; later versions abort at these options.
        # (XLA's preset FAST_COMPILE would save another fifth, but then the bits depend on the number of devices.)
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        if int(importlib.metadata.version("jaxlib").split(".")[1]) < 11
        else "",
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=2",
    )
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"  # of processes that tests start, too
os.environ.setdefault("NPROC", "8")  # two virtual devices on two cores starve XLA's thread pool otherwise

import jax
import pytest

from rookery.distributed import device_memory

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
gc.set_threshold(50_000, 20, 50)  # tracing allocates so much that the collector took a tenth of the time
# One cache per session, which the workers inherit: many tests compile the same programs, and so do their processes.
CACHE = os.environ.setdefault("ROOKERY_TEST_CACHE", tempfile.mkdtemp(prefix="rookery-test-cache-"))
jax.config.update("jax_compilation_cache_dir", CACHE)


# The longest files come first, so that they do not run alone at the end.
LONGEST = (
    "layouts",
    "resume",
    "distributed",
    "guides",
    "cli",
    "learning",
    "report_browser",
    "pbt",
    "probes",
)


# What `.ci/run` adds, by `-m "not nightly"`: several devices and processes, islands, kills, Brax, and broken physics.
# They run, too, where their file or folder is named.
SLOW = {
    "distributed": "distributed layouts",
    "envs": "brax",
    "islands": "failures islands ray",
    "learners": "broken_physics",
    "training": "resume",
}

# What runs each night, by `-m ""`: other simulators, browsers and trackers of other packages, whole trainings, programs
# and values of a user's own, plans of memory and precision, what is done with finished runs, the documented classes of
# other libraries, and the code of the guides and docstrings. They run, too, where their file or folder is named.
NIGHTLY = {
    "": "docstrings fused_mlp loading precision",
    "cli": "gymnasium_runs program tracking",
    "compat/jaxagents": "custom_agents ippo ippo_folder",
    "compat/qdax": "custom_loops documented_map_elites documented_populations mapped qdax refusals sizes subclasses",
    "deploy": "episodes export policies render tournament",
    "docs": "guides",
    "envs": "adapters brax_bodies brax_walls gymnasium_failures gymnax jaxmarl mjx_tasks playground registry",
    "experiments": "named_values own_method repertoire_io warm_start",
    "islands": "island_kinds",
    "learners": "few_kernels gymnasium_training learning train",
    "qd": "extras",
    "report": "fresh_scores",
    "report/browser": "player report_browser report_pages",
    "storage": "sources",
    "tracking": "trackers",
    "training": "host_episodes memory_plan",
}

# The files of `pytest -m quick`: no whole training is compiled for them.
QUICK = {
    "": "buffers distributions features gradients house hyperparams normalize release returns trees",
    "agents": "metra sac",
    "cli": "help imports",
    "compat/qdax": "names",
    "envs": "custom gymnasium_spaces point_goal point_maze point_trap",
    "experiments": "cells lineage",
    "populations": "selection",
    "qd": "centroids repertoire variation",
    "storage": "csv_log manifest",
}


@pytest.hookimpl(tryfirst=True)  # before those that `-m` leaves out are removed
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the quick and the slow files, and begin with the longest; all others stay in their order."""
    tests = Path(__file__).parent
    given = (Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args)
    given = {path for path in given if tests in path.parents}  # files and folders
    for mark, listed in {"quick": QUICK, "slow": SLOW, "nightly": NIGHTLY}.items():
        files = {tests / folder / f"test_{name}.py" for folder, names in listed.items() for name in names.split()}
        assert not [path for path in files if not path.exists()], f"tests/conftest.py lists {mark} files that are gone"
        for item in items:
            if item.path in files and (mark == "quick" or given.isdisjoint((item.path, *item.path.parents))):
                item.add_marker(mark)
    place = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """A worker for each core, as far as there are 3 GB of memory for each."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # pytest-xdist reads it
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))  # macOS lacks it
    return max(1, min(len(affinity(0)), (device_memory.machine() or 0) // 3_000_000_000))


@pytest.fixture(scope="session")
def most_memory() -> list[int]:
    """The bytes of this process above which it drops its compiled programs."""
    return [2_000_000_000]


@pytest.fixture(autouse=True)
def bounded_memory(most_memory: list[int]) -> Iterator[None]:
    """Drop all compiled programs when there are too many; those in the cache are only read again.

    What cannot be dropped, such as imported simulators, grows to 1.5 GB over the suite. The limit always leaves room
    for some programs: with a fixed one each of the last tests would compile its programs again.
    """
    yield
    if (device_memory.resident("VmRSS") or 0) > most_memory[0]:
        jax.clear_caches()
        gc.collect()
        gc.freeze()  # what remains is mostly imported modules, over which the next collection would take two seconds
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what is freed, most of it by the compiler's threads
        most_memory[0] = max(most_memory[0], (device_memory.resident("VmRSS") or 0) + 500_000_000)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(scope="session")
def short_runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Path]:
    """Kind -> the folder of a real run of a few seconds, with its page. A test that changes one works on a copy."""
    from tests.short_runs import ShortRuns

    session = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    return ShortRuns(session / "short_runs")
