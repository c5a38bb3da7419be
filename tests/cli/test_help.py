"""The help of `rookery train` and of each kind of run: order, headings, defaults and width."""

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from rookery.agents.skills.metra import MetraConfig
from rookery.cli.app import Resume, Train, parse
from rookery.cli.commands import COMMANDS
from rookery.cli.options import HEADINGS, IMPORTANT, MAIN, Chosen, Option, in_groups, options_of, options_of_kind
from rookery.cli.parser import converted, described
from rookery.experiments.config_io import to_record
from rookery.experiments.kinds import kinds
from rookery.training.config import RunConfig
from tests.commandline import call
from tests.written_runs import write


@pytest.fixture(autouse=True)
def narrow(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def page(*words: str, command: str = "train") -> str:
    """A page of the help, which explains each of its flags and names no internals."""
    code, out, err = call(*command.split(), *words, "--help")
    assert (code, err) == (0, "")
    text = " ".join(out.split()).replace("path/to/file.py:factory", "")  # the user's file
    assert not re.search(r"`_|\w\.py\b|cyclopts|__|Config\b", text)
    for flag, explained in re.findall(r" (--(?!help)[a-z][a-z0-9.-]*)(?:, --no-[a-z-]+)? (.*?)(?= --[a-z]|$)", text):
        sentence = re.sub(r"\(default.*", "", explained)
        assert re.search(r"[A-Za-z].* .*\.", sentence), f"{flag} is not explained: {explained}"
    return out


def sections(text: str) -> dict[str, str]:
    """The text under each heading: a line that is not indented, before one that is."""
    parts = re.split(r"(?m)^(?=\S.*\n  )", text)
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


@pytest.mark.parametrize("kind", [*kinds()][:-1])
def test_the_options_of_a_kind_are_grouped(kind):
    text = page(kind)
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"None|\[INT|default: (False|True)|--no-(?!\S*`\s+turns)", text)
    found = {heading: re.findall(r"(?m)^  (--[a-z0-9.-]+)", rows) for heading, rows in sections(text).items()}
    found = {heading: flags for heading, flags in found.items() if flags}
    order = [MAIN, *dict.fromkeys(HEADINGS.values())]
    assert list(found) == [heading for heading in order if heading in found]
    shown = sorted(flag for flags in found.values() for flag in flags)
    assert shown == sorted(option.flag for option in (*options_of(Train), *options_of_kind(kinds()[kind])))
    assert found[MAIN][0] == "--env"
    assert found[MAIN][-3:] == ["--config", "--print-config", "--plan"]
    assert {"--seed", "--generations", "--run-dir", "--overwrite", "--devices", "--init-from"} <= {*found[MAIN]}
    guide = Path(__file__).parents[2] / text.splitlines()[-1].removeprefix("guide: ")
    assert guide.parent.name == "guides"
    assert guide.is_file(), guide
    assert found["evaluation"] == ["--eval-episodes", "--start-states", "--eval-descriptor", "--objective"]


def test_the_help_of_pbt_sac_is_short_and_states_defaults():
    text = page("pbt-sac")
    options = [*options_of(Train), *options_of_kind(kinds()["pbt-sac"])]
    assert len(text.splitlines()) / len(options) <= 3.5
    flat = " ".join(text.split())
    assert flat.startswith(
        "usage: rookery train pbt-sac [OPTIONS] Population Based Training of soft actor-critic agents."
    )
    for expected in (
        "--population INT P, number of members (a multiple of the number of devices). (at least 1; default: 8)",
        "by default 256 256; of simba the blocks' widths, by default 128. (each at least 1)",
        "each core is a device. (at least 1) --init-from",
        "a multiple of `--num-envs`. (at least 1; default: 1000)",
        "--exploit truncation|tournament|threshold|multi-frequency|none truncation: the worst",
        "--space.tau FLOAT FLOAT|FLOAT|fixed Polyak averaging rate",
    ):
        assert expected in flat
    flat = " ".join(page("ppo").split())
    assert "clip them to +-10. (on by default; `--no-normalize-rewards` turns it off)" in flat
    assert "except in a team. (`--no-normalize-observations` turns it off)" in flat
    assert "`--no-exact`" not in flat


def test_the_help_shows_the_defaults_of_the_run_to_start_from():
    write(Path("first"), to_record(parse(["train", "map-elites", "--env", "arm"]).spec))
    flat = " ".join(page("map-elites", "--init-from", "first").split())
    assert "(default: arm)" in flat
    Path("run.toml").write_text('kind = "map-elites"\ninit-from = "first"')
    assert " ".join(page("--config", "run.toml").split()) == flat


