"""The parser of a command, which cyclopts makes from its options; its errors as records, and its help page."""

import contextlib
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import cyclopts
from cyclopts import App, Group, Parameter
from cyclopts.config import Dict
from cyclopts.help import HelpEntry, HelpPanel
from rich.console import Console
from rich.text import Text

from rookery.cli.options import ENVIRONMENT, HEADINGS, Option, flag_of, in_groups
from rookery.experiments.spec import name_here
from rookery.settings import SettingError, nearest

_WORDS = {int: "whole number", float: "number", str: "word", Path: "path"}
_SPACE = (
    "Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its "
    "default, keeps it constant. `--space.env.NAME` chooses a parameter of the task (`rookery envs TASK`), which is "
    "fixed by default; `evolve` is its declared domain."
)
_WHOLE = r"[+-]?\d+(_\d+)*"
_MOST = 3  # flags, or kinds of run, that an error names
_WIDEST, _COLUMN = 100, 26  # columns of a help page, and of the flags before the explanations


class CommandLineError(ValueError):
    """Words that are no command: one sentence that names them and what helps."""


class Parser(NamedTuple):
    """The parser of a command."""

    command: str  # the command, such as "rookery train sac"
    about: str  # what it does
    options: Sequence[Option]
    guide: str = ""  # the end of the help page
    elsewhere: Callable[[str], Sequence[str]] = lambda _: ()  # the kinds of run that have a flag

    def parse(self, words: Sequence[str], file: str = "", settings: Mapping[str, Any] | None = None) -> dict[Any, Any]:
        """The values that are given: path of an option -> value; typed words take precedence over a file. A
        SettingError is about a value, a CommandLineError about a flag that does not exist, a missing value, or too
        many."""
        names = {_identifier(option): option for option in self.options}
        for before, word in itertools.pairwise(["", *words]):
            named, separator, value = word.partition("=") if word.startswith("--") else (before, "=", word)
            if separator and not value:
                flag = named if named.startswith("--") else ""
                remedy = "give it a value" if flag else "give one"
                raise CommandLineError(f"{flag or 'a value'} is empty; {remedy}, or leave it out.")
        for key, value in (settings or {}).items():
            self._check_setting(file, key, value)
        given = {key: "None" if value is None else value for key, value in (settings or {}).items()}
        named = typed_flags(words) | {flag_of(key) for key in given}
        # Without those that are not given, which take cyclopts nearly all the time.
        used = [
            option
            for option in self.options
            if option.is_required or not option.flag.startswith("--") or not named.isdisjoint(option.flags)
        ]
        try:
            app = self._replace(options=used).app({}, [Dict(given, source=file)])
            _, bound, _ = app.parse_args(
                _joined(words, self.options), exit_on_error=False, print_error=False, end_of_options_delimiter=""
            )
        except cyclopts.CycloptsError as error:
            raise self._explained(error, words) from error
        return {names[name].path: value for name, value in bound.arguments.items()}

    def print_help(self, defaults: Mapping[Option, Any]) -> None:
        """Print the help page with these default values."""
        self.app(defaults, ()).help_print([], console=_console())

    def option(self, name: str) -> Option | None:
        """The option of a setting, by its name in Python; None if it has none."""
        name = {"population_size": "population"}.get(name, name)
        options = reversed(self.options)
        return next((one for one in options if one.path[-1] == name or f"--{name}" in one.aliases), None)

    def app(self, defaults: Mapping[Option, Any], config: Any) -> App:
        """The application of cyclopts: one command, whose keywords are the options."""

        def command(**_: object) -> None: ...

        flags = {option.path[-1]: option.flag for option in self.options if "_" in option.path[-1]}
        names = re.compile(rf"\b({'|'.join(flags) or '$.'})\b")  # without names it matches nothing
        grouped = in_groups(self.options) or {"options": []}
        texts = {HEADINGS["space"]: _SPACE}
        groups = {name: Group(name, sort_key=place, help=texts.get(name, "")) for place, name in enumerate(grouped)}
        parameters = []
        for option in (option for members in grouped.values() for option in members):
            text = names.sub(lambda found: f"`{flags[found[0]]}`", option.explanation)
            changed = option._replace(explanation=text)
            parameters.append(_parameter(changed, groups[option.heading], defaults.get(option)))
        parameters.sort(key=lambda parameter: parameter.kind)
        setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        given = Parameter(consume_multiple=True, negative_iterable=(), negative_none=(), show_env_var=False)
        app = App(self.command, help=self.about, default_parameter=given, config=config, version_flags=())
        app.help_format, app.help_formatter, app.help_epilogue = "plaintext", _Page(), self.guide
        app.group_arguments = Group("arguments", sort_key=-1)
        app["--help"].group = (next(iter(groups.values())),)
        app.default(command)
        return app

    def _explained(self, error: cyclopts.CycloptsError, words: Sequence[str]) -> Exception:
        """An error of cyclopts as one of this library."""
        keyword = getattr(error, "token", None) and error.token.keyword  # pyright: ignore[reportAttributeAccessIssue]
        flag = error.argument.name if error.argument else keyword and keyword.replace("_", "-")
        option = self._of_flag(flag)
        if isinstance(error, cyclopts.UnknownOptionError):
            return self._unknown(error.token.keyword or error.token.value)
        if isinstance(error, cyclopts.UnusedCliTokensError):
            word = (error.unused_tokens or [""])[0]
            before = [flag for flag in words[: words.index(word)] if flag.startswith("--")] if word in words else []
            after = f" after {before[-1]}" if before else ""
            return CommandLineError(f"{word!r}{after} is one word too many for {self.command}; {self._help}.")
        if option is None:
            return CommandLineError(" ".join(str(error).split()))
        if option.is_required and isinstance(error, cyclopts.MissingArgumentError):
            return CommandLineError(f"{self.command} needs {option.name.upper()}; {self._help}.")
        if isinstance(error, cyclopts.RepeatArgumentError):
            return SettingError(option.path[-1], None, "is given twice", "give it once, with all values")
        token = getattr(error, "token", None)
        given = [one.value for one in error.argument.tokens] if error.argument else []
        given = given or ([token.value] if token else getattr(error, "tokens_so_far", []))
        got = " ".join(given) or "nothing"
        known = _choices(option.hint)
        near = nearest(next((word for word in given if word not in known), got), known)
        remedy = f"did you mean {near[0]}?" if near else ""
        remedy = "separate them by spaces" if re.fullmatch(r"[\d.e+-]+(,[\d.e+-]+)+,?", got) else remedy
        return SettingError(option.path[-1], _Typed(got[:100]), f"must be {described(option.hint)}", remedy)

    def _of_flag(self, flag: str | None) -> Option | None:
        return next((option for option in self.options if flag in option.flags), None)

    @property
    def _help(self) -> str:
        return f"`{self.command} --help` describes it"

    def _check_setting(self, file: str, key: str, value: object) -> None:
        """Check that a setting of a file exists, and that its value has a type that files have for it."""
        option = self._of_flag(flag_of(key))
        if option is None:
            inner = [f"{key}.{name}" for name in value][:1] if isinstance(value, Mapping) else []
            raise self._unknown(flag_of("".join(inner) or key), file)
        values = value if isinstance(value, list) and "tuple" in str(option.hint) else [value]
        kinds = (bool, str) if option.is_switch else (int, float, str)
        valid = all(isinstance(one, kinds) and (option.is_switch or not isinstance(one, bool)) for one in values)
        if not valid and value is not None:
            raise SettingError(option.path[-1], _Typed(value), f"must be {described(option.hint)}")

    def _unknown(self, flag: str, file: str = "") -> CommandLineError:
        """The error for a flag, or a setting of a file, that does not exist."""
        near = similar(flag, [flag for option in self.options for flag in option.flags])
        remedy = f"did you mean {' or '.join(near)}?" if near else f"`{self.command} --help` lists all"
        if flag.startswith("--space.") and near:
            remedy += f" A parameter of the task is {ENVIRONMENT}NAME"
        elif not any(flag[2:] in one for one in near) and (others := self.elsewhere(flag)):
            remedy = f"it is one of {', '.join(others[:_MOST])}{' and others' * (len(others) > _MOST)}"
        message = f"{self.command} has no {'setting' if file else 'flag'} {flag}; {remedy}"
        message = f"{file}: " + re.sub(r"(?<= )--(?!help)", "", message) if file else message
        return CommandLineError(message + "." * (not message.endswith("?")))


