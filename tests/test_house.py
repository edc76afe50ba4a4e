"""How large the product and its tests are, and what a process loads: `python -m tests.test_house` prints it.

Who raises a ceiling says why in CHANGELOG.md.
"""

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SIZES = {
    "product lines": 94_600,
    "product files": 450,
    "packages": 50,
    "classes": 806,
    "public class names that stand twice": 4,
    "test lines": 83_000,
}
# Modules of gputopo that a process has loaded.
LOADED = {
    "import gputopo.launch.spec.run_spec": 17,
    "import gputopo.launch.train.worker": 36,
    "inspect --from 7gforce": 91,
    "plan --from 7gforce --model alexnet --num-gpus 2": 149,
}
# Rooms that the training process does without.
DECIDING = ("planner", "prediction", "findings", "launch.supervise")


def product() -> Iterator[Path]:
    """The product's Python files; the links in gputopo/ are not followed."""
    return (path for folder in ("gputopo", "probes", "launch") for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def sizes() -> dict[str, int]:
    """The numbers that `SIZES` limits."""
    files = [path for path in product() if not path.is_relative_to(ROOT / "gputopo/probes")]
    files = [path for path in files if not path.is_relative_to(ROOT / "gputopo/launch")]
    classes = [
        node.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    public = Counter(name for name in classes if not name.startswith("_"))
    return {
        "product lines": sum(map(_lines, files)),
        "product files": len(files),
        "packages": sum(path.name == "__init__.py" for path in files),
        "classes": len(classes),
        "public class names that stand twice": sum(count > 1 for count in public.values()),
        "test lines": sum(map(_lines, (ROOT / "tests").rglob("*.py"))),
    }


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def circles() -> list[set[str]]:
    """Modules that import one another in a circle, imports inside of functions included."""
    graph = {name: _imported(path, set(_modules())) - {name} for name, path in _modules().items()}
    reached: dict[str, set[str]] = {}
    for name in graph:
        found, new = set[str](), {name}
        while new := {other for one in new for other in graph[one]} - found:
            found |= new
        reached[name] = found
    return [
        {name, other} for name in graph for other in reached[name] if name < other and name in reached[other]
    ]


@functools.cache
def _modules() -> dict[str, Path]:
    found = {}
    for path in product():
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts[:2] not in (("gputopo", "probes"), ("gputopo", "launch")):
            found[".".join(parts if parts[0] == "gputopo" else ("gputopo", *parts))] = path
    return found


def _imported(path: Path, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{one.name}" for one in node.names}
            found |= names & known or {node.module}
    return found & known


@functools.cache
def loaded(words: str) -> list[str]:
    """The modules of gputopo that a process loads for an import or a command."""
    command = (
        words if words.startswith("import ") else f"import gputopo.cli as c; c.run_command({words.split()})"
    )
    program = f"import sys, os; sys.stdout = open(os.devnull, 'w'); {command}; sys.stdout = sys.__stdout__; "
    program += "print(*(name for name in sys.modules if name.partition('.')[0] == 'gputopo'))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("what", SIZES)
def test_the_house_does_not_grow_unnoticed(what: str) -> None:
    assert sizes()[what] <= SIZES[what]


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert circles() == []


@pytest.mark.parametrize("words", LOADED)
def test_a_process_loads_no_more_than_it_needs(words: str) -> None:
    assert len(loaded(words)) <= LOADED[words]


def test_the_training_process_loads_nothing_that_decides() -> None:
    names = loaded("import gputopo.launch.train.worker")
    assert [name for name in names if name.removeprefix("gputopo.").startswith(DECIDING)] == []


if __name__ == "__main__":
    for name, number in sizes().items():
        print(f"{number:8,} {name} (at most {SIZES[name]:,})")
    for name, limit in LOADED.items():
        print(f"{len(loaded(name)):8,} modules: {name} (at most {limit})")
