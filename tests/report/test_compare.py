"""Comparison of runs: grouping, the common budget of environment steps, statistics, notes, tables and the figure."""

import json

import numpy as np
import pytest

from rookery.populations.independent import seeds
from rookery.populations.pbt import pbt
from rookery.report.compare import compare, group_runs, tables
from rookery.report.figures.comparison import _draw_curves
from rookery.report.figures.style import new_figure
from rookery.report.readers import open_run
from rookery.report.runs import Fresh, curve
from rookery.storage.csv_log import read_csv, write_table
from rookery.storage.run_dir import open_existing
from rookery.training.loop import run
from tests import walks
from tests.report.test_tables import text as shown

NAN = float("nan")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def write(tmp_path):
    """Write a run folder; `fitness` is the best fitness of each generation."""

    def write_run(name, fitness, kind="sac", env="hopper", seed=0, steps=100, environment=None, run=None, **settings):
        path = tmp_path / name
        path.mkdir()
        config = {
            "kind": kind,
            "environment": {"env": env, "backend": None, "devices": None, **(environment or {})},
            "run": {"seed": seed, "generations": len(fitness), "run_dir": name, "keep": 3, **(run or {})},
            **settings,
        }
        return finish(path, config, fitness, steps)

    return write_run


def finish(path, config, fitness, steps=100):
    content = {"format": 1, "versions": {"rookery": "0.1.0"}, "config": config}
    (path / "config.json").write_text(json.dumps(content))
    count = np.arange(len(fitness))
    write_table(path / "metrics.csv", {"generation": count, "env_steps": (count + 1) * steps, "best_fitness": fitness})
    return path


def add(path, name="metrics.csv", **columns):
    """Add columns to a table of a run; in their names, `__` is a slash."""
    named = {column.replace("__", "/"): values for column, values in columns.items()}
    write_table(path / name, {**read_csv(path / name), **named})


QUIET = {"keep": 9, "checkpoint_every": 2, "quiet": True, "live": True, "overwrite": True}
PBT = {"population": 8, "kind": "pbt-sac"}