def typed_flags(words: Sequence[str]) -> set[str]:
    """The flags among the words of a command line; those that turn a switch off without their `no-`."""
    return {word.partition("=")[0].replace("_", "-").replace("--no-", "--") for word in words}


class _Typed(str):
    """Words as they were typed, which are shown without quotation marks."""

    def __repr__(self) -> str:
        return str(self)


def _identifier(option: Option) -> str:
    return "__".join(option.path).replace(".", "_")


def _parameter(option: Option, group: Group, default: object) -> inspect.Parameter:
    is_flag = option.flag.startswith("--")
    named = {"name": option.flag, "alias": option.aliases, "group": group} if is_flag else {}
    details = "; ".join(_details(option, default))
    parameter = Parameter(
        **named,
        help=f"{option.explanation} ({details})" if details else option.explanation,
        metavar=_metavar(option.hint),
        show_choices=False,
        converter=lambda _, tokens: _value(option.hint, tokens),
        allow_repeating="tuple" not in str(option.hint),
        n_tokens=-1 if any(... in typing.get_args(one) for one in typing.get_args(option.hint)) else None,
        show_default=False,
    )
    kind = inspect.Parameter.KEYWORD_ONLY if is_flag else inspect.Parameter.POSITIONAL_ONLY
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_flag and option.is_required else kind
    needed = inspect.Parameter.empty if option.is_required else default
    # Where cyclopts finds pydantic it validates the defaults too.
    hint = option.hint if option.is_required else option.hint | None
    return inspect.Parameter(_identifier(option), kind, annotation=Annotated[hint, parameter], default=needed)


