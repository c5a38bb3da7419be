"""What the pages of agents and methods say from the code: kinds of run, sources, deviations and settings.

On the site a comment `<!-- facts: kind=pbt-sac parts=pbt code=rookery.populations.pb2 -->` of a page in `docs/agents`
or `docs/methods` is replaced by these sections; GitHub shows the page without them. `kind` is a kind of run with the
settings, and further ones after commas; `parts` are the parts of its settings (`method` for those in no part), `code`
the modules and functions whose docstrings have sources and deviations, and `flags` is a regular expression of the flags
that are listed, by default all.
"""

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

from rookery.cli.options import Option, options_of_kind
from rookery.experiments.kinds import kinds
from rookery.experiments.spec import Kind

COMMENT = re.compile(r"^<!-- facts: (.*?) -->$", re.MULTILINE | re.DOTALL)


def written(page: str, text: str) -> str:
    """The text of a page, by its name such as `agents/sac`, with the facts in place of its comment."""
    return COMMENT.sub(lambda found: sections(page, **dict(word.split("=", 1) for word in found[1].split())), text)


def sections(page: str, kind: str, parts: str, code: str, flags: str = "") -> str:
    """The Markdown of the facts."""
    all_kinds = [kinds()[name] for name in kind.split(",")]
    found, strings = all_kinds[0], [text for name in code.split(",") for text in docstrings(name)]
    listed = found.method.sources if page.startswith("methods/") or not found.agent else found.agent.sources
    sources = [one for _, text in strings for one in re.findall(_PARAGRAPH.format("Sources?"), text)] or listed
    deviations = [(name, one) for name, text in strings for one in re.findall(_PARAGRAPH.format("Deviations?"), text)]
    rows = [f"- `{name}`: {_plain(one)}" for name, one in deviations if _plain(one) != "none."]
    runs = dict.fromkeys(name for one in all_kinds for name in related(page, one))
    chosen = [option for option in options(found, parts.split(",")) if re.search(flags, option.name)]
    return "\n".join(
        (
            f"**Kinds of run**: {', '.join(f'`{name}`' for name in runs)}.",
            *(("\n## Sources\n", *(f"- {_linked(_plain(one))}" for one in dict.fromkeys(sources))) if sources else ()),
            *(("\n## Deviations\n", *map(_linked, rows)) if rows else ()),
            "\n## Settings\n\n| flag | default | meaning |\n|---|---|---|",
            *(f"| `{option.flag}` | {_default(option, found)} | {_cell(option.explanation)} |" for option in chosen),
            f"\n`rookery train {found.name} --help` lists all settings, with their ranges.",
        )
    )


_PARAGRAPH = r"(?s)\b{}: (.+?)(?=\n\n|\nDeviations?:|\n(?:Args|Returns):|\Z)"


def docstrings(code: str) -> Iterator[tuple[str, str]]:
    """The names and docstrings of a module and of what it defines, or of one of its functions, such as
    `rookery.populations.selection:threshold`."""
    module, _, only = code.partition(":")
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    texts = [(module.rpartition(".")[2], ast.get_docstring(tree) or "")]
    for before, node in itertools.pairwise([tree, *tree.body]):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            texts.append((node.name, ast.get_docstring(node) or ""))
        elif isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Expr):
            name = before.targets[0] if isinstance(before, ast.Assign) else before.target
            texts.append((ast.unparse(name), str(getattr(node.value, "value", ""))))
    yield from (text for text in texts if only in ("", text[0]))


def options(kind: Kind, parts: list[str]) -> Iterator[Option]:
    """The options of parts of a kind of run; of a search space without those of an agent that something wraps."""
    row = kind.agent
    known = {*row.space.fields, *(row.space.optional.fields if row.space.optional else ())} if row else set()
    for option in options_of_kind(kind):
        inside = option.path[0] if len(option.path) > 1 else "method"
        of_wrapped = inside == "space" and row and row.wrapper.has_skills and known.intersection(option.path)
        if inside in parts and not of_wrapped:
            yield option


def related(page: str, kind: Kind) -> list[str]:
    """The kinds of run of a page: those of its method, or those of its agent or of what wraps it."""
    if page.startswith("methods/"):
        return [one.name for one in kinds().values() if one.method is kind.method]
    assert kind.agent is not None
    config, wrapper = kind.agent.config, kind.agent.wrapper
    trained = [one for one in kinds().values() if one.agent and one.agent.wrapper is wrapper]
    return [one.name for one in trained if one.agent and (wrapper.has_skills or one.agent.config is config)]


def _plain(paragraph: str) -> str:
    return " ".join(paragraph.split()).removeprefix("none; ")


def _linked(text: str) -> str:
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _default(option: Option, kind: Kind) -> str:
    value: Any = option.value(kind.default().flat)
    if value is None or option.path[0] == "space":
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(f"{one:g}" if isinstance(one, float) else f"{one}" for one in _all(value))


def _all(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
