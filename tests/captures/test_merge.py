import itertools
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import merge
from gputopo.values.bandwidth import Bandwidth, CopyRate, Samples
from gputopo.values.ends import End
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Contradiction,
    Driver,
    Ecc,
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
    UtilizationPercent,
)
from gputopo.values.machine import Sample as GpuSample
from gputopo.values.samples import PASSING, at_samples, facts_of
from tests import there


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
def test_a_fact_is_of_one_source_or_the_other_and_a_difference_is_reported(
    first: Machine, second: Machine
) -> None:
    merged = merge([first, second])
    assert merge([merged, merged]) == merged
    for gpu in merged.gpus:
        both = [one.gpus[gpu.index] for one in (first, second) if gpu.index < len(one.gpus)]
        for fact in ("name", "numa_node"):
            said = [getattr(one, fact) for one in both if getattr(one, fact) is not None]
            assert getattr(gpu, fact) in (said or [None])
            differs = any(c.fact == f"gpus[{gpu.index}].{fact}" for c in merged.contradictions)
            assert differs == (len(set(said)) > 1)
    counted = any(c.fact == "gpus" for c in merged.contradictions)
    assert counted == (len(first.gpus) != len(second.gpus))


@st.composite
def readings(draw: st.DrawFn) -> Machine:
    """A capture of two GPUs with some of what passes, perhaps with its time."""
    gpus = tuple(
        Gpu(
            index=index,
            name="A100",
            power_w=PowerW(draw=draw(st.none() | st.sampled_from([30.0, 300.0]))),
            pstate=draw(st.none() | st.sampled_from(["P0", "P8"])),
            utilization_percent=UtilizationPercent(gpu=draw(st.none() | st.sampled_from([0, 99]))),
            ecc=Ecc(uncorrected_volatile=draw(st.none() | st.integers(0, 2))),
            persistence_mode=draw(st.none() | st.booleans()),
        )
        for index in range(2)
    )
    time = draw(
        st.none() | st.sampled_from(["2026-11-23T10:00:00", "2026-11-23T10:00:30", "2026-11-23T12:00:00"])
    )
    source = draw(st.sampled_from(["nvidia-smi -q", "nvidia-smi --query-gpu", "nvidia-smi -q -x"]))
    return Machine(
        source=source, gpus=gpus, samples=() if time is None else (GpuSample(source=source, time=time),)
    )


@given(st.lists(machines(), min_size=2, max_size=3) | st.lists(readings(), min_size=2, max_size=3))
def test_the_order_of_captures_changes_nothing(captures: list[Machine]) -> None:
    merged = merge(captures)
    for order in itertools.permutations(captures):
        assert merge(order) == merged


@given(st.lists(readings(), min_size=1, max_size=4))
def test_no_sample_is_a_mixture(captures: list[Machine]) -> None:
    for sample in at_samples(merge(captures)):
        parts = [capture for capture in captures if _is_part(capture, sample)]
        for index, gpu in enumerate(sample.gpus):
            for path, value in facts_of(gpu).items():
                if path in PASSING:
                    assert any(facts_of(part.gpus[index]).get(path) == value for part in parts)


def test_a_capture_that_fits_an_idle_and_a_busy_one_is_of_neither() -> None:
    idle, busy = (box(name, Gpu(index=0, power_w=PowerW(draw=w))) for name, w in (("a", 30.0), ("b", 300.0)))
    clocks = box("c", Gpu(index=0, clocks_mhz=ClocksMhz(sm=ClockMhz(now=1980))))
    samples = at_samples(merge([idle, busy, clocks]))
    assert [(one.gpus[0].power_w.draw, one.gpus[0].clocks_mhz.sm.now) for one in samples] == [
        (30.0, None),
        (300.0, None),
        (None, 1980),
    ]
    assert merge([idle, clocks]).samples == ()


def test_the_last_sample_by_time_is_shown() -> None:
    def at(time: str, watts: float) -> Machine:
        gpu = Gpu(index=0, power_w=PowerW(draw=watts))
        return box("a", gpu, samples=(GpuSample(source="a", time=time),))

    merged = merge([at("2026-11-23T10:00:00", 30.0), at("2026-11-23T09:00:00", 300.0)])
    assert merged.gpus[0].power_w.draw == 30.0
    assert [sample.time for sample in merged.samples] == ["2026-11-23T09:00:00", "2026-11-23T10:00:00"]
    assert [sample.gpus[0]["power_w.draw"] for sample in merged.samples] == [300.0, 30.0]


