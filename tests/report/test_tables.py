"""Printed tables of evaluations: rows, columns, formats, and columns that depend on the metrics."""

import numpy as np
from rich.console import Console

from rookery.report.tables import evaluation_summary, member_evaluation, skill_evaluation, summary, team_evaluation
from tests.written_runs import MEMBERS, METRICS, write

NAN = float("nan")


def lines(table, width=120):
    """The words of each printed line that is not empty, without box characters."""
    bare = text([table], width).translate({ord(sign): " " for sign in "│┃━─┏┓┗┛┳┻┡┩╇├┤┼└┘┴"})
    return [line.split() for line in bare.splitlines() if line.split()]


def members(returns, fitness=None, **more):
    """Metrics of members from the returns of their episodes, `[P, N]`."""
    returns = np.asarray(returns, np.float32)
    fitness = returns.mean(axis=1) if fitness is None else np.asarray(fitness, np.float32)
    descriptor = np.zeros((len(returns), 0), np.float32)
    lengths = np.full(returns.shape, 5, np.int32)
    return {"returns": returns, "fitness": fitness, "descriptor": descriptor, "lengths": lengths, **more}


def skilled(returns, fitness=None):
    """The same for members with skills."""
    returns = np.asarray(returns, np.float32)
    accuracy = np.tile(np.asarray([0.5, 1.0], np.float32), (len(returns), returns.shape[1] // 2))
    return members(returns, fitness, accuracy=accuracy, diversity_return=100.0 * accuracy)


class TestMemberEvaluation:
    def test_the_best_comes_first_and_small_numbers_have_enough_decimals(self):
        title, header, *rows = lines(member_evaluation(members([[1.0, 3.0], [20.0, 40.0]])))
        assert title == ["2", "episodes", "per", "member"]
        assert header == ["member", "mean", "return", "std", "min", "max", "length"]
        assert rows == [["1", "30.0", "10.0", "20.0", "40.0", "5"], ["0", "2.0", "1.0", "1.0", "3.0", "5"]]
        *_, row = lines(member_evaluation(members([[-0.02, -0.01]])))
        assert row == ["0", "-0.0150", "0.0050", "-0.0200", "-0.0100", "5"]

    def test_descriptors_are_aligned_across_rows_and_fit_into_80_characters(self):
        metrics = members([[1.0], [2.0]]) | {"descriptor": np.asarray([[0.5, -0.25], [-1.0, 10.0]], np.float32)}
        printed = text([member_evaluation(metrics)], width=120)
        assert "│ -1.00 10.00 │" in printed
        assert "│  0.50 -0.25 │" in printed
        metrics = skilled([[-0.2, -0.3]], fitness=[0.1]) | {"descriptor": np.asarray([[-0.5, 0.25]], np.float32)}
        assert lines(member_evaluation(metrics), width=80)[-1][-2:] == ["-0.50", "0.25"]

    def test_with_skills_the_accuracy_of_the_discriminator_is_shown(self):
        rows = lines(member_evaluation(skilled([[1.0, 3.0], [20.0, 40.0]])))
        assert [*rows[1], *rows[2]] == (  # a header in two lines
            ["mean", "diversity", "member", "return", "std", "min", "max", "accuracy", "return", "length"]
        )
        assert rows[3] == ["1", "30.0", "10.0", "20.0", "40.0", "0.750", "75.0", "5"]

    def test_a_fitness_that_is_not_the_return_is_shown_and_decides_the_order(self):
        rows = lines(member_evaluation(skilled([[1.0, 3.0], [20.0, 40.0]], fitness=[0.9, 0.1])))
        assert rows[2][:3] == ["member", "fitness", "return"]
        assert [row[:3] for row in rows[3:]] == [["0", "0.900", "2.0"], ["1", "0.100", "30.0"]]

    def test_a_measure_with_the_name_of_a_column_is_beside_it(self):
        measures = {f"measure/{name}": np.asarray([[60.0, 62.0]]) for name in ("min", "length", "success")}
        *_, header, row = lines(member_evaluation(members([[1.0, 3.0]]) | measures))
        assert header[4:] == ["max", "measure/min", "measure/length", "success", "length"]
        assert row == ["0", "2.00", "1.00", "1.00", "3.00", *["61.0"] * 3, "5"]

    def test_a_fitness_that_is_not_finite_is_shown_and_ranks_last_but_rounding_errors_are_not_shown(self):
        returns = np.random.default_rng(0).normal(0.0, 1000.0, (3, 999)).astype(np.float32)
        fitness = np.cumsum(returns, axis=1, dtype=np.float32)[:, -1] / np.float32(999)
        assert "fitness" not in lines(member_evaluation(members(returns, fitness)))[1]
        rows = lines(member_evaluation(members([[1.0, 3.0], [0.0, 0.0]], fitness=[NAN, 0.0])))
        assert rows[1][:2] == ["member", "fitness"]
        assert [row[:3] for row in rows[2:]] == [["1", "0.0", "0.00"], ["0", "nan", "2.00"]]


SKILLS = {  # two members, four episodes, of skills 0, 1, 0, 1
    "skill": np.array([0, 1, 0, 1]),
    "returns": np.asarray([[0.0, 0.0, 0.0, 0.0], [10.0, 20.0, 30.0, 60.0]], np.float32),
    "diversity_return": np.asarray([[0.0, 0.0, 0.0, 0.0], [100.0, 200.0, 102.0, 202.0]], np.float32),
    "accuracy": np.asarray([[0.0, 0.0, 0.0, 0.0], [0.5, 1.0, 0.25, 1.0]], np.float32),
    "lengths": np.array([[1, 1, 1, 1], [10, 20, 30, 20]]),
    "descriptors": np.asarray([[[0.0, 0.0]] * 4, [[0.0, 1.0], [-0.5, 0.0], [1.0, 2.0], [-0.5, 0.5]]], np.float32),
}


class TestSkillEvaluation:
    def test_a_row_for_each_skill_and_their_mean(self):
        title, header, *rows = lines(skill_evaluation(SKILLS, member=1))
        assert title == ["2", "episodes", "per", "skill,", "member", "1"]
        assert header == "skill true return accuracy diversity return length mean descriptor".split()
        assert rows == [
            ["0", "20.0", "0.375", "101.0", "20", "0.50", "1.50"],
            ["1", "40.0", "1.000", "201.0", "20", "-0.50", "0.25"],
            ["mean", "30.0", "0.688", "151.0", "20", "0.00", "0.88"],
        ]

    def test_a_single_member_without_a_descriptor_and_the_mean_weights_skills_equally(self):
        alone = {name: values[:1] for name, values in SKILLS.items() if name != "skill"}
        alone |= {"skill": SKILLS["skill"], "descriptors": np.zeros((1, 4, 0), np.float32)}
        title, header, *rows = lines(skill_evaluation(alone))
        assert title == ["2", "episodes", "per", "skill"]
        assert header == "skill true return accuracy diversity return length".split()
        assert rows[0] == ["0", "0.0", "0.000", "0.0", "1"]
        title, _, *rows = lines(skill_evaluation(SKILLS | {"skill": np.array([0, 0, 0, 7])}, member=1))
        assert title == ["1", "to", "3", "episodes", "per", "skill,", "member", "1"]
        assert [row[:2] for row in rows] == [["0", "20.0"], ["7", "60.0"], ["mean", "40.0"]]


def text(parts, width=400):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


SEEDS = {"kind": "sac", "draw_hyper": False, "population": 2}


class TestSummary:
    def test_independent_members_have_an_interquartile_mean_and_interval(self, tmp_path):
        printed = lines(summary(write(tmp_path, SEEDS, members=MEMBERS | {"rate": (0.1,) * 6})))
        rows = {" ".join(words[:-1]): words[-1] for words in printed}
        assert rows["interquartile mean of the fitness"] == "1.5"
        assert rows["95 % interval 1 to"] == rows["lowest to highest 1 to"] == "2"
        assert (rows["rate"], rows["2 independent"]) == ("0.1", "members")
        assert not {"best", "worst"} & {word for row in rows for word in row.split()}

    def test_a_diverged_member_has_the_worst_fitness_and_is_counted(self, tmp_path):
        fitness = (1.0, 0.0, 3.0, -1.0, 2.0, NAN)
        rows = lines(summary(write(tmp_path, SEEDS, members=MEMBERS | {"fitness": fitness})))
        assert ["interquartile", "mean", "of", "the", "fitness", "0.5"] in rows
        assert ["diverged", "1"] in rows

    def test_a_population_has_best_middle_and_worst(self, tmp_path):
        drawn = {"kind": "sac", "draw_hyper": True, "population": 2}
        printed = lines(summary(write(tmp_path / "copied", drawn, METRICS, MEMBERS)))
        assert printed[:2] == [["generation", "3"], ["best", "middle", "worst"]]
        assert printed[-2:] == [  # in the second generation, slot 1 was a copy of member 0 after the first
            ["copied", "from", "never", "never", "member", "0"],
            ["after", "generation", "-", "-", "1"],
        ]
        never = MEMBERS | {"parent": MEMBERS["member"]}
        assert "copied" not in [row[0] for row in lines(summary(write(tmp_path / "never", drawn, METRICS, never)))]


class TestEvaluationSummary:
    def test_independent_members_have_an_interval_and_the_best_of_a_population_is_noted_as_optimistic(self):
        printed = text(evaluation_summary(members([[1.0], [2.0], [6.0]], independent=True, best_member=2)))
        assert "3 independent members" in printed
        assert "interquartile mean of the fitness │ 3 " in printed
        assert "optimistic" not in printed
        (note,) = evaluation_summary(members([[1.0], [2.0], [6.0]], independent=False, best_member=1))
        assert note == (
            "note: the first row is the best of 3 on these same episodes, which is optimistic; member 1 ranked "
            "first in training, by other episodes, so that these are an unbiased estimate of its fitness: 2."
        )
        (note,) = evaluation_summary(members([[2.0], [1.0], [2.0]], independent=False, best_member=0))
        assert str(note).endswith("fitness: 2. Equal rows may be copies, which the last selection made.")
        assert evaluation_summary(members([[1.0]], independent=True, best_member=0)) == []
        assert evaluation_summary(members([[1.0], [2.0]])) == [], "roles that evolve separately"

    def test_the_best_elite_of_a_repertoire_is_noted_as_optimistic(self):
        values = {"coverage": 50.0, "qd_score": 7.0, "max_fitness": 2.0}
        stored = {f"stored/{name}": np.asarray(value) for name, value in values.items()}
        corrected = {f"corrected/{name}": np.asarray(value) for name, value in values.items()}
        metrics = {"stored_fitness": np.ones(4), "fitness": np.ones(4), **stored, **corrected}
        (note,) = evaluation_summary(metrics | {"corrected/max_fitness": np.asarray(1.5)})
        assert "the stored best is the highest of many noisy evaluations, which is optimistic" in str(note)
        assert evaluation_summary(metrics) == [], "a function without noise"


class TestTeams:
    def rows(self, **more):
        returns = np.asarray([[1.0, 3.0], [5.0, 7.0], [10.0, 30.0]], np.float32)  # means 2, 6 and 20
        agent = {"return/fox": returns, "final_reward/fox": returns, "terminated/fox": returns > 4}
        agent |= {"truncated/fox": returns < 4}
        metrics = {"agents": np.asarray(["fox"]), "fitness": returns.mean(axis=1), **agent, **more}
        return lines(team_evaluation(metrics))

    def test_statistics_of_independent_teams_are_over_all_teams(self):
        title, *header, row = self.rows(independent=np.asarray(True))
        assert title == "3 independent teams, 2 episodes per agent, 95 % intervals".split()
        assert [word for words in header for word in words] == (
            "IQM interval interval final agent return low high lowest highest reward terminated truncated".split()
        )
        assert row == ["fox", "9.3", "2.0", "20.0", "2.0", "20.0", "9.33", "67", "%", "33", "%"]

    def test_a_population_has_its_best_team(self):
        title, *_, row = self.rows(independent=np.asarray(False))
        assert (" ".join(title), row[:2]) == ("2 episodes per agent, team 2", ["fox", "20.0"])