def test_the_kinds_are_listed_by_subject():
    text = page()
    assert max(map(len, text.splitlines())) <= 80
    found = {heading: re.findall(r"(?m)^  ([a-z][a-z0-9-]*)  +\S", rows) for heading, rows in sections(text).items()}
    subjects: dict[str, list[str]] = {}
    for name, kind in kinds().items():
        subjects.setdefault(kind.subject, []).append(name)
    assert {heading: names for heading, names in found.items() if names} == subjects
    assert subjects["quality diversity"][:2] == ["map-elites", "cma-mae"]
    assert re.search(r"\n  td3 +Twin delayed deep deterministic policy gradient", text)


@pytest.mark.parametrize("command", [*COMMANDS, "resume"])
def test_the_help_of_other_commands(command):
    text = page(command=command)
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"None|default: (False|True|'')|│", text)
    cls = COMMANDS[command][0] if command in COMMANDS else Resume
    found = [*re.findall(r"(?m)^  (--[a-z-]+)", text)]
    assert sorted(found) == sorted(option.flag for option in options_of(cls) if option.flag.startswith("--"))
    assert page("-h", command=command) == text


def test_the_place_of_arguments_without_a_flag():
    for command, usage, explained in (
        ("evaluate", "evaluate [OPTIONS] RUN", r"RUN +Run directory\."),
        ("compare", "compare [OPTIONS] RUNS", r"RUNS +Run directories\."),
        ("envs", "envs [ARGS]", r"NAME +A task, package"),
    ):
        text = page(command=command)
        assert text.startswith(f"usage: rookery {usage}\n")
        assert re.search(rf"(?m)^arguments\n  {explained}", text)
    code, _, err = call("envs", "--nam", "ant")
    assert (code, err) == (2, "error: rookery envs has no flag --nam; `rookery envs --help` lists all.\n")


def test_the_first_page_lists_the_commands():
    assert re.findall(r"(?m)^  ([a-z-]+)(?:  |$)", page(command="")) == ["train", "resume", *COMMANDS]
    assert call("-h")[1] == page(command="")


def test_a_terminal_that_is_wide_or_narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert 90 < max(map(len, page("sac").splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "0")
    assert call("train", "es", "--help")[::2] == (0, "")
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, page("sac").splitlines())) <= 60


@dataclass(frozen=True)
class Tracked(RunConfig):
    board: str | None = None
    """Board to write to."""


@dataclass(frozen=True)
class Added:
    """A kind of run with settings that no list of the help names."""

    colour: Literal["red", "blue"] = "red"
    run: Tracked = field(default_factory=Tracked)
    own_part: RunConfig = field(default_factory=RunConfig)


def test_a_field_that_no_list_names_belongs_to_its_dataclass():
    of_kinds = (option for kind in kinds().values() for option in options_of_kind(kind))
    assert {option.name for option in (*options_of(Train), *of_kinds)} >= {*IMPORTANT}
    groups = in_groups(list(options_of(Added)))
    assert [option.flag for option in groups["population method"]] == ["--colour"]
    assert "--board" in [option.flag for option in groups["output"]]
    assert list(groups)[-1] == "own part"
    board = next(option for option in groups["output"] if option.name == "board")
    assert board == Option("--board", ("run", "board"), str | None, "run", "Board to write to.")
    assert board.value(Added()) is None
    assert next(option for option in options_of(Added) if option.name == "keep").explanation.startswith("Number of")
    assert groups["population method"][0].explanation == ""


def test_the_fields_of_a_class_come_before_those_that_it_inherits():
    flags = [option.flag for option in options_of(Tracked)]
    assert flags[0] == "--board"
    assert flags[1:] == [option.flag for option in options_of(RunConfig)] != []
    metra = [option.flag for option in options_of(MetraConfig)]
    assert (metra[0], metra[-1]) == ("--initial-dual", "--smerl-margin")


@pytest.mark.parametrize(
    ("hint", "words", "value", "text"),
    [
        (int, "-3", -3, "a whole number"),
        (int, "2.5", None, "a whole number"),
        (float | None, "None", None, "a number"),
        (tuple[int, ...] | None, "64 32", (64, 32), "whole numbers"),
        (tuple[float, float], "1 2 3", None, "2 numbers"),
        (int | Literal["all"], "all", "all", "a whole number or all"),
        (Chosen, "0.5 1", (0.5, 1.0), "2 numbers or a number or fixed"),
        (bool | None, "True", True, "true or false"),
    ],
)
def test_words_are_converted_to_a_type(hint: Any, words: str, value: Any, text: str):
    with contextlib.suppress(ValueError) if value is None else contextlib.nullcontext():
        assert converted(hint, words.split()) == value
    assert described(hint) == text