class TestGroups:
    def test_runs_that_differ_by_seed_are_one_group_without_duplicates(self, write, monkeypatch):
        paths = [write(f"run{seed}", [1.0, 2.0], seed=seed) for seed in range(3)]
        monkeypatch.chdir(paths[0].parent)
        (group,) = group_runs([*paths, "run0", f"{paths[0]}/../run1/"])
        assert (group.label, group.name, group.environment) == ("sac hopper", "sac", "hopper")
        assert [run.path for run in group.runs] == paths
        assert [run.seed for run in group.runs] == [0, 1, 2]
        assert group.runs[0].env_steps.tolist() == [100.0, 200.0]

    @pytest.mark.parametrize(
        ("runs", "labels"),
        [
            ([{}, {"run": QUIET, "environment": {"devices": 2, "exact": True}}], ["sac hopper"]),
            ([{}, {"agent": {"fix_alpha": None}}], ["sac hopper"]),  # null counts as absent
            ([{"agent": {"tau": 1}}, {"agent": {"tau": 1.0}}], ["sac hopper"]),
            ([{}, {"keys": "rbg"}], ["sac hopper"]),  # they matter only to runs with --exact
            (
                [{"pbt": {"perturb": name, "burn_in": 0}, **PBT} for name in ("perturb", "pb2")]
                + [{"pbt": {"burn_in": 0}, **PBT}, {}],
                ["pbt-sac hopper, perturb=perturb", "pbt-sac hopper, perturb=pb2", "pbt-sac hopper", "sac hopper"],
            ),
            (
                [{"agent": {"hidden": [8, 8], "tau": 0.1}}, {"agent": {"tau": 0.3}}],
                ["sac hopper, hidden=[8, 8], tau=0.1", "sac hopper, tau=0.3"],
            ),
            (  # an ambiguous setting keeps its full name
                [{"agent": {"rate": 1}, "pbt": {"rate": 5}}, {"agent": {"rate": 2}, "pbt": {"rate": 5}}],
                ["sac hopper, agent.rate=1", "sac hopper, agent.rate=2"],
            ),
            (  # labels are compared within kind and environment only
                [{"population": 2}, {"kind": "td3", "population": 3}, {"env": "reacher", "population": 4}],
                ["sac hopper", "td3 hopper", "sac reacher"],
            ),
            (  # pictures show the first settings, which distinguish all groups
                [
                    {"agent": {"alpha": alpha, **network, "tau": alpha}, "learner": {"normalize": normalize}}
                    for alpha, network, normalize in [(1, {}, False), (1, {}, True), (2, {"network": "simba"}, True)]
                ],
                [
                    "sac hopper, normalize=false, alpha=1, tau=1",
                    "sac hopper, normalize=true, alpha=1, tau=1",
                    "sac hopper, network=simba, normalize=true, alpha=2, tau=2",
                ],
            ),
            ([{}, {"fitness": [1.0, 2.0]}], ["sac hopper, generations=1", "sac hopper, generations=2"]),
            ([{}, {"environment": {"backend": "mjx"}}], ["sac hopper", "sac hopper, backend=mjx"]),
        ],
    )
    def test_labels_of_groups(self, write, runs, labels):
        paths = [write(str(number), **{"fitness": [1.0], **settings}) for number, settings in enumerate(runs)]
        assert [group.label for group in group_runs(paths)] == labels

    def test_exact_runs_with_other_random_keys_cannot_be_compared(self, write):
        exact = [
            write(f"exact{i}", [1.0], keys=name, environment={"exact": True}) for i, name in enumerate(["rbg", "x"])
        ]
        with pytest.raises(ValueError, match=r"^runs with --exact cannot .* rbg and .*exact1 with x\.$"):
            group_runs(exact)

    @pytest.mark.parametrize(
        ("settings", "label"),
        [
            ({"learner": {"objective": "approach"}}, "hopper, objective=approach"),
            ({"learner": {"fitness": "prey"}}, "hopper, fitness=prey"),
            ({"environment": {"env": "hill.py:make", "option": [5, "env=x"]}}, "hill.py:make, 5=, option.env=x"),
            (
                {"environment": {"env": "hill.py:make", "option": ["precision=auto", "devices=2", "exact=true"]}},
                "hill.py:make, option.devices=2, option.exact=true, option.precision=auto",
            ),
            ({"diayn": {"fitness": "return"}}, "hopper"),
        ],
    )
    def test_scores_of_other_measures_are_not_compared(self, write, settings, label):
        plain, other = group_runs([write("plain", [1.0], kind="td3"), write("other", [2.0], **settings)])
        assert (plain.environment, other.environment) == ("hopper", label)
        assert len(compare([run.path for group in (plain, other) for run in group.runs]).pairs) == (label == "hopper")

    def test_runs_from_python(self, tmp_path):
        records = {
            "a": {"env": "maze", "method": "mine", "seed": 4},
            "b": {"env": "maze", "method": "yours"},
            "c": {},
            "d": {},
        }
        for name, record in records.items():
            (tmp_path / name).mkdir()
            finish(tmp_path / name, {"kind": "python", **record}, [1.0])
        found = group_runs([tmp_path / name for name in records])
        maze = ["python maze, method=mine", "python maze, method=yours"]
        assert [group.label for group in found] == [*maze, "python an unnamed environment"]
        assert [group.runs[0].seed for group in found] == [4, None, None]
        assert "records no seed" in " ".join(compare([tmp_path / "c", tmp_path / "d"]).notes)


@pytest.fixture
def write_members(write):
    """Write the folder of independent members: `fitness` is `[generations][members]`."""

    def write_run(name, fitness, steps=100, draw_hyper=False, **settings):
        best = [max((value for value in row if np.isfinite(value)), default=NAN) for row in fitness]
        size = len(fitness[0])
        settings = {"population": size, "draw_hyper": draw_hyper, **settings}
        path = write(name, best, steps=steps * size, **settings)
        generation, member = np.divmod(np.arange(len(fitness) * size), size)
        columns = {"generation": generation, "member": member, "parent": member, "fitness": np.ravel(fitness)}
        write_table(path / "lineage.csv", columns)
        return path

    return write_run


