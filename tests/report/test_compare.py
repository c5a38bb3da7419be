"""Comparison of runs: grouping, the common budget of environment steps, statistics, notes, tables and the figure."""

import json
from functools import partial

import numpy as np
import pytest
from rich.console import Console

from rookery.populations.independent import seeds
from rookery.populations.pbt import pbt
from rookery.report.compare import compare, group_runs, tables
from rookery.report.formatting import steps_text
from rookery.report.runs import curve
from rookery.storage.run_dir import open_existing
from rookery.training.loop import run
from tests import walks

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
    rows = [f"{index},{(index + 1) * steps}.0,{value!r}" for index, value in enumerate(fitness)]
    (path / "metrics.csv").write_text("\n".join(["generation,env_steps,best_fitness", *rows, ""]))
    return path


def printed(comparison, width=160):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        for part in tables(comparison):
            console.print(part)
    return capture.get()


class TestGroups:
    def test_runs_that_differ_by_seed_are_one_group(self, write):
        paths = [write(f"run{seed}", [1.0, 2.0], seed=seed) for seed in range(3)]
        (group,) = group_runs(paths)
        assert (group.label, group.name, group.environment) == ("sac hopper", "sac", "hopper")
        assert [run.path for run in group.runs] == paths
        assert [run.seed for run in group.runs] == [0, 1, 2]
        assert group.runs[0].env_steps.tolist() == [100.0, 200.0]

    def test_settings_without_effect_on_results_do_not_separate_runs(self, write):
        other = {"keep": 9, "checkpoint_every": 2, "quiet": True, "live": True, "overwrite": True}
        paths = [write("a", [1.0]), write("b", [1.0], run=other, environment={"devices": 2, "exact": True})]
        assert len(group_runs(paths)) == 1

    def test_random_keys_matter_only_to_runs_that_are_compared_bit_by_bit(self, write):
        paths = [write("old", [1.0]), write("rbg", [1.0], keys="rbg")]
        assert len(group_runs(paths)) == 1
        exact = [
            write(f"exact{i}", [1.0], keys=name, environment={"exact": True}) for i, name in enumerate(["rbg", "x"])
        ]
        with pytest.raises(
            ValueError, match=r"^runs with --exact cannot be compared across .* rbg and .*exact1 with x\.$"
        ):
            group_runs(exact)
        assert len(group_runs([paths[0], exact[0]])) == 1

    def test_a_setting_that_is_null_counts_as_absent(self, write):
        assert len(group_runs([write("old", [1.0]), write("new", [1.0], agent={"fix_alpha": None})])) == 1

    def test_a_label_contains_only_settings_that_differ(self, write):
        same = {"population": 8, "kind": "pbt-sac"}
        paths = [
            write("a", [1.0], pbt={"perturb": "perturb", "burn_in": 0}, **same),
            write("b", [1.0], pbt={"perturb": "pb2", "burn_in": 0}, **same),
            write("c", [1.0], pbt={"burn_in": 0}, **same),
            write("d", [1.0]),
        ]
        labels = ["pbt-sac hopper, perturb=perturb", "pbt-sac hopper, perturb=pb2", "pbt-sac hopper"]
        assert [group.label for group in group_runs(paths)] == [*labels, "sac hopper"]

    def test_values_in_labels_are_json(self, write):
        paths = [write("a", [1.0], agent={"hidden": [8, 8], "tau": 0.1}), write("b", [1.0], agent={"tau": 0.3})]
        assert [group.name for group in group_runs(paths)] == [
            "sac, hidden=[8, 8], tau=0.1",
            "sac, tau=0.3",
        ]

    def test_an_ambiguous_setting_keeps_its_full_name(self, write):
        paths = [
            write("a", [1.0], agent={"rate": 1}, pbt={"rate": 5}),
            write("b", [1.0], agent={"rate": 2}, pbt={"rate": 5}),
        ]
        assert [group.name for group in group_runs(paths)] == ["sac, agent.rate=1", "sac, agent.rate=2"]

    def test_integers_equal_floats_of_the_same_value(self, write):
        assert len(group_runs([write("a", [1.0], agent={"tau": 1}), write("b", [1.0], agent={"tau": 1.0})])) == 1

    def test_labels_are_compared_within_kind_and_environment_only(self, write):
        paths = [write("a", [1.0], population=2), write("b", [1.0], kind="td3", population=3)]
        paths.append(write("c", [1.0], env="reacher", population=4))
        assert [group.label for group in group_runs(paths)] == ["sac hopper", "td3 hopper", "sac reacher"]

    def test_different_generations_are_different_configurations(self, write):
        found = group_runs([write("a", [1.0]), write("b", [1.0, 2.0])])
        assert [group.label for group in found] == ["sac hopper, generations=1", "sac hopper, generations=2"]

    @pytest.mark.parametrize(
        ("settings", "label"),
        [
            ({"learner": {"objective": "approach"}}, "hopper, objective=approach"),
            ({"learner": {"fitness": "prey"}}, "hopper, fitness=prey"),
            ({"metra": {"fitness": "distance"}}, "hopper, fitness=distance"),
            ({"diayn": {"fitness": "return"}}, "hopper"),
        ],
    )
    def test_scores_of_other_measures_are_not_compared(self, write, settings, label):
        plain, other = group_runs([write("plain", [1.0], kind="td3"), write("other", [2.0], **settings)])
        assert (plain.environment, other.environment) == ("hopper", label)
        assert len(compare([run.path for group in (plain, other) for run in group.runs]).pairs) == (label == "hopper")

    def test_settings_of_the_environment_distinguish_environments(self, write):
        paths = [write("a", [1.0]), write("b", [1.0], environment={"backend": "mjx"}), write("c", [1.0], env="reacher")]
        found = group_runs(paths)
        assert [group.environment for group in found] == ["hopper", "hopper, backend=mjx", "reacher"]
        assert [group.name for group in found] == ["sac"] * 3
        assert len({group.label for group in found}) == 3

    def test_duplicate_folders_are_dropped(self, write, monkeypatch):
        path = write("a", [1.0])
        monkeypatch.chdir(path.parent)
        (group,) = group_runs([path, "a", f"{path}/../a/"])
        assert len(group.runs) == 1

    def test_runs_from_python_without_a_record(self, tmp_path):
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            finish(tmp_path / name, {"kind": "python"}, [1.0])
        (group,) = group_runs([tmp_path / "a", tmp_path / "b"])
        assert (group.label, group.runs[0].seed) == ("python an unnamed environment", None)
        assert "records no seed" in " ".join(compare([tmp_path / "a", tmp_path / "b"]).notes)

    def test_runs_from_python_with_a_record(self, tmp_path):
        for name, method in (("a", "mine"), ("b", "yours")):
            (tmp_path / name).mkdir()
            finish(tmp_path / name, {"kind": "python", "env": "maze", "method": method, "seed": 4}, [1.0])
        found = group_runs([tmp_path / "a", tmp_path / "b"])
        assert [group.label for group in found] == ["python maze, method=mine", "python maze, method=yours"]
        assert found[0].runs[0].seed == 4


