import pytest

from tests.captures.samples import measured_of as read
from tests.kit.dialects.bandwidthtest import quick as written

RATES = {"Host to Device": 763.5, "Device to Host": 799.1, "Device to Device": 84983.9}


def test_newer_versions_print_gb_and_the_doubt_about_mb_is_noted() -> None:
    _, new = read(written("A", {"Host to Device": 12.3}, unit="GB"))
    _, old = read(written("A", {"Host to Device": 12300.0}))
    assert new.samples == old.samples
    assert new.notes == ()
    assert any("2^20" in note for note in old.notes)


def test_the_blogs_program_tells_pageable_and_pinned_and_the_prompt_tells_the_gpu() -> None:
    text = (
        "(keras) user@host:~/x$ CUDA_VISIBLE_DEVICES=6 ./bandwidthtest\n\nDevice: GeForce GTX 1080\n"
        "Transfer size (MB): 16\n\nPageable transfers\n  Host to Device bandwidth (GB/s): 2.441729\n"
        "\nPinned transfers\n  Device to Host bandwidth (GB/s): 2.477919\n"
    )
    machine, bandwidth = read(text)
    assert [(s.kind, s.pinned, s.bytes, s.median_gb_per_s) for s in bandwidth.copies] == [
        ("h2d", False, 16 * 2**20, 2.441729),
        ("d2h", True, 16 * 2**20, 2.477919),
    ]
    assert [(g.index, g.name) for g in machine.gpus] == [(6, "GeForce GTX 1080")]
    assert machine.unread == ()


def test_outputs_below_one_another_are_numbered_by_what_each_was_told_to_see() -> None:
    text = "".join(
        f"$ CUDA_VISIBLE_DEVICES={i} ./bandwidthTest\n{written('A', {'Host to Device': 1000.0 + i})}"
        for i in (4, 2)
    )
    _, bandwidth = read(text)
    assert {s.destination: s.median_gb_per_s for s in bandwidth.copies} == {"gpu:4": 1.004, "gpu:2": 1.002}


def test_outputs_without_any_number_are_runs_of_one_gpu_and_a_note_says_so() -> None:
    machine, bandwidth = read("".join(written("A", {"Host to Device": 1000.0 + i}) for i in range(7)))
    assert [(s.destination, s.run) for s in bandwidth.samples] == [("gpu:0", f"run {i}") for i in range(1, 8)]
    assert len(machine.gpus) == 1
    assert any("7 runs (run 1, run 2, run 3, run 4, ...)" in note for note in bandwidth.notes)


@pytest.mark.parametrize("host", ["gpu{}.rack.net"])
def test_hosts_that_are_called_gpu_are_no_gpus(host: str) -> None:
    text = "".join(
        f"===== {host.format(i)} =====\n{written('A', {'Host to Device': 1000.0 + i})}" for i in (1, 2)
    )
    _, bandwidth = read(text)
    assert [(s.destination, s.run) for s in bandwidth.samples] == [
        ("gpu:0", host.format(1)),
        ("gpu:0", host.format(2)),
    ]


def test_a_direction_and_size_that_is_there_already_begins_another_run() -> None:
    part = written("A", RATES).partition(" Quick Mode\n")[2].partition("Result")[0]
    for between in ("", "later:\n", "\n\n"):
        text = part + between + part.replace("763.5", "381.7") + between + part
        machine, bandwidth = read(text)
        assert [(s.median_gb_per_s, s.run) for s in bandwidth.samples if s.kind == "h2d"] == [
            (0.7635, "run 1"),
            (0.3817, "run 2"),
        ]
        assert [gpu.index for gpu in machine.gpus] == [0]
        assert bandwidth.complete


def test_a_run_that_failed_is_not_measured_and_keeps_its_words() -> None:
    text = written("A", RATES).replace("Result = PASS", "Result = FAIL")
    text += 'CUDA error at bandwidthTest.cu:686 code=2(cudaErrorMemoryAllocation) "cudaMalloc"\n'
    _, bandwidth = read(text)
    assert len(bandwidth.samples) == 3
    assert [one.reason.partition("reported: ")[2][:13] for one in bandwidth.not_measured] == [
        "Result = FAIL",
        "CUDA error at",
    ]


def test_a_run_that_failed_before_it_saw_a_gpu_tells_why_and_invents_none() -> None:
    text = "[CUDA Bandwidth Test] - Starting...\nRunning on...\n\ncudaGetDeviceProperties returned 100\n"
    text += '-> no CUDA-capable device is detected\nCUDA error at a.cu:2 code=100(cudaErrorNoDevice) "x"\n'
    machine, bandwidth = read(text)
    first, second = (one.reason.partition("reported: ")[2] for one in bandwidth.not_measured)
    assert first == "cudaGetDeviceProperties returned 100 -> no CUDA-capable device is detected"
    assert "cudaErrorNoDevice" in second
    assert (machine.gpus, machine.unread) == ((), ())


@pytest.mark.parametrize("lost", ["Result", "33554432\t\t\t799"])
def test_a_run_without_its_last_line_ends_early(lost: str) -> None:
    whole = written("A", RATES)
    for text, complete in ((whole, True), (whole.partition(lost)[0], False)):
        assert read(text)[1].complete == complete
        assert read(whole + text)[1].complete == complete
    assert not read(whole + whole.partition(" Device 0")[0])[1].complete


@pytest.mark.parametrize(("ending", "complete"), [("Result = FAIL\n", True), ("", False)])
def test_a_run_that_cuda_ended_lacks_what_it_would_have_printed(ending: str, complete: bool) -> None:
    begun = written("A", RATES).partition("Result")[0]
    error = 'CUDA error at bandwidthTest.cu:686 code=2(cudaErrorMemoryAllocation) "cudaMalloc"\n'
    assert read(begun + error + ending)[1].complete == complete


@pytest.mark.parametrize(("count", "samples"), [(1, 3), (2, 0)])
def test_of_all_devices_together_only_one_alone_has_speeds(count: int, samples: int) -> None:
    told = written("A", RATES).replace("1 Device(s)", f"{count} Device(s)")
    start, _, rest = told.partition("\n")
    all_of_them = "!!!!!Cumulative Bandwidth to be computed from all the devices !!!!!!"
    machine, bandwidth = read(f"{start}\n{all_of_them}\n{rest}")
    assert len(bandwidth.samples) == samples
    assert len(bandwidth.not_measured) == 3 - samples
    assert machine.unread == ()
