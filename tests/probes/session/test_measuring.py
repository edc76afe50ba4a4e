from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_fields

from gputopo.probes import NoGpuMeasuredError, SessionProgress, SessionRequest
from gputopo.probes.cuda import NoCudaError
from gputopo.probes.session import HostMemoryRates
from gputopo.values.bandwidth import Bandwidth, CopyLatency, CopyRate, NotMeasured
from gputopo.values.ends import End
from gputopo.values.errors import ExitCode, UsageError
from gputopo.values.machine import Host, Machine, NumaNode
from tests.probes.session.double import ASLEEP, AWAKE, LOST, EngineDouble, doors, machine, measure

HOST = HostMemoryRates(
    samples=(
        CopyRate(kind="host_memory", source=End("node:0"), destination=End("node:0"), median_gb_per_s=30.0),
    )
)
ALL_PEERS = frozenset(permutations(range(8), 2))


def run(engine: EngineDouble, request: SessionRequest | None = None, **options: Any) -> Bandwidth:
    return measure(
        machine(engine.gpus), request or SessionRequest(), doors=doors(engine, host=HOST, **options)
    )


def number(bandwidth: Bandwidth, **facts: Any) -> float | None:
    found = [
        sample
        for sample in bandwidth.samples
        if all(getattr(sample, name, None) == value for name, value in ({"group": None} | facts).items())
    ]
    assert len(found) == 1, (facts, found)
    return found[0].value


def test_gpus_that_share_an_uplink_are_found_by_what_the_first_copies_call_for() -> None:
    groups = {(0, 2), (3, 5, 6)}
    engine = EngineDouble(gpus=7, uplinks=[(frozenset(gpus), 13.0) for gpus in groups])
    assert {group.gpus for group in run(engine).uplink_groups} == groups


def test_uplinks_are_found_without_the_gpu_that_fails_in_the_group() -> None:
    uplinks = [(frozenset({0, 1, 2, 3}), 13.0), (frozenset({4, 5}), 13.0)]
    faults = {("h2d", "host", "gpu:3"): "WRONG_DATA", ("d2h", "gpu:3", "host"): "WRONG_DATA"}
    found = run(EngineDouble(gpus=6, uplinks=uplinks, faults=faults))
    assert {group.gpus for group in found.uplink_groups} == {(0, 1, 2), (4, 5)}


def test_a_fault_is_named_on_its_pair_and_nothing_else_is_lost() -> None:
    whole = run(EngineDouble(gpus=3, peers=ALL_PEERS))
    broken = run(
        EngineDouble(gpus=3, peers=ALL_PEERS, faults={("p2p_staged", "gpu:2", "gpu:0"): "WRONG_DATA"})
    )
    assert {(f.kind, f.source, f.destination, f.reason, f.path) for f in broken.failures} == {
        ("p2p_staged", "gpu:2", "gpu:0", "WRONG_DATA", None),
        ("latency", "gpu:2", "gpu:0", "WRONG_DATA", "staged"),
        ("bidirectional", "gpu:2", "gpu:0", "WRONG_DATA", "staged"),
    }
    assert len(whole.samples) - len(broken.samples) == 3
    assert broken.not_measured == whole.not_measured


def test_no_kernel_follows_pointers_in_memory_where_wrong_data_arrived() -> None:
    engine = EngineDouble(gpus=2, peers=ALL_PEERS, faults={("h2d", "host", "gpu:1"): "WRONG_DATA"})
    found = run(engine)
    chased = {
        (job.copies[0].source, job.copies[0].method) for job, _ in engine.asked if job.kind == "latency"
    }
    assert ("gpu:0", "kernel_read") in chased
    assert ("gpu:1", "kernel_read") not in chased
    assert any("follows pointers" in one.reason for one in found.not_measured)


