import pytest

from gputopo.report.indices import index_rows, order_warning
from gputopo.values.machine import Gpu, Machine

UNCERTAIN = {f"gpus[{n}].cuda_index": "CUDA_ORDER_NOT_CERTAIN" for n in range(4)}


def machine(*cuda: int | None, lost: int | None = None, missing: dict[str, str] | None = None) -> Machine:
    gpus = tuple(Gpu(index=n, cuda_index=number, lost=n == lost) for n, number in enumerate(cuda))
    return Machine(source="x", gpus=gpus, missing=missing or {})


def words(of: Machine) -> str:
    return next(said for _, said in index_rows(of))


def test_equal_numbers_stand_on_one_line_without_a_warning() -> None:
    same = machine(*range(8))
    assert words(same) == "NVML and PCI 0-7, CUDA 0-7, TensorFlow (gputopo) /GPU:0-7"
    assert order_warning(same) is None


def test_another_cuda_order_is_shown_and_warned_of() -> None:
    other = machine(1, 2, 3, 0)
    assert "CUDA 1-3,0," in words(other)
    assert "is another one" in (order_warning(other) or "")


def test_an_order_that_is_not_certain_is_warned_of() -> None:
    unknown = machine(None, None, None, None, missing=UNCERTAIN)
    assert "CUDA ?," in words(unknown)
    assert "may be another one" in (order_warning(unknown) or "")


def test_tensorflow_does_not_count_a_lost_gpu() -> None:
    assert words(machine(0, 1, None, 2, lost=2)).endswith("/GPU:0-1,?,2")
    assert order_warning(machine(0, 1, None, 2, lost=2)) is None


@pytest.mark.parametrize("silent", [machine(None, None), machine()])
def test_a_capture_that_says_nothing_of_cuda_gets_no_line(silent: Machine) -> None:
    assert list(index_rows(silent)) == []
    assert order_warning(silent) is None


def test_one_gpu_needs_no_warning() -> None:
    assert order_warning(machine(None, missing=UNCERTAIN)) is None