@pytest.fixture
def write_members(write):
    """Write the folder of independent members: `fitness` is `[generations][members]`."""

    def write_run(name, fitness, steps=100, draw_hyper=False, **settings):
        best = [max((value for value in row if np.isfinite(value)), default=NAN) for row in fitness]
        size = len(fitness[0])
        settings = {"population": size, "draw_hyper": draw_hyper, **settings}
        path = write(name, best, steps=steps * size, **settings)
        rows = [f"{g},{m},{m},{fitness[g][m]!r}" for g in range(len(fitness)) for m in range(size)]
        (path / "lineage.csv").write_text("\n".join(["generation,member,parent,fitness", *rows, ""]))
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

    def test_the_interval_is_over_all_members(self, write_members):
        comparison = compare([write_members("seeds", [[0.0, 10.0, 20.0, 90.0]])])
        (row,) = comparison.rows
        assert row.scores.tolist() == [0.0, 10.0, 20.0, 90.0]
        assert (row.interquartile_mean.value, row.median.value, row.env_steps) == (15.0, 15.0, 100.0)
        assert row.interquartile_mean.low < 15.0 < row.interquartile_mean.high
        assert (row.chosen, comparison.notes) == ("", [])
        assert comparison.settings["hopper"].score == "fitness"

    def test_members_of_several_folders_and_single_runs_are_one_group(self, write_members):
        paths = [
            write_members("three", [[1.0, 2.0, 3.0]], seed=0),
            write_members("two", [[4.0, 5.0]], seed=1),
            write_members("alone", [[6.0]], seed=2),
        ]
        comparison = compare(paths)
        (row,) = comparison.rows
        assert row.scores.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        assert comparison.settings["hopper"].budget == 100.0
        assert comparison.notes == []

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
        assert "best of 4" in printed(comparison)

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

    @pytest.mark.parametrize(
        ("make", "runs"),
        [
            (partial(seeds, population_size=3), 3),
            (partial(seeds, population_size=3, draw_hyper=True), 1),
            (partial(seeds, population_size=3, draw_hyper=True, space=walks.SPACE._replace(domains={})), 3),
            (partial(pbt, population_size=3, exploit="none"), 1),
            (partial(pbt, population_size=3, space=walks.SPACE._replace(domains={}), replace_count=1), 1),
        ],
        ids=["seeds", "random search", "nothing to draw", "the same by pbt", "selection alone"],
    )
    def test_a_program_from_python_records_whether_its_members_are_independent(self, tmp_path, make, runs):
        run(make(walks.learner()), generations=2, run_dir=str(tmp_path / "run"), quiet=True)
        (group,) = group_runs([tmp_path / "run"])
        assert (len(group.runs), open_existing(tmp_path / "run").config["independent"]) == (runs, runs == 3)

    def test_a_member_that_diverged_is_the_worst_run(self, write_members):
        comparison = compare([write_members("seeds", [[4.0, 6.0, 1.5], [5.0, NAN, 2.5]])])
        (row,) = comparison.rows
        assert (row.scores.tolist(), row.diverged) == ([5.0, 1.5, 2.5], 1)
        assert "1 of 3 runs of sac hopper diverged" in comparison.notes[0]

    def test_their_curve_is_over_the_steps_of_one_member(self, write_members):
        (group,) = group_runs([write_members("seeds", [[1.0, 5.0, 3.0], [2.0, 4.0, 9.0]])])
        steps, fitness = curve(group.runs, floor=0.0)
        assert steps.tolist() == [100.0, 200.0]
        assert fitness.value.tolist() == [3.0, 5.0]
        assert (fitness.low[1], fitness.high[1]) == (2.0, 9.0)

    def test_repeated_seeds_of_the_same_member_are_noted(self, write_members):
        paths = [write_members("a", [[1.0, 2.0]], seed=3), write_members("b", [[3.0]], seed=3)]
        (note,) = compare(paths).notes
        assert "several runs of sac hopper have the seed 3" in note

    def test_with_a_score_column_a_folder_is_one_run_with_a_note(self, write_members):
        comparison = compare([write_members("seeds", [[1.0, 5.0]])], score="best_fitness")
        (row,) = comparison.rows
        assert (row.scores.tolist(), row.env_steps) == ([5.0], 200.0)
        assert "best_fitness describes all members of a folder together" in " ".join(comparison.notes)

    def test_a_run_in_progress_has_its_complete_generations(self, write_members):
        path = write_members("seeds", [[1.0, 5.0], [2.0, 6.0]])
        table = (path / "lineage.csv").read_text().splitlines()
        (path / "lineage.csv").write_text("\n".join([*table[:-1], ""]))
        (group,) = group_runs([path])
        assert [run.env_steps.tolist() for run in group.runs] == [[100.0]] * 2


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

    def test_a_gamma_can_be_given(self, write):
        comparison = compare([write("a", [3.0]), write("b", [7.0], seed=1)], gamma=5.0)
        assert comparison.rows[0].optimality_gap.value == 1.0

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
        assert note in printed(comparison, width=1000)

    def test_a_run_that_was_stopped_early_is_noted(self, write):
        done, stopped = write("a", [1.0, 2.0, 3.0]), write("b", [4.0, 5.0], seed=1, run={"generations": 3})
        comparison = compare([done, stopped])
        assert comparison.rows[0].scores.tolist() == [2.0, 5.0]
        assert "sac: 200 to 300" in comparison.notes[0]

    def test_budgets_of_other_environments_do_not_matter(self, write):
        comparison = compare([write("a", [1.0, 2.0], kind="td3"), write("b", [3.0], env="reacher")])
        assert [setting.budget for setting in comparison.settings.values()] == [200.0, 100.0]
        assert (comparison.notes, comparison.pairs) == ([], [])

    def test_a_run_beyond_the_common_budget_from_its_start_is_an_error(self, write):
        paths = [write("coarse", [1.0], steps=1000), write("fine", [1.0], kind="td3")]
        with pytest.raises(
            ValueError, match=r"coarse cannot be compared.* ends at 1,000 .*fine stopped at 100; continue that run"
        ):
            compare(paths)

    def test_repeated_seeds_are_noted(self, write):
        comparison = compare([write("a", [1.0], seed=3), write("b", [2.0], seed=3)])
        assert "several runs of sac hopper have the seed 3" in comparison.notes[0]


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
        assert "1 diverged" in printed(comparison)

    @pytest.mark.parametrize("bad", [float("inf"), -float("inf")])
    def test_an_infinite_fitness_is_a_divergence(self, write, bad):
        comparison = compare([write("a", [1.0, bad]), write("b", [0.5, 2.0], seed=1)])
        assert (comparison.rows[0].scores.tolist(), comparison.rows[0].diverged) == ([0.5, 2.0], 1)

    def test_a_run_that_diverged_beyond_the_budget_keeps_its_score(self, write):
        comparison = compare([write("a", [1.0, 4.0, NAN]), write("b", [2.0, 3.0], kind="td3")])
        row = comparison.rows[0]
        assert (row.scores.tolist(), row.diverged) == ([4.0], 0)

    def test_an_environment_without_a_finite_fitness_is_an_error(self, write):
        with pytest.raises(ValueError, match="every run on hopper diverged"):
            compare([write("a", [1.0, NAN]), write("b", [NAN], kind="td3")])


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

    @pytest.mark.parametrize(("count", "clear"), [(3, False), (4, True)])
    def test_a_clear_difference_needs_enough_runs(self, write, count, clear):
        paths = [write(f"a{seed}", [1.0 + seed], seed=seed) for seed in range(count)]
        paths += [write(f"b{seed}", [9.0 + seed], kind="td3", seed=seed) for seed in range(count)]
        (pair,) = compare(paths).pairs
        assert (pair.probability.low, pair.is_clear) == (1.0, clear)

    def test_a_single_run_is_never_clear(self, write):
        (pair,) = compare([write("a", [1.0]), write("b", [2.0], kind="td3")]).pairs
        assert (pair.probability.value, pair.is_clear, pair.probability.has_interval) == (1.0, False, False)


