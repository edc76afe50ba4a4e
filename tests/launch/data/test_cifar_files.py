"""The files of CIFAR-10, and pickles that are not what they claim."""

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.data import read_cifar, write_cifar
from gputopo.values.errors import InputError


def batch(rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(rows)
    return rng.integers(0, 256, (rows, 3072), np.uint8), rng.integers(0, 10, rows).astype(np.uint8)


def pickled(path: Path, content: Any, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def test_a_binary_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    images, labels = batch(5)
    write_cifar(tmp_path / "a.bin", images, labels)
    assert (tmp_path / "a.bin").stat().st_size == 5 * 3073
    assert_contents(read_cifar(tmp_path / "a.bin"), images, labels)


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])  # as published, and as of today
def test_a_python_file_of_any_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    images, labels = batch(4)
    content = {b"data": images, b"labels": labels.tolist(), b"filenames": [b"a.png"] * 4}
    assert_contents(read_cifar(pickled(tmp_path / "data_batch_1", content, protocol)), images, labels)


def test_a_file_of_python_2_is_read(tmp_path: Path) -> None:
    # As Python 2 wrote it: text, not bytes, under old names of numpy.
    images, labels = batch(2)
    raw = images.tobytes()
    written = (
        b"(dp0\nS'labels'\n(lp1\n" + b"".join(b"I%d\na" % label for label in labels) + b"sS'data'\n"
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(I2\nI3072\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n"
        b"T" + len(raw).to_bytes(4, "little") + raw + b"tbs."
    )
    (tmp_path / "data_batch_1").write_bytes(written)
    assert_contents(read_cifar(tmp_path / "data_batch_1"), images, labels)


class Trap:
    """Would make a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(tmp_path: Path) -> None:
    images, labels = batch(2)
    content = {b"data": images, b"labels": labels.tolist(), b"more": Trap(tmp_path / "sprung")}
    with pytest.raises(InputError, match=r"asks for (posix|nt)\.mkdir, which is not needed for a batch"):
        read_cifar(pickled(tmp_path / "data_batch_1", content))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.float32), b"labels": [1]},
        {b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]},
    ],
)
def test_a_pickle_of_something_else_is_an_error_that_names_the_file(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InputError, match="data_batch_1"):
        read_cifar(pickled(tmp_path / "data_batch_1", content))


@given(cut=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_pickle_is_an_error_and_no_crash(
    tmp_path_factory: pytest.TempPathFactory, cut: int, byte: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "data_batch_1"
    images, labels = batch(1)
    data = bytearray(pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2))
    head = min(cut, len(data) - 1)
    data[head] = byte
    path.write_bytes(data)
    found = None
    with contextlib.suppress(InputError):  # all else would be a fault of ours
        found = read_cifar(path)
    if found is not None:  # the byte was of a pixel or a label
        assert found.images.shape == (1, 3072)


def test_labels_that_no_byte_holds_are_out_of_range(tmp_path: Path) -> None:
    images, _ = batch(4)
    found = read_cifar(pickled(tmp_path / "data_batch_1", {b"data": images, b"labels": [3, -1, 300, 9]}))
    assert found.labels.tolist() == [3, 255, 255, 9]


def assert_contents(found: Any, images: Any, labels: Any) -> None:
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.damage is None