def _value(hint: object, tokens: Sequence[cyclopts.Token]) -> Any:
    implicit = tokens[0].implicit_value
    if implicit is not cyclopts.UNSET:  # of a switch, or an empty list in a file
        return () if implicit == [] else implicit
    return converted(hint, [token.value for token in tokens])


def _details(option: Option, default: object) -> list[str]:
    """The range and the default of an option in the help; of a switch, what turns it off."""
    if option.is_switch:
        off = f"`{option.flag.replace('--', '--no-', 1)}` turns it off"
        return [] if default is False else ["on by default", off] if default else [off]
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    each = "each " if "tuple" in str(option.hint) else ""
    found = [] if option.within is None else [f"{each}{option.within}"]
    return found if default in (None, (), "") else [*found, f"default: {shown}"]


def _joined(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """The words as cyclopts reads them.

    A value is one word with its flag if it is that of a switch that can also be None, `--flag False`, or begins with a
    dash, `--cell -0.2,0.8`. Of the values of a list that is given twice the last ones count, as for single values.
    """
    hints = {flag: option.hint for option in options for flag in option.flags}
    groups: list[list[str]] = [[]]
    for word in words:
        flag = groups[-1][0].replace("_", "-") if groups[-1] else ""
        is_value = len(groups[-1]) == 1 and (
            (word in ("True", "False", "None") and hints.get(flag) == bool | None)
            or (re.match(r"-[\d.]", word) and hints.get(flag) in (str, str | None))
        )
        if is_value:
            groups[-1] = [f"{groups[-1][0]}={word}"]
        elif word.startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word)
    names = [group[0].partition("=")[0].replace("_", "-") if group else "" for group in groups]
    return [
        word
        for place, (name, group) in enumerate(zip(names, groups, strict=True))
        if name == "--option" or name not in names[place + 1 :] or "tuple" not in str(hints.get(name))
        for word in group
    ]


def converted(hint: Any, words: Sequence[str]) -> Any:
    """The value of words as a type; a ValueError if they are no value of it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        is_choice = any(typing.get_origin(one) is tuple for one in inner)  # in a search space, which has no other check
        inner = sorted(inner, key=lambda one: (one is not types.NoneType) + (... in typing.get_args(one)))
        for one in inner:  # None first, and lists of any length last
            with contextlib.suppress(ValueError):
                found = converted(one, words)
                numbers = {*map(str, found)} if isinstance(found, tuple) else {str(found)}
                if not (is_choice and numbers & {"nan", "inf", "-inf"}):
                    return found
        raise ValueError
    if origin is tuple:
        kinds = [inner[0]] * len(words) if inner[-1] is ... else inner
        return tuple(converted(kind, [word]) for kind, word in zip(kinds, words, strict=True))
    (word,) = words
    known = {types.NoneType: {"None": None}, bool: {"true": True, "false": False}}.get(hint)
    known = {str(choice): choice for choice in inner} if origin is typing.Literal else known
    word = word.lower() if hint is bool else word
    if not word or (known is not None and word not in known) or (hint is int and not re.fullmatch(_WHOLE, word)):
        raise ValueError
    return hint(word) if known is None else known[word]


def described(hint: object) -> str:
    """The values of a type in words: "2 numbers or a number or fixed"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        lists = [one for one in inner if ... in typing.get_args(one)] if len(inner) > 2 else []  # of other choices
        return " or ".join(described(one) for one in inner if one is not types.NoneType and one not in lists)
    if origin is typing.Literal:
        return " or ".join(map(str, inner))
    if origin is tuple:
        return f"{_WORDS[inner[0]]}s" if inner[-1] is ... else f"{len(inner)} {_WORDS[inner[0]]}s"
    return "true or false" if hint is bool else f"a {_WORDS[hint]}"


