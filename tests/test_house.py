"""The structure of the code: which package imports which, how large things are, and names that only one file uses."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import rookery
from tests.mutations import faults

ROOT = Path(rookery.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
FILES = list(TREES)
MODULES = [path for path in FILES if path != ROOT / "__init__.py"]

# A package imports only from itself and from those before it; the members of a group do not import each other.
GROUPS = [["versions", "types", "settings"], ["factories"], ["trees", "features"], ["hyperparams"]]
GROUPS += [["networks", "distributions", "returns", "normalize", "buffers", "gradients"]]
GROUPS += [["envs"], ["agents"], ["learners"], ["populations"], ["qd"], ["distributed"], ["storage"], ["report"]]
GROUPS += [
    ["training"],
    ["experiments"],
    ["islands"],
    ["tracking"],
    ["deploy"],
    ["running"],
    ["loading"],
    ["compat"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, group in enumerate(GROUPS) for name in group}
ONLY_IN = {
    "flax": {f"networks/{name}.py" for name in ("dense", "recurrent", "residual", "weights")},
    "orbax": {"storage/checkpoint.py", "distributed/sync.py"},
    "cyclopts": {"cli/app.py", "cli/commands.py", "cli/options.py", "cli/parser.py"},
    "filelock": {"storage/run_dir.py"},
    "brax": {*(f"envs/suites/{name}.py" for name in ("brax/adapter", "brax/walls", "playground/brax_tasks"))},
    "gymnax": {"envs/suites/gymnax.py"},
    "gymnasium": {f"envs/suites/gymnasium/{name}.py" for name in ("adapter", "spaces")},
    "cloudpickle": {"envs/host/workers.py", "envs/suites/gymnasium/adapter.py"},
    "envpool": {"envs/suites/envpool/adapter.py"},
    "jaxmarl": {"envs/suites/jaxmarl/adapter.py", "envs/suites/jaxmarl/visualizers.py"},
    "mujoco_playground": {"envs/suites/playground/loading.py"},
    "mujoco": {f"envs/suites/playground/{name}.py" for name in ("loading", "picture", "brax_tasks")},
    "warp": {"envs/suites/playground/loading.py"},
    "rich": {
        *("training/terminal.py", "training/progress.py", "report/tables.py", "report/compare.py"),
        *("cli/listings.py", "cli/parser.py"),
    },
    "ray": {"islands/ray_engine.py"},
    "yaml": {"cli/config_file.py"},
    "tinygp": {"populations/pb2.py"},
    "jax2onnx": {"deploy/onnx.py"},
    "onnxruntime": {"deploy/onnx.py"},
    "wandb": {"tracking/wandb_tracker.py"},
    "mlflow": {"tracking/mlflow_tracker.py"},
}
# `storage/leaf_specs.py` restores arrays with the template's sharding.
DEVICE_FILES = {f"distributed/{name}.py" for name in ("mesh", "layout", "programs")} | {"storage/leaf_specs.py"}
DEVICE_WORDS = {"devices", "local_devices", "device_put", "make_mesh", "shard_map", "pmap", "NamedSharding", "Mesh"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package_of(path: Path) -> str:
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


def rookery_packages(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(TREES[path]) if name.startswith("rookery.")} & set(RANK)


def module_of(path: Path) -> str:
    """The dotted name of a file's module, from the package's root."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


# `qd.Search` and `populations.Tuner` write files. Their names are in the packages of their subjects, which import them
# when they are first used.
NAMES_ONLY = {("qd/__init__.py", "experiments"), ("populations/__init__.py", "experiments")}


def test_a_package_imports_only_packages_before_it():
    pairs = [(path, other) for path in MODULES for other in rookery_packages(path) - {package_of(path)}]
    pairs = [(path, other) for path, other in pairs if (relative(path), other) not in NAMES_ONLY]
    assert [f"{relative(path)}: {other}" for path, other in pairs if RANK[other] >= RANK[package_of(path)]] == []


def test_every_file_is_in_a_known_package():
    assert {package_of(path) for path in FILES} - {"__init__"} <= set(RANK)


def test_no_modules_import_each_other_in_a_circle():
    modules = {module_of(path): path for path in MODULES}
    graph = {
        module: {name.removeprefix("rookery.") for name in imports(TREES[path])} & (set(modules) - {module})
        for module, path in modules.items()
    }
    packages = {module for module, path in modules.items() if path.name == "__init__.py"}
    # Importing a module imports its packages first, which is no circle unless a package names what needs it.
    TopologicalSorter({module: needs - packages for module, needs in graph.items()}).prepare()


def test_a_folder_has_at_most_fourteen_modules():
    counts = Counter(path.parent for path in FILES if not path.name.startswith("__"))
    assert {relative(folder): count for folder, count in counts.items() if count > 14} == {}


def test_agents_depend_on_the_interface_of_environments_only():
    agents = [path for path in FILES if package_of(path) == "agents"]
    used = [name for path in agents for name in imports(TREES[path]) if name.startswith("rookery.envs.")]
    assert [name for name in used if not name.startswith("rookery.envs.base")] == []


def test_the_report_reads_run_folders_only():
    report = [path for path in FILES if package_of(path) == "report"]
    used = {name for path in report for name in imports(TREES[path]) if name.startswith("rookery.")}
    own = ("rookery.report", "rookery.storage", "rookery.trees", "rookery.factories", "rookery.settings")
    own += ("rookery.envs.rendering.scene",)
    assert [name for name in used if not name.startswith(own)] == []