class TestPrinting:
    def test_numbers_are_printed_with_their_intervals(self, write):
        paths = [write(f"a{seed}", [1000.0 + seed], seed=seed) for seed in range(4)]
        paths += [write(f"b{seed}", [0.5], kind="td3", seed=seed) for seed in range(4)]
        comparison = compare(paths)
        text = printed(comparison)
        iqm = comparison.rows[0].interquartile_mean
        assert "hopper at 100 environment steps" in text
        assert f"{iqm.low:.0f} to {iqm.high:.0f}" in text
        assert "0.5 to 0.5" in text
        assert "1.00 to 1.00 *" in text
        assert text.index("1 sac") < text.index("2 td3")

    def test_no_number_is_cut_off_in_a_narrow_terminal(self, write):
        paths = [write(f"a{seed}", [21_000.5 + seed], perturb="resample", seed=seed) for seed in range(4)]
        paths += [write(f"b{seed}", [-31_000.5 - seed], perturb="pb2", seed=seed) for seed in range(4)]
        comparison = compare(paths)
        text = printed(comparison, width=80)
        for row in comparison.rows:
            for name in ("interquartile_mean", "median", "mean", "optimality_gap"):
                assert all(f"{value:.0f}" in text for value in getattr(row, name))
        assert "…" not in text

    def test_one_run_has_no_interval_with_a_remark(self, write):
        text = printed(compare([write("a", [1.0]), write("b", [2.0], kind="td3")]))
        assert text.count("1 run, no interval") == 3
        assert "nan" not in text

    def test_names_are_not_parsed_as_markup(self, write):
        paths = [write("a", [1.0], agent={"hidden": ["red"]}), write("b", [1.0, 2.0], agent={"hidden": ["[/bold]"]})]
        text = printed(compare(paths))
        assert 'hidden=["red"]' in text
        assert '"[/bold]"' in text

    def test_many_pairs_are_named_by_rank(self, write):
        text = printed(compare([write(f"a{size}", [float(size)], population=size) for size in range(1, 6)]))
        assert text.count("population=3") == 1