def _choices(hint: object) -> list[str]:
    inner = typing.get_args(hint)
    return (
        [*map(str, inner)] if typing.get_origin(hint) is typing.Literal else [c for one in inner for c in _choices(one)]
    )


def similar(flag: str, flags: Sequence[str]) -> list[str]:
    """The flags that a user may have meant: of the same beginning or end, such as `--space.policy-lr` for `--lr`, of
    another name elsewhere (`name_here`), or similarly spelt."""
    name = name_here(flag.lstrip("-").replace("-", "_")).replace("_", "-")
    if not name:
        return []
    of_space = [one for one in flags if one.startswith("--space.")]
    if flag.startswith("--space."):
        return nearest(flag, of_space)[:1] or of_space
    begins = [one for one in flags if one.startswith(f"--{name}")][:_MOST]
    begins = [f"--{name}"] if f"--{name}" in begins else begins
    return begins or [one for one in of_space if re.search(rf"[.-]{re.escape(name)}$", one)] or nearest(flag, flags)[:1]


def _metavar(hint: object) -> str | None:
    """The value of a type with a choice of words in the help, `INT|all`; None: cyclopts finds it."""
    origin, inner = typing.get_origin(hint), [one for one in typing.get_args(hint) if one is not types.NoneType]
    if not _choices(hint):
        return " ".join(kind.__name__.upper() for kind in inner) if origin is tuple and ... not in inner else None
    if origin is typing.Literal:
        return "|".join(map(str, inner))
    alone = [one for one in inner if ... not in typing.get_args(one)]  # several of the same words need no entry
    return "|".join(_metavar(one) or one.__name__.upper() for one in alone)


class _Page:
    """Writes a help page without boxes: under each heading a flag, and what it means beside or below it."""

    def __call__(self, console: Console, options: Any, panel: HelpPanel) -> None:
        """Print a panel."""
        page, width = Text(), options.max_width
        page.append(f"{panel.title}\n", "bold")
        if text := _plain(console, panel.description):
            page.append(_filled(text, width, 2) + "\n\n")
        rows = [(*_left(entry), entry) for entry in panel.entries]
        column = _COLUMN if panel.format == "parameter" else 4 + max(len(name) for name, *_ in rows)
        for name, value, entry in rows:
            text = _plain(console, entry.description)
            left, lines = f"  {name} {value}".rstrip(), _filled(text, width, column)
            page.append(f"  {name}", "cyan").append(f" {value}".rstrip())
            page.append(lines[len(left) :] if len(left) <= column - 2 else f"\n{lines}").append("\n")
        console.print(page, highlight=False, soft_wrap=True)

    def render_usage(self, console: Console, options: object, usage: object) -> None:
        """Print the usage."""
        del options
        console.print(Text(f"usage: {usage}"), soft_wrap=True)

    def render_description(self, console: Console, options: Any, description: Any) -> None:
        """Print what the command does, in paragraphs."""
        for paragraph in _plain(console, description).split("\n\n"):
            console.print(Text(_filled(paragraph, options.max_width, 0) + "\n"), soft_wrap=True)


def _left(entry: HelpEntry) -> tuple[str, str]:
    names = ", ".join((*entry.positive_shorts, *entry.positive_names))
    return entry.positional_label or names, "" if entry.positional_label else entry.metavar or ""


def _filled(text: str, width: int, indent: int) -> str:
    space = " " * indent
    text = " ".join(text.split())
    return textwrap.fill(text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)


def _plain(console: Console, text: Any) -> str:
    wide = console.options.update(width=100_000)
    return "".join(segment.text for segment in console.render(text, wide)).strip() if text else ""


def _console() -> Console:
    return Console(width=min(Console().width, _WIDEST), highlight=False)


def print_commands(command: str, about: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Print a help page that lists the commands of `command` by heading: name -> what it does."""
    app = Parser(command, about, ()).app({}, ())
    for place, (heading, commands) in enumerate(groups.items()):
        group = Group(heading, sort_key=place - len(groups))
        for order, (name, text) in enumerate(commands.items()):
            app.command(App(name, help=text, group=group, sort_key=order, help_flags=()))
    app.help_print([], console=_console())
