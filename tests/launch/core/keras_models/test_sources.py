"""What a user's module path leads to. Modules are written for each test; no model is built."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.worker_process import environment

pytestmark = pytest.mark.tensorflow

ASK = """
import os, sys
from gputopo.errors import UsageError
from gputopo.launch import model_names
from gputopo.launch.core.keras_models.sources import own_model
os.chdir(sys.argv[1])
for name in sys.argv[2:]:
    try:
        own_model(model_names.read(name), 1)
    except UsageError as error:
        print(f"{error.what} | {error.hint}")
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("modules")
    for name, text in {
        "broken.py": "def build(:",
        "binary.py": "\udcff",
        "stops.py": "raise SystemExit(4)",
        "random.py": "def build(): pass",
        "holder.py": "class Maker:\n    def build(self): pass\n",
    }.items():
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    names = [
        "broken:build",
        "binary:build",
        "stops:build",
        "random:build",
        "holder:Maker.build",
        "nowhere:build",
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK, str(folder), *names],
        env=environment() | {"PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(names)
    return dict(zip(names, lines, strict=True))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken:build", ["cannot be imported: SyntaxError", "broken.py, line 1)", "python -c"]),
        ("binary:build", ["cannot be imported: SyntaxError", "utf-8", "python -c"]),
        ("stops:build", ["cannot be imported: SystemExit: 4", "python -c"]),
        ("random:build", ["random has no 'build'", "Python has another module 'random'", "rename random.py"]),
        ("holder:Maker.build", ["missing a required argument: 'self'", "needs none"]),
        ("nowhere:build", ["there is no module nowhere", "PYTHONPATH"]),
    ],
)
def test_a_module_that_does_not_do_is_told_with_what_to_do(
    told: dict[str, str], name: str, words: list[str]
) -> None:
    for word in words:
        assert word in told[name]