def test_a_group_goes_on_without_the_gpu_that_fails_in_it() -> None:
    found = run(EngineDouble(gpus=4, faults={("h2d", "host", "gpu:2"): "CUDA_ERROR_UNKNOWN"}))
    groups = {sample.group for sample in found.samples if sample.kind == "h2d"} - {None}
    assert groups == {"h2d gpus:0,1,3"}
    assert ("h2d gpus:0,1,2,3", "gpu:2") in {(f.group, f.destination) for f in found.failures}


def test_a_lost_gpu_is_reported_and_the_rest_goes_on() -> None:
    engine = EngineDouble(gpus=3, lost={1: 40})
    found = run(engine)
    assert {failure.reason for failure in found.failures} == {LOST}
    assert len(found.failures) == 1
    skipped = [one for one in found.not_measured if "is no longer used" in one.reason]
    assert skipped
    assert all("1" in one.what for one in skipped)
    assert number(found, kind="d2d_local", source="gpu:2") is not None
    assert number(found, kind="p2p_staged", source="gpu:2", destination="gpu:0") is not None


def test_a_gpu_that_refuses_its_memory_is_asked_no_further() -> None:
    found = run(EngineDouble(gpus=3, faults={("h2d", "host", "gpu:0"): "CUDA_ERROR_OUT_OF_MEMORY"}))
    assert [(f.kind, f.destination) for f in found.failures] == [("h2d", "gpu:0")]
    assert all("refused the memory" in one.reason for one in found.not_measured if "gpu:0" in one.what[:9])
    assert number(found, kind="p2p_staged", source="gpu:1", destination="gpu:2") is not None


def test_gpus_whose_copy_does_not_come_back_are_used_no_more_and_the_rest_goes_on() -> None:
    engine = EngineDouble(gpus=4, hang_on=("gpu:0", "gpu:2"))
    found = run(engine)
    assert [failure.reason for failure in found.failures] == ["TIMED_OUT"]
    hung_at = next(
        i
        for i, (job, _) in enumerate(engine.asked)
        if (job.copies[0].source, job.copies[0].destination) == engine.hang_on
    )
    assert not {
        place
        for job, _ in engine.asked[hung_at + 1 :]
        for copy in job.copies
        for place in (copy.source, copy.destination)
    } & {"gpu:0", "gpu:2"}
    pairs = {(one.source, one.destination) for one in found.samples if one.kind == "p2p_staged"}
    assert {("gpu:1", "gpu:3"), ("gpu:3", "gpu:1")} < pairs
    assert any("is no longer used" in one.reason for one in found.not_measured)


def test_gpus_of_which_none_can_be_used_are_reported_with_their_compute_mode() -> None:
    engine = EngineDouble(gpus=2, lost={0: -1, 1: -1})
    taken = machine(2)
    exclusive = tuple(msgspec.structs.replace(gpu, compute_mode="exclusive_process") for gpu in taken.gpus)
    with pytest.raises(NoGpuMeasuredError) as refused:
        measure(
            msgspec.structs.replace(taken, gpus=exclusive), SessionRequest(), doors=doors(engine, host=HOST)
        )
    assert "none of the selected GPUs" in refused.value.what
    assert refused.value.hint.count("exclusive_process") == 2
    assert refused.value.bandwidth.copies == HOST.samples


def test_repeats_of_a_card_in_ramp_up_are_thrown_away_and_counted() -> None:
    engine = EngineDouble(gpus=1)

    def facts() -> dict[str, Any]:
        jobs = [job for job, _ in engine.asked if job.kind == "d2h" and job.group is None]
        return ASLEEP if engine.asked[-1][0].kind == "d2h" and len(jobs) in (2, 3) else AWAKE

    found = run(engine, facts=facts)
    (sample,) = [one for one in found.samples if one.kind == "d2h" and one.pinned and one.group is None]
    assert len(sample.discarded_gb_per_s) == 2
    assert "clock ramp-up" in (sample.discarded_because or "")
    assert sample.conditions[0].pstate == "P0"
    assert sample.conditions[0].memory_mhz == 1200
    assert len(sample.repeats_gb_per_s) >= 3
    assert sum(len(one.discarded_gb_per_s) for one in found.copies) == 2