class TestIndependentMembers:
    """Each is a run with a separate score and separate environment steps; the interval is over them."""

    def test_each_member_is_a_run_with_separate_fitness_and_steps(self, write_members):
        path = write_members("seeds", [[1.0, 5.0, 3.0], [2.0, 4.0, 9.0]])
        (group,) = group_runs([path])
        assert [(run.path, run.member, run.column) for run in group.runs] == [(path, i, "fitness") for i in range(3)]
        assert [run.best_fitness.tolist() for run in group.runs] == [[1.0, 2.0], [5.0, 4.0], [3.0, 9.0]]
        assert [run.env_steps.tolist() for run in group.runs] == [[100.0, 200.0]] * 3
        assert (group.population, group.label) == ("1", "sac hopper")
        steps, fitness = curve(group.runs, floor=0.0)
        assert (steps.tolist(), fitness.value.tolist()) == ([100.0, 200.0], [3.0, 5.0])
        assert (fitness.low[1], fitness.high[1]) == (2.0, 9.0)
        table = (path / "lineage.csv").read_text().splitlines()
        (path / "lineage.csv").write_text("\n".join([*table[:-1], ""]))  # a generation in progress
        (group,) = group_runs([path])
        assert [run.env_steps.tolist() for run in group.runs] == [[100.0]] * 3
        (path / "lineage.csv").write_text("\n".join([*table[:-1], f"{table[-1]}x", ""]))
        with pytest.raises(ValueError, match=r"lineage\.csv, column fitness is damaged: could not convert"):
            group_runs([path])

    def test_members_whose_last_rows_are_lost_are_compared_up_to_the_others(self, write_members):
        path = write_members("seeds", [[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]])
        table = (path / "lineage.csv").read_text().splitlines()
        (path / "lineage.csv").write_text("\n".join([*table[:3], ""]))
        comparison = compare([path, write_members("whole", [[0.0, 4.0]] * 3, seed=1)])
        (row,) = comparison.rows
        assert (row.env_steps, row.scores.tolist(), row.diverged) == (100.0, [1.0, 5.0, 0.0, 4.0], 0)
        assert f"{path / 'lineage.csv'} has lost all rows after generation 0." in comparison.notes
        (path / "lineage.csv").write_text("\n".join([*table[:3], *table[5:], ""]))
        _, diverged, lost = compare([path, write_members("short", [[0.0, 4.0]] * 2, seed=2)]).notes
        assert diverged.startswith("2 of 2 runs of sac hopper, generations=3 diverged")
        assert "lineage.csv has lost the rows of generation 1, whose values are unknown (NaN)" in lost
        assert lost.endswith(". A run whose score is lost counts as diverged.")

    def test_the_interval_is_over_all_members_of_all_folders(self, write_members):
        comparison = compare([write_members("seeds", [[0.0, 10.0, 20.0, 90.0]])])
        (row,) = comparison.rows
        assert row.scores.tolist() == [0.0, 10.0, 20.0, 90.0]
        assert (row.interquartile_mean.value, row.median.value, row.env_steps) == (15.0, 15.0, 100.0)
        assert row.interquartile_mean.low < 15.0 < row.interquartile_mean.high
        assert (row.chosen, comparison.notes) == ("", [])
        assert comparison.settings["hopper"].score == "fitness"
        several = [[[1.0, 2.0, 3.0]], [[4.0, 5.0]], [[6.0]]]
        comparison = compare([write_members(str(seed), fitness, seed=seed) for seed, fitness in enumerate(several)])
        (row,) = comparison.rows
        assert row.scores.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        assert (comparison.settings["hopper"].budget, comparison.notes) == (100.0, [])

    def test_a_population_with_selection_is_one_run_with_all_its_steps(self, write, write_members):
        members = write_members("seeds", [[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]])
        pbt = [write(f"pbt{seed}", [3.5, 4.5], kind="pbt-sac", population=4, steps=50, seed=seed) for seed in range(2)]
        comparison = compare([members, *pbt])
        alone, selected = comparison.rows
        assert comparison.settings["hopper"].budget == 100.0, "of the population; each member made 200 steps"
        assert (alone.scores.tolist(), alone.env_steps) == ([1.0, 2.0, 3.0, 4.0], 100.0)
        assert (selected.scores.tolist(), selected.env_steps, selected.chosen) == (
            [4.5, 4.5],
            100.0,
            "best of 4",
        )
        (pair,) = comparison.pairs
        assert (pair.first.name, pair.probability.value) == ("pbt-sac", 1.0)
        assert comparison.settings["hopper"].score == "fitness, in a population its best member's"
        text = " ".join(comparison.notes)
        assert "pbt-sac: 100; sac: 200" in text.replace("sac: 200; pbt-sac: 100", "pbt-sac: 100; sac: 200")
        assert "differ in size (1, 4)" in text
        assert "a score of pbt-sac hopper is the highest of several noisy evaluations, which is optimistic" in text
        assert "best of 4" in shown(tables(comparison))

    def test_random_search_is_one_run_scored_by_its_best_member(self, write_members):
        paths = [write_members("drawn", [[1.0, 7.0]], draw_hyper=True, steps=50), write_members("seeds", [[1.0, 7.0]])]
        comparison = compare(paths)
        drawn, alone = comparison.rows
        assert (drawn.group.name, drawn.scores.tolist()) == ("sac, draw_hyper=true, population=2", [7.0])
        assert (drawn.chosen, drawn.env_steps) == ("best of 2", 100.0)
        assert (alone.group.name, alone.scores.tolist()) == ("sac, draw_hyper=false", [1.0, 7.0])

    def test_independence_recorded_in_config_json_takes_precedence(self, write_members):
        recorded = write_members("python", [[1.0, 7.0]], kind="python", draw_hyper=None, independent=True)
        unrecorded = write_members("older", [[1.0, 7.0]], kind="python", draw_hyper=None)
        fixed = write_members("fixed", [[2.0, 8.0]], draw_hyper=True, independent=True)
        assert [len(group.runs) for group in group_runs([recorded, unrecorded, fixed])] == [2, 1, 2]

    def test_a_program_from_python_records_whether_its_members_are_independent(self, tmp_path):
        fixed = walks.SPACE._replace(domains={})
        programs = {
            "seeds": seeds(walks.learner(), population_size=3),
            "nothing to draw": seeds(walks.learner(), fixed, 3, draw_hyper=True),
            "random search": seeds(walks.learner(), population_size=3, draw_hyper=True),
            "the same by pbt": pbt(walks.learner(), population_size=3, exploit="none"),
            "selection alone": pbt(walks.learner(), fixed, population_size=3, replace_count=1),
        }
        assert [name for name, program in programs.items() if program.independent] == ["seeds", "nothing to draw"]
        for name, runs in (("seeds", 3), ("selection alone", 1)):
            run(programs[name], generations=2, run_dir=str(tmp_path / name), quiet=True)
            (group,) = group_runs([tmp_path / name])
            assert (len(group.runs), open_existing(tmp_path / name).config["independent"]) == (runs, runs == 3)

    def test_a_member_that_diverged_is_the_worst_run_and_with_a_score_column_a_folder_is_one_run(self, write_members):
        path = write_members("seeds", [[4.0, 6.0, 1.5], [5.0, NAN, 2.5]])
        comparison = compare([path])
        (row,) = comparison.rows
        assert (row.scores.tolist(), row.diverged) == ([5.0, 1.5, 2.5], 1)
        assert "1 of 3 runs of sac hopper diverged" in comparison.notes[0]
        comparison = compare([path], score="best_fitness")
        (row,) = comparison.rows
        assert (row.scores.tolist(), row.env_steps) == ([5.0], 600.0)
        assert "best_fitness describes all members of a folder together" in " ".join(comparison.notes)


