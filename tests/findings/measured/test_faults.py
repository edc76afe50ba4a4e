"""Corrupted data: the remedy is about the path that corrupts, and P2P is off only where it alone does."""

import pytest

from gputopo.findings import fails, find_bandwidth
from gputopo.values.bandwidth import Failure, Kind, Path
from gputopo.values.ends import End
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests.findings.boxes import pair
from tests.findings.measured.machines import added, copies, measured, with_copies


def wrong(kind: Kind, source: str, destination: str, path: Path | None = None) -> Failure:
    return Failure(
        kind=kind,
        source=End(source),
        destination=End(destination),
        path=path,
        reason="WRONG_DATA",
        says="1 word differs",
    )


def corrupted(machine: Machine, *failures: Failure) -> dict[str, Finding]:
    """Return the findings of corrupted data by the kind of copies in their message."""
    found = find_bandwidth(added(failures=failures)(machine))
    assert fails(found, None)
    return {one.evidence["ways"][0]["source"] + ">" + one.evidence["ways"][0]["destination"]: one
            for one in found if one.id == "bandwidth.wrong_data"}  # fmt: skip


@pytest.mark.parametrize("failure", [wrong("h2d", "host", "gpu:3"), wrong("d2h", "gpu:3", "host"),
                                     wrong("bidirectional", "host", "gpu:3")])  # fmt: skip
def test_corruption_with_the_host_is_a_matter_of_card_slot_and_memory(failure: Failure) -> None:
    (found,) = corrupted(measured(), failure).values()
    assert "Keep P2P on" in (found.remedy or "")
    assert "another slot" in (found.remedy or "")
    assert "NCCL" not in (found.remedy or "")


def test_staged_copies_alone_are_a_matter_of_the_host() -> None:
    (found,) = corrupted(measured(), wrong("p2p_staged", "gpu:0", "gpu:3")).values()
    assert "Test the host's memory" in (found.remedy or "")
    assert "NCCL" not in (found.remedy or "")


@pytest.mark.parametrize("path", ["p2p_direct", "bidirectional", "latency"])
def test_where_only_p2p_corrupts_it_is_turned_off_between_those_pairs(path: Kind) -> None:
    failure = wrong(path, "gpu:0", "gpu:1", None if path == "p2p_direct" else "direct")
    (found,) = corrupted(measured(2), failure).values()
    assert (found.remedy or "").startswith("Turn P2P off between these pairs")
    assert (found.remedy or "").index("IOMMU") < (found.remedy or "").index("NCCL_P2P_")
    (found,) = corrupted(measured(4), failure).values()
    assert "between GPUs 0 and 1 (and " in (found.remedy or "")


def test_where_any_nvlink_exists_p2p_is_not_disabled() -> None:
    machine = pair(2, 3, nvlinks=4)(measured(4))
    (found,) = corrupted(machine, wrong("p2p_direct", "gpu:0", "gpu:1")).values()
    assert "NCCL_P2P_LEVEL=NVL" in (found.remedy or "")
    (found,) = corrupted(machine, wrong("p2p_direct", "gpu:2", "gpu:3")).values()
    assert "no NCCL_P2P_LEVEL excludes single NVLinks" in (found.remedy or "")
    assert "IOMMU" not in (found.remedy or "")


def test_nothing_is_staged_that_was_not_seen_to_arrive_intact() -> None:
    direct = wrong("p2p_direct", "gpu:0", "gpu:1")
    machine = measured(2)
    only_direct = with_copies(machine, [one for one in copies(machine) if one.kind == "p2p_direct"])
    unknown = corrupted(only_direct, direct)
    failed = corrupted(machine, direct, wrong("p2p_staged", "gpu:1", "gpu:0"))
    for found in (unknown["gpu:0>gpu:1"], failed["gpu:0>gpu:1"]):
        assert "leave P2P on until" in (found.remedy or "")
        assert "NCCL" not in (found.remedy or "")


def refused(reason: str, *ends: tuple[str, str]) -> tuple[Failure, ...]:
    return tuple(
        Failure(
            kind="h2d" if "host" in pair else "p2p_direct",
            source=End(pair[0]),
            destination=End(pair[1]),
            reason=reason,
            says="it did",
        )
        for pair in ends
    )


@pytest.mark.parametrize(
    ("reason", "what", "remedy"),
    [
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error in GPU memory", "return the GPU (RMA)"),
        ("CUDA_ERROR_LAUNCH_FAILED", "stopped with an error", "return the GPU (RMA)"),
        ("CUDA_ERROR_OF_TOMORROW", "it did (CUDA_ERROR_OF_TOMORROW)", "sudo dmesg"),
    ],
)
def test_a_gpu_that_fails_is_one_error_in_cudas_words_with_its_own_remedy(
    reason: str, what: str, remedy: str
) -> None:
    failures = refused(reason, ("host", "gpu:3"), ("gpu:3", "gpu:0"), ("gpu:1", "gpu:3"))
    (found,) = find_bandwidth(added(failures=failures)(measured()))
    assert (found.id, found.severity, found.subject.text) == ("bandwidth.copy_failed", "error", "gpu:3")
    assert what in found.says
    assert "3 copies failed: host to gpu:3, gpu:3 to gpu:0, gpu:1 to gpu:3" in found.says
    assert remedy in (found.remedy or "")


def test_failures_of_two_gpus_and_of_a_pair_are_told_apart() -> None:
    lost = "CUDA_ERROR_DEVICE_UNAVAILABLE"
    failures = refused(lost, ("host", "gpu:1"), ("gpu:1", "gpu:0"), ("host", "gpu:3"), ("gpu:3", "gpu:0"))
    found_of_each = find_bandwidth(added(failures=failures)(measured()))
    assert [one.subject.text for one in found_of_each] == ["gpu:1", "gpu:3"]
    pair = refused("CUDA_ERROR_LAUNCH_FAILED", ("gpu:0", "gpu:1"), ("gpu:1", "gpu:0"))
    (found,) = find_bandwidth(added(failures=pair)(measured()))
    assert found.subject.text == "link:0-1"
