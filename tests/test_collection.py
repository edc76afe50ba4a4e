"""What a run of the tests without TensorFlow leaves alone, and which files share a worker."""

import re
from pathlib import Path

from tests.conftest import TOGETHER, needs_tensorflow

TESTS = Path(__file__).parent
_IMPORTS_IT = re.compile(r"^(?:import|from) (?:tensorflow|keras)\b", re.MULTILINE)


def test_no_file_that_imports_tensorflow_is_imported_for_the_tests_without_it() -> None:
    importing = [path for path in TESTS.rglob("test_*.py") if _IMPORTS_IT.search(path.read_text())]
    assert importing
    assert [path for path in importing if not needs_tensorflow(path)] == []


def test_a_file_that_marks_single_tests_is_read_for_the_others(tmp_path: Path) -> None:
    some = tmp_path / "test_some.py"
    some.write_text("import pytest\n\n\n@pytest.mark.tensorflow\ndef test_a() -> None: ...\n")
    assert not needs_tensorflow(some)


def test_the_folders_that_stay_on_one_worker_are_there() -> None:
    assert [folder for folder in TOGETHER if not (TESTS.parent / folder).is_dir()] == []
