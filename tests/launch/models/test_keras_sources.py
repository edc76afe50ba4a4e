"""What a user's module path leads to. Modules are written for each test; no model is built."""

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

ASK = """
import os, sys
sys.path.insert(0, os.getcwd())
os.chdir(sys.argv[1])
from gputopo.values.errors import UsageError
from gputopo.launch.spec import read_model_name
from gputopo.launch.models.keras_sources import own_model
for name in sys.argv[2:]:
    try:
        own_model(read_model_name(name), 1)
    except UsageError as error:
        print(f"{error.what} | {error.hint}")
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("modules")
    for name, text in {
        "broken.py": "def build(:",
        "stops.py": "raise SystemExit(4)",
        "holder.py": "class Maker:\n    def build(self): pass\n",
    }.items():
        (folder / name).write_text(text)
    names = ["broken:build", "stops:build", "holder:Maker.build", "nowhere:build"]
    done = run_program("-c", ASK, str(folder), *names)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(names, done.stdout.splitlines(), strict=True))


def test_a_module_that_does_not_do_is_reported_with_what_to_do(reported: dict[str, str]) -> None:
    cases: list[tuple[str, list[str]]] = [
        ("broken:build", ["cannot be imported: SyntaxError", "broken.py, line 1)", "python -c"]),
        ("stops:build", ["cannot be imported: SystemExit: 4", "python -c"]),
        ("holder:Maker.build", ["missing 1 required positional argument", "python -c"]),
        ("nowhere:build", ["there is no module nowhere", "PYTHONPATH"]),
    ]
    for name, words in cases:
        for word in words:
            assert word in reported[name]


LISTED = """
import keras
from gputopo.launch.models import require_code
from gputopo.values.errors import UsageError
named = [name for name in vars(keras.applications) if name[:1].isupper()]
for name in named:
    require_code(f"keras:{name}")
try:
    require_code("keras:zzz")
except UsageError as error:
    print(error.hint == f"there are: {', '.join(sorted(named))}")
"""


def test_the_models_of_keras_are_those_that_its_source_lists() -> None:
    done = run_program("-c", LISTED)
    assert done.stdout == "True\n", done.stderr[-2000:]
