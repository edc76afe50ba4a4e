"""Plans on machines with GPUs that are in use or have errors: others are chosen."""

from gputopo.planner import Request, plan
from gputopo.values.machine import GpuProcess, Machine, MemoryMib, Throttle, UtilizationPercent
from gputopo.values.run.plan import Plan
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


USED = "in use by python (pid 4321)"


def test_idle_gpus_are_chosen_and_the_reason_reported_in_one_line() -> None:
    found = plan(seven((0, BUSY)), Request(num_gpus=2))
    assert found.choice.gpus == (1, 2)
    assert found.warnings == (f"GPU 0 {USED}: idle GPUs 1 and 2 chosen",)
    assert set(found.warnings) < set(found.choice.reasons)
    assert says(found, "by fewest GPUs in use or in error, then farthest pair")


def test_idle_gpus_come_before_close_ones() -> None:
    found = plan(seven((0, BUSY), (4, BUSY), (5, BRAKED)), Request(num_gpus=3))
    assert found.choice.gpus == (1, 2, 3)
    (line,) = found.warnings
    assert line.startswith(f"GPUs 0 and 4 {USED}; GPU 5 in error: GPU 5: ")
    assert line.endswith(": idle GPUs 1, 2 and 3 chosen, PHB instead of PIX")


def test_load_without_a_process_is_use() -> None:
    memory, load = MemoryMib(total=10_240, used=9_184, free=640), UtilizationPercent(gpu=65)
    hidden = {"memory_mib": memory, "utilization_percent": load, "processes": ()}
    found = plan(seven((0, hidden), (1, hidden)), Request(num_gpus=2, gpus=(0, 1, 2, 3)))
    assert found.warnings == (
        "GPUs 0 and 1 in use, 65% load, 9184 of 10240 MiB used, no process listed: "
        "idle GPUs 2 and 3 chosen, PHB instead of PIX",
    )


def test_without_a_number_all_idle_gpus_are_chosen_and_all_gpus_where_none_is_idle() -> None:
    found = plan(seven((0, BUSY), (5, BRAKED)), Request())
    assert found.choice.gpus == (1, 2, 3, 4, 5, 6)  # what is in error can still be used
    assert found.warnings[0] == f"GPU 0 {USED}: GPUs 1, 2, 3, 4, 5 and 6 chosen"
    assert found.warnings[1].endswith("taken, as 5 of the 7 GPUs to choose from are idle and without errors")
    everyone = plan(seven(*((index, BUSY) for index in range(7))), Request())
    assert everyone.choice.gpus == (0, 1, 2, 3, 4, 5, 6)
    assert everyone.warnings == (
        f"GPUs 0, 1, 2, 3, 4, 5 and 6 {USED}: taken, as all GPUs to choose from are in use or in error",
    )


def test_every_gpu_that_was_passed_over_is_named_not_only_the_first() -> None:
    found = plan(seven((3, BUSY), (5, BUSY)), Request(num_gpus=2, gpus=(3, 4, 5, 6)))
    assert found.choice.gpus == (4, 6)
    assert found.warnings == (f"GPUs 3 and 5 {USED}: idle GPUs 4 and 6 chosen",)
    one = plan(seven((0, BUSY), (1, BUSY), (4, BUSY)), Request(num_gpus=1))
    assert one.choice.gpus == (2,)
    assert one.warnings == (f"GPUs 0 and 1 {USED}: idle GPU 2 chosen",)


def test_what_comes_next_is_no_set_that_differs_only_in_equal_gpus() -> None:
    found = plan(seven((0, BUSY)), Request(num_gpus=2))
    assert [candidate.gpus for candidate in found.candidates][:2] == [(1, 2), (3, 4)]


def test_where_none_is_without_them_the_fewest_are_taken() -> None:
    troubled = [(index, BUSY) for index in (3, 4)] + [(5, BRAKED)]
    found = plan(seven(*troubled), Request(num_gpus=3, gpus=(3, 4, 5, 6)))
    assert found.choice.gpus == (3, 4, 6)
    assert found.warnings[-1] == (
        f"GPUs 3 and 4 {USED}: taken, as 1 of the 4 GPUs to choose from is idle and without errors"
    )


def test_an_island_with_a_gpu_in_use_does_not_meet_prefer_pix() -> None:
    request = Request(num_gpus=3, prefer_pix=True)
    whole = plan(seven((0, BUSY), (1, BUSY), (3, BUSY)), request)
    assert whole.choice.gpus == (4, 5, 6)
    assert says(whole, "--prefer-pix is met")
    found = plan(seven((0, BUSY), (3, BUSY), (4, BUSY)), request)
    assert found.choice.gpus == (1, 2, 5)
    assert says(found, "--prefer-pix is not met: each PIX island of 3 GPUs")
    largest = plan(seven((3, BUSY), (4, BUSY)), Request(prefer_pix=True))
    assert largest.choice.gpus == (0, 1, 2)


def test_so_is_one_without_a_gpu_that_has_an_error() -> None:
    found = plan(seven((0, BUSY), (1, BRAKED)), Request(num_gpus=2, prefer_pix=True))
    assert found.choice.gpus == (3, 4)
    assert says(found, "throttle.hw_power_brake_slowdown")


def test_gpus_that_were_named_are_taken_as_named_with_a_warning() -> None:
    found = plan(seven((0, BUSY)), Request(gpus=(0, 1)))
    assert found.choice.gpus == (0, 1)
    assert found.warnings == (f"GPU 0 {USED}: used because --gpus lists it",)


def test_the_gpu_that_is_to_hold_the_variables_is_taken_and_reported() -> None:
    found = plan(seven((0, BUSY), (1, BUSY)), Request(num_gpus=2, ps="gpu:0"))
    assert found.choice.gpus == (0, 2)
    assert found.warnings == (
        f"GPU 1 {USED}: GPUs 0 and 2 chosen",
        f"GPU 0 {USED}: used because --ps gpu:0 places the variables on it",
    )


def test_a_small_process_is_use_and_a_warning_changes_nothing() -> None:
    guest: dict[str, object] = {"processes": (GpuProcess(pid=1, kind="compute", name="x", memory_mib=10),)}
    assert plan(seven((0, guest)), Request(num_gpus=2)).choice.gpus == (1, 2)
    found = plan(seven((0, {"throttle": Throttle(mask=0x20)})), Request(num_gpus=2))
    assert (found.choice.gpus, found.warnings) == ((0, 1), ())
