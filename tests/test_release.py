"""What a release consists of: one version in all files, and files of the package that are no Python."""

import re
import tomllib
from pathlib import Path

import yaml

import rookery

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## \[?(\d[^\] ]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert {rookery.__version__, str(cited["version"]), newest[1]} == {PROJECT["version"]}
    assert cited["license"] == PROJECT["license"]


def test_the_workflows_run_what_is_run_locally():
    checks, release = (
        yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()) for name in ("ci", "release")
    )
    assert [step["run"] for step in checks["jobs"]["checks"]["steps"] if "run" in step] == [".ci/run"]
    steps = [step.get("run", "") for step in release["jobs"]["build"]["steps"]]
    assert ".ci/build dist" in steps
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    for script in ("run", "build"):
        assert (ROOT / ".ci" / script).stat().st_mode & 0o100, f".ci/{script} is not executable"


def test_every_file_of_the_package_is_in_the_wheel():
    package = ROOT / "rookery"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    data = {
        path
        for name, globs in patterns.items()
        for pattern in globs
        for path in (ROOT / name.replace(".", "/")).glob(pattern)
    }
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others <= data
