from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import recording
from gputopo.captures.merge import merge
from gputopo.values.bandwidth import Bandwidth, Sample
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Contradiction,
    Driver,
    Gpu,
    Hop,
    Host,
    Link,
    Machine,
    MemoryMib,
    Nic,
    NumaNode,
    Pcie,
    PowerW,
    Throttle,
    Unread,
)


def box(source: str, *gpus: Gpu, **rest: object) -> Machine:
    return msgspec.structs.replace(Machine(source=source, gpus=gpus), **rest)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    count = draw(st.integers(1, 4))
    names = st.none() | st.sampled_from(["A100", "V100"])
    gpus = tuple(
        Gpu(
            index=i,
            name=draw(names),
            numa_node=draw(st.none() | st.integers(0, 1)),
            pcie=Pcie(width_max=draw(st.none() | st.sampled_from([8, 16]))),
        )
        for i in range(count)
    )
    hops = st.none() | st.sampled_from(list(Hop))
    links = tuple(Link(a=a, b=b, hop=draw(hops)) for b in range(count) for a in range(b))
    return Machine(source=draw(st.sampled_from(["live", "nvidia-smi topo"])), gpus=gpus, links=links)


@given(machines())
def test_merging_a_machine_with_itself_changes_nothing(machine: Machine) -> None:
    assert merge([machine]) is machine
    assert merge([machine, machine, machine]) == machine


@given(machines(), machines())
def test_the_first_wins_and_the_second_fills(first: Machine, second: Machine) -> None:
    merged = merge([first, second])
    assert merge([merged, merged]) == merged
    for gpu in first.gpus:
        got = merged.gpus[gpu.index]
        other = second.gpus[gpu.index] if gpu.index < len(second.gpus) else Gpu(index=gpu.index)
        assert got.name == (gpu.name or other.name)
        assert got.numa_node == (gpu.numa_node if gpu.numa_node is not None else other.numa_node)
        assert got.pcie.width_max == (gpu.pcie.width_max or other.pcie.width_max)
        differs = None not in (gpu.name, other.name) and gpu.name != other.name
        assert differs == any(c.fact == f"gpus[{gpu.index}].name" for c in merged.contradictions)
    assert len(merged.gpus) == len(first.gpus)
    counted = any(c.fact == "gpus" for c in merged.contradictions)
    assert counted == (len(first.gpus) != len(second.gpus))


@given(machines(), machines(), machines())
def test_merging_never_loses_what_the_first_reported(first: Machine, second: Machine, third: Machine) -> None:
    merged = merge([first, second, third])
    for link in first.links:
        got = merged.link(link.a, link.b)
        assert got is not None
        assert link.hop in (None, got.hop)


def test_a_contradiction_names_the_fact_and_what_each_source_reported() -> None:
    one = box("live", Gpu(index=0), Gpu(index=1), links=(Link(a=0, b=1, hop=Hop.PIX, nvlinks=0),))
    two = box("nvidia-smi topo", Gpu(index=0), Gpu(index=1), links=(Link(a=0, b=1, hop=Hop.SYS, nvlinks=0),))
    merged = merge([one, two])
    assert merged.source == "live + nvidia-smi topo"
    assert merged.links[0].hop is Hop.PIX
    said = {"live": "PIX", "nvidia-smi topo": "SYS"}
    assert merged.contradictions == (Contradiction(fact="links[0-1].hop", said=said),)


def test_another_number_of_nvlinks_of_one_pair_is_a_contradiction() -> None:
    one, two = (
        box(name, Gpu(index=0), Gpu(index=1), links=(Link(a=0, b=1, nvlinks=count),))
        for name, count in (("a", 4), ("b", 2))
    )
    said = {"a": "4", "b": "2"}
    assert merge([one, two]).contradictions == (Contradiction(fact="links[0-1].nvlinks", said=said),)


