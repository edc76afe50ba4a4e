"""GPUs that copy far slower with the host than others of their model, or than their model can."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.captures import read_text
from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, Samples
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Machine
from tests.findings.measured.machines import sample
from tests.kit.dialects import nvbandwidth


def box(*rates: tuple[float, float], names: tuple[str, ...] = (), lanes: int | None = None) -> Machine:
    """GPUs of which only what they copy from and to the host is known."""
    gpus = [Gpu(index=index, name="NVIDIA H100 80GB HBM3") for index, _ in enumerate(rates)]
    gpus = [replace(gpu, name=name) for gpu, name in zip(gpus, names, strict=True)] if names else gpus
    gpus[0] = replace(gpus[0], pcie=replace(gpus[0].pcie, width_now=lanes, width_max=lanes))
    samples = []
    for index, (to_gpu, from_gpu) in enumerate(rates):
        samples.append(sample("h2d", "host", f"gpu:{index}", to_gpu, pinned=True))
        samples.append(sample("d2h", f"gpu:{index}", "host", from_gpu, pinned=True))
    return Machine(
        source="a test", gpus=tuple(gpus), bandwidth=Bandwidth(source="t", samples=Samples(samples))
    )


def below(machine: Machine) -> list[Finding]:
    return [one for one in find_bandwidth(machine) if one.id == "bandwidth.below_expected"]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("NVIDIA H100 80GB HBM3", "warning"),  # a module has all its lanes
        ("NVIDIA H100 PCIe", "warning"),
        ("NVIDIA GeForce RTX 5090", "info"),  # many boards have slots of 16 and of 8 lanes
    ],
)
def test_half_of_the_lanes_is_a_fault_but_where_boards_are_wired_so(name: str, severity: str) -> None:
    (found,) = below(box((27.4, 27.1), *[(55.0, 54.8)] * 3, names=(name,) * 4))
    assert (found.subject.text, found.severity) == ("gpu:0", severity)
    assert "50%" in found.says
    assert "as fast as Gen5 x8 (or Gen4 x16)" in found.says


def test_a_far_numa_node_costs_a_third_and_is_no_fault_of_the_link() -> None:
    (found,) = below(box(*[(37.0, 36.0)] * 4, *[(55.0, 54.8)] * 4))
    assert (found.subject.text, found.severity) == ("gpus:0-3", "info")
    assert "another NUMA node" in found.says


def test_gpus_that_are_all_alike_below_the_link_of_their_model_are_a_statement() -> None:
    (found,) = below(box(*[(26.3, 26.5)] * 4))
    assert (found.subject.text, found.severity) == ("gpus:0-3", "info")
    assert "50% of the expected rate: Gen5 x16, the widest that H100 80GB HBM3 supports" in found.says
    assert "the rate fits Gen5 x8 (or Gen4 x16)" in found.says


@pytest.mark.parametrize("name", ["NVIDIA L4", "Tesla T4"])
def test_lanes_that_servers_give_a_model_are_none(name: str) -> None:
    rate = {"Tesla T4": 6.2}.get(name, 13.1)
    assert below(box(*[(rate, rate)] * 4, names=(name,) * 4)) == []


def test_a_card_as_slow_as_few_lanes_is_reported_once() -> None:
    found = find_bandwidth(box((0.8, 0.8), (55.0, 54.0), (55.0, 54.0)))
    assert [one.id for one in found] == ["pcie.slot_narrow"]


# What nvbandwidth prints of whole machines: copies with the host, and the test between GPUs.
def printed(name: str, host: Sequence[float], pairs: Callable[[int, int], float]) -> Machine:
    gpus = range(len(host))
    cases = {case.name: case for case in nvbandwidth.CASES}
    to_device, to_host = cases["host_to_device_memcpy_ce"], cases["device_to_host_memcpy_ce"]
    read = cases["device_to_device_memcpy_read_ce"]
    tables = [
        nvbandwidth.table(to_device.name, to_device.heading, [host]),
        nvbandwidth.table(to_host.name, to_host.heading, [host]),
        nvbandwidth.table(
            read.name, read.heading, [[None if a == b else pairs(a, b) for b in gpus] for a in gpus]
        ),
    ]
    devices = "".join(f"Device {gpu}: {name}\n" for gpu in gpus)
    return read_text(f"nvbandwidth Version: v0.4\n\n{devices}\n{''.join(tables)}", origin="nvbandwidth")


def reported(machine: Machine) -> list[tuple[str, str, str]]:
    return [(one.severity, one.id, one.subject.text) for one in find_bandwidth(machine)]


def near_and_far(near: float, far: float, island: int) -> Callable[[int, int], float]:
    return lambda a, b: near if a // island == b // island else far


SOUND: dict[str, tuple[str, tuple[float, ...], Callable[[int, int], float]]] = {
    "4 H100": ("NVIDIA H100 80GB HBM3", (55.2,) * 4, near_and_far(394.0, 394.0, 4)),
    "8 A40 below two CPUs": ("NVIDIA A40", (26.2,) * 8, near_and_far(26.0, 22.0, 4)),
    "4 RTX A6000, two bridges": ("NVIDIA RTX A6000", (26.2,) * 4, near_and_far(52.3, 22.0, 2)),
}


@pytest.mark.parametrize("machine", SOUND)
def test_one_gpu_with_half_of_its_pcie_link_is_one_finding(machine: str) -> None:
    name, host, pairs = SOUND[machine]
    assert reported(printed(name, host, pairs)) == []
    halved = [rate / 2 if gpu == 2 else rate for gpu, rate in enumerate(host)]

    def over_it(a: int, b: int) -> float:
        return pairs(a, b) if pairs(a, b) > 1.5 * host[0] else min(pairs(a, b), halved[a], halved[b])

    (found,) = reported(printed(name, halved, over_it))
    assert found[1:] == ("bandwidth.below_expected", "gpu:2")
    assert found[0] == ("info" if name.startswith("NVIDIA RTX") else "warning")


@settings(max_examples=5)
@given(
    noise=st.lists(st.floats(0.98, 1.02), min_size=16, max_size=16),
    slow=st.integers(0, 7),
    share=st.floats(0.1, 0.56),
)
def test_noise_accuses_no_gpu_and_a_slow_one_is_the_only_one(
    noise: list[float], slow: int, share: float
) -> None:
    rates = [(55.0 * one, 54.8 * other) for one, other in zip(noise[:8], noise[8:], strict=True)]
    assert below(box(*rates)) == []
    rates[slow] = (share * rates[slow][0], share * rates[slow][1])
    found = find_bandwidth(box(*rates))
    assert [one.subject.text for one in found] == [f"gpu:{slow}"]
