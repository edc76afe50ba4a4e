"""How large the product is, what its packages take from each other, and what a process loads.

`python -m tests.test_house` prints the figures. If you raise a limit, give the reason in CHANGELOG.md.
"""

import ast
import functools
import gc
import graphlib
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each limit is about 2% above the figure of the day it was set, so that a change needs neither packed lines
# nor merged files to pass.
LIMITS: dict[str, float] = {
    "syntax nodes": 711_000,
    "statements": 56_500,
    "syntax nodes per statement": 12.8,
    "names taken across packages": 805,
    "files with a second theme": 10,
    "bytes of declarations in data files": 2_000,
}
# Modules of gputopo that a process has loaded.
LOADED = {
    "import gputopo.values.run.spec": 16,
    "import gputopo.launch.train.worker": 30,
    "inspect --from 7gforce": 110,
    "plan --from 7gforce --model alexnet --num-gpus 2": 170,
}
# Files of tests that may take names past an API.
INSIDE = {
    "tests/cli/run/launchers.py": "a launcher in a process of its own, whose limits of time are made short",
    "tests/launch/compare/test_multi_worker.py": "an API of launch.compare would close a cycle of imports",
}
# Packages that the training process does not load.
DECIDING = ("planner", "prediction", "findings", "launch.supervise")

DECLARATION_SUFFIXES = {".csv", ".toml", ".json", ".yaml", ".txt"}
# Data: what other programs print and what others published. All other data files declare something.
DATA = re.compile(r"reference/data/|known_outputs|kernel_log|program_errors")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
# A file has a second theme if at least this many constants stand between its third definition and its third
# last one. Not measured; chosen because a constant or two often belong to the function below them.
CONSTANTS_OF_A_THEME = 3
DEFINITIONS_AT_EACH_END = 3


