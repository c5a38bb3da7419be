"""The pages of agents and methods: none is missing, and what they say from the code is there."""

import re
from pathlib import Path

import pytest

from docs import facts
from rookery.experiments.agents import AGENTS
from rookery.experiments.kinds import kinds
from rookery.experiments.methods import METHODS
from rookery.experiments.wrappers import WRAPPERS

DOCS = Path(facts.__file__).parent
PAGES = [path for folder in ("agents", "methods") for path in (DOCS / folder).glob("*.md") if path.stem != "index"]


def kind_of(path: Path) -> str:
    found = re.search(r"<!-- facts: kind=([\w-]+)", path.read_text())
    assert found is not None, f"{path} has no facts"
    return found[1]


def test_every_agent_and_every_wrapper_has_a_page():
    for name in (*AGENTS, *WRAPPERS):
        kind = kinds()[kind_of(DOCS / "agents" / f"{name}.md")]
        assert kind.agent is not None
        assert kind.agent.wrapper is WRAPPERS[name] if name in WRAPPERS else kind.agent is AGENTS[name]


def test_every_method_has_a_page():
    described = {id(kinds()[kind_of(path)].method) for path in PAGES if path.parent.name == "methods"}
    assert not [method.name for method in METHODS if id(method) not in described]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_page_has_its_facts_and_is_listed(path: Path):
    page = f"{path.parent.name}/{path.stem}"
    text = facts.written(page, path.read_text())
    assert "<!-- facts" not in text
    assert re.search(r"\n\*\*Kinds of run\*\*: `\w", text)
    assert re.search(r"\n\| `--[\w.-]+` \|", text), "no setting is listed"
    code = re.search(r"code=(\S+)", path.read_text())
    assert code is not None
    for name in code[1].split(","):
        assert any(docstring for _, docstring in facts.docstrings(name)), f"{name} has no docstring"
    assert f"({path.name})" in (path.parent / "index.md").read_text()


def test_docstrings_give_sources_and_deviations():
    text = facts.written("agents/sac", "<!-- facts: kind=sac parts=agent code=rookery.agents.sac -->")
    assert '- Haarnoja 2018, "Soft Actor-Critic' in text
    assert "- `alpha_loss`: the log of the temperature is learned" in text
    assert "critic_loss`" not in text  # its deviation is none
