"""Lineages computed by hand: ancestors, descendants, the schedule of the best member, and its record."""

import json
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.storage import run_dir as folders
from rookery.storage.csv_log import RunLog
from rookery.storage.lineage import Lineage, Schedule, at_steps, check_agent, lineage, record_of, schedule_of
from tests import written_runs

NAN, INF = np.nan, np.inf


def float32(values) -> np.ndarray:
    return np.asarray(values, np.float32)


# Slot 1 is overwritten twice: by 0 after the first generation, by 2 after the second; then 0 by 1.
PARENTS = [[0, 1, 2], [0, 0, 2], [0, 2, 2], [1, 1, 2]]
FITNESS = [[1.0, 0.0, 2.0], [3.0, 1.0, 4.0], [2.0, 5.0, 6.0], [5.0, 8.0, 7.0]]
RATES = float32([[0.1, 0.2, 0.3], [1.1, 1.2, 1.3], [2.1, 2.2, 2.3], [3.1, 3.2, 3.3]])


def write_run(path: Path, parents=PARENTS, fitness=FITNESS, hyper=None, steps: float = 300, record=None) -> Path:
    """A run directory with the tables that the training loop writes."""
    hyper = {"rate": RATES} if hyper is None else hyper
    with folders.create(path, record or {"kind": "pbt-sac"}) as folder, RunLog(folder) as log:
        for generation, row in enumerate(parents):
            members = {name: values[generation] for name, values in hyper.items()}
            members = {"parent": np.asarray(row, np.int32), "fitness": float32(fitness[generation]), **members}
            log.write(generation, {"env_steps": (generation + 1) * steps}, members)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Lineage:
    return lineage(write_run(tmp_path / "run"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The lineage table of a run."""
    return write_run(tmp_path / "run") / "lineage.csv"


class TestReading:
    def test_a_table_that_lost_all_rows_is_not_that_of_a_run_without_a_finished_generation(self, tmp_path):
        run = written_runs.write(tmp_path / "run", metrics={"env_steps": [300, 600], "replaced": [0, 0]})
        with pytest.raises(ValueError, match=r"lineage\.csv has lost all rows; put a copy of the file back"):
            lineage(run)
        (write_run(tmp_path / "other") / "metrics.csv").unlink()
        with pytest.raises(ValueError, match=r"metrics\.csv has lost all rows; put a copy of the file back"):
            lineage(tmp_path / "other")
        run = written_runs.write(tmp_path / "run", metrics={"env_steps": [300], "replaced": [0]})
        with pytest.raises(ValueError, match="no finished generation"):
            lineage(run)

    def test_all_columns_are_read(self, tree):
        assert tree.parents.tolist() == PARENTS
        assert tree.fitness.tolist() == FITNESS
        assert list(tree.hyper) == ["rate"]
        assert tree.hyper["rate"].astype(np.float32).tobytes() == RATES.tobytes()
        assert tree.parents.dtype == np.int64
        assert tree.fitness.dtype == tree.hyper["rate"].dtype == np.float64
        assert tree.steps_per_generation == 100, "of one member"
        assert isinstance(tree.steps_per_generation, int)

    def test_names_keep_their_order_the_agent_is_of_the_kind_and_no_fitness_is_changed(self, tmp_path):
        hyper = {"alpha_lr": RATES, "discount": RATES + 1}
        fitness = [[NAN, INF, -INF]]
        kinds = {"sac": "sac", "pbt-td3": "td3", "python": None, None: None}
        for kind, agent in kinds.items():
            record = {"kind": kind} if kind else {"other": 1}
            tree = lineage(str(write_run(tmp_path / f"run {kind}", PARENTS[:1], fitness, hyper, record=record)))
            assert (tree.agent, list(tree.hyper)) == (agent, ["alpha_lr", "discount"])
            assert tree.fitness.tobytes() == np.array(fitness).tobytes()

    def test_an_incomplete_last_generation_is_left_out(self, table):
        lines = table.read_text().splitlines()
        table.write_text("\n".join([*lines[: 1 + 9 + 2], "3,2"]))  # the last line is not finished either
        tree = lineage(table.parent)
        assert tree.parents.tolist() == PARENTS[:3]
        assert tree.ancestors().tolist() == [2, 2, 2]


class TestAncestors:
    def test_expected_values(self, tree):
        expected = {
            (0, 3): [2, 2, 1, 0],
            (1, 3): [2, 2, 1, 1],
            (2, 3): [2, 2, 2, 2],
            (0, 2): [0, 0, 0],
            (1, 2): [2, 2, 1],
            (1, 1): [0, 1],
            (1, 0): [1],
            (0, None): [2, 2, 1, 0],
            (None, None): [2, 2, 1, 1],  # of the best member
            (None, 1): [2, 2],
        }
        assert tree.best_member == 1
        assert {asked: tree.ancestors(*asked).tolist() for asked in expected} == expected
        assert tree.has_descendants.astype(int).tolist() == [[0, 0, 1], [0, 0, 1], [0, 1, 1], [1, 1, 1]]

    def test_members_change_places_and_the_parents_of_the_first_generation_are_unused(self, tmp_path):
        tree = lineage(write_run(tmp_path / "run", [[0, 0, 0], [1, 2, 0], [1, 2, 0], [1, 2, 0]]))
        assert tree.ancestors(0, 3).tolist() == [0, 2, 1, 0]

    def test_a_population_of_one(self, tmp_path):
        tree = lineage(write_run(tmp_path / "run", [[0]] * 3, [[1.0]] * 3, {"rate": RATES[:3, :1]}, steps=70))
        assert (tree.best_member, tree.steps_per_generation) == (0, 70)
        assert tree.ancestors().tolist() == [0, 0, 0]
        assert tree.has_descendants.tolist() == [[True]] * 3

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ((-1, None), "member -1 .* 0..2"),
            ((None, 4), "generation 4 .* 0..3"),
            ((0, 1.5), "generation must be a whole number, got 1.5"),
            (("a", None), "member must be a whole number, got 'a'"),
        ],
    )
    def test_out_of_range(self, tree, asked, message):
        with pytest.raises(ValueError, match=message):
            tree.ancestors(*asked)


class TestBestMember:
    def test_is_the_highest_finite_and_among_equals_the_lowest(self, tree):
        expected = {
            (8.0, 8.0, 7.0): 0,
            (7.0, 8.0, 8.0): 1,
            (NAN, -9.0, -8.0): 2,
            (INF, -9.0, NAN): 1,
            (-INF, NAN, -3e38): 2,
        }
        for last, best in expected.items():
            assert tree._replace(fitness=np.asarray([*FITNESS[:3], last])).best_member == best

    def test_without_a_finite_fitness_there_is_no_best_member(self, tmp_path):
        tree = lineage(write_run(tmp_path / "run", fitness=[*FITNESS[:3], [NAN, INF, -INF]]))
        for query in (lambda: tree.best_member, tree.ancestors, tree.schedule):
            with pytest.raises(ValueError, match="no member of generation 3 has a finite fitness; give a member"):
                query()
        assert tree.ancestors(1).tolist() == [2, 2, 1, 1]
        assert tree.ancestors(generation=2).tolist() == [2, 2, 2]


def test_an_individual_has_descendants_if_it_is_an_ancestor_of_a_last_member(tmp_path):
    parents = np.random.default_rng(0).integers(0, 5, (6, 5))
    tree = lineage(write_run(tmp_path / "run", parents, np.zeros((6, 5)), {}, steps=5))
    ancestors = np.zeros((6, 5), bool)
    for member in range(5):
        ancestors[np.arange(6), tree.ancestors(member)] = True
    assert not ancestors.all(), "some individuals must have no descendants"
    assert tree.has_descendants.tolist() == ancestors.tolist()


class TestSchedule:
    def test_of_the_best_member_and_of_others(self, tree, tmp_path):
        schedule = tree.schedule()
        assert schedule.values["rate"].astype(np.float32).tobytes() == float32([0.3, 1.3, 2.2, 3.2]).tobytes()
        assert (schedule.steps_per_generation, schedule.agent, schedule.generations) == (100, "sac", 4)
        assert tree.schedule(0, 2).values["rate"].astype(np.float32).tolist() == RATES[:3, 0].tolist()
        assert tree.schedule(generation=0).values["rate"].astype(np.float32).tolist() == RATES[:1, 2].tolist()
        schedule = lineage(write_run(tmp_path / "two", hyper={"discount": RATES + 10, "rate": RATES})).schedule(0)
        assert list(schedule.values) == ["discount", "rate"]
        np.testing.assert_allclose(schedule.values["discount"], [10.3, 11.3, 12.2, 13.1], rtol=1e-6)
        schedule = lineage(write_run(tmp_path / "none", hyper={})).schedule()
        assert (dict(schedule.values), schedule.generations) == ({}, 0)


ISLAND_RATES = [RATES[:, :2], RATES[:, :2] + 10]
"""Of two islands; member 1 of island 1 was imported after two generations, from the first of island 0."""


IMPORTED = [ISLAND_RATES[0][0, 1], ISLAND_RATES[1][2, 1], ISLAND_RATES[1][3, 1]]


def write_islands(path: Path, imports: str | None = None, **metrics: float) -> Path:
    """A run of two islands, whose best member is the imported one."""
    with folders.create(path, {"kind": "pbt-sac", "islands": {"islands": 2}}):
        pass
    tables = [
        ([[0, 1], [0, 0], [0, 1], [0, 1]], [[1.0, 2.0], [3.0, 4.0], [5.0, 5.0], [5.0, 5.0]]),
        ([[0, 1], [0, 1], [0, -1], [0, 1]], [[1.0, 2.0], [3.0, 4.0], [5.0, 5.0], [6.0, 7.0]]),
    ]
    for number, (parents, fitness) in enumerate(tables):
        record = {"kind": "pbt-sac", "population": 2, "island": {"number": number}}
        rates = {"rate": ISLAND_RATES[number]}
        island = write_run(path / f"islands/{number}", parents, fitness, rates, steps=200, record=record)
        added = {"best_fitness": fitness[-1][-1], **metrics}
        header, *rows = (island / "metrics.csv").read_text().splitlines()
        lines = [",".join([header, *added]), *(",".join([row, *map(str, added.values())]) for row in rows)]
        (island / "metrics.csv").write_text("\n".join([*lines, ""]))
    entry = {"island": 0, "generation": 1, "file": "a.pub", "slot": 1, "fitness": 2.0, "member": 1}
    exchange = {"generation": 2, "experience": 200, "published": None, "imports": [entry]}
    line = json.dumps(exchange) if imports is None else imports
    (path / "islands/1/imports.jsonl").write_text(line + "\n")
    return path


class TestIslands:
    """The schedule is followed through imports; what is not recorded is an error, as with a repertoire."""

    def test_the_schedule_follows_an_import(self, tmp_path):
        """It skips generation 2 of both islands, in which no ancestor trained."""
        run = write_islands(tmp_path / "run")
        for tree in (lineage(run), lineage(run / "islands/1")):
            schedule = tree.schedule()
            assert schedule.values["rate"].astype(np.float32).tolist() == float32(IMPORTED).tolist()
            assert (schedule.steps_per_generation, schedule.agent, schedule.generations) == (100, "sac", 3)
            assert tree.schedule(1, 2).values["rate"].astype(np.float32).tolist() == float32(IMPORTED[:2]).tolist()
            assert tree.schedule(0).values["rate"].astype(np.float32).tolist() == ISLAND_RATES[1][:, 0].tolist()

    @pytest.mark.parametrize("imports", ["", '{"generation": 1}', None])
    def test_an_import_that_is_not_recorded_or_whose_island_has_no_generation(self, tmp_path, imports):
        run = write_islands(tmp_path / "run", imports)
        if imports is None:
            (run / "islands/0/lineage.csv").unlink()
        with pytest.raises(ValueError, match=r"island 1 imported after generation 2, "):
            lineage(run).schedule()

    def test_a_member_of_an_ordinary_run_that_began_anew(self, tmp_path):
        run = write_run(tmp_path / "run", [[0, 1, 2], [0, 1, 2], [0, -1, 2], [0, 1, 2]])
        assert lineage(run).ancestors(1).tolist() == [-1, -1, 1, 1]
        with pytest.raises(
            ValueError, match="begins after generation 2, with an elite of the repertoire, a new member or"
        ):
            lineage(run).schedule(1)

    def test_an_elite_of_a_repertoire(self, tmp_path):
        run = write_islands(tmp_path / "run", coverage=0.5)
        with pytest.raises(ValueError, match="begins after generation 2, with an elite of the repertoire"):
            lineage(run).schedule(1)


def through_json(schedule: Schedule) -> Schedule | None:
    return schedule_of(json.loads(json.dumps({"kind": "sac", **record_of(schedule)})))


class TestScheduleRecord:
    def test_round_trip_is_bit_equal(self):
        bits = np.random.default_rng(0).integers(0, 2**32, 300, dtype=np.uint32).view(np.float32)
        single = bits[np.isfinite(bits)]
        double = np.resize([1 / 3, 5e-324, -0.0, 1e308, 2.0**53 + 2, 0.1], len(single))
        steps: Any = np.int64(12_800)
        values: Any = {"z_single": single, "a_double": double, "jax": jnp.asarray(single)}
        back = through_json(Schedule(values, steps, "td3"))
        assert back is not None
        assert list(back.values) == ["z_single", "a_double", "jax"]
        assert back.values["z_single"].astype(np.float32).tobytes() == single.tobytes()
        assert back.values["a_double"].tobytes() == double.tobytes()
        assert back.values["jax"].tolist() == back.values["z_single"].tolist()
        assert (back.steps_per_generation, back.agent) == (12_800, "td3")
        assert record_of(None) == {}
        assert schedule_of({"kind": "sac"}) is None

    @pytest.mark.parametrize(
        ("values", "steps", "message"),
        [
            ({"a": []}, 1, "at least 1"),
            ({"a": [1.0], "b": [1.0, 2.0]}, 1, r"'a': \(1,\), 'b': \(2,\)"),
            ({"a": [[1.0]]}, 1, "same number of values"),
            ({"a": [1.0], "b": [NAN]}, 1, "finite values; change those of b"),
            ({"a": [1.0]}, 1.5, "steps_per_generation of at least 1, got 1.5"),
            ({"a": [1j]}, 1, "a list of numbers is needed"),
        ],
    )
    def test_an_invalid_schedule_is_rejected(self, values, steps, message):
        schedule = Schedule({name: np.array(value) for name, value in values.items()}, steps, None)
        with pytest.raises(ValueError, match=message):
            record_of(schedule)
        with pytest.raises(ValueError, match=message):
            at_steps(schedule, 1, 1)

    def test_a_damaged_schedule_is_rejected(self):
        damaged: Any = {"a": [0.5], "b": [1.0, 2.0]}, {"a": ["half"]}, {"a": [10**400]}, 3
        changes: Any = [*({"values": values} for values in damaged), {"steps_per_generation": "100"}]
        for change in changes:
            record = record_of(Schedule({"a": np.array([0.5])}, 100, "sac"))
            record["schedule"] |= change
            with pytest.raises(ValueError, match=r"config\.json's schedule is damaged .*; put a copy of the file"):
                schedule_of(record)

    def test_the_schedule_of_another_agent_is_rejected(self):
        schedule = Schedule({"a": np.array([0.5])}, 100, "sac")
        check_agent(schedule, "sac")
        check_agent(schedule._replace(agent=None), "td3")
        with pytest.raises(ValueError, match="of a sac agent and cannot be replayed by td3; use: rookery train sac"):
            check_agent(schedule, "td3")


class TestAtSteps:
    @pytest.mark.parametrize(
        ("steps", "generations", "expected"),
        [
            (100, 5, [1.0, 2.0, 4.0, 4.0, 4.0]),  # the last value holds
            (100, 2, [1.0, 2.0]),
            (200, 3, [1.0, 4.0, 4.0]),  # the second value falls between two generation starts
            (40, 8, [1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 4.0]),  # steps 0 40 80 120 160 200 240 280
            (99, 3, [1.0, 1.0, 2.0]),  # steps 0 99 198
            (101, 3, [1.0, 2.0, 4.0]),  # steps 0 101 202
        ],
    )
    def test_expected_values(self, steps, generations, expected):
        resampled = at_steps(Schedule({"rate": np.array([1.0, 2.0, 4.0])}, 100, "sac"), steps, generations)
        assert resampled["rate"].tolist() == expected

    def test_names_and_bits_are_preserved_and_many_steps_are_counted_exactly(self, tree):
        schedule = tree.schedule()._replace(values={"b": float32([0.1, 0.7]), "a": float32([0.2, 0.3])})
        resampled = at_steps(schedule, 50, 4)
        assert list(resampled) == ["b", "a"]
        assert resampled["b"].astype(np.float32).tobytes() == float32([0.1, 0.1, 0.7, 0.7]).tobytes()
        schedule = Schedule({"rate": np.array([1.0, 2.0])}, 3 * 10**9, None)
        assert at_steps(schedule, 10**9, 5)["rate"].tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]
        for steps, generations in ((0, 1), (1, 0)):
            with pytest.raises(ValueError, match=r"(steps_per_generation|generations) must be at least 1, got"):
                at_steps(schedule, steps, generations)
        masked = Schedule({"rate": np.ma.array([1.0, 2.0], mask=[False, True])}, 1, None)
        for odd, steps in ((schedule, 2**62), (schedule, 1.5), (masked, 1)):
            with pytest.raises(ValueError, match=r"^(steps_per_generation must be|a schedule needs finite values)"):
                at_steps(odd, cast(Any, steps), 4)
        assert at_steps(schedule._replace(steps_per_generation=10**30), 2**31 - 1, 3)["rate"].tolist() == [1.0] * 3


class TestInvalidTables:
    def test_a_run_without_a_finished_generation(self, table):
        for content in ("", "generation,member,parent,fitness\n", "generation,member,pa", None):
            table.unlink() if content is None else table.write_text(content)
            with pytest.raises(ValueError, match=r"no finished generation of members; train it for at least one\.$"):
                lineage(table.parent)

    def test_an_incomplete_first_generation(self, tmp_path):
        path = write_run(tmp_path / "run", record={"kind": "pbt-sac", "population": 3}) / "lineage.csv"
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:4], ""]))
        assert lineage(path.parent).parents.shape == (1, 3)
        path.write_text("\n".join([*lines[:3], ""]))
        with pytest.raises(ValueError, match="no finished generation"):
            lineage(path.parent)

    @pytest.mark.parametrize(
        ("order", "message"),
        [
            ([0, 1, 2, 3, 5, 6, 7, 8], "line 6 should be generation 1, member 1"),  # a row is missing
            ([0, 1, 2, 3, 4, 4, 5], "line 7 should be generation 1, member 2"),  # a row twice
            ([3, 4, 5], "line 2 should be generation 0, member 0"),  # the first generation is missing
        ],
    )
    def test_missing_or_repeated_rows(self, table, order, message):
        header, *rows = table.read_text().splitlines()
        table.write_text("\n".join([header, *(rows[row] for row in order), ""]))
        with pytest.raises(ValueError, match=rf"lineage\.csv is damaged: {message}; put a copy of the file back\.$"):
            lineage(table.parent)

    def test_a_parent_that_does_not_exist_or_no_column_of_parents(self, tmp_path, table):
        for bad in (-2, 3):
            run = write_run(tmp_path / f"run {bad}", [[0, 1, 2], [0, 1, 2], [0, bad, 2], [0, 1, 2]])
            with pytest.raises(ValueError, match=rf"parent of member 1 in generation 2 is {bad}, not in 0\.\.2; put a"):
                lineage(run)
        table.write_text(table.read_text().replace("parent", "origin"))
        with pytest.raises(ValueError, match=r"lineage\.csv lacks the columns parent; put a copy"):
            lineage(table.parent)

    @pytest.mark.parametrize("steps", [0, 301, NAN])
    def test_steps_that_are_no_multiple_of_the_members(self, tmp_path, steps):
        with pytest.raises(ValueError, match=r"metrics\.csv gives .* no multiple of its 3 members; put a copy"):
            lineage(write_run(tmp_path / "run", steps=steps))

    @pytest.mark.parametrize("more", [{}, {"population": 0}])
    def test_a_team_without_its_population(self, tmp_path, more):
        run = write_run(tmp_path / "run", record={"kind": "pbt-ippo", "member": "agent", **more})
        with pytest.raises(ValueError, match=r"config\.json has the population 0; put a copy of the file back\.$"):
            lineage(run, separate_roles=True)
