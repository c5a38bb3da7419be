"""The help pages of all commands and kinds of run, made from the fields of their dataclasses."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from rookery.cli.options import FACTORY, MAIN, Option, arguments_of, in_groups, options_of, options_of_kind
from rookery.experiments.kinds import kinds
from rookery.experiments.spec import Kind, RunSpec
from rookery.factories import GUIDES

_WIDEST = 100
_COLUMN = 26
"""Columns before an explanation."""
_SPACE = (
    "Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its "
    "default, keeps it constant. `--space.env.NAME` chooses a parameter of the task (`rookery envs TASK`), which is "
    "fixed by default; `evolve` is its declared domain."
)


class _Page(NamedTuple):
    """A help page that is being written."""

    text: Text
    width: int

    def paragraphs(self, text: str, indent: int = 0) -> None:
        """Add text in which an empty line begins a paragraph."""
        for paragraph in text.split("\n\n"):
            self.text.append(_wrapped(paragraph, self.width, indent) + "\n\n")

    def show(self) -> None:
        """Print the page."""
        Console(highlight=False, soft_wrap=True).print(Text(self.text.plain.rstrip(), spans=self.text.spans))

    def heading(self, text: str) -> None:
        """Add a heading."""
        self.text.append(f"{text}\n", "bold")

    def row(self, name: str, value: str, explanation: str, column: int = _COLUMN) -> None:
        """Add a row with an explanation beside a name, or below it if there is too little space."""
        lines = _wrapped(explanation, self.width, column)
        left = f"  {name} {value}".rstrip()
        self.text.append(f"  {name}", "cyan").append(f" {value}".rstrip())
        self.text.append(lines[len(left) :] if len(left) <= column - 2 else f"\n{lines}").append("\n")


def _wrapped(text: str, width: int, indent: int) -> str:
    space = " " * indent
    return textwrap.fill(
        " ".join(text.split()), width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False
    )


def print_commands(about: str, commands: Mapping[str, type]) -> None:
    """Print the help of `rookery`: what it is for, and one line for each command.

    Args:
      about: what the program does.
      commands: name -> class of each command.
    """
    page = _Page(Text(), _width())
    page.paragraphs(f"usage: rookery COMMAND [OPTIONS]\n\n{about}")
    page.paragraphs("`rookery COMMAND --help` describes a command, `rookery --version` prints the version.")
    page.heading("commands")
    for name, command in commands.items():
        page.row(name, "", (command.__doc__ or "").partition("\n\n")[0], 12)
    page.show()


def print_command(name: str, command: type) -> None:
    """Print the help of a command.

    Args:
      name: of the command.
      command: its class.
    """
    page, arguments = _Page(Text(), _width()), arguments_of(command)
    usage = " ".join(["usage: rookery", name, *(place for place, _ in arguments.values()), "[OPTIONS]"])
    page.paragraphs(f"{usage}\n\n{command.__doc__}")
    page.heading("arguments")
    for place, explanation in arguments.values():
        page.row(place, "", explanation)
    page.text.append("\n")
    groups: dict[str, list[Option]] = {"options": []}
    for option in options_of(command):
        groups.setdefault(option.heading if option.path[1:] else "options", []).append(option)
    defaults = command(**dict.fromkeys(arguments))
    _add_options(page, groups, {option: defaults for members in groups.values() for option in members})
    page.show()


def print_kinds(command: Any) -> None:
    """Print the help of `rookery train`: the kinds of run by subject, and the options that all have.

    Args:
      command: an instance of the command's class, with the defaults.
    """
    page = _Page(Text(), _width())
    page.paragraphs(f"usage: rookery train KIND [OPTIONS]\n\n{type(command).__doc__}")
    page.paragraphs("`rookery train KIND --help` describes a kind of run and all its options.")
    subjects: dict[str, list[Kind]] = {}
    for kind in kinds().values():
        subjects.setdefault(kind.subject, []).append(kind)
    column = max(map(len, kinds())) + 4
    for heading, found in subjects.items():
        page.heading(heading)
        for kind in found:
            page.row(kind.name, "", _summary(kind.title, page.width - column), column)
        page.text.append("\n")
    options = {option: command for option in options_of(type(command))}
    _add_options(page, in_groups([*options]), options)
    page.show()


def print_kind(command: Any) -> None:
    """Print the help of `rookery train KIND`: the important options first, then all others by subject.

    Args:
      command: an instance of the command's class, with the defaults.
    """
    usual: RunSpec = command.spec
    page, kind = _Page(Text(), _width()), usual.kind
    argument = "" if kind.method.has_task else f" {FACTORY}"
    page.paragraphs(f"usage: rookery train {kind.name}{argument} [OPTIONS]\n\n{kind.title}")
    if kind.sources:
        page.paragraphs(kind.sources)
    options: dict[Option, Any] = {option: usual.flat for option in options_of_kind(kind)}
    options |= {option: command for option in options_of(type(command))}
    _add_options(page, in_groups([*options]), options)
    page.paragraphs(f"guide: {GUIDES}/{kind.guide}.md")
    page.show()


def _width() -> int:
    return min(Console().width, _WIDEST)


def _summary(title: str, width: int) -> str:
    """The sentence about a kind of run, cut at a colon or comma if it is too long for a line."""
    text = title.partition(". ")[0].replace("Population Based Training", "PBT").rstrip(".")
    ends = [len(text), *(found.start() for found in re.finditer("[:,] ", text))]
    return text[: max((end for end in ends if end <= width), default=width)]


def _add_options(page: _Page, groups: Mapping[str, Sequence[Option]], defaults: Mapping[Option, Any]) -> None:
    """Add options under their headings.

    Args:
      page: to add to.
      groups: heading -> options; `--help` is added to the first.
      defaults: option -> config or command that has its default.
    """
    flags = {option.path[-1]: option.flag for option in defaults if "_" in option.path[-1]}
    names = re.compile(rf"\b({'|'.join(flags) or '$.'})\b")  # without names it matches nothing
    for heading, members in groups.items():
        page.heading(heading)
        if heading == "search space":
            page.paragraphs(_SPACE, indent=2)
        for option in members:
            explained = names.sub(lambda found: f"`{flags[found[0]]}`", option.explanation())
            page.row(option.flag, option.metavar, explained + _default(option, option.value(defaults[option])))
        if heading in (MAIN, "options"):
            page.row("-h, --help", "", "Show this help and exit.")
        page.text.append("\n")


def _default(option: Option, value: Any) -> str:
    """The default of an option as the end of its explanation; "" if it has none or is off."""
    if option.is_switch:
        off = option.flag.replace("--", "--no-", 1)
        on = "on by default; " if value else ""
        return "" if value is False else f" ({on}`{off}` turns it off)"
    if value in (None, ()):
        return ""
    return f" (default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"
