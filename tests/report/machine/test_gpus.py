import pytest

from gputopo.findings import Inspection
from gputopo.report.document import document_text
from gputopo.report.machine.gpus import index_rows, link_is_slow_while_idle, order_warning
from gputopo.report.machine.inspection import inspection_document
from gputopo.values.machine import Gpu, Machine, Pcie, Throttle, UtilizationPercent

UNCERTAIN = {f"gpus[{n}].cuda_index": "CUDA_ORDER_NOT_CERTAIN" for n in range(4)}
SLOW = Pcie(gen_now=1, gen_max=3, width_now=16, width_max=16)


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
    assert "order differs" in (order_warning(other) or "")


def test_an_order_that_is_not_certain_is_warned_of() -> None:
    unknown = machine(None, None, None, None, missing=UNCERTAIN)
    assert "CUDA ?," in words(unknown)
    assert "may differ" in (order_warning(unknown) or "")


def test_tensorflow_does_not_count_a_lost_gpu() -> None:
    assert words(machine(0, 1, None, 2, lost=2)).endswith("/GPU:0-1,?,2")
    assert order_warning(machine(0, 1, None, 2, lost=2)) is None


@pytest.mark.parametrize("silent", [machine(None, None), machine()])
def test_a_capture_that_reports_nothing_of_cuda_gets_no_line(silent: Machine) -> None:
    assert list(index_rows(silent)) == []
    assert order_warning(silent) is None


def test_one_gpu_needs_no_warning() -> None:
    assert order_warning(machine(None, missing=UNCERTAIN)) is None


def gpu(index: int = 0, pstate: str = "P0", mask: int = 0, load: int = 90, pcie: Pcie = SLOW) -> Gpu:
    return Gpu(
        index=index,
        pstate=pstate,
        throttle=Throttle(mask=mask),
        utilization_percent=UtilizationPercent(gpu=load),
        pcie=pcie,
    )


@pytest.mark.parametrize(
    ("one", "sleeps"),
    [
        (gpu(pstate="P8", load=0), True),
        (gpu(mask=1), True),
        (gpu(load=0), True),
        (gpu(), False),
        (gpu(pstate="P8", pcie=Pcie(gen_now=3, gen_max=3)), False),
        (gpu(pstate="P8", pcie=Pcie(gen_now=1)), False),
        (Gpu(index=0, pcie=SLOW), True),
    ],
)
def test_a_low_generation_counts_only_on_a_gpu_that_was_seen_under_load(one: Gpu, sleeps: bool) -> None:
    assert link_is_slow_while_idle(one) is sleeps


def test_the_table_states_unknown_for_the_idle_one_and_leaves_the_busy_one() -> None:
    machine = Machine(source="x", gpus=(gpu(0), gpu(1, pstate="P8", load=0)))
    text = document_text(inspection_document(Inspection(machine=machine)))
    assert "1/3*" in text
    assert "unknown while idle: GPU 1;" in text
    assert text.count("*") == 2  # the cell and its note


def test_without_a_p_state_the_load_is_unknown_and_not_idle() -> None:
    machine = Machine(source="x", gpus=(Gpu(index=0, pcie=SLOW), gpu(1, pstate="P8", load=0)))
    assert "unknown while idle: GPU 1, load unknown: GPU 0;" in document_text(
        inspection_document(Inspection(machine=machine)), 120
    )