class TestScores:
    def test_the_last_generation_counts_where_budgets_are_equal(self, write):
        paths = [write(f"a{seed}", [9.0, value], seed=seed) for seed, value in enumerate([1.0, 2.0, 3.0, 40.0])]
        comparison = compare([*paths, write("b", [0.0, 50.0], kind="td3")])
        first, second = comparison.rows
        assert first.scores.tolist() == [1.0, 2.0, 3.0, 40.0]
        assert first.interquartile_mean.value == first.median.value == 2.5
        assert first.mean.value == 11.5
        assert first.optimality_gap.value == 50.0 - 11.5
        assert first.interquartile_mean.low < 2.5 < first.interquartile_mean.high
        assert second.scores.tolist() == [50.0]
        assert comparison.settings["hopper"][:2] == (200.0, 50.0)
        assert comparison.notes == []

    def test_unequal_budgets_are_cut_to_the_common_one_with_a_note(self, write):
        long = [write(f"long{seed}", [1.0, 2.0, 3.0, 4.0], kind="pbt-sac", seed=seed) for seed in range(2)]
        short = write("short", [5.0], steps=250)
        comparison = compare([*long, short])
        assert comparison.settings["hopper"].budget == 250.0
        row = comparison.rows[0]
        assert (row.scores.tolist(), row.env_steps) == ([2.0, 2.0], 200.0)
        (note,) = comparison.notes
        assert "unequal budgets of environment steps (pbt-sac: 400; sac: 250)" in note
        assert "within 250 steps" in note
        assert note in shown(tables(comparison), 1000)

    def test_a_gamma_repeated_seeds_runs_stopped_early_and_budgets_of_other_environments(self, write, write_members):
        comparison = compare([write("a", [1.0, 2.0], kind="td3"), write("b", [3.0], env="reacher")])
        assert [setting.budget for setting in comparison.settings.values()] == [200.0, 100.0]
        assert (comparison.notes, comparison.pairs) == ([], [])
        assert compare([write("c", [3.0]), write("d", [7.0], seed=1)], gamma=5.0).rows[0].optimality_gap.value == 1.0
        done, stopped = write("e", [1.0, 2.0, 3.0]), write("f", [4.0, 5.0], seed=1, run={"generations": 3})
        comparison = compare([done, stopped])
        assert comparison.rows[0].scores.tolist() == [2.0, 5.0]
        assert "sac: 200 to 300" in comparison.notes[0]
        same = [write("g", [1.0], seed=3), write("h", [2.0], seed=3)]
        members = [write_members("i", [[1.0, 2.0]], seed=3), write_members("j", [[3.0]], seed=3)]
        for paths in (same, members):
            assert "several runs of sac hopper have the seed 3" in compare(paths).notes[0]

    def test_a_run_beyond_the_common_budget_from_its_start_is_an_error(self, write):
        paths = [write("coarse", [1.0], steps=1000), write("fine", [1.0], kind="td3")]
        with pytest.raises(ValueError, match=r"coarse cannot be compared.* ends at 1,000 .*fine stopped at 100;"):
            compare(paths)