def test_a_link_of_nvlinks_alone_gets_its_hop_from_the_other_source() -> None:
    one = box(
        "nvidia-smi topo",
        Gpu(index=0),
        Gpu(index=1),
        links=(Link(a=0, b=1, nvlinks=4),),
        missing={"links[*].hop": "not reported", "links[0-1].p2p_read": "not reported"},
    )
    two = box("live", Gpu(index=0), Gpu(index=1), links=(Link(a=0, b=1, hop=Hop.NODE),))
    merged = merge([one, two])
    assert merged.links == (Link(a=0, b=1, hop=Hop.NODE, nvlinks=4),)
    assert merged.contradictions == ()
    assert merged.missing == {"links[0-1].p2p_read": "not reported"}


def test_gpus_are_matched_by_their_address_and_renumbered() -> None:
    one = box("a", Gpu(index=0, pci_address="0000:05:00.0"), Gpu(index=1, pci_address="0000:06:00.0"))
    two = box(
        "b",
        Gpu(index=0, pci_address="00000000:06:00.0", name="six"),
        Gpu(index=1, pci_address="00000000:05:00.0", name="five"),
        links=(Link(a=0, b=1, hop=Hop.PHB),),
        nics=(Nic(index=0, hops={"gpu:0": Hop.PIX, "gpu:1": Hop.SYS}),),
        missing={"gpus[0].pstate": "no", "nics[0].name": "no"},
    )
    merged = merge([one, two])
    assert [gpu.name for gpu in merged.gpus] == ["five", "six"]
    assert merged.links == (Link(a=0, b=1, hop=Hop.PHB),)
    assert merged.nics[0].hops == {"gpu:1": Hop.PIX, "gpu:0": Hop.SYS}
    assert merged.missing == {"gpus[1].pstate": "no", "nics[0].name": "no"}
    assert merged.contradictions == ()


@pytest.mark.parametrize("source", ["bandwidthTest", "nvbandwidth", "p2pBandwidthLatencyTest"])
def test_numbers_of_a_cuda_program_are_turned_where_any_capture_reports_cudas_order(source: str) -> None:
    first = box("a", Gpu(index=0, pci_address="0000:05:00.0"), Gpu(index=1, pci_address="0000:c1:00.0"))
    log = box(
        "tensorflow log",
        Gpu(index=0, cuda_index=1, pci_address="0000:05:00.0"),
        Gpu(index=1, cuda_index=0, pci_address="0000:c1:00.0"),
    )
    measured = Bandwidth(
        source=source, samples=(Sample(kind="h2d", source="host", destination="gpu:0", median_gb_per_s=24.1),)
    )
    program = box(source, Gpu(index=0, name="large"), Gpu(index=1, name="small"), bandwidth=measured)
    for order in ([first, log, program], [first, program, log]):
        merged = merge(order)
        assert [gpu.name for gpu in merged.gpus] == ["small", "large"]
        assert merged.bandwidth is not None
        assert merged.bandwidth.samples[0].destination == "gpu:1"
        assert merged.contradictions == ()
    assert [gpu.name for gpu in merge([first, program]).gpus] == ["large", "small"]


def test_gpus_are_matched_by_uuid_even_where_addresses_moved() -> None:
    one = box("a", Gpu(index=0, uuid="GPU-x", pci_address="0000:05:00.0"))
    two = box("b", Gpu(index=0, uuid="GPU-y", pci_address="0000:05:00.0", name="y"))
    merged = merge([one, two])
    assert merged.gpus[0].name is None or merged.gpus[0].uuid == "GPU-x"
    assert any(c.fact.startswith("gpus[0].") for c in merged.contradictions)


def test_captures_of_another_box_add_nothing_and_report_it() -> None:
    one = box("a", Gpu(index=0, pci_address="0000:05:00.0"))
    two = box("b", Gpu(index=0, pci_address="0000:41:00.0", name="stranger"))
    merged = merge([one, two])
    assert merged.gpus == one.gpus
    said = {"a": "0000:05:00.0", "b": "0000:41:00.0"}
    assert merged.contradictions == (Contradiction(fact="gpus[0].pci_address", said=said),)