def test_an_interrupt_keeps_what_was_measured() -> None:
    whole = EngineDouble(gpus=2)
    run(whole)
    found = run(EngineDouble(gpus=2, interrupt_after=len(whole.asked) - 40))
    assert not found.complete
    assert number(found, kind="h2d", destination="gpu:0", pinned=True) == pytest.approx(12.0)
    assert number(found, kind="host_memory") == 30.0
    assert "interrupted" in {one.reason for one in found.not_measured}


def test_without_cuda_the_host_is_measured_and_the_reason_reported() -> None:
    @contextmanager
    def no_cuda() -> Iterator[Any]:
        raise NoCudaError("LIBRARY_MISSING", "there is no libcuda.so.1", "install the driver")
        yield

    with pytest.raises(NoGpuMeasuredError, match=r"libcuda\.so\.1") as raised:
        measure(
            machine(0), SessionRequest(), doors=replace(doors(EngineDouble(), host=HOST), open_cuda=no_cuda)
        )
    assert raised.value.exit_code is ExitCode.HARDWARE
    assert raised.value.hint == "install the driver"
    assert raised.value.bandwidth.copies == HOST.samples
    assert raised.value.bandwidth.not_measured == (
        NotMeasured(what="all copies of the GPUs", reason="there is no libcuda.so.1"),
    )


def test_cuda_devices_are_found_by_pci_address_and_hidden_ones_reported() -> None:
    engine = EngineDouble(gpus=3)
    found = run(engine, order=[2, 0], environment={"CUDA_VISIBLE_DEVICES": "1,0"})
    assert {sample.destination for sample in found.samples if sample.kind == "h2d"} == {"gpu:0", "gpu:2"}
    (hidden,) = [one for one in found.not_measured if one.what == "gpu:1"]
    assert "CUDA_VISIBLE_DEVICES is '1,0'" in hidden.reason


def test_where_cuda_shows_none_of_them_it_is_an_error_with_the_host_numbers() -> None:
    with pytest.raises(NoGpuMeasuredError, match="CUDA shows none") as raised:
        run(EngineDouble(gpus=2), order=[])
    assert raised.value.bandwidth.copies == HOST.samples


def test_only_the_chosen_gpus_are_measured() -> None:
    found = run(EngineDouble(gpus=4), SessionRequest(gpus=(3, 1)))
    places = {place for one in found.samples for place in (one.source, one.destination)}
    assert places == {"host", "gpu:1", "gpu:3", "node:0"}


@pytest.mark.parametrize("request_", [SessionRequest(gpus=(0, 9)), SessionRequest(numa=4)])
def test_a_gpu_or_node_that_is_not_there_is_bad_usage(request_: SessionRequest) -> None:
    with pytest.raises(UsageError, match="there is no"):
        run(EngineDouble(gpus=2), request_)


def test_pairs_without_peer_access_are_reported_and_measured_through_the_host() -> None:
    found = run(EngineDouble(gpus=3, peers=frozenset({(0, 1), (1, 0)})))
    (reported,) = [one for one in found.not_measured if "direct copies" in one.what]
    assert "0->2" in reported.what
    assert "0->1" not in reported.what
    staged = {(one.source, one.destination) for one in found.samples if one.kind == "p2p_staged"}
    assert len(staged) == 6


def test_a_copy_within_memory_that_the_cache_would_serve_is_not_measured() -> None:
    found = run(EngineDouble(gpus=1, free=300 << 20, l2=50 << 20))
    (reported,) = [one for one in found.not_measured if one.what.startswith("d2d_local")]
    assert "measures the L2 cache (50 MiB)" in reported.reason
    assert all(one.kind != "d2d_local" for one in found.samples)