def product_files() -> Iterator[Path]:
    """All files of the product. The links in gputopo/ are not followed."""
    links = [ROOT / "gputopo" / name for name in ("probes", "launch")]
    for folder in ("gputopo", "probes", "launch"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and not any(path.is_relative_to(link) for link in links):
                yield path


@functools.cache
def modules() -> dict[str, Path]:
    """The product's modules by dotted name."""
    named = {}
    for path in product_files():
        if path.suffix == ".py":
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if parts[0] == "gputopo" else ("gputopo", *parts)
            named[".".join(parts).removesuffix(".__init__")] = path
    return named


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The nodes of a file's syntax tree, the module first. Walked once: a walk takes as long as parsing."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    gc.freeze()  # they are kept: looking for garbage among them takes as long again
    return nodes


@functools.cache
def figures() -> dict[str, float]:
    """The figures that `LIMITS` limits."""
    files = [nodes_of(path) for path in modules().values()]
    nodes = sum(map(len, files))
    statements = sum(isinstance(node, ast.stmt) for file in files for node in file)
    return {
        "syntax nodes": nodes,
        "statements": statements,
        "syntax nodes per statement": round(nodes / statements, 2),
        "names taken across packages": len(names_across_packages()),
        "files with a second theme": sum(has_second_theme(file[0]) for file in files),
        "bytes of declarations in data files": sum(
            path.stat().st_size
            for path in product_files()
            if path.suffix in DECLARATION_SUFFIXES and not DATA.search(path.relative_to(ROOT).as_posix())
        ),
    }


@functools.cache
def names_across_packages() -> set[tuple[str, str]]:
    """Module and name of all that one package imports from another.

    If a module is imported as a whole, each attribute that is used of it is a name.
    """
    taken = set()
    for module, path in modules().items():
        whole: dict[str, str] = {}  # modules imported as a whole, by the name that the code uses
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gputopo":
                for alias in node.names:
                    if (submodule := f"{node.module}.{alias.name}") in modules():
                        whole[alias.asname or alias.name] = submodule
                    elif package(node.module) != package(module):
                        taken.add((node.module, alias.name))
            elif isinstance(node, ast.Import):
                whole |= {alias.asname or alias.name: alias.name for alias in node.names}
        foreign = {
            name: other
            for name, other in whole.items()
            if other in modules() and package(other) != package(module)
        }
        for node in nodes_of(path) if foreign else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                other = foreign.get(ast.unparse(node.value))
                taken |= set() if other is None else {(other, node.attr)}
    return taken


def names_taken_past_an_api() -> list[str]:
    """Names that a package takes from a module of another package. They are in the package's `__init__`.

    The modules of `values` are its API.
    """
    return sorted(
        f"{module}.{name}"
        for module, name in names_across_packages()
        if module.count(".") > 1 and package(module) != "values"
    )


def imports_of_tests_past_an_api() -> Iterator[tuple[Path, str, str]]:
    """File, module and name of all that tests take from modules that are not public.

    Public are the packages, each with what its `__init__` gives, and the modules of `values`. If a test
    imports a module as a whole, for example to replace something in it, the name is the module's.
    """
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    public = {name for name in modules() if package(name) == "values"} | packages
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if not may_import(path.read_text(encoding="utf-8"), modules().keys() - public):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                taken = [(alias.name, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                taken = [
                    (module if module in modules() else node.module, name) for name, module in whole.items()
                ]
            else:
                continue
            for module, name in taken:
                if module in modules().keys() - public:
                    yield path.relative_to(ROOT), module, name


def may_import(text: str, private: Set[str]) -> bool:
    """Return False if no private module is imported in a text. Parsing all tests takes seconds."""
    return any(
        module in private or any(f"{module}.{name}" in private for name in re.findall(r"\w+", names))
        for module, names in re.findall(r"(?:from|import) (gputopo[\w.]*)( import (?:\([^)]*|.*))?", text)
    )


def package(module: str) -> str:
    """The package below gputopo that a module is in."""
    return (*module.split("."), "gputopo")[1]


def has_second_theme(tree: ast.AST) -> bool:
    """Return whether constants in the middle of a file show that another theme begins there."""
    assert isinstance(tree, ast.Module)
    definitions = [
        place for place, node in enumerate(tree.body) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    if len(definitions) < 2 * DEFINITIONS_AT_EACH_END:
        return False
    middle = tree.body[definitions[DEFINITIONS_AT_EACH_END - 1] : definitions[-DEFINITIONS_AT_EACH_END]]
    return sum(map(is_constant, middle)) >= CONSTANTS_OF_A_THEME


def is_constant(node: ast.stmt) -> bool:
    """Return whether a statement defines a constant."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return isinstance(target, ast.Name) and CONSTANT.fullmatch(target.id) is not None


def imported_modules(path: Path) -> set[str]:
    """The product's modules that a file imports."""
    imported = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules().keys()
            imported |= submodules or {node.module}
    return imported & modules().keys()


@functools.cache
def loaded(words: str) -> list[str]:
    """The modules that a process loads for an import or a command."""
    command = (
        words if words.startswith("import ") else f"import gputopo.cli as c; c.run_command({words.split()})"
    )
    program = f"import sys, os; sys.stdout = open(os.devnull, 'w'); {command}; sys.stdout = sys.__stdout__; "
    program += "print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def own_modules(words: str) -> list[str]:
    """The modules of gputopo among those that are loaded."""
    return [name for name in loaded(words) if name.partition(".")[0] == "gputopo"]


@pytest.mark.parametrize("figure", LIMITS)
def test_the_product_does_not_grow_unnoticed(figure: str) -> None:
    assert figures()[figure] <= LIMITS[figure]


def test_packages_take_names_of_each_other_only_from_their_public_apis() -> None:
    assert names_taken_past_an_api() == []


def test_tests_take_names_only_from_public_apis() -> None:
    taken = [(path.as_posix(), module, name) for path, module, name in imports_of_tests_past_an_api()]
    assert [names for names in taken if names[0] not in INSIDE] == []


def test_type_checkers_see_the_names_that_a_package_loads() -> None:
    for name, path in modules().items():
        if "_MODULES" not in path.read_text():
            continue
        stub = path.with_suffix(".pyi")
        typed = {
            f"{node.module}.{alias.name}"
            for node in nodes_of(stub if stub.exists() else path)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{name}.")
            for alias in node.names
        } - {"gputopo.public_names.exports"}
        loaded_on_use = importlib.import_module(name)._MODULES
        assert typed == {f"{name}.{module}.{public}" for public, module in loaded_on_use.items()}


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """Imports inside functions are included."""
    graph = {name: imported_modules(path) - {name} for name, path in modules().items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


@pytest.mark.parametrize("words", LOADED)
def test_a_process_loads_no_more_than_it_needs(words: str) -> None:
    assert len(own_modules(words)) <= LOADED[words]


@pytest.mark.parametrize("words", [words for words in LOADED if not words.startswith("import ")])
def test_a_command_that_does_not_train_loads_no_large_library(words: str) -> None:
    large = {"tensorflow", "keras", "cuda", "numpy", "jinja2", "pydantic"}
    assert large & {name.partition(".")[0] for name in loaded(words)} == set()


def test_the_training_process_loads_nothing_that_decides() -> None:
    names = loaded("import gputopo.launch.train.worker")
    assert [name for name in names if name.removeprefix("gputopo.").startswith(DECIDING)] == []


if __name__ == "__main__":
    for name, number in figures().items():
        print(f"{number:10,} {name} (limit {LIMITS[name]:,})")
    print(f"{len(names_taken_past_an_api()):10,} names taken past an API")
    print(f"{len(list(imports_of_tests_past_an_api())):10,} imports of tests past an API")
    for name, limit in LOADED.items():
        print(f"{len(own_modules(name)):10,} modules: {name} (limit {limit})")
