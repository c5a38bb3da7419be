"""The house's own guard: who may import whom, how large things grow, and names that only one file may speak."""

import ast
from pathlib import Path

import pytest

import rookery

ROOT = Path(rookery.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Imports go only to an earlier room, or stay within one. The tools know nothing of each other.
TOOLS = ["networks", "distributions", "returns", "normalize", "buffers", "gradients"]
ROOMS = ["types", "trees", "records", "hyperparams", TOOLS, "envs", "agents", "learners", "populations", "qd"]
ROOMS += ["devices", "runs", "report", "compat", "commands", "flags", "cli"]
RANK = {name: rank for rank, room in enumerate(ROOMS) for name in (room if isinstance(room, list) else [room])}
ONLY_IN = {
    "flax": {"networks.py"},
    "orbax": {"runs/checkpoint.py"},
    "tyro": {"cli.py", "commands.py", "flags.py"},
    "filelock": {"runs/folder.py"},
    "brax": {"envs/brax.py", "envs/brax_walls.py"},
    "gymnax": {"envs/gymnax.py"},
    "jaxmarl": {"envs/jaxmarl.py", "envs/jaxmarl_films.py"},
    "rich": {"runs/progress.py", "report/tables.py", "report/compare.py", "commands.py", "cli.py"},
    "tinygp": {"populations/bandit.py"},
    "jax2onnx": {"runs/onnx_policy.py"},
    "onnxruntime": {"runs/onnx_policy.py"},
}
# `devices.py` names devices; `runs/leaves.py` puts back what it read where the template's sharding says.
DEVICE_FILES = {"devices.py", "runs/leaves.py"}
DEVICE_WORDS = {"devices", "local_devices", "device_put", "make_mesh", "shard_map", "pmap", "NamedSharding", "Mesh"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> list[str]:
    """Dotted names of all modules that a file imports, lazy ones included."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def rookery_rooms(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(parse(path)) if name.startswith("rookery.")} & set(RANK)


@pytest.mark.parametrize("path", [p for p in FILES if p.parent != ROOT or p.name != "__init__.py"], ids=relative)
def test_imports_go_only_upstream(path: Path):
    here = room_of(path)
    for other in rookery_rooms(path) - {here}:
        assert RANK[other] < RANK[here], f"{relative(path)} imports {other}, which is no earlier room"


def test_every_file_stands_in_a_known_room():
    assert {room_of(path) for path in FILES} - {"__init__"} <= set(RANK)


def test_agents_see_only_the_waist_of_the_worlds():
    for path in (ROOT / "agents").glob("*.py"):
        seen = {name for name in imports(parse(path)) if name.startswith("rookery.envs.")}
        assert all(name.startswith("rookery.envs.api") for name in seen), f"{relative(path)} sees {seen}"


def test_the_report_reads_run_folders_only():
    for path in (ROOT / "report").glob("*.py"):
        assert rookery_rooms(path) <= {"types", "runs", "report"}, relative(path)


@pytest.mark.parametrize("package", ONLY_IN)
def test_a_dependency_is_named_in_its_own_files_only(package: str):
    users = {relative(path) for path in FILES if any(name.split(".")[0] == package for name in imports(parse(path)))}
    assert users <= ONLY_IN[package]


def test_devices_are_named_in_one_file():
    for path in FILES:
        if relative(path) in DEVICE_FILES:
            continue
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "jax":
                assert node.attr not in DEVICE_WORDS, f"{relative(path)}:{node.lineno} names jax.{node.attr}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax"):
                named = {alias.name for alias in node.names} & DEVICE_WORDS
                assert not named, f"{relative(path)}:{node.lineno} imports {named}"


def functions(tree: ast.AST) -> list[tuple[ast.FunctionDef, int]]:
    """Every function with its depth of nesting in other functions."""
    found = []

    def visit(node: ast.AST, depth: int) -> None:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef)
            if is_function:
                found.append((child, depth + 1))
            visit(child, depth + is_function)

    visit(tree, 0)
    return found


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_sizes_stay_readable(path: Path):
    assert len(path.read_text().splitlines()) <= 400
    for function, depth in functions(parse(path)):
        where = f"{relative(path)}:{function.lineno} {function.name}"
        assert (function.end_lineno or 0) - function.lineno + 1 <= 80, f"{where} is longer than 80 lines"
        assert depth <= 2, f"{where} is nested too deeply"
        count = len(function.args.args) + len(function.args.kwonlyargs) + len(function.args.posonlyargs)
        assert count <= 8, f"{where} takes {count} parameters"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_nothing_is_overridden_or_left_empty(path: Path):
    tree = parse(path)
    assert tree.body, f"{relative(path)} is empty"
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    supers = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "super"]
    exceptions = {"runs/signals.py"}  # an exception with a field of its own
    assert not supers or relative(path) in exceptions, f"{relative(path)}:{supers} calls super()"


def test_public_names_exist():
    for name in rookery.__all__:
        assert hasattr(rookery, name)
