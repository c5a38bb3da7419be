"""The code blocks of a guide, and how they are run at a small size.

Comments of a page that begin with `<!-- test:` say what the text around them does not show:

- `<!-- test: run FLAGS -->`: `rookery` commands of the next block are run, with these flags added to `rookery train`
  (`small` is the flags of a run that has the settings of Python blocks, so that they share compiled programs). All
  others are only parsed, which checks every flag and value.
- `<!-- test: parse -->`: the next Python block is only compiled.
- `<!-- test: save NAME -->`: the next block is written to a file too.
- `<!-- test: folder PATH KIND -->`: PATH is a run of this kind (`tests/short_runs.py`).
- `<!-- test: python CODE -->`: code that the blocks below it need, on any number of lines.
- `<!-- test: needs MODULE -->`: without this module, which is in the extra `test`, the rest of the page is skipped.
- `<!-- test: replace OLD => NEW -->`: a replacement in the blocks below it.
"""

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rookery.cli import app
from tests.commandline import call

EVALUATED = "eval_episodes=2, start_states=2"
OFF_POLICY = f"num_envs=2, steps_per_generation=20, batch_size=4, buffer_size=64, warmup_steps=4, {EVALUATED}"
ON_POLICY = f"num_envs=2, rollout_length=6, evaluate_every=1, {EVALUATED}"
OPTIONS = r"(?:, \w+=[\d_.]+)*"
SMALLER = {
    r"rookery\.make\(\"(?:hopper|point_maze)\"\)": 'rookery.make("point_maze", episode_length=12)',
    r"rookery\.make\(\"(point_trap|pursuit_continuous)\"\)": r'rookery.make("\1", episode_length=12)',
    r"rookery\.(sac|td3)\(env\.spec(?:, hidden_sizes=\([^)]*\))?\)": r"rookery.\1(env.spec, hidden_sizes=(4,))",
    r"rookery\.ppo\(env\.spec\)": "rookery.ppo(env.spec, hidden_sizes=(4,), minibatches=2)",
    rf"rookery\.off_policy\((.*?), env{OPTIONS}\)": rf"rookery.off_policy(\1, env, {OFF_POLICY})",
    rf"rookery\.on_policy\((.*?), env{OPTIONS}\)": rf"rookery.on_policy(\1, env, {ON_POLICY})",
    r"exploit_interval=[\d_]+": "exploit_interval=0",
    r"generations=\d+": "generations=2",
    r"population_size=\d+": "population_size=2",
    r"ga_population=\d+": "ga_population=2",
}
"""Regular expression -> what Python blocks have in its place, so that they run in seconds."""
SMALL = (
    "--env point_maze --episode-length 12 --hidden-sizes 4 --num-envs 2 --steps-per-generation 20 --batch-size 4 "
    "--buffer-size 64 --warmup-steps 4 --updates-per-step 1 --eval-episodes 2 --start-states 2 --exploit-interval 0 "
    "--population 2 --generations 2 --quiet"
)
"""The flags of the same run from the command line."""


class Block(NamedTuple):
    """A code block."""

    language: str
    code: str
    line: int
    """Of the page, counted from 1."""
    marks: tuple[tuple[str, str], ...]
    """The comments since the previous block: word and argument."""


def blocks_of(page: Path) -> Iterator[Block]:
    """The code blocks of a page in their order."""
    text, marks = page.read_text(), []
    for found in re.finditer(r"(?ms)^<!-- test: (\w+) ?(.*?)-->|^```(\w*)\n(.*?)^```", text):
        word, argument, language, code = found.groups()
        if word is not None:
            marks.append((word, argument.strip()))
        else:
            yield Block(language, code, text[: found.start()].count("\n") + 2, tuple(marks))
            marks = []


class Page:
    """The state of a page whose blocks are run in the working directory, one after the other."""

    def __init__(self, path: Path, short_runs: Mapping[str, Path]) -> None:
        self.path, self.short_runs = path, short_runs
        self.names: dict[str, Any] = {"__name__": "__main__"}  # as a script
        self.replaced: dict[str, str] = {}

    def run(self) -> None:
        """Run or check every block.

        Raises:
          AssertionError: a command fails; other exceptions are those of the code.
        """
        for block in blocks_of(self.path):
            for word, argument in block.marks:
                self.prepare(word, argument, block)
            marks = dict(block.marks)
            if block.language == "python":
                self.execute(block.code, block.line, run="parse" not in marks)
            elif block.language == "bash":
                for words in commands_of(self.with_replacements(block.code)):
                    check_command(words, marks.get("run"))

    def check(self) -> None:
        """Compile the Python blocks, and parse the commands but for those that need a file or a run of the page.

        Raises:
          SyntaxError: Python code cannot be compiled.
          CommandLineError, SettingError: a flag or a value is not accepted.
        """
        for block in blocks_of(self.path):
            for word, argument in block.marks:
                if word == "replace":
                    self.prepare(word, argument, block)
            if block.language == "python":
                self.execute(block.code, block.line, run=False)
            elif block.language == "bash":
                for words in commands_of(self.with_replacements(block.code)):
                    if not {"--help", "--config", "--init-from", "--replay-schedule"} & set(words):
                        app.parse(words)

    def prepare(self, word: str, argument: str, block: Block) -> None:
        """Do what a comment says, before its block."""
        if word == "folder":
            path, kind = argument.split()
            shutil.copytree(self.short_runs[kind], path)
        elif word == "replace":
            old, _, new = argument.partition(" => ")
            self.replaced[old] = new
        elif word == "python":
            self.execute(argument, block.line)
        elif word == "needs":
            pytest.importorskip(argument)
        elif word == "save":
            Path(argument).write_text(block.code)
        else:
            assert word in ("run", "parse"), f"{self.path.name}, before line {block.line}: {word}"

    def with_replacements(self, code: str) -> str:
        """The code with the replacements of the page."""
        for old, new in self.replaced.items():
            code = code.replace(old, new)
        return code

    def execute(self, code: str, line: int, run: bool = True) -> None:
        """Compile Python code at the size of a test, and run it."""
        code = self.with_replacements(code)
        for pattern, new in SMALLER.items():
            code = re.sub(pattern, new, code)
        program = compile("\n" * (line - 1) + code, str(self.path), "exec")
        if run:
            exec(program, self.names)


def commands_of(code: str) -> Iterator[list[str]]:
    """The words of each `rookery` command of a block, without the program's name; variables have their first value."""
    code = code.replace("\\\n", " ")
    for name, value in re.findall(r"(?m)^(\w+)=(\S+)$", code) + re.findall(r"for (\w+) in (\w+)", code):
        code = code.replace(f"${name}", value)
    for part in re.split(r"&&|[|;>&\n]|\bdo\b|\bthen\b|\belse\b", code):
        words = shlex.split(part, comments=True)
        if words[:1] == ["rookery"]:
            yield words[1:]


def check_command(words: list[str], flags: str | None) -> None:
    """Run a command with further flags, or parse it if there are none."""
    if flags is None and "--help" not in words:
        app.parse(words)
        return
    added = shlex.split((flags or "").replace("small", SMALL)) if words[0] == "train" else []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "100")
        code, _, err = call(*words, *added)
    assert code == 0, f"rookery {shlex.join(words)}: {err}"