def _is_part(capture: Machine, sample: Machine) -> bool:
    pairs = zip(capture.gpus, sample.gpus, strict=True)
    return all(
        facts_of(gpu).get(path, value) == value
        for mine, gpu in pairs
        for path, value in facts_of(mine).items()
    )


@given(st.lists(readings(), min_size=1, max_size=4))
def test_every_reading_is_in_a_sample(captures: list[Machine]) -> None:
    samples = at_samples(merge(captures))
    for capture in captures:
        assert any(_is_part(capture, sample) for sample in samples)


@given(machines(), machines(), machines())
def test_merging_never_loses_a_link(first: Machine, second: Machine, third: Machine) -> None:
    merged = merge([first, second, third])
    for link in (link for one in (first, second, third) for link in one.links):
        got = merged.link(link.a, link.b)
        known = {gpu.index for gpu in merged.gpus}
        assert got is not None or not {link.a, link.b} <= known
        assert got is None or link.hop is None or got.hop is not None


def test_a_contradiction_names_the_fact_and_what_each_source_reported() -> None:
    one = box("live", Gpu(index=0), Gpu(index=1), links=(Link(a=0, b=1, hop=Hop.PIX, nvlinks=0),))
    two = box("live", Gpu(index=0), Gpu(index=1), links=(Link(a=0, b=1, hop=Hop.SYS, nvlinks=2),))
    merged = merge([one, two])
    assert merged.source == "live + live (2)"
    assert (merged.links[0].hop, merged.links[0].nvlinks) == (Hop.PIX, 0)
    assert merged.contradictions == (
        Contradiction(fact="links[0-1].hop", said={"live": "PIX", "live (2)": "SYS"}),
        Contradiction(fact="links[0-1].nvlinks", said={"live": "0", "live (2)": "2"}),
    )


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


def test_numbers_of_a_cuda_program_are_turned_where_any_capture_reports_cudas_order() -> None:
    source = "nvbandwidth"
    first = box("a", Gpu(index=0, pci_address="0000:05:00.0"), Gpu(index=1, pci_address="0000:c1:00.0"))
    log = box(
        "tensorflow log",
        Gpu(index=0, cuda_index=1, pci_address="0000:05:00.0"),
        Gpu(index=1, cuda_index=0, pci_address="0000:c1:00.0"),
    )
    measured = Bandwidth(
        source=source,
        samples=Samples(
            (CopyRate(kind="h2d", source=End("host"), destination=End("gpu:0"), median_gb_per_s=24.1),)
        ),
    )
    program = box(source, Gpu(index=0, name="large"), Gpu(index=1, name="small"), bandwidth=measured)
    for order in ([first, log, program], [first, program, log]):
        merged = merge(order)
        assert [gpu.name for gpu in merged.gpus] == ["small", "large"]
        assert there(merged.bandwidth).samples[0].destination == "gpu:1"
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
    assert [one.gpus[0] for one in at_samples(merged)] == [at(50.0, 300, 0), at(290.0, 1900, 2)]
    assert merged.contradictions == ()


def test_numa_nodes_are_joined_by_their_number() -> None:
    one = Machine(source="a", host=Host(numa_nodes=(NumaNode(index=8, cpus="64-127"),)))
    two = Machine(source="b", host=Host(numa_nodes=(NumaNode(index=0), NumaNode(index=8, memory_mib=5))))
    nodes = merge([one, two]).host.numa_nodes
    assert nodes == (NumaNode(index=0), NumaNode(index=8, cpus="64-127", memory_mib=5))


PART = "only a part of the reasons is reported"


def held_down(source: str, *reasons: str, note: str | None = None, **throttle: Any) -> Machine:
    """A machine whose GPU 0 has these reasons; `note`: what its source reports beside them."""
    reported = Throttle(reasons=reasons, **throttle)
    missing = {} if note is None else {"gpus[0].throttle.reasons": note}
    return box(source, Gpu(index=0, throttle=reported), missing=missing)


def test_what_is_reported_of_a_part_only_yields_to_the_whole() -> None:
    reasons = ("sw_power_cap", "hw_slowdown")
    part, whole = held_down("a", "sw_power_cap", note=PART), held_down("b", *reasons)
    for reported in ([part, whole], [whole, part]):
        merged = merge(reported)
        assert (merged.gpus[0].throttle.reasons, merged.missing) == (reasons, {})


def test_a_fact_that_sources_show_together_is_not_missing() -> None:
    one = box("a", Gpu(index=0, name="A"), Gpu(index=1), missing={"gpus[*].name": "not reported"})
    two = box("b", Gpu(index=0), Gpu(index=1, name="B"), missing={"gpus[*].name": "not reported"})
    assert merge([one, two]).missing == {}
