"""QDax's documented functions give the same results when they are mapped over devices."""

from typing import Any

import numpy as np
import pytest

from tests import apart


@pytest.fixture(scope="module")
def mapped() -> dict[str, Any]:
    return apart.run_module("tests.compat.qdax.mapped", timeout=600)


def test_any_layout_gives_the_same_next_population(mapped):
    """With pmap and with a checked shard_map on 4 devices and without, with raw and typed keys."""
    before, *after = mapped["exploits"].values()
    assert len(after) == 3
    assert len(set(after)) == 1
    assert before not in after


def test_all_devices_have_the_same_repertoire(mapped):
    results = mapped["map_elites"]
    assert len(results["shares"]) == 4
    assert len(set(results["shares"])) == 1
    assert results["coverage"] == sorted(results["coverage"])
    assert results["coverage"][-1] > results["coverage"][0] > 100 * 4 / 36


def test_new_members_differ_between_devices_and_between_calls_with_the_same_keys(mapped):
    """4 of 8 members are replaced in each generation."""
    first, second = (np.ravel(discounts) for discounts in mapped["map_elites"]["discounts"])
    assert len(set(first)) == len(set(second)) == 8
    assert 4 <= int(np.sum(first != second)) <= 8
