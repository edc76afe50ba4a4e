import pytest

from gputopo.report.gpus import gpu_tables
from gputopo.report.idle_links import link_is_slow_while_idle
from gputopo.report.layout import text_of
from gputopo.values.machine import Gpu, Machine, Pcie, Throttle, UtilizationPercent

SLOW = Pcie(gen_now=1, gen_max=3, width_now=16, width_max=16)


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
def test_a_low_generation_counts_only_on_a_gpu_that_was_seen_at_work(one: Gpu, sleeps: bool) -> None:
    assert link_is_slow_while_idle(one) is sleeps


def test_the_table_says_cannot_tell_of_the_idle_one_and_leaves_the_busy_one() -> None:
    machine = Machine(source="x", gpus=(gpu(0), gpu(1, pstate="P8", load=0)))
    text = text_of(gpu_tables(machine, 78))
    assert "1/3*" in text
    assert "cannot tell (idle): GPU 1;" in text
    assert text.count("*") == 2  # the cell and its note
