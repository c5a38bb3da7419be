"""Fixtures of the tests of islands."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A copy of the module's finished run, to be changed by one test."""
    return Path(shutil.copytree(whole, tmp_path / "run"))
