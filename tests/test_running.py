"""`rookery.run`: the run directory is that of the command line, the population is divided over all devices, and the
settings of all parts are recorded."""

import dataclasses
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.agents.ppo import PpoConfig
from rookery.distributed import layout
from rookery.distributed.mesh import make_mesh
from rookery.populations.rebuild import rebuild, recipe_of
from rookery.populations.sharding import ONE_DEVICE
from rookery.populations.stages import change_init
from rookery.report.run_groups import group_runs
from rookery.running import ProgramWarning, title
from rookery.storage.record import kind_label
from rookery.storage.run_dir import OutputWarning
from rookery.training import loop, run_writer
from rookery.training.config import RunConfig
from rookery.training.program_record import changes, program_record
from tests import tiny, walks, written_runs
from tests.tiny import assert_equal

QUIET: dict[str, Any] = {"generations": 2, "quiet": True}


def record_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())["config"]


@pytest.fixture(scope="module")
def program() -> rookery.Program:
    return rookery.pbt(walks.learner(), population_size=4)


@pytest.fixture(scope="module")
def run(program: rookery.Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("python") / "run"
    rookery.run(program, seed=3, run_dir=str(path), **QUIET)
    return path


def test_the_run_directory_has_the_files_of_the_command_line(run: Path) -> None:
    files = {"config.json", "metrics.csv", "lineage.csv", "journal.jsonl", "curves.png", "report.html"}
    assert {path.name for path in run.iterdir()} >= {*files, "checkpoints", "events"}, "as in tests/cli/test_cli.py"
    assert "python pbt" in (run / "report.html").read_text()


@pytest.mark.filterwarnings("ignore::rookery.storage.run_dir.OutputWarning")  # of the table itself
def test_a_table_that_is_damaged_during_the_run_loses_no_result(program: rookery.Program, tmp_path: Path) -> None:
    def replace_by_a_folder(_: object) -> None:
        if (table := tmp_path / "run/metrics.csv").is_file():
            table.unlink()
            table.mkdir()

    options = {**QUIET, "run_dir": str(tmp_path / "run"), "callbacks": [replace_by_a_folder]}
    with pytest.warns(OutputWarning, match=r"no (summary|note) was written \(IsADirectoryError"):
        assert rookery.run(program, seed=3, **options).state is not None


def test_the_console_shows_what_runs_and_what_was_written(
    program: rookery.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rookery.run(program, generations=2, run_dir=str(tmp_path / "run"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = "pbt on line: population 4 on 2 cpu devices, selects in every generation, replaces 1 member, in"
    assert lines[0] == [*first.split(), str(tmp_path / "run")]
    assert {"run", "curves", "report", "evaluate", "memory"} <= {line[0] for line in lines if line}
    assert ["evaluate", f"rookery.load('{tmp_path}/run',", "program).evaluate()"] in lines


def test_an_interrupted_run_has_a_page_and_a_quiet_one_prints_nothing(
    program: rookery.Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(run_writer.RunWriters, "save", fail)
    with pytest.raises(OSError, match="no space left"):
        rookery.run(program, run_dir=str(tmp_path / "run"), **QUIET)
    assert (tmp_path / "run/report.html").is_file()
    assert capsys.readouterr().out == ""


class TestDevices:
    def test_all_devices_by_default_as_with_a_placement(self) -> None:
        over = make_mesh(2)
        placed = rookery.pbt(walks.learner(), population_size=4, placement=layout.placement(over))
        state = rookery.run(rookery.pbt(walks.learner(), population_size=4), **QUIET).state
        assert_equal(state, loop.run(placed, over=over, **QUIET).state)
        assert_equal(state, rookery.run(placed, **QUIET).state)
        assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state.members)} == {2}
        assert all(leaf.addressable_shards[0].data.shape[0] == 2 for leaf in jax.tree.leaves(state.members))

    def test_one_device_is_bit_equal_to_the_program_itself(self, program: rookery.Program) -> None:
        assert layout.place(program, make_mesh(1)) is program
        assert layout.mesh_of(rookery.pbt(tiny.learner(), population_size=3)).devices.size == 1

    def test_a_program_that_runs_again_is_not_traced_again(self) -> None:
        traced = []

        def change(state: Any) -> Any:
            traced.append(state)
            return state

        program = change_init(rookery.seeds(walks.learner(), population_size=2), change)
        rookery.run(program, **QUIET)
        once = len(traced)
        assert once > 0
        rookery.run(program, seed=1, **QUIET)
        assert len(traced) == once
        placed = layout.place(program, make_mesh(2))
        assert placed.step is not program.step
        assert layout.place(program._replace(task="mine"), make_mesh(2)) == placed._replace(task="mine")
        assert layout.place(program._replace(learner=walks.learner()), make_mesh(2)).step is not placed.step

    def test_changes_are_kept(self) -> None:
        values = {"discount": np.asarray([0.5, 0.25])}
        replayed = rookery.populations.replay(rookery.seeds(walks.learner(), population_size=2), values)
        assert layout.mesh_of(replayed).devices.size == 2
        state = rookery.run(replayed, **QUIET).state
        np.testing.assert_array_equal(state.members.hyper.discount, jnp.full((2,), 0.25))

    def test_a_function_set_by_hand_keeps_one_device(self, program: rookery.Program) -> None:
        changed = program._replace(init=partial(program.init))
        assert recipe_of(changed) is None
        assert rebuild(changed, ONE_DEVICE) is None
        assert layout.mesh_of(changed).devices.size == 1
        assert layout.place(changed, make_mesh(2)) is changed
        assert layout.mesh_of(program._replace(task="mine")).devices.size == 2

    def test_a_placement_is_kept_or_moved(self) -> None:
        exact = layout.placement(make_mesh(2), exact=True)
        program = rookery.pbt(tiny.learner(), population_size=2, placement=exact)
        assert layout.place(program, layout.mesh_of(program)) is program
        moved = recipe_of(layout.place(program, make_mesh(1)))
        assert moved is not None
        assert (moved.placement.exact, moved.placement.mesh) == (True, make_mesh(1))

    def test_repertoires(self) -> None:
        arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
        cells = rookery.qd.grid((4, 4), (0.0, 0.0), (1.0, 1.0))
        made = rookery.map_elites(arm, cells, rookery.qd.iso_line(arm, 16))
        result = rookery.run(made, **QUIET)
        assert result.state.shared.fitnesses.sharding.is_fully_replicated
        one = rookery.run(made, over=make_mesh(1), **QUIET)
        np.testing.assert_allclose(result.history[-1]["qd_score"], one.history[-1]["qd_score"], rtol=1e-5)
        learner = tiny.learner()
        cells = rookery.qd.grid((2, 2), (-1.0, -1.0), (1.0, 1.0))
        made = rookery.me_pbt(learner, cells, population_size=2, ga_population=4)
        assert layout.mesh_of(made).devices.size == 2
        assert layout.mesh_of(rookery.me_pbt(learner, cells, population_size=2, ga_population=3)).devices.size == 1
        placed = rookery.me_pbt(learner, cells, population_size=2, ga_population=4, placement=exact_placement())
        assert layout.place(placed, make_mesh(2)) is placed


def exact_placement() -> Any:
    return layout.placement(make_mesh(2), exact=True, cells=4, divides_cells=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("mine", "the settings of a program must be a mapping from names, got 'mine'"),
        ({1: 2}, r"the settings of a program must be a mapping from names, got \{1: 2\}"),
        ({"kind": "sac"}, r"'kind' in the settings of a program is a word of config\.json"),
        ({"island": {}}, r"'island' in the settings of a program is a word of config\.json"),
        ({"agent": "mine"}, "'agent' in the settings of a program must be a mapping, got 'mine'"),
        ({"environment": "room"}, "'environment' in the settings of a program must be a mapping, got 'room'"),
        ({"population": "many"}, "'population' in the settings of a program must be a whole number, got 'many'"),
    ],
)
def test_settings_that_no_run_could_read_back_are_refused_before_it_begins(
    program: rookery.Program, settings: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{message}; "):
        rookery.run(program._replace(settings=settings), generations=1, run_dir=str(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run").exists()


class TestRecord:
    def test_all_settings_are_recorded(self, run: Path) -> None:
        record = record_of(run)
        assert (record["kind"], record["environment"], record["population"]) == ("python", {"env": "line"}, 4)
        assert (record["run"]["seed"], record["run"]["generations"]) == (3, 2)
        record = program_record(rookery.pbt(tiny.learner(), population_size=4))
        assert record["environment"] == {"env": "point_room", "episode_length": 10}
        assert (record["agent"]["name"], record["agent"]["hidden_sizes"], record["agent"]["alpha_init"]) == (
            "sac",
            [8],
            1,
        )
        assert (record["learner"]["name"], record["learner"]["batch_size"]) == ("off_policy", 8)
        assert (record["population_method"], record["population"], record["pbt"]["exploit"]) == ("pbt", 4, "truncation")
        assert record["space"]["discount"]["low"] == 0.9
        assert kind_label({"kind": "python", **record}) == "python pbt-sac"

    def test_skills_and_their_agent(self) -> None:
        record = program_record(rookery.seeds(tiny.discoverer(), population_size=2))
        assert record["skills"] == {"num_skills": 3, "skill_kind": "one-hot", "balanced": False}
        assert record["diayn"]["smerl"] is True
        assert (record["population_method"], record["draw_hyper"], "pbt" in record) == ("seeds", False, False)
        assert kind_label({"kind": "python", **record}) == "python seeds-diayn"

    def test_teams(self) -> None:
        record = program_record(rookery.populations.pbt_roles(tiny.team(), population_size=2))
        assert (record["parameters"], record["member"]) == ("independent", "agent")
        assert (record["agent"]["name"], record["agent"]["minibatches"]) == ("ppo", 2)
        assert record["learner"]["name"] == "on_policy"

    def test_repertoires(self) -> None:
        arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
        cells = rookery.qd.grid((4, 8), (0.0, 0.0), (1.0, 1.0))
        record = program_record(rookery.map_elites(arm, cells))
        assert (record["environment"], record["dimensions"], record["batch_size"]) == ({"env": "arm"}, 4, 256)
        assert record["cells"]["cells"] == 32
        assert "sha256" in record["cells"]["centroids"]
        other = rookery.map_elites(arm, rookery.qd.dominated_novelty(cells))
        assert changes(record, other)[0] == "cells.survival is dominated-novelty, was best-of-cell"
        assert changes(program_record(other), rookery.map_elites(arm, cells)) == [
            "cells.survival is best-of-cell, was dominated-novelty"
        ]
        assert set(record["variation"]) == {"iso_sigma", "line_sigma"}
        learner = tiny.learner()
        cells = rookery.qd.grid((2, 2), (-1.0, -1.0), (1.0, 1.0))
        record = program_record(rookery.me_pbt(learner, cells, population_size=2, ga_population=4))
        assert (record["population_method"], record["population"], record["ga_population"]) == ("me_pbt", 2, 4)
        assert record["agent"]["name"] == "sac"
        json.dumps(record)

    def test_an_environment_built_by_hand_is_recorded_by_its_name(self) -> None:
        env = rookery.make("point_room", episode_length=10)
        mine = rookery.Environment(env.reset, env.step, env.spec._replace(name="mine"))
        learner = rookery.off_policy(rookery.sac(env.spec), mine)
        assert program_record(rookery.seeds(learner))["environment"] == {"env": "mine"}

    def test_functions_and_arrays_are_recorded_as_text(self, program: rookery.Program) -> None:
        settings = {"f": jnp.tanh, "g": tiny.learner, "few": np.arange(3), "none": None, "config": PpoConfig()}
        record = program_record(program._replace(settings={**settings, "many": jnp.zeros((4, 5)), "object": object()}))
        assert record["g"] == "tests.tiny.learner"
        assert record["few"] == [0, 1, 2]
        assert record["many"].startswith("float32 [4, 5], sha256 ")
        assert record["object"] == "an object of type object"
        assert record["config"]["hidden_sizes"]
        json.dumps(record)

    def test_a_setting_of_nan_has_not_changed(self, program: rookery.Program) -> None:
        recorded = {"limits": [float("nan"), 1.0]}
        assert changes(recorded, program._replace(settings={"limits": np.asarray([np.nan, 1.0])})) == []
        found = changes(recorded, program._replace(settings={"limits": [2.0, 1.0]}))
        assert found == ["limits is [2.0, 1.0], was [nan, 1.0]"]


def test_runs_that_differ_only_in_the_seed_are_one_group(run: Path, program: rookery.Program, tmp_path: Path) -> None:
    smooth = rookery.pbt(walks.learner(), population_size=4, smooth=2)
    for name, other in (("other_seed", program), ("smooth", smooth)):
        record = {**record_of(run), **program_record(other), "run": {**record_of(run)["run"], "seed": 4}}
        written_runs.write(tmp_path / name, json.loads(json.dumps(record)))
    groups = group_runs([run, tmp_path / "other_seed", tmp_path / "smooth"])
    assert [len(group.runs) for group in groups] == [2, 1]
    assert [group.name for group in groups] == ["python pbt, smooth=1", "python pbt, smooth=2"]


def test_a_changed_program_is_reported_at_resume(run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run, tmp_path / "run")
    smooth = rookery.pbt(walks.learner(), population_size=4, replace_fraction=0.5)
    assert changes(record_of(run), smooth) == ["pbt.replace_fraction is 0.5, was 0.25"]
    with pytest.warns(
        ProgramWarning, match=r"differs from the one that .* recorded: pbt\.replace_fraction is 0\.5, was"
    ):
        rookery.run(smooth, seed=3, run_dir=str(run), resume=True, **{**QUIET, "generations": 3})
    assert record_of(run)["pbt"]["replace_fraction"] == 0.5
    assert record_of(run)["run"] == {**record_of(run)["run"], "generations": 3, "seed": 3}


def test_a_run_that_ends_before_its_first_selection_says_so(monkeypatch, capsys) -> None:
    late = rookery.pbt(tiny.learner(), population_size=4, exploit_interval=10_000)
    assert late.timing is not None
    monkeypatch.setattr(loop, "turns", lambda *_, **__: pytest.fail("it begins"))
    with pytest.raises(pytest.fail.Exception, match="it begins"):
        rookery.run(late, generations=1)
    note = f"note: the run ends with generation 1, before the first selection in generation {late.timing.first}; give"
    assert note in capsys.readouterr().out
    league = late._replace(settings={**late.settings, "league": {"league_every": 5}})
    for generations, is_late in ((5, True), (6, False)):
        with pytest.raises(pytest.fail.Exception, match="it begins"):
            rookery.run(league, generations=generations)
        note = f"the run ends with generation {generations}, before an entry of the league plays; give more generations"
        assert (note in capsys.readouterr().out) == is_late


def test_a_warm_up_that_fills_the_run_is_a_warning_before_it_compiles(monkeypatch) -> None:
    config = dataclasses.replace(tiny.CONFIG, warmup_steps=80)
    monkeypatch.setattr(loop, "turns", lambda *_, **__: pytest.fail("it ran before the warning"))
    with pytest.raises(ProgramWarning, match=r"^the warm-up lasts 2 generations, so that a run of 2 makes no update;"):
        rookery.run(rookery.pbt(tiny.learner(config=config), population_size=2), generations=2, quiet=True)


def test_mistakes_in_python_are_one_sentence() -> None:
    env, learner = rookery.make("point_room"), tiny.learner()
    agent = rookery.sac(env.spec)
    sac_config: Any = rookery.agents.SacConfig
    functions = rookery.pbt, rookery.run, rookery.sac, rookery.map_elites, rookery.me_pbt
    pbt, run, sac, map_elites, me_pbt = (cast(Any, function) for function in functions)
    off_policy: Any = rookery.off_policy
    emitters = rookery.qd.policy, rookery.qd.pga_me, rookery.qd.dcrl_me, rookery.qd.cma_mae
    policy, pga_me, dcrl_me, cma_mae = (cast(Any, function) for function in emitters)
    scoring = rookery.qd.policy_scoring(env)
    cells = rookery.qd.grid((2, 2), (-1.0, -1.0), (1.0, 1.0))
    for call, message in (
        (lambda: pbt(env), r"need a Learner, got an object of type .*Environment; give an agent and its environment"),
        (lambda: cast(Any, rookery.seeds)(agent), r"need a Learner, got an object of type .*OffPolicyAgent; give an"),
        (lambda: pbt(learner, population_size="8"), r"^population_size must be a whole number, got '8'\.$"),
        (lambda: pbt(learner, exploit_intervall=3), r"no field exploit_intervall; did you mean exploit_interval"),
        (lambda: pbt(learner, population=4), r"^PbtConfig has no field population; did you mean population_size\?$"),
        (lambda: sac(env.spec, hidden_size=(8,)), r"^SacConfig has no field hidden_size; did you mean hidden_sizes\?$"),
        (lambda: sac(env.spec, sac_config(), hidden_sizes=(8,)), r"or the keywords \['hidden_sizes'\], not both\.$"),
        (lambda: map_elites(env, cells), r"^map_elites searches a Scoring, got an object of type .*; give a"),
        (lambda: me_pbt(agent, cells), r"need a Learner, got an object of type .*OffPolicyAgent; give an agent and"),
        (lambda: me_pbt(learner, cells, population_size=4.0), r"^population_size must be a whole number, got 4\.0\.$"),
        (lambda: run(learner), r"^run needs a rookery\.Program, got a Learner; wrap it: rookery\.pbt\(learner,"),
        (lambda: run(pbt(learner), generatons=3), r"^RunConfig has no field generatons; did you mean generations\?$"),
        (lambda: sac(env.spec, (8,)), r"^config must be a SacConfig, got \(8,\); give its fields as keywords, or"),
        (lambda: sac_config(hidden_sizes=8), r"^hidden_sizes must be a sequence of numbers, .*, got 8\.$"),
        (lambda: sac_config(hidden_sizes=jnp.int32(8)), r"^hidden_sizes must be a sequence of numbers, .*, got Array"),
        (lambda: sac(env.spec, {"alpha_init": 1}), r"^config must be a SacConfig, got {'alpha_init': 1}; give its fi"),
        (lambda: off_policy(agent, env, {}), r"^config must be a OffPolicyConfig, got {}; give its fields as keyw"),
        (lambda: policy(env.spec, {"hidden_sizes": (8,)}), r"^config must be a PolicyConfig, got {'hidden_sizes': "),
        (lambda: pga_me(scoring, config=sac_config()), r"^config must be a PgaMeConfig, got SacConfig\("),
        (lambda: dcrl_me(scoring, config=sac_config()), r"^config must be a DcrlMeConfig, got SacConfig\("),
        (lambda: cma_mae(scoring, config=sac_config()), r"^config must be a CmaMaeConfig, got SacConfig\("),
        (lambda: pbt(learner, 8), r"^space must be a search space, .* type int; did you mean population_size=8\?$"),
        (lambda: me_pbt(learner, cells, {"discount": 0.9}), r"^space must be a search space, .* mean rookery\.choose"),
        (lambda: cast(Any, rookery.seeds)(None), r"^the members of a population need a Learner, got None; give an"),
        (lambda: cast(Any, rookery.make)(3), r"^make takes the name of a task, such as 'point_maze', got an object"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    for path in ("", "a\0b"):
        with pytest.raises(ValueError, match=re.escape(f"run_dir must be a path, got {path!r}; leave it out")):
            run(pbt(learner), run_dir=path)


def test_numbers_of_arrays_are_recorded_as_numbers() -> None:
    config = RunConfig(seed=np.int64(3), generations=np.int32(2))  # pyright: ignore[reportArgumentType]
    assert json.dumps(dataclasses.asdict(config)["seed"]) == "3"
    made = rookery.agents.SacConfig(hidden_sizes=np.asarray([8, 4]), alpha_init=jnp.float32(0.5))  # pyright: ignore
    assert (made.hidden_sizes, made.alpha_init) == ((8, 4), 0.5)
    assert {type(value) for value in (*(made.hidden_sizes or ()), made.alpha_init)} == {int, float}
    shares = rookery.populations.PbtConfig(resample_probability=1, threshold_std=10**30)  # no ints of JAX
    assert {type(shares.resample_probability), type(shares.threshold_std)} == {float}


@pytest.mark.parametrize("make", [rookery.sac, rookery.td3, rookery.ppo])
def test_the_name_of_an_encoder_is_a_field_of_the_config(make: Any) -> None:
    spec = rookery.make("point_room").spec
    assert make(spec, encoder="none").settings == make(spec).settings | {
        "agent": make(spec).settings["agent"] | {"encoder": "none"}
    }
    with pytest.raises(ValueError, match="encoder reads images, but"):
        make(spec, encoder="nature")
    with pytest.raises(TypeError, match=r"give either config or the keywords \['encoder'\], not both"):
        make(spec, rookery.agents.SacConfig(), encoder="none")


def test_titles() -> None:
    over = make_mesh(1)
    arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
    made = rookery.map_elites(arm, rookery.qd.grid((2, 2), (0.0, 0.0), (1.0, 1.0)))
    assert title(made, over) == "map_elites on arm: 4 cells, 256 genotypes a generation on 1 of 2 cpu devices"
    scratch = rookery.Program(made.init, made.step, made.evaluate, 2, 2)
    assert title(scratch, over) == "a program: population 2 on 1 of 2 cpu devices"


def test_the_fields_of_a_config_are_keywords_of_its_factory() -> None:
    env = rookery.make("point_room")
    skilled = rookery.skills(env, 2, "sphere", with_previous=True)
    sac = rookery.sac(env.spec, hidden_sizes=(8,))
    for made, name, value in (
        (sac, "hidden_sizes", (8,)),
        (rookery.td3(env.spec, policy_delay=3), "policy_delay", 3),
        (rookery.ppo(env.spec, memory_size=3), "memory_size", 3),
        (
            rookery.agents.metra(rookery.sac(skilled.spec), skilled.spec, phi_hidden_sizes=(9,)),
            "phi_hidden_sizes",
            (9,),
        ),
        (rookery.agents.lsd(rookery.sac(skilled.spec), skilled.spec, phi_hidden_sizes=(9,)), "phi_hidden_sizes", (9,)),
        (rookery.diayn(rookery.sac(skilled.spec), skilled.spec, fitness="accuracy"), "fitness", "accuracy"),
        (rookery.off_policy(sac, env, batch_size=7), "batch_size", 7),
        (rookery.on_policy(rookery.ppo(env.spec), env, num_envs=4), "num_envs", 4),
    ):
        recorded = str(made.settings)
        assert f"{name!r}: {value!r}" in recorded or f"{name}={value!r}" in recorded, recorded
