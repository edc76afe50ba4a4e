import re
from pathlib import Path

import pytest

from gputopo.launch.train.op_errors import line_in, line_of

KERAS = "/venv/lib/python3.12/site-packages/keras/src/layers/layer.py"
TENSORFLOW = "/venv/lib/python3.12/site-packages/tensorflow/python/ops/gen_array_ops.py"
MODEL = """import contextlib
def scale(x):
    with contextlib.nullcontext():
        return 1 / x
def show():
    re.sub("a", lambda found: scale(0), "a")
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    return file


def test_an_error_is_placed_at_the_users_last_line_with_its_source(model: Path) -> None:
    names = {"re": re}
    exec(compile(MODEL, model, "exec"), names)
    with pytest.raises(ZeroDivisionError) as caught:
        names["show"]()  # type: ignore[operator]
    assert line_of(caught.value) == "model.py, line 4: return 1 / x"


def test_an_error_of_libraries_alone_has_no_line() -> None:
    with pytest.raises(TypeError) as caught:
        re.compile(1)  # type: ignore[call-overload]
    library = caught.value.with_traceback(caught.tb.tb_next)  # without the frame of this test
    assert line_of(library) is None
    assert (
        line_in("Graph execution error:\n\nDetected at node A defined at (most recent call last):\n") is None
    )


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([("FILE", 4), (KERAS, 9), (TENSORFLOW, 7)], "model.py, line 4: return 1 / x"),
        (
            [("FILE", 5), ("FILE", 6), (KERAS, 9)],
            'model.py, line 6: re.sub("a", lambda found: scale(0), "a")',
        ),
        ([("/elsewhere/layers.py", 12), (KERAS, 9)], "/elsewhere/layers.py, line 12"),
        ([(KERAS, 9), ("<frozen runpy>", 1)], None),
    ],
)
def test_a_message_of_tensorflow_is_placed_by_the_stack_of_its_op(
    model: Path, frames: list[tuple[str, int]], said: str | None
) -> None:
    stack = "".join(
        f'  File "{file.replace("FILE", str(model))}", line {line}, in call\n' for file, line in frames
    )
    text = f"Graph execution error:\n\nDetected at node A defined at (most recent call last):\n{stack}Bad.\n"
    assert line_in(text) == said


def test_what_a_python_function_of_an_op_raised_comes_before_where_the_op_was_made(model: Path) -> None:
    text = (
        f'Detected at node PyFunc defined at (most recent call last):\n  File "{model}", line 6, in show\n'
        "ValueError: no\nTraceback (most recent call last):\n\n"
        f'  File "{TENSORFLOW}", line 9, in __call__\n    ret = func(*args)\n\n'
        f'  File "{model}", line 4, in scale\n    return 1 / x\n\nValueError: no\n'
    )
    assert line_in(text) == "model.py, line 4: return 1 / x"
