"""Plans on machines with GPUs that are in use or have errors: others that are as close are taken."""

from gputopo.planner import Request, plan
from gputopo.values.machine import GpuProcess, Machine, MemoryMib, Throttle
from gputopo.values.plan import Plan
from tests.matrices import SEVEN, changed, machine_of

BUSY: dict[str, object] = {
    "processes": (GpuProcess(pid=4321, kind="compute", name="python", memory_mib=7_000),),
    "memory_mib": MemoryMib(total=8_000, used=7_000, free=1_000),
}
BRAKED: dict[str, object] = {"throttle": Throttle(mask=0x88)}


def seven(*changes: tuple[int, dict[str, object]]) -> Machine:
    """GPUs 0 to 2 behind one switch, 3 to 6 behind another."""
    machine = machine_of(SEVEN)
    for index, fields in changes:
        machine = changed(machine, index, **fields)
    return machine


def says(found: Plan, words: str) -> bool:
    return any(words in reason for reason in found.choice.reasons)


def test_of_equal_sets_one_without_a_busy_gpu_is_taken_and_the_reason_reported() -> None:
    found = plan(seven((0, BUSY)), Request(num_gpus=2))
    assert found.choice.gpus == (1, 2)
    assert says(found, "9 sets are equal, of those without GPU 0 the lowest indices were chosen")
    assert says(
        found, "GPU 0 avoided, as others are as close: GPU 0: used by another program: python (pid 4321)"
    )


def test_every_gpu_that_was_passed_over_is_named_not_only_the_first() -> None:
    found = plan(seven((3, BUSY), (5, BUSY)), Request(num_gpus=2, gpus=(3, 4, 5, 6)))
    assert found.choice.gpus == (4, 6)
    assert says(found, "of those without GPUs 3 and 5 the lowest indices were chosen")
    assert says(found, "GPUs 3 and 5 avoided, as others are as close")
    one = plan(seven((0, BUSY), (1, BUSY), (4, BUSY)), Request(num_gpus=1))
    assert one.choice.gpus == (2,)
    assert says(one, "of those without GPUs 0 and 1 the lowest index was chosen")


def test_a_closer_set_than_the_named_one_is_reported_without_a_busy_gpu() -> None:
    found = plan(seven((0, BUSY)), Request(gpus=(1, 3)))
    assert says(found, "GPUs 1 and 2 would be closer to one another")


def test_what_comes_next_is_no_set_that_differs_only_in_equal_gpus() -> None:
    found = plan(seven((0, BUSY)), Request(num_gpus=2))
    assert [candidate.gpus for candidate in found.candidates][:2] == [(1, 2), (3, 4)]


def test_where_none_is_without_them_the_fewest_are_taken() -> None:
    troubled = [(index, BUSY) for index in (3, 4)] + [(5, BRAKED)]
    found = plan(seven(*troubled), Request(num_gpus=3, gpus=(3, 4, 5, 6)))
    assert found.choice.gpus == (3, 4, 6)
    fewest = plan(seven((0, BUSY), (3, BUSY), (4, BUSY)), Request(num_gpus=3, prefer_pix=True))
    assert fewest.choice.gpus == (0, 1, 2)
    assert says(fewest, "GPU 0 chosen nevertheless")
    other = plan(seven((0, BUSY), (1, BUSY), (3, BUSY)), Request(num_gpus=3, prefer_pix=True))
    assert other.choice.gpus == (4, 5, 6)
    assert says(other, "GPUs 0, 1 and 3 avoided, as others are as close")


def test_so_is_one_without_a_gpu_that_has_an_error() -> None:
    found = plan(seven((0, BUSY), (1, BRAKED)), Request(num_gpus=2, prefer_pix=True))
    assert found.choice.gpus == (3, 4)
    assert says(found, "throttle.hw_power_brake_slowdown")


def test_a_set_that_is_farther_apart_is_not_taken_instead() -> None:
    found = plan(seven((3, BUSY)), Request(num_gpus=4))
    assert found.choice.gpus == (3, 4, 5, 6)
    assert says(found, "GPU 3 chosen nevertheless: GPU 3: used by another program")
    assert not says(found, "avoided")


def test_one_gpu_alone_is_one_that_is_free() -> None:
    found = plan(seven((0, BUSY)), Request(num_gpus=1))
    assert found.choice.gpus == (1,)
    assert says(found, "of those without GPU 0 the lowest index was chosen")


def test_gpus_that_were_named_are_taken_and_reported() -> None:
    found = plan(seven((0, BUSY)), Request(gpus=(0, 1)))
    assert found.choice.gpus == (0, 1)
    assert says(found, "GPU 0 chosen nevertheless: GPU")


def test_the_gpu_that_is_to_hold_the_variables_is_taken_and_reported() -> None:
    found = plan(seven((0, BUSY), (1, BUSY)), Request(num_gpus=2, ps="gpu:0"))
    assert found.choice.gpus == (0, 2)
    assert says(found, "GPU 0 chosen nevertheless: GPU")


def test_a_small_guest_on_a_gpu_and_a_warning_change_nothing() -> None:
    guest: dict[str, object] = {"processes": (GpuProcess(pid=1, kind="compute", name="x", memory_mib=10),)}
    found = plan(seven((0, guest | {"throttle": Throttle(mask=0x20)})), Request(num_gpus=2))
    assert found.choice.gpus == (0, 1)
    assert not says(found, "all the same")
