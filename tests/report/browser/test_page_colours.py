"""The page's colours: distinguishable with colour-vision deficiencies, and with enough contrast for text.

Colour-vision deficiencies are simulated as in Machado 2009, "A Physiologically-based Model for Simulation of Color
Vision Deficiency", Table 1 (severity 1.0); distances are CIE 1976 ones in CIELAB.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import rookery
from rookery.report.figures.style import RANKS, SERIES

CSS = (Path(rookery.__file__).parent / "report/web/page.css").read_text()
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def tokens(theme: str) -> dict[str, np.ndarray]:
    """Name -> linear red, green and blue, of the page's variables."""
    blocks = re.findall(r":root(\[data-theme=\"dark\"\])? \{(.*?)\}", CSS, re.DOTALL)
    colours = dict(
        re.findall(
            r"--([\w-]+): (#[0-9a-f]{6})", next(body for dark, body in blocks if bool(dark) == (theme == "dark"))
        )
    )
    parts = {name: np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for name, text in colours.items()}
    return {
        name: np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4) for name, part in parts.items()
    }


def lab(linear: np.ndarray) -> np.ndarray:
    share = TO_XYZ @ np.clip(linear, 0, 1) / TO_XYZ.sum(axis=1)
    f = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    bright, dark = sorted((float(TO_XYZ[1] @ colour) for colour in (one, other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_known_distances():
    assert lab(np.ones(3)) == pytest.approx([100, 0, 0], abs=0.02)
    assert contrast(np.ones(3), np.zeros(3)) == pytest.approx(21)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_groups_are_distinguishable(theme, vision):
    colours = tokens(theme)
    series = [lab(np.asarray(VISIONS[vision]) @ colours[f"series-{index}"]) for index in range(8)]
    nearest = min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(series, 2))
    assert nearest > 11  # 2.3 is the smallest noticeable difference


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(theme):
    colours = tokens(theme)
    for text, ground in itertools.product(("ink", "quiet", "warn", "accent"), ("paper", "card")):
        assert contrast(colours[text], colours[ground]) >= 4.5, f"{text} on {ground}"  # WCAG 2.2, 1.4.3
    for index in range(8):
        assert contrast(colours[f"series-{index}"], colours["card"]) >= 2.2, index
    for index in range(3):  # median, best, and best elite
        assert contrast(colours[f"series-{index}"], colours["card"]) >= 3, index  # WCAG 2.2, 1.4.11
    assert contrast(colours["ink"], colours["card"]) >= 7


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_best_of_a_generation_has_the_most_contrast_and_the_worst_is_visible(theme):
    colours = tokens(theme)
    ranks = [contrast(colours[f"rank-{index}"], colours["card"]) for index in range(3)]
    assert ranks == sorted(ranks)
    assert ranks[0] >= 2
    assert ranks[2] >= 4.5


def test_figures_and_page_have_the_same_colours():
    assert tuple(re.findall(r"--rank-\d: (#[0-9a-f]{6})", CSS)[:3]) == RANKS
    assert tuple(re.findall(r"--series-\d: (#[0-9a-f]{6})", CSS)[:8]) == SERIES


def test_dark_themes_of_the_system_and_of_the_button_are_equal():
    system = re.search(r'not\(\[data-theme="light"\]\) \{(.*?)\}', CSS, re.DOTALL)
    button = re.search(r':root\[data-theme="dark"\] \{(.*?)\}', CSS, re.DOTALL)
    assert system is not None
    assert button is not None
    assert system[1].split() == button[1].split()