def test_another_number_of_gpus_is_a_contradiction() -> None:
    merged = merge([box("a", Gpu(index=0)), box("b", Gpu(index=0), Gpu(index=1))])
    assert [gpu.index for gpu in merged.gpus] == [0]
    assert merged.contradictions == (Contradiction(fact="gpus", said={"a": "1 GPU", "b": "2 GPUs"}),)


def test_a_machine_that_has_no_device_is_not_given_one() -> None:
    none = Machine(source="live", driver=Driver(status="no_device"))
    merged = merge([none, box("nvidia-smi topo", Gpu(index=0))])
    assert merged.gpus == ()
    assert merged.driver.status == "no_device"
    assert [c.fact for c in merged.contradictions] == ["gpus"]


def test_a_capture_that_counts_no_gpus_takes_them_from_the_next() -> None:
    broken = Machine(source="live", driver=Driver(status="not_loaded"), host=Host(sockets=2))
    merged = merge([broken, box("nvidia-smi topo", Gpu(index=0), driver=Driver(status="not_read"))])
    assert len(merged.gpus) == 1
    assert (merged.driver.status, merged.host.sockets) == ("not_loaded", 2)
    assert merged.contradictions == ()


def test_readings_that_change_from_second_to_second_do_not_contradict() -> None:
    def at(draw: float, clock: int, used: int) -> Gpu:
        return Gpu(
            index=0,
            power_w=PowerW(draw=draw, limit=300.0),
            clocks_mhz=ClocksMhz(sm=ClockMhz(now=clock, max=1980)),
            memory_mib=MemoryMib(used=used, total=80000),
            pstate=f"P{used}",
        )

    merged = merge([box("a", at(50.0, 300, 0)), box("b", at(290.0, 1900, 2))])
    assert merged.gpus[0] == at(50.0, 300, 0)
    assert merged.contradictions == ()


def test_the_same_fact_in_other_words_does_not_contradict() -> None:
    one = box("a", Gpu(index=0, name="Tesla V100", cpu_affinity="0-3,4-7", pci_address="0000:05:00.0"))
    two = box("b", Gpu(index=0, name="NVIDIA Tesla V100", cpu_affinity="0-7", pci_address="00000000:05:00.0"))
    assert merge([one, two]).contradictions == ()


def test_two_sources_of_one_kind_are_distinguished() -> None:
    one, two = box("nvidia-smi topo", Gpu(index=0, name="A")), box("nvidia-smi topo", Gpu(index=0, name="B"))
    merged = merge([one, two])
    assert merged.source == "nvidia-smi topo + nvidia-smi topo (2)"
    assert merged.contradictions[0].said == {"nvidia-smi topo": "A", "nvidia-smi topo (2)": "B"}


def test_numa_nodes_are_joined_by_their_number() -> None:
    one = Machine(source="a", host=Host(numa_nodes=(NumaNode(index=8, cpus="64-127"),)))
    two = Machine(source="b", host=Host(numa_nodes=(NumaNode(index=0), NumaNode(index=8, memory_mib=5))))
    nodes = merge([one, two]).host.numa_nodes
    assert nodes == (NumaNode(index=0), NumaNode(index=8, cpus="64-127", memory_mib=5))


