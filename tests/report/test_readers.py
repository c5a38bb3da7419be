"""The tables of several islands as one."""

import numpy as np

from rookery.report.readers import RunRecord, _together
from rookery.storage.run_dir import open_existing
from tests.written_runs import MEMBERS, METRICS, write

NAN = np.nan


def table(fitness: list[float]) -> dict[str, np.ndarray]:
    count, values = np.arange(len(fitness)), np.asarray(fitness)
    names = ("best_fitness", "median_fitness", "worst_fitness", "return", "measure/success", "best/return")
    return {"generation": count, "env_steps": 10.0 * (count + 1), **dict.fromkeys(names, values)}


def test_an_island_that_diverged_leaves_the_numbers_of_the_others():
    found = _together([table([1.0, 2.0, NAN]), table([3.0, 4.0, 5.0, 6.0])])
    assert found["env_steps"].tolist() == [20, 40, 60, 70]
    for name in ("median_fitness", "return", "measure/success"):
        np.testing.assert_array_equal(found[name], [2.0, 3.0, 5.0, 6.0], name)
    np.testing.assert_array_equal(found["best/return"], [3.0, 4.0, 5.0, 6.0])
    found = _together([table([1.0, NAN]), table([3.0, NAN])])
    first = {"best_fitness": 3.0, "median_fitness": 2.0, "worst_fitness": 1.0, "return": 2.0, "measure/success": 2.0}
    for name, value in first.items():
        np.testing.assert_array_equal(found[name], [value, NAN], name)


def test_a_member_without_a_parent_came_from_what_the_run_has(tmp_path):
    new = {**MEMBERS, "parent": (0, 1, 0, -1, 0, 1)}
    lost = {**new, "fitness": (1.0, 0.0, 3.0, NAN, 2.0, 1.0)}
    island = {"island": {"number": 0}}
    for members, config, columns, expected in (
        (new, {}, {}, "new parameters"),
        (lost, {}, {}, "new parameters, or a row that is lost,"),
        (lost, {}, {"coverage": (1.0, 2.0, 3.0)}, "the repertoire"),
        (lost, island, {"coverage": (1.0, 2.0, 3.0)}, "the repertoire or another island"),
    ):
        path = write(tmp_path, config, {**METRICS, **columns}, members)
        assert RunRecord(open_existing(path)).outside == expected
