"""Numbers that are shown and not used: each has a finding with its reason, sound ones have none."""

from msgspec.structs import replace

from gputopo.copies import checked
from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, CopyRateKind, Sample, Samples
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Machine
from tests import there
from tests.findings.measured.machines import sample

IDS = {"bandwidth.cache_rate", "bandwidth.above_link", "bandwidth.inconsistent", "bandwidth.several_runs"}


def found(name: str | None, *samples: Sample, source: str = "bandwidthTest") -> list[Finding]:
    gpus = tuple(Gpu(index=index, name=name) for index in range(2))
    machine = Machine(
        source="a test", gpus=gpus, bandwidth=Bandwidth(source=source, samples=Samples(samples))
    )
    machine = replace(machine, bandwidth=checked(there(machine.bandwidth), machine))
    return [one for one in find_bandwidth(machine) if one.id in IDS or one.id == "bandwidth.woke_up"]


def local(rate: float, size: int | None = None) -> Sample:
    return replace(sample("d2d_local", "gpu:0", "gpu:0", rate), bytes=size)


def pair(rate: float, kind: CopyRateKind = "p2p_direct", a: int = 0) -> Sample:
    one = sample(kind, f"gpu:{a}", f"gpu:{1 - a}", rate)
    return replace(one, path="direct") if kind == "bidirectional" else one


def test_a_cache_rate_is_named_with_the_copy_the_memory_and_the_cache() -> None:
    (one,) = found("NVIDIA RTX 6000 Ada Generation", local(4374.1, 32_000_000), local(804.0))
    assert (one.id, one.severity) == ("bandwidth.cache_rate", "info")
    assert one.says == (
        "GPU 0 (NVIDIA RTX 6000 Ada Generation): 4374 GB/s is above the 960 GB/s of the memory of "
        "RTX 6000 Ada Generation: the copy of 32 MB was served by the L2 cache of 96 MiB"
    )


def test_a_copy_that_no_link_carries_is_named_with_the_link() -> None:
    (one,) = found("NVIDIA H800", pair(330.0), pair(172.0, a=1))
    assert (one.id, one.severity) == ("bandwidth.above_link", "warning")
    assert one.says == (
        "copies faster than the link: 330 GB/s gpu:0 to gpu:1 (direct), at most 200 over 8 NVLinks of H800: "
        "twice the usual rate, so a sum of both directions"
    )
    (one,) = found("NVIDIA GeForce RTX 4090", sample("h2d", "host", "gpu:0", 55.0))
    assert one.says.endswith("at most 31.5 over Gen4 x16, the link of GeForce RTX 4090")


def test_what_contradicts_others_is_named_with_them() -> None:
    (one,) = found("NVIDIA H800", pair(86.0), pair(86.1, a=1), pair(60.0, "bidirectional"))
    assert one.id == "bandwidth.inconsistent"
    assert one.says == (
        "60.0 GB/s gpu:0 to gpu:1 (both directions at once) is not a sum of both directions: one alone is "
        "about as fast: 86.0 gpu:0 to gpu:1 (direct), 86.1 gpu:1 to gpu:0 (direct)"
    )
    (one,) = found("NVIDIA H800", pair(86.0), pair(86.1, a=1), pair(196.0, "bidirectional"))
    assert "is more than twice one direction: 86.0 gpu:0 to gpu:1 (direct)" in one.says
    among = replace(pair(160.0), group="with the reverse gpu:0 gpu:1", with_reverse=True)
    (one,) = found("NVIDIA H800", pair(86.0), among)
    assert "is faster during other copies than alone, so it is a sum of both directions" in one.says


def test_runs_that_differ_are_a_warning_with_their_range_and_those_that_agree_are_not() -> None:
    runs = [replace(sample("h2d", "host", "gpu:0", rate), run=f"node{rate:g}") for rate in (72.7, 24.6, 25.0)]
    (one,) = found("NVIDIA GH200 480GB", *runs)
    assert (one.id, one.severity) == ("bandwidth.several_runs", "warning")
    assert one.says.startswith(
        "1 number of several runs, which differ: host to gpu:0 (from the host) 24.6 to 72.7 GB/s (3 runs). "
    )
    assert [run["run"] for run in one.evidence["samples"][0]["runs"]] == ["node24.6", "node25", "node72.7"]
    (one,) = found("NVIDIA GH200 480GB", *runs[1:])
    assert one.severity == "info"