class TestPicture:
    def test_a_curve_is_the_interquartile_mean_of_the_runs(self, write):
        columns = [[0.0, 4.0], [1.0, 5.0], [3.0, 7.0], [90.0, -80.0]]
        (group,) = group_runs([write(f"a{seed}", values, seed=seed) for seed, values in enumerate(columns)])
        steps, fitness = curve(group.runs, floor=-1.0)
        assert steps.tolist() == [100.0, 200.0]
        assert fitness.value.tolist() == [2.0, 4.5]
        assert (fitness.low <= fitness.value).all()
        assert (fitness.value <= fitness.high).all()

    def test_a_curve_ends_with_the_shortest_run_but_not_with_a_diverged_one(self, write):
        goal = {"generations": 4}
        paths = [write("a", [1.0, 2.0, 3.0, 4.0]), write("b", [5.0, 6.0, 7.0], seed=1, run=goal)]
        paths.append(write("c", [9.0, NAN], seed=2, run=goal))
        (group,) = group_runs(paths)
        steps, fitness = curve(group.runs, floor=-2.0)
        assert steps.tolist() == [100.0, 200.0, 300.0]
        np.testing.assert_allclose(fitness.value, [5.0, 2.0, 8.0 / 3.0])

    def test_a_group_that_diverged_is_drawn_to_its_end(self, write):
        (group,) = group_runs([write("a", [1.0, 3.0, NAN])])
        steps, fitness = curve(group.runs, floor=-2.0)
        assert steps.tolist() == [100.0, 200.0, 300.0]
        assert fitness.value.tolist() == [1.0, 3.0, -2.0]

    def test_a_long_curve_keeps_its_ends(self, write):
        (group,) = group_runs([write("a", [float(value) for value in range(1000)])])
        steps, fitness = curve(group.runs, floor=0.0)
        assert len(steps) == 150
        assert (steps[0], steps[-1], fitness.value[-1]) == (100.0, 100_000.0, 999.0)

    @pytest.mark.parametrize("sizes", [[1], [1, 2], range(1, 7)], ids=["one group", "a pair", "a matrix of pairs"])
    def test_it_is_drawn_for_any_number_of_groups(self, write, tmp_path, sizes):
        paths = []
        for size, seed in [(size, seed) for size in sizes for seed in range(2)]:
            fitness = [float(size), float(size + seed), NAN][: 3 if (size, seed) == (1, 1) else 2]
            paths.append(write(f"a{size}-{seed}", fitness, population=size, seed=seed, run={"generations": 3}))
        paths.append(write("elsewhere", [1.0], env="reacher"))
        picture = tmp_path / "comparison.png"
        assert compare(paths, picture, resamples=50).picture == picture
        assert picture.read_bytes().startswith(PNG)

    def test_a_picture_without_a_suffix_is_a_png_of_that_name(self, write, tmp_path):
        picture = compare([write("a", [1.0])], tmp_path / "comparison", resamples=50).picture
        assert picture is not None
        assert picture == tmp_path / "comparison.png"
        assert picture.read_bytes().startswith(PNG)

    def test_no_picture_by_default(self, write, tmp_path):
        assert compare([write("a", [1.0])]).picture is None
        assert not list(tmp_path.rglob("*.png"))

    def test_an_unsupported_format_is_rejected_before_any_run_is_read(self, tmp_path):
        with pytest.raises(ValueError, match=r"^picture must end in one of \..*\.png.*, got 'x\.foo'\.$"):
            compare([tmp_path / "missing"], picture="x.foo")

    def test_a_path_that_cannot_be_written_is_an_error(self, write, tmp_path):
        with pytest.raises(ValueError, match=r"nowhere/a\.png cannot be written: No such file or directory"):
            compare([write("a", [1.0])], picture=tmp_path / "nowhere" / "a.png")

    @pytest.mark.parametrize(
        ("steps", "text"), [(950, "950"), (20_000, "20k"), (1_536_000, "1.536M"), (2_000_000_000, "2B")]
    )
    def test_steps_are_short(self, steps, text):
        assert steps_text(steps) == text


