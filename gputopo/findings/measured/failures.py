"""Copies that failed, did not complete, or corrupted data: what to do by the path that they took."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gputopo.findings.driver import DRIVER_STATUS
from gputopo.findings.driver import HUNG as DRIVER_HUNG
from gputopo.findings.measured.direct import host_failures
from gputopo.findings.measured.faults import KINDS, named_paths, subject_of
from gputopo.findings.measured.nccl_p2p import cutoff, nvlink_pairs
from gputopo.findings.measured.network import NETWORK_KINDS
from gputopo.findings.rule import Case, Fault, Rule, check, copies_of, facts_of
from gputopo.values.bandwidth import COLLECTIVE_NAMES, HOST_KINDS, SEPARATE_RUNS, Failure
from gputopo.values.ends import HOST
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Gpu, Machine
from gputopo.values.rates import judged
from gputopo.values.subject import Subject

WRONG_WITH_THE_HOST = Case(
    "with the host",
    "copies between GPU and host corrupt data",
    severity="error",
    remedy=(
        "Do not train on these GPUs. Keep P2P on: without it, all copies use this path. Reseat the card "
        "and its riser, try another slot, and look for PCIe and memory errors of GPU and host (gputopo "
        "inspect, sudo dmesg)."
    ),
)
WRONG_STAGED = Case(
    "staged",
    "copies staged through host memory corrupt data",
    severity="error",
    remedy=(
        "Do not train over these paths. Keep P2P on: without it, more copies use them. Test the host's "
        "memory, look for PCIe errors (gputopo inspect, sudo dmesg), and reseat cards and risers."
    ),
)
WRONG_DIRECT = Case(
    "direct",
    "only direct copies (P2P) corrupt data; through host memory it arrives intact",
    severity="error",
    remedy=(
        "Turn P2P off between these pairs until it is repaired. The usual causes are an IOMMU that "
        "translates and ACS (gputopo inspect), then switches and risers. TensorFlow's own copies ignore "
        "NCCL's variables: use only one GPU of each pair."
    ),
)
WRONG_OVER_NVLINK = Case(
    "over NVLink",
    "direct copies over NVLink corrupt data; through host memory it arrives intact",
    severity="error",
    remedy=(
        "Do not train over these pairs: choose GPUs without them (gputopo plan --exclude, or "
        "CUDA_VISIBLE_DEVICES); no NCCL_P2P_LEVEL excludes single NVLinks. Look for their errors "
        "(nvidia-smi nvlink -e, Xid 74 in sudo dmesg), and reseat the bridge or board."
    ),
)
WRONG_DIRECT_HOST_PATH_UNKNOWN = Case(
    "direct, host path unknown",
    "direct copies (P2P) corrupt data; the path through the host was not measured or failed",
    severity="error",
    remedy=(
        "Do not train over these pairs, and leave P2P on until the path through the host is known to be "
        "right (gputopo bandwidth). Look for ACS and an IOMMU that translates (gputopo inspect), reseat "
        "cards, risers and bridges; for NVLinks see nvidia-smi nvlink -e."
    ),
)
WRONG_COLLECTIVES = Case(
    "collective operations",
    "results of collective operations are wrong",
    severity="error",
    remedy=(
        "Do not train with these GPUs. Run gputopo bandwidth: it compares every byte of each path and "
        "reports the GPUs. If all paths are right, look for memory errors (nvidia-smi -q -d ECC), and "
        "try another version of NCCL."
    ),
)
WRONG_IN_GPU_MEMORY = Case(
    "GPU memory",
    "copies within a GPU corrupt data",
    severity="error",
    remedy=(
        "Do not train on this GPU. Look for its memory errors (gputopo inspect, nvidia-smi -q -d ECC) "
        "and Xids (sudo dmesg | grep -i xid); if it persists after a reboot, replace it."
    ),
)
WRONG_IN_HOST_MEMORY = Case(
    "host memory",
    "copies in host memory corrupt data",
    severity="error",
    remedy=(
        "Do not train on this host. Test its memory (memtest86+), and look for its errors (sudo dmesg | "
        "grep -i -e edac -e mce)."
    ),
)
WRONG_DATA = Rule(
    "bandwidth.wrong_data",
    "data corruption: copied bytes differ from the sent ones",
    remedy=(
        "Do not train over these paths; gputopo bandwidth reports the GPUs. Look for PCIe, NVLink and "
        "memory errors (gputopo inspect, sudo dmesg), and reseat cards, risers and bridges."
    ),
    severities=("error",),
    cases=(
        WRONG_WITH_THE_HOST,
        WRONG_STAGED,
        WRONG_DIRECT,
        WRONG_OVER_NVLINK,
        WRONG_DIRECT_HOST_PATH_UNKNOWN,
        WRONG_COLLECTIVES,
        WRONG_IN_GPU_MEMORY,
        WRONG_IN_HOST_MEMORY,
    ),
)
HUNG = Rule(
    "bandwidth.hung",
    "a copy did not complete",
    remedy=(
        "Look for ACS or an IOMMU between the GPUs (gputopo inspect), the usual cause for direct copies, "
        "and see sudo dmesg | grep -i xid. Stop the programs on the GPUs and reset them (sudo nvidia-smi "
        "-r -i GPU), or reboot; return a GPU that hangs again (RMA)."
    ),
    severities=("error",),
)
_RESET = (
    "Stop all programs on the GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot; see sudo dmesg | "
    "grep -i -e xid -e nvrm."
)
COPY_FAILED = Rule(
    "bandwidth.copy_failed",
    "copies failed, with CUDA's reason",
    remedy="See gputopo inspect and sudo dmesg | grep -i -e xid -e nvrm, and measure again.",
    severities=("error",),
    cases=(
        Case(
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "uncorrectable ECC error in GPU memory",
            severity="error",
            remedy=(
                f"{_RESET} If it comes back, or row remapping failed (gputopo inspect), return the GPU (RMA)."
            ),
        ),
        Case(
            "CUDA_ERROR_NVLINK_UNCORRECTABLE",
            "uncorrectable NVLink error",
            severity="error",
            remedy=(
                f"{_RESET} If it comes back, reseat the bridge or module, compare nvidia-smi nvlink -e with "
                "a peer's, and return the GPU or board (RMA)."
            ),
        ),
        Case(
            "CUDA_ERROR_OUT_OF_MEMORY",
            "out of memory",
            severity="error",
            remedy=(
                "Stop the programs that use the memory of the GPU or the host (nvidia-smi, free -m), and "
                "measure again."
            ),
        ),
        *(
            Case(
                reason,
                "does not answer (lost, or in exclusive use by another process)",
                severity="error",
                remedy=(
                    f"{_RESET} "
                    "If its compute mode is exclusive (nvidia-smi -q -d COMPUTE), end that process "
                    "instead. If it is lost again: reseat it and its power cables, try another slot, "
                    "then return it (RMA)."
                ),
            )
            for reason in (
                "CUDA_ERROR_NO_DEVICE",
                "CUDA_ERROR_DEVICE_UNAVAILABLE",
            )
        ),
        *(
            Case(
                reason,
                "stopped with an error",
                severity="error",
                remedy=(f"{_RESET} If it happens again on an idle machine, return the GPU (RMA)."),
            )
            for reason in (
                "CUDA_ERROR_LAUNCH_FAILED",
                "CUDA_ERROR_LAUNCH_TIMEOUT",
                "CUDA_ERROR_ILLEGAL_ADDRESS",
                "CUDA_ERROR_HARDWARE_STACK_ERROR",
                "CUDA_ERROR_ILLEGAL_INSTRUCTION",
                "CUDA_ERROR_UNKNOWN",
            )
        ),
    ),
)
_BY_REASON = {"WRONG_DATA": WRONG_DATA, "TIMED_OUT": HUNG}
BELOW_MINIMUM = "BELOW_MINIMUM"  # nccl-tests: bus bandwidth below NCCL_TESTS_MIN_BW, judged with the others
_OF_PROGRAMS = ("CUDA_ERROR", "NCCL_ERROR")  # nccl-tests: a call failed
_WAY = ("source", "destination", "reason", "says", "method", "path", "group")


@check(WRONG_DATA, HUNG, COPY_FAILED)
def failures(machine: Machine) -> Iterator[Fault]:
    """Find copies that failed: one finding for each of CUDA's reasons; of wrong or hung ones for each path.

    A copy between hosts, one below a minimum that was asked for, or one of a capture that shows a driver
    that does not work, is judged elsewhere.
    """
    explained = machine.driver.status in DRIVER_STATUS and machine.source != "live"
    elsewhere = (BELOW_MINIMUM, SEPARATE_RUNS, *_OF_PROGRAMS * explained)
    failed = [
        failure
        for failure in copies_of(machine).failures
        if failure.reason not in elsewhere and failure.kind not in NETWORK_KINDS
    ]
    refused = grouped((failure.reason, failure) for failure in failed if failure.reason not in _BY_REASON)
    for reason, of_reason in refused.items():
        yield from _refused(machine, reason, of_reason)
    by_path = grouped(
        ((failure.reason, failure.kind, failure.path), failure)
        for failure in failed
        if failure.reason in _BY_REASON
    )
    for (reason, kind, _), of_path in by_path.items():
        rule = _BY_REASON[reason]
        detail = f" ({of_path[0].says})" if of_path[0].says else ""
        says = f"{rule.title}: {KINDS[kind]}, {_named_ends(of_path)}{detail}"
        ways = [facts_of(failure, *_WAY) for failure in of_path]
        remedy = None
        if rule is WRONG_DATA:
            remedy = _wrong_data_remedy(machine, of_path)
        elif all(failure.source == failure.destination or HOST in failure.ends for failure in of_path):
            remedy = DRIVER_HUNG.remedy  # ACS and an IOMMU are on the path between two GPUs
        yield rule.fault(subject_of(of_path), says, {"ways": ways}, remedy=remedy)


def _refused(machine: Machine, reason: str, failed: Sequence[Failure]) -> Iterator[Fault]:
    """Yield the faults of copies that failed for one reason: of the GPU that most have, then of the rest."""
    case = next((case for case in COPY_FAILED.cases if case.name == reason), None)
    what = case.says if case else failed[0].says.rpartition(" is no longer used: ")[2] or reason
    ends = {id(failure): set(failure.gpus) for failure in failed}
    gpus = machine.by_index
    left = list(failed)
    while left:
        counts = Counter(gpu for failure in left for gpu in sorted(ends[id(failure)]))
        most = max(counts, key=counts.__getitem__, default=None)
        with_most = [failure for failure in left if most in ends[id(failure)]] or left
        left = [failure for failure in left if failure not in with_most]
        of_all = set.intersection(*(ends[id(failure)] for failure in with_most))
        about: Gpu | Subject = subject_of(with_most)
        if len(of_all) == 1:
            (index,) = of_all
            about = gpus.get(index) or Gpu(index=index)
        count = f"{len(with_most)} copies" if len(with_most) > 1 else "a copy"
        says = f"{what} ({reason}): {count} failed: {_named_ends(with_most)}"
        evidence = {"ways": [facts_of(failure, *_WAY) for failure in with_most]}
        yield COPY_FAILED.fault(about, says, evidence, case=case)


def _named_ends(failed: Iterable[Failure]) -> str:
    return named_paths(
        failure.source if failure.kind in COLLECTIVE_NAMES else failure.way for failure in failed
    )


def _wrong_data_remedy(machine: Machine, failed: Sequence[Failure]) -> str:
    """Return what to do about corrupted data by where it was corrupted.

    P2P is to be turned off only where it alone is at fault: staged copies of the same pairs arrived intact.
    """
    kind, reason = failed[0].kind, failed[0].reason
    pairs = [pair for failure in failed if (pair := failure.pair)]
    if kind in ("d2d_local", "host_memory", *COLLECTIVE_NAMES):
        places = {"d2d_local": WRONG_IN_GPU_MEMORY, "host_memory": WRONG_IN_HOST_MEMORY}
        return places.get(kind, WRONG_COLLECTIVES).remedy
    suspects = {
        gpu
        for gpu, failure in host_failures(machine)
        if failure.kind in HOST_KINDS and failure.reason == reason
    }
    with_host = all(kind in HOST_KINDS or failure.host_gpu is not None for failure in failed)
    if with_host or (pairs and all(suspects & set(pair) for pair in pairs)):
        return WRONG_WITH_THE_HOST.remedy
    if not pairs:
        return WRONG_DATA.remedy  # between GPUs of which none is named
    if kind == "p2p_staged" or failed[0].path == "staged":
        return WRONG_STAGED.remedy
    if not all(_arrives_staged(machine, *pair) for pair in pairs):
        return WRONG_DIRECT_HOST_PATH_UNKNOWN.remedy
    if {(min(pair), max(pair)) for pair in pairs} & nvlink_pairs(machine):
        return WRONG_OVER_NVLINK.remedy
    case = WRONG_DIRECT.remedy
    off = cutoff(machine, pairs)
    if off is None:
        return f"{case} No setting of NCCL turns P2P off only between these pairs ({pairs_in_words(pairs)})."
    setting, others = off
    also = f" (and {pairs_in_words(others)})" if others else ""
    return f"{case} NCCL: {setting} turns it off between {pairs_in_words(pairs)}{also}."


def _arrives_staged(machine: Machine, source: int, destination: int) -> bool:
    """Return whether copies through host memory were measured from one GPU to another, and none failed."""
    if {gpu for gpu, _ in host_failures(machine)} & {source, destination}:
        return False
    samples = judged(copies_of(machine).copies)
    copies = {(sample.kind, sample.gpu_ends) for sample in samples}
    in_two_steps = {("d2h", (source, None)), ("h2d", (None, destination))} <= copies
    return in_two_steps or ("p2p_staged", (source, destination)) in copies