def closure(module: str) -> set[str]:
    """The modules that a module imports, directly or not; packages, which only name others, are left out."""
    files = {module_of(path): path for path in MODULES if path.name != "__init__.py"}
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in files and name not in found:
            found.add(name)
            waiting += [other.removeprefix("rookery.") for other in imports(TREES[files[name]])]
    return found


def test_training_and_the_report_stand_on_few_modules():
    assert len(closure("training.loop")) <= 55
    assert len(closure("report.page")) <= 45


def test_a_dependency_is_named_in_its_own_files_only():
    users = {(name.split(".")[0], relative(path)) for path in FILES for name in imports(TREES[path])}
    assert [user for user in users if user[1] not in ONLY_IN.get(user[0], {user[1]})] == []


def test_no_private_module_of_jax_is_imported():
    assert [relative(path) for path in FILES if any(name.startswith("jax._src") for name in imports(TREES[path]))] == []


def names_devices(node: ast.AST) -> bool:
    """Whether a node is `jax.devices` or imports it from JAX, or another of `DEVICE_WORDS`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "jax":
        return node.attr in DEVICE_WORDS
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax"):
        return bool({alias.name for alias in node.names} & DEVICE_WORDS)
    return False


def test_devices_are_named_in_few_files():
    others = [path for path in FILES if relative(path) not in DEVICE_FILES]
    assert [relative(path) for path in others if any(map(names_devices, ast.walk(TREES[path])))] == []


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


def test_sizes_stay_readable():
    assert [relative(path) for path in FILES if len(path.read_text().splitlines()) > 600] == []
    found = [(path, function, depth) for path in FILES for function, depth in functions(TREES[path])]
    large = [item for item in found if (item[1].end_lineno or 0) - item[1].lineno >= 80 or item[2] > 2]
    assert [f"{relative(path)}:{function.lineno} {function.name}" for path, function, _ in large] == []


def test_nothing_is_overridden_or_left_empty():
    assert [relative(path) for path in FILES if not TREES[path].body] == []
    exceptions = {"distributed/signals.py", "settings.py"}  # exceptions with fields of their own
    others = [path for path in FILES if relative(path) not in exceptions]
    calls = [(path, node.func) for path in others for node in ast.walk(TREES[path]) if isinstance(node, ast.Call)]
    assert [relative(path) for path, name in calls if isinstance(name, ast.Name) and name.id == "super"] == []


def test_public_names_exist():
    for name in rookery.__all__:
        assert hasattr(rookery, name)


def test_a_package_declares_what_it_exports():
    undeclared = []
    for path in (path for path in FILES if path.name == "__init__.py"):
        body = TREES[path].body
        imported = [alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
        assigned = {ast.unparse(name) for node in body if isinstance(node, ast.Assign) for name in node.targets}
        if imported and "__all__" not in assigned and "*" not in imported:  # a star takes a module's `__all__`
            undeclared.append(relative(path))
    assert undeclared == []


def test_few_lines_are_hidden_from_the_type_checker():
    assert (
        sum(path.read_text().count("pyright: ignore") + path.read_text().count("type: ignore") for path in FILES) < 20
    )


# Words that the package and its documents do not use: metaphors of people, homes and speech, where the field has terms.
UNUSED_WORDS = re.compile(
    r"worlds?|minds?|lived|peoples?|waists?|judg\w+|told|tells|newborns?|born|births?|adopt\w*|heirs?|bred|breed\w*|"
    r"genomes?|rivals?|luckiest|honest\w*|who|whom|whoever|nobody|everybody|somebody|anybody|apprentices?|pupils?"
)
ALLOWED = {"MPE_simple_world_comm_v3"}  # an environment of JaxMARL
OLD_KEYS = {"storage/run_dir.py:world", "storage/test_run_dir.py:world"}  # a key of configurations of format 1
TESTS_ROOT = Path(__file__).parent
TESTS = sorted(path for path in TESTS_ROOT.rglob("*.py") if path != Path(__file__))
DOCUMENTS = [*ROOT.parent.glob("*.md"), *ROOT.parent.glob("docs/**/*.md")]


def words_of(path: Path) -> Iterator[tuple[int, str]]:
    """The words of a module's identifiers, strings and comments, in lower case, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        parts = (
            re.findall(r"\w+", token.string) if token.type in (tokenize.STRING, tokenize.COMMENT) else [token.string]
        )
        for part in parts:
            if part not in ALLOWED:
                spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part)
                yield from ((token.start[0], word.lower()) for word in spaced.split("_") if word)


def may_have_unused_words(path: Path) -> bool:
    """Whether the text as a whole has one, comments, strings and names alike; to read its tokens takes longer."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", path.read_text()).lower()
    return bool(re.search(rf"(?<![a-z0-9])(?:{UNUSED_WORDS.pattern})(?![a-z0-9])", spaced))


def test_the_language_is_that_of_the_field():
    found = {
        f"{path.relative_to(ROOT if path in TREES else TESTS_ROOT).as_posix()}:{word}": line
        for path in filter(may_have_unused_words, [*FILES, *TESTS])
        for line, word in words_of(path)
        if UNUSED_WORDS.fullmatch(word)
    }
    assert not found.keys() - OLD_KEYS, found


def test_the_language_of_the_documents():
    found = []
    for path in DOCUMENTS:
        prose = re.sub(r"(?s)```.*?```|`[^`]*`|\([^)]*\)|(?m:^    .*$)", "", path.read_text()).lower()
        found += [f"{path.name}: {word}" for word in re.findall(r"[a-z]+", prose) if UNUSED_WORDS.fullmatch(word)]
    assert found == []


def test_the_small_faults_can_be_put_into_the_package():
    assert [fault.name for fault in faults() if (ROOT / fault.file).read_text().count(fault.old) != 1] == []