class TestMistakes:
    def test_no_runs(self):
        with pytest.raises(ValueError, match="there is no run to compare"):
            compare([])

    def test_the_error_for_a_missing_folder_names_similar_runs(self, write, tmp_path):
        write("sac-hopper-0", [1.0])
        write("other", [1.0])
        with pytest.raises(ValueError, match=r"there is no such folder; runs near it are \S*sac-hopper-0\.$"):
            compare([tmp_path / "sac-hoper-0"])

    def test_the_error_for_a_folder_of_runs_names_the_runs_in_it(self, write, tmp_path):
        write("a", [1.0])
        with pytest.raises(ValueError, match=r"config.json is missing in it; runs near it are \S*/a\.$"):
            compare([tmp_path])

    def test_a_folder_without_similar_runs(self, tmp_path):
        with pytest.raises(ValueError, match=r"none is not a run directory: there is no such folder\.$"):
            compare([tmp_path / "none"])

    def test_a_damaged_config(self, write):
        path = write("a", [1.0])
        (path / "config.json").write_text("{")
        with pytest.raises(ValueError, match=r"config.json is damaged"):
            compare([path])

    def test_a_run_without_a_finished_generation(self, write):
        path = write("a", [])
        with pytest.raises(
            ValueError, match="a has no finished generation to report yet; wait for its first, or leave it out"
        ):
            compare([path])
        (path / "metrics.csv").unlink()
        with pytest.raises(
            ValueError, match="a has no finished generation to report yet; wait for its first, or leave it out"
        ):
            compare([path])

    @pytest.mark.parametrize("column", ["env_steps", "best_fitness"])
    def test_a_run_without_a_column(self, write, column):
        path = write("a", [1.0])
        table_file = path / "metrics.csv"
        table_file.write_text(table_file.read_text().replace(column, "else"))
        with pytest.raises(ValueError, match=f"a cannot be compared: its metrics.csv has no column {column}"):
            compare([path])


def test_any_column_can_be_the_score(write):
    path = write("a", [1.0, 2.0])
    lines = (path / "metrics.csv").read_text().splitlines()
    table = "\n".join([f"{lines[0]},max_fitness,coverage", f"{lines[1]},5.0,40.0", f"{lines[2]},6.0,50.0", ""])
    (path / "metrics.csv").write_text(table)
    assert group_runs([path])[0].runs[0].best_fitness.tolist() == [5.0, 6.0], "the best elite of a repertoire"
    found = compare([path], score="coverage")
    assert found.rows[0].scores.tolist() == [50.0]
    assert found.settings["hopper"].score == "coverage"
    with pytest.raises(ValueError, match="has no column coverag; choose one of coverage"):
        compare([path], score="coverag")