def test_samples_unread_lines_and_earlier_contradictions_are_kept() -> None:
    old = Contradiction(fact="gpus", said={"x": "1 GPUs"})
    first = Sample(kind="h2d", source="host", destination="gpu:0", median_gb_per_s=6.0)
    second = Sample(kind="d2h", source="gpu:0", destination="host", median_gb_per_s=6.5)
    one = Machine(
        source="a", bandwidth=Bandwidth(source="bandwidthTest", samples=(first,)), contradictions=(old,)
    )
    two = Machine(
        source="b",
        bandwidth=Bandwidth(source="nvbandwidth", samples=(first, second), driver_version="550.54.15"),
        unread=(Unread(source="b", line=1, text="?"),),
    )
    merged = merge([one, two])
    assert merged.bandwidth == Bandwidth(
        source="bandwidthTest + nvbandwidth", samples=(first, second), driver_version="550.54.15"
    )
    assert merged.contradictions == (old,)
    assert merged.unread == two.unread


def test_bundled_facts_complete_a_matrix_of_the_same_box() -> None:
    full = recording.read_bundled("7gforce")
    bare = Machine(
        source="nvidia-smi topo",
        gpus=tuple(Gpu(index=gpu.index, cpu_affinity=gpu.cpu_affinity) for gpu in full.gpus),
        links=tuple(Link(a=link.a, b=link.b, hop=link.hop, nvlinks=0) for link in full.links),
        missing={"gpus[*].name": "not reported", "gpus[*].memory_mib": "not reported"},
    )
    merged = merge([bare, full])
    assert (merged.gpus, merged.links) == (full.gpus, full.links)
    assert merged.contradictions == ()
    assert "gpus[*].name" not in merged.missing
    assert merged.missing["gpus[*].memory_mib"] == "not reported"


PART = "only a part of the reasons is reported"


def held_down(source: str, *reasons: str, note: str | None = None, **throttle: Any) -> Machine:
    """A machine whose GPU 0 has these reasons; `note`: what its source reports beside them."""
    reported = Throttle(reasons=reasons, **throttle)
    missing = {} if note is None else {"gpus[0].throttle.reasons": note}
    return box(source, Gpu(index=0, throttle=reported), missing=missing)


def test_what_is_of_a_part_only_is_noted_beside_any_other_capture() -> None:
    part, other = held_down("a", "sw_power_cap", note=PART), box("b", Gpu(index=0, name="A100"))
    for reported in ([part, other], [other, part], [part, other, held_down("c", "gpu_idle", note=PART)]):
        merged = merge(reported)
        assert merged.gpus[0].throttle.reasons == ("sw_power_cap",)
        assert merged.missing == part.missing


@pytest.mark.parametrize("reasons", [("sw_power_cap", "hw_slowdown"), ()])
def test_what_is_reported_of_a_part_only_yields_to_the_whole(reasons: tuple[str, ...]) -> None:
    part, whole = held_down("a", "sw_power_cap", note=PART), held_down("b", *reasons)
    for reported in ([part, whole], [whole, part]):
        merged = merge(reported)
        assert (merged.gpus[0].throttle.reasons, merged.missing) == (reasons, {})


def test_mask_and_reasons_are_of_one_reading() -> None:
    calm, capped = held_down("a", "gpu_idle"), held_down("b", "sw_power_cap", mask=4)
    assert merge([calm, capped]).gpus[0].throttle == calm.gpus[0].throttle
    assert merge([capped, calm]).gpus[0].throttle == capped.gpus[0].throttle


def test_a_fact_that_sources_show_together_is_not_missing() -> None:
    one = box("a", Gpu(index=0, name="A"), Gpu(index=1), missing={"gpus[*].name": "not reported"})
    two = box("b", Gpu(index=0), Gpu(index=1, name="B"), missing={"gpus[*].name": "not reported"})
    assert merge([one, two]).missing == {}


def test_why_a_gpu_is_lost_is_kept_beside_a_capture_from_before() -> None:
    lost = box("a", Gpu(index=0), Gpu(index=1, lost=True), missing={"gpus[1]": "GPU is lost"})
    before = box("b", Gpu(index=0), Gpu(index=1))
    for reported in ([lost, before], [before, lost]):
        assert merge(reported).missing == {"gpus[1]": "GPU is lost"}


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="no machine"):
        merge([])
