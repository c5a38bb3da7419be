"""Tries an installed Rookery: every public name, the files of the page, and the commands of a first run.

Run it with the Python of the environment, outside of the repository, so that the installed package is imported.
"""

import importlib
import importlib.metadata
import importlib.resources
import pkgutil
import subprocess
import tempfile
import time
from pathlib import Path

import rookery

TINY = "--episode-length 20 --num-envs 2 --hidden-sizes 4 --eval-episodes 2 --start-states 2 --population 4"
OFF_POLICY = "--steps-per-generation 20 --batch-size 4 --buffer-size 32 --warmup-steps 4 --exploit-interval 20"
TRAIN = f"train pbt-sac --env point_trap {TINY} {OFF_POLICY} --generations 3"
TRAIN_TEAMS = f"train pbt-ippo --env pursuit_discrete {TINY} --rollout-length 4 --fitness prey --generations 3"


def command(words: str, folder: Path) -> str:
    """The output of a command of the installed program."""
    begin = time.monotonic()
    done = subprocess.run(["rookery", *words.split()], cwd=folder, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"rookery {words}:\n{done.stdout}{done.stderr}"
    print(f"rookery {words.split(maxsplit=1)[0]}: {time.monotonic() - begin:.1f} s", flush=True)
    return done.stdout


def check_names() -> int:
    """Import every package and use every public name; returns their number."""
    packages = [rookery]
    for module in pkgutil.iter_modules(rookery.__path__):
        if module.ispkg or module.name not in ("__main__",):
            packages.append(importlib.import_module(f"rookery.{module.name}"))
    names = [(package, name) for package in packages for name in getattr(package, "__all__", ())]
    for package, name in names:
        getattr(package, name)
    return len(names)


def check_page_files() -> int:
    """The files that a page consists of; returns their number."""
    web = importlib.resources.files("rookery.report") / "web"
    files = [file for folder in (web, web / "vendor") for file in folder.iterdir() if file.is_file()]
    suffixes = {Path(file.name).suffix for file in files}
    assert suffixes >= {".js", ".css", ".html"}, suffixes
    assert any(file.name == "LICENSES.txt" for file in files)
    return len(files)


def main() -> None:
    """Run all checks."""
    version = importlib.metadata.version("rookery")
    assert rookery.__version__ == version
    assert "site-packages" in str(rookery.__file__), f"{rookery.__file__} is not the installed package"
    print(f"rookery {version}: {check_names()} public names, {check_page_files()} files of the page")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        assert command("--version", path).strip() == f"rookery {version}"
        assert "point_trap" in command("envs point", path)
        assert "generation 3 of 3" in command(f"{TRAIN} --run-dir first", path)
        assert "generation 3 of 3" in command(f"{TRAIN_TEAMS} --run-dir teams", path)
        command("report first --rollouts 1", path)
        page = (path / "first" / "report.html").read_text()
        assert "pbt-sac" in page
        assert all(name in page for name in ("LineageTree", "createPlayer", "Content-Security-Policy"))
        assert (path / "first" / "curves.png").stat().st_size > 10_000


if __name__ == "__main__":
    main()