class TestDiverged:
    def test_a_diverged_run_has_the_worst_score_and_does_not_limit_the_budget(self, write):
        finite = [write(f"s{seed}", [5.0, 6.0, 7.0], kind="td3", seed=seed) for seed in range(2)]
        others = [write("a", [2.0, NAN], run={"generations": 3}), write("b", [3.0, 4.0, 8.0], seed=1)]
        comparison = compare([*finite, *others])
        _, row = comparison.rows
        assert comparison.settings["hopper"].budget == 300.0
        assert (row.scores.tolist(), row.diverged) == ([2.0, 8.0], 1)
        assert "1 of 2 runs of sac hopper diverged" in comparison.notes[0]
        assert comparison.notes[0].endswith(": 2.")
        assert "1 diverged" in shown(tables(comparison))

    def test_an_infinite_fitness_is_a_divergence_and_one_beyond_the_budget_does_not_count(self, write):
        for bad in (float("inf"), -float("inf")):
            comparison = compare([write(f"a{bad}", [1.0, bad]), write(f"b{bad}", [0.5, 2.0], seed=1)])
            assert (comparison.rows[0].scores.tolist(), comparison.rows[0].diverged) == ([0.5, 2.0], 1)
        row = compare([write("a", [1.0, 4.0, NAN]), write("b", [2.0, 3.0], kind="td3")]).rows[0]
        assert (row.scores.tolist(), row.diverged) == ([4.0], 0)
        with pytest.raises(ValueError, match="every run on hopper diverged"):
            compare([write("c", [1.0, NAN]), write("d", [NAN], kind="td3")])


class TestPairs:
    def test_every_pair_of_an_environment_is_compared_better_group_first(self, write):
        paths = [write(f"a{seed}", [value], seed=seed) for seed, value in enumerate([1.0, 2.0])]
        paths += [write(f"b{seed}", [value], kind="td3", seed=seed) for seed, value in enumerate([1.0, 3.0])]
        paths += [write(f"c{seed}", [9.0 + seed], kind="pbt-sac", seed=seed) for seed in range(2)]
        paths.append(write("d", [1.0], env="reacher"))
        pairs = compare(paths).pairs
        names = [(pair.first.name, pair.second.name) for pair in pairs]
        assert names == [("pbt-sac", "td3"), ("pbt-sac", "sac"), ("td3", "sac")]
        assert [pair.probability.value for pair in pairs] == [1.0, 1.0, 0.625]
        assert not any(pair.is_clear for pair in pairs), "two runs against two are too few"

    def test_a_clear_difference_needs_enough_runs(self, write):
        for count in (1, 3, 4):
            paths = [write(f"a{count}{seed}", [1.0 + seed], seed=seed) for seed in range(count)]
            paths += [write(f"b{count}{seed}", [9.0 + seed], kind="td3", seed=seed) for seed in range(count)]
            (pair,) = compare(paths).pairs
            assert (pair.probability.value, pair.is_clear, pair.probability.has_interval) == (
                1.0,
                count == 4,
                count > 1,
            )