def test_progress_goes_up_to_the_end_and_estimates() -> None:
    reported: list[SessionProgress] = []
    engine = EngineDouble(gpus=4, uplinks=[(frozenset({0, 1}), 12.0)])
    measure(machine(4), SessionRequest(), reported.append, doors=doors(engine))
    jobs = [one for one in reported if one.total > 1]
    assert [one.done for one in jobs] == sorted(one.done for one in jobs)
    assert jobs[-1].done == jobs[-1].total - 1
    assert all(one.seconds_left is not None and one.seconds_left >= 0 for one in jobs)
    assert (jobs[0].seconds_left or 0) > (jobs[-1].seconds_left or 0)
    assert reported[0].now == "host memory"


def test_a_chosen_size_and_number_of_windows_are_used_for_all_copies_but_latencies() -> None:
    found = measure(
        machine(2),
        SessionRequest(sizes=(1 << 20, 1 << 26), loops=2),
        doors=doors(EngineDouble(peers=ALL_PEERS)),
    )
    one_way = [one for one in found.samples if one.kind not in ("latency", "bidirectional")]
    assert {one.bytes for one in one_way} == {1 << 20, 1 << 26}
    assert {len(one.repeats_gb_per_s) for one in found.copies} == {2}
    assert {len(one.repeats_us) for one in found.samples.of(CopyLatency)} == {2}


def test_a_gpu_that_cannot_run_kernels_is_reported_and_copied_with_all_the_same() -> None:
    found = run(EngineDouble(gpus=2, peers=ALL_PEERS, no_kernels={0: "compute capability 3.5"}))
    assert (
        NotMeasured(what="copies by a kernel on gpu:0", reason="compute capability 3.5") in found.not_measured
    )
    methods = Counter(s.method for s in found.samples if s.kind == "p2p_direct")
    assert methods == {"copy_engine": 2, "copy_engine_read": 2, "kernel_read": 1, "kernel_write": 1}


def host_nodes(
    *, nodes: int, gpu_nodes: tuple[int | None, ...], numa: int | None = None
) -> dict[int, list[int]]:
    """Return the nodes whose memory is copied to each GPU in a full session, the near one first.

    The distance between nodes grows with the difference of their numbers, and node 3 has no CPUs.
    """
    numa_nodes = tuple(
        NumaNode(
            index=node,
            cpus="" if node == 3 else f"{node}",
            memory_mib=1000,
            distances=tuple(10 + 7 * abs(node - other) for other in range(nodes)),
        )
        for node in range(nodes)
    )
    gpus = tuple(
        replace_fields(gpu, numa_node=node)
        for gpu, node in zip(machine(len(gpu_nodes)).gpus, gpu_nodes, strict=True)
    )
    box = Machine(source="live", host=Host(numa_nodes=numa_nodes), gpus=gpus)
    request = SessionRequest(level="full", numa=numa, loops=1, sizes=(1 << 20,))
    found = measure(box, request, doors=doors(EngineDouble(gpus=len(gpus))))
    ways = [one for one in found.samples if one.kind == "h2d" and one.pinned and one.method == "copy_engine"]
    return {
        gpu: [
            one.numa_node
            for one in ways
            if (one.destination, one.group) == (f"gpu:{gpu}", None) and one.numa_node is not None
        ]
        for gpu in range(len(gpus))
    }


def test_the_memory_node_is_that_of_the_gpu_or_the_only_one_or_the_one_asked_for() -> None:
    found = host_nodes(nodes=2, gpu_nodes=(1, 0, None))
    assert [nodes[:1] for nodes in found.values()] == [[1], [0], []]
    assert host_nodes(nodes=1, gpu_nodes=(-1, None)) == {0: [0], 1: [0]}
    assert host_nodes(nodes=2, gpu_nodes=(1, 0), numa=0) == {0: [0], 1: [0]}


def test_the_far_node_is_the_farthest_that_has_cpus() -> None:
    assert host_nodes(nodes=4, gpu_nodes=(0, 2)) == {0: [0, 2], 1: [2, 0]}
    assert host_nodes(nodes=3, gpu_nodes=(1,)) == {0: [1, 0]}, "the lowest of several"
