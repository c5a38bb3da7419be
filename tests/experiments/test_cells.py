"""The cells of a repertoire: configured, computed once, and cached on a disk that may fail."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import base as envs
from rookery.experiments import cells
from rookery.experiments.cells import CellsConfig, find_cells
from rookery.qd import centroids
from rookery.qd.centroids import grid


def limits(size: int) -> envs.DescriptorSpec:
    return envs.descriptor_spec("task", "final", (0.0,) * size, (1.0,) * size)


class TestCells:
    @pytest.fixture(autouse=True)
    def cache(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return tmp_path / "rookery"

    @staticmethod
    def find(seed: int = 0) -> jax.Array:
        return cells.cvt(6, (0.0, -1.0), (1.0, 1.0), 100, seed)

    def test_cells_are_computed_once_and_then_read_with_the_same_bits(self, cache, monkeypatch):
        first = np.asarray(self.find())
        expected = centroids.cvt(jax.random.key(0), 6, (0.0, -1.0), (1.0, 1.0), 100)
        assert first.tobytes() == np.asarray(expected).tobytes()
        found = [first, self.find(seed=1), cells.cvt(6, (0.0, -1.0), (1.0, 2.0), 100)]
        assert len({np.asarray(one).tobytes() for one in found}) == len(list(cache.iterdir())) == 3
        monkeypatch.setattr(centroids, "cvt", None)  # a second computation would fail
        again = self.find()
        assert again.dtype == jnp.float32
        assert np.asarray(again).tobytes() == first.tobytes()
        of_numpy: Any = np.int64(6), (0.0, -1.0), (1.0, 1.0), np.int64(100), np.uint32(0)
        assert np.asarray(cells.cvt(*of_numpy)).tobytes() == first.tobytes()
        with pytest.raises(TypeError, match=r"cells must be a whole number, got 6\.0"):
            cells.cvt(cast(Any, 6.0), *of_numpy[1:])

    def test_a_damaged_file_is_computed_again(self, cache):
        first = np.asarray(self.find()).tobytes()
        (path,) = cache.iterdir()
        whole = path.read_bytes()
        value, header = bytearray(whole), bytearray(whole)
        value[40] ^= 1  # the first number changes, and stays finite
        header[20] ^= 255
        for content in (whole[:-3], b"", header, value):
            path.write_bytes(content)
            assert np.asarray(self.find()).tobytes() == first
            assert [path] == list(cache.iterdir())
            assert path.read_bytes() == whole

    def test_a_cache_that_cannot_be_written_is_no_error(self, cache):
        cache.parent.mkdir(exist_ok=True)
        cache.write_text("a file where the folder should be")
        assert self.find().shape == (6, 2)

    def test_a_grid_needs_no_cache(self, cache):
        config = CellsConfig(grid=(3, 2))
        assert config.count == 6
        assert jnp.array_equal(find_cells(config, limits(2)).centroids, grid((3, 2), (0.0, 0.0), (1.0, 1.0)))
        assert not cache.exists()
        with pytest.raises(ValueError, match="a grid of 1 dimensions needs as many sizes"):
            find_cells(config, limits(1))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"cells": 9, "cvt_samples": 8}, r"cvt_samples must be at least cells \(9\), got 8"),
            ({"grid": (2**16, 2**16)}, "cells must be at most 2147483647"),
            ({"novelty_neighbours": 5}, r"^novelty_neighbours has an effect only with survival dominated-novelty"),
            ({"archive_learning_rate": 0.5}, r"^archive_learning_rate has an effect only on cma-mae"),
        ],
    )
    def test_an_invalid_config_is_rejected_with_a_message(self, options, message):
        with pytest.raises(ValueError, match=message):
            find_cells(CellsConfig(**{"cells": 5, "cvt_samples": 50, **options}), limits(1))

    @pytest.mark.parametrize(
        "options", [{"grid": (46_000, 46_000)}, {"cells": 2_000_000_000, "cvt_samples": 2_000_000_000}]
    )
    def test_centroids_that_exceed_the_memory_are_an_error_at_once(self, options):
        with pytest.raises(MemoryError, match=r"^the centroids of 2\d+ cells need [\d.]+ GB, but .* are available;"):
            find_cells(CellsConfig(**options), limits(2))

    def test_settings_with_effect(self):
        assert CellsConfig(cells=7).count == 7
        novelty: Any = {"survival": "dominated-novelty", "novelty_neighbours": 5}
        ranking: Any = {"archive_learning_rate": 0.5}
        for options, ranked in (({}, False), (novelty, False), (ranking, True)):
            config = CellsConfig(cells=5, cvt_samples=50, **options)
            assert find_cells(config, limits(1), ranked=ranked).centroids.shape == (5, 1)