class TestPrinting:
    def test_numbers_are_printed_with_their_intervals_and_not_cut_off_in_a_narrow_terminal(self, write):
        paths = [write(f"a{seed}", [21_000.0 + seed], perturb="resample", seed=seed) for seed in range(4)]
        paths += [write(f"b{seed}", [-31_000.0 - seed], perturb="pb2", seed=seed) for seed in range(4)]
        comparison = compare(paths)
        text, iqm = shown(tables(comparison)), comparison.rows[0].interquartile_mean
        assert "hopper at 100 environment steps" in text
        assert f"{iqm.low:.0f} to {iqm.high:.0f}" in text
        assert "1.00 to 1.00 *" in text
        assert text.index("1 sac, perturb=resample") < text.index("2 sac, perturb=pb2")
        text = shown(tables(comparison), 80)
        for row in comparison.rows:
            for name in ("interquartile_mean", "median", "mean", "optimality_gap"):
                assert all(f"{value:.0f}" in text for value in getattr(row, name))
        assert "…" not in text

    def test_one_run_has_no_interval_names_are_no_markup_and_many_pairs_are_named_by_rank(self, write):
        paths = [write("a", [1.0], agent={"hidden": ["red"]}), write("b", [1.0, 2.0], agent={"hidden": ["[/bold]"]})]
        text = shown(tables(compare(paths)))
        assert 'hidden=["red"]' in text
        assert '"[/bold]"' in text
        assert (text.count("1 run, no interval"), text.count("too few runs to tell")) == (2, 1)
        assert "nan" not in text
        text = shown(tables(compare([write(f"a{size}", [float(size)], population=size) for size in range(1, 6)])))
        assert text.count("population=3") == 1

    def test_different_objectives_are_a_note_and_files_are_named_without_their_folders(self, write):
        env = {"env": "/home/me/projects/hill.py:make"}
        paths = [
            write("a", [1.0], environment=env),
            write("b", [0.5], environment=env, learner={"objective": "success"}),
        ]
        found = compare(paths)
        assert [group.environment for group in found.groups] == ["hill.py:make", "hill.py:make, objective=success"]
        (note,) = [note for note in found.notes if "not compared" in note]
        assert note.startswith(
            "the runs on hill.py:make and on hill.py:make, objective=success are not compared with each other, since"
        )
        assert not [note for note in compare(paths[:1]).notes if "not compared" in note]
        other = write("c", [1.0], environment={"env": "/home/me/old/hill.py:make"})
        names = {group.environment for group in compare([paths[0], other]).groups}
        assert names == {"/home/me/projects/hill.py:make", "/home/me/old/hill.py:make"}, "one name would be ambiguous"

    def test_fitness_from_training_is_a_note_and_runs_of_older_versions_have_evaluations(self, write):
        names = {"old": {}, "new": {"fitness_from": "evaluation"}, "trained": {"fitness_from": "training"}}
        old, new, trained = (write(name, [1.0], learner=learner) for name, learner in names.items())
        assert len(compare([old, new]).groups) == 1
        assert not [note for note in compare([old, new]).notes if "exploratory" in note]
        (note,) = [note for note in compare([old, trained]).notes if "exploratory" in note]
        assert "--fresh" in note
        python = write("python", [1.0], kind="python")  # of which no fresh episodes can be run
        assert "--fresh" not in " ".join(compare([old, trained, python]).notes)


