"""Settings of the documentation site: `sphinx-build -W -b html docs site`."""

import importlib.metadata
import os
import sys
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx

sys.path.insert(0, os.path.dirname(__file__))
import facts  # beside this file

from rookery.settings import Within

project = "Rookery"
copyright = "The Rookery maintainers"
release = importlib.metadata.version("rookery")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]


# Pages are Markdown that reads well on GitHub too: headings have the anchors that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "dollarmath"]

# The reference is generated from the docstrings, in which single backticks mark code.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 88
Within.__repr__ = lambda self: repr(str(self))  # a range in words in the signatures of configs: 'at least 1'
python_use_unqualified_type_names = True
add_module_names = False
autosummary_generate = False
napoleon_numpy_docstring = False
toc_object_entries_show_parents = "hide"

html_math_renderer = "mathml"  # browsers draw it without a script, so that the site loads nothing from elsewhere
html_theme = "pydata_sphinx_theme"
html_title = "Rookery"
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "none"  # indented text is output
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {page: [] for page in ("index", "gallery", "getting_started", "migrating")}  # no pages below them
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
}


def offer_files(app: Sphinx, doctree: nodes.document) -> None:
    """Replace links to Markdown files outside of this folder, such as the notes of benchmarks, by links to copies."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link.get("refdomain") == "doc" and os.path.isabs(link["reftarget"]):
            path = os.path.relpath(link["reftarget"] + ".md", app.srcdir)
            link.replace_self(addnodes.download_reference("", "", *link.children, reftarget="/" + path))


def keep_whole(*arguments: Any) -> None:
    """Begin the docstring of a field with an empty comment: Napoleon reads what is before a colon there as a type."""
    _, what, _, _, _, lines = arguments
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]


def add_facts(_: Sphinx, page: str, source: list[str]) -> None:
    """Complete the pages of agents and methods, see `facts`."""
    source[0] = facts.written(page, source[0])


def draw_formula(writer: Any, node: nodes.Element) -> None:
    """Write a formula as MathML."""
    is_block = isinstance(node, nodes.math_block)
    formula = latex2mathml.tex2mathml(node.astext(), as_block=is_block)
    writer.body.append(f'<div class="formula">{formula}</div>' if is_block else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect what this file does: `offer_files` before Sphinx collects the files that it copies, `keep_whole` before
    Napoleon."""
    app.add_html_math_renderer("mathml", (draw_formula, None), (draw_formula, None))
    app.connect("source-read", add_facts)
    app.connect("doctree-read", offer_files, priority=400)
    app.connect("autodoc-process-docstring", keep_whole, priority=400)
