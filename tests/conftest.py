"""Tests run hostile: two devices, strict dtypes, no silent rank promotion; warnings are errors (pyproject.toml)."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
os.environ.setdefault("NPROC", "8")  # two virtual devices on two cores starve XLA's thread pool otherwise

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# One cache per test session: the subprocess tests compile the same programs again and again.
CACHE = os.environ.setdefault("ROOKERY_TEST_CACHE", tempfile.mkdtemp(prefix="rookery-test-cache-"))
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(scope="session")
def short_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> the folder of a real run of a few seconds, with its page. A test that changes one works on a copy."""
    from tests.short_runs import train_and_report

    return train_and_report(tmp_path_factory.mktemp("short_runs"))