class TestPicture:
    def test_a_curve_is_the_interquartile_mean_up_to_the_shortest_run_but_not_to_a_diverged_one(self, write):
        columns = [[0.0, 4.0], [1.0, 5.0], [3.0, 7.0], [90.0, -80.0]]
        (group,) = group_runs([write(f"i{seed}", values, seed=seed) for seed, values in enumerate(columns)])
        steps, fitness = curve(group.runs, floor=-1.0)
        assert steps.tolist() == [100.0, 200.0]
        assert fitness.value.tolist() == [2.0, 4.5]
        assert ((fitness.low <= fitness.value) & (fitness.value <= fitness.high)).all()
        goal = {"generations": 4}
        paths = [write("a", [1.0, 2.0, 3.0, 4.0]), write("b", [5.0, 6.0, 7.0], seed=1, run=goal)]
        paths.append(write("c", [9.0, NAN], seed=2, run=goal))
        (group,) = group_runs(paths)
        steps, fitness = curve(group.runs, floor=-2.0)
        assert steps.tolist() == [100.0, 200.0, 300.0]
        np.testing.assert_allclose(fitness.value, [5.0, 2.0, 8.0 / 3.0])
        (group,) = group_runs([write("d", [1.0, 3.0, NAN])])  # a group that diverged is drawn to its end
        steps, fitness = curve(group.runs, floor=-2.0)
        assert (steps.tolist(), fitness.value.tolist()) == ([100.0, 200.0, 300.0], [1.0, 3.0, -2.0])
        (group,) = group_runs([write("e", [float(value) for value in range(1000)])])  # a long curve keeps its ends
        steps, fitness = curve(group.runs, floor=0.0)
        assert (len(steps), steps[0], steps[-1], fitness.value[-1]) == (150, 100.0, 100_000.0, 999.0)

    def test_a_matrix_of_pairs_is_drawn(self, write, tmp_path):
        paths = []
        for size, seed in [(size, seed) for size in range(1, 7) for seed in range(2)]:
            fitness = [float(size), float(size + seed), NAN][: 3 if (size, seed) == (1, 1) else 2]
            paths.append(write(f"a{size}-{seed}", fitness, population=size, seed=seed, run={"generations": 3}))
        paths.append(write("elsewhere", [1.0], env="reacher"))
        picture = tmp_path / "comparison.png"
        assert compare(paths, picture, resamples=50).picture == picture
        assert picture.read_bytes().startswith(PNG)

    def test_paths_of_pictures(self, write, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        run = write("a", [1.0])
        assert compare([run]).picture is None
        assert not list(tmp_path.rglob("*.png"))
        assert compare(["~/a"], "~/comparison", resamples=50).picture == tmp_path / "comparison.png"
        assert (tmp_path / "comparison.png").read_bytes().startswith(PNG)
        with pytest.raises(ValueError, match=r"^picture must end in one of \..*\.png.*, got 'x\.foo'\.$"):
            compare([tmp_path / "missing"], picture="x.foo")


def test_what_cannot_be_compared(write):
    with pytest.raises(ValueError, match="there is no run to compare"):
        compare([])
    run = write("sac-hopper-0", [1.0])
    assert compare(str(run)).groups == compare(run).groups == compare([run]).groups  # one folder is a list of one
    table = run / "metrics.csv"
    text = table.read_text()
    for column in ("env_steps", "best_fitness"):
        table.write_text(text.replace(column, "else"))
        with pytest.raises(ValueError, match=f"0 cannot be compared: its metrics.csv has no column {column}"):
            compare([run])


def test_any_column_can_be_the_score(write):
    path = write("a", [1.0, 2.0])
    add(path, max_fitness=[5.0, 6.0], coverage=[40.0, 50.0])
    assert group_runs([path])[0].runs[0].best_fitness.tolist() == [5.0, 6.0], "the best elite of a repertoire"
    found = compare([path], score="coverage")
    assert found.rows[0].scores.tolist() == [50.0]
    assert found.settings["hopper"].score == "coverage"
    with pytest.raises(ValueError, match="has no column coverag; did you mean coverage"):
        compare([path], score="coverag")


class TestMeasures:
    """`metric`: another result of the members whose fitness is the score."""

    def test_runs_of_different_objectives_are_compared_by_it(self, write):
        paths = [write("plain", [1.0, 2.0]), write("other", [3.0, 4.0], learner={"objective": "success"})]
        for path, success in zip(paths, [0.25, 0.5], strict=True):
            add(path, best__measure__success=[0.0, success], best__return=[7.0, 8.0])
        found = compare(paths, metric="success")
        assert [(row.group.name, row.scores.tolist()) for row in found.rows] == [
            ("sac", [0.25]),
            ("sac, objective=success", [0.5]),
        ]
        assert [setting.score for setting in found.settings.values()] == ["mean success"]
        assert [row.scores.tolist() for row in compare(paths, metric="return").rows] == [[8.0], [8.0]]
        with pytest.raises(ValueError, match=r"records no measure sucess; did you mean success\?$"):
            compare(paths, metric="sucess")
        with pytest.raises(ValueError, match="score is a column, and metric a measure of members, got 'coverage'"):
            compare(paths, metric="success", score="coverage")

    def test_each_independent_member_has_its_own(self, write_members):
        path = write_members("seeds", [[1.0, 2.0]])
        add(path, "lineage.csv", measure__success=[0.5, 0.25], rate=[0.1, 0.1])
        assert compare([path], metric="success").rows[0].scores.tolist() == [0.5, 0.25]

    def test_the_return_of_older_runs_is_their_fitness_unless_it_is_another_measure(self, write):
        plain, other = write("plain", [1.0]), write("other", [1.0], learner={"objective": "success"})
        assert compare([plain], metric="return").rows[0].scores.tolist() == [1.0]
        with pytest.raises(ValueError, match=r"other cannot be .* records no measure return; leave it out, or"):
            compare([plain, other], metric="return")
        skills = [write(name, [1.0], "diayn", diayn={"fitness": name}) for name in ("return", "accuracy")]
        for path in skills:
            add(path, true_return=[7.0])
        assert compare(skills[:1], metric="return").rows[0].scores.tolist() == [1.0]
        with pytest.raises(ValueError, match=r"leave it out, use its mean over the members: --score true_return, or"):
            compare(skills, metric="return")
        (plain / "repertoire.csv").write_text("cell,fitness\n0,1.0\n")
        with pytest.raises(ValueError, match=r"records no success of its elites in training; .*--fresh 100"):
            compare([plain], metric="success")

    def test_it_begins_where_it_is_recorded_and_ends_with_the_run(self, write):
        path = write("run", [1.0, 2.0, 3.0, 4.0])

        def record(*values):
            add(path, best__measure__success=values)
            return open_run(path).measured("success", per_member=False)[0]

        found = record(NAN, 0.5, NAN, 0.25)  # the run began before the measure was recorded
        np.testing.assert_array_equal(found.best_fitness, [0.5, np.nan, 0.25])
        assert found.env_steps.tolist() == [200.0, 300.0, 400.0]
        found = record(0.5, 0.5, 0.5, NAN)
        assert (found.end.env_steps, found.diverged) == (400.0, True)
        with pytest.raises(ValueError, match=r"records no measure success; leave it out"):
            record(*[NAN] * 4)
        add(path, best_fitness=[1.0, 2.0, 3.0, NAN])
        assert record(0.5, 0.5, 0.5, 0.5).diverged, "older tables have the measure of a member that diverged"

    def test_that_of_islands_is_of_the_best_member_of_all(self, write):
        whole = write("run", [])
        for number, fitness, values in ((0, [1.0, NAN, 5.0], [0.1, 0.2, 0.3]), (1, [2.0, 3.0], [0.6, 0.7])):
            path = whole / "islands" / str(number)
            path.mkdir(parents=True)
            add(finish(path, {"kind": "sac"}, fitness), best__measure__success=values)
        (found,) = open_run(whole).measured("success", per_member=False)
        assert found.best_fitness.tolist() == [0.6, 0.7, 0.3]
        table = whole / "islands/1/metrics.csv"
        text = table.read_text()
        for lost in ("generation", "best_fitness", "env_steps"):
            table.write_text(text.replace(lost, "x"))
            with pytest.raises(ValueError, match=f"^{table} lacks the columns {lost}; put a copy of the file back"):
                open_run(whole).learning_curve()

    def test_fresh_episodes_are_measured_by_it(self, write):
        path, asked = write("run", [-500.0]), []

        def evaluate(paths, metric):
            asked.append(metric)
            return {one: (4, np.asarray([0.75])) for one in paths}

        found = compare([path], metric="success", fresh=Fresh(3, evaluate))
        assert (found.rows[0].scores.tolist(), asked, found.settings["hopper"].floor) == ([0.75], ["success"], 0.75)
        assert found.rows[0].env_steps == 400.0, "every generation makes equally many steps, also those that are lost"

    def test_the_curves_beside_fresh_episodes_are_of_it_too(self, write, write_members):
        path, seeds, bare = write("run", [-5.0, -4.0]), write_members("seeds", [[1.0, 2.0]]), write("bare", [-3.0], n=3)
        add(path, best__measure__success=[NAN, 0.5])
        add(seeds, "lineage.csv", measure__success=[0.5, 0.25], rate=[0.1, 0.1])
        fresh = Fresh(3, lambda paths, _: {one: (2, np.asarray([0.75, 1.0])) for one in paths})
        found = compare([path, seeds, bare], metric="success", fresh=fresh)
        *recorded, other = [run for group in found.groups for run in group.runs]
        assert [run.best_fitness.tolist() for run in recorded] == [[0.5], [0.5], [0.25]]
        assert [run.env_steps.tolist() for run in recorded] == [[200.0], [100.0], [100.0]], "a member's are its own"
        assert np.isnan(other.best_fitness).all()
        assert found.rows[0].env_steps == 200.0
        assert [row.scores.tolist() for row in found.rows] == [[0.75], [0.75, 1.0], [0.75]]
        for rows, lines, texts in ((found.rows, 2, []), (found.rows[2:], 0, ["not recorded in training"])):
            axes = new_figure((4, 4)).subplots()
            _draw_curves(axes, rows, found.settings["hopper"], {row.group.name: "k" for row in rows})
            assert (len(axes.lines), [text.get_text() for text in axes.texts]) == (lines, texts)
