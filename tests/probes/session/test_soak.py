from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import msgspec
import pytest

from gputopo.findings import find_bandwidth
from gputopo.probes import (
    Copy,
    CopyJob,
    CopyWindow,
    DriverStop,
    NotReadError,
    SessionRequest,
    SoakReadings,
)
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Driver, Gpu, Machine, NvLink, Pcie, PciNode
from gputopo.values.run.events import GpuSample, MachineSample, Xid
from tests.probes.session.double import Clock, EngineDouble, doors, machine, measure

ALL_PEERS = frozenset(permutations(range(8), 2))
TEN_MINUTES = SessionRequest(soak_s=600.0)


def run(engine: EngineDouble, request: SessionRequest = TEN_MINUTES) -> Bandwidth:
    return measure(machine(engine.gpus), request, doors=doors(engine))


def jobs_of_a_round(
    count: int, gpus: tuple[int, ...], peers: frozenset[tuple[int, int]] = frozenset()
) -> list[CopyJob]:
    jobs: list[CopyJob] = []
    engine = EngineDouble(gpus=count, peers=peers)
    request = SessionRequest(gpus=gpus, soak_s=2.0)
    measure(machine(count), request, doors=doors(engine), on_job=jobs.append)
    return list(dict.fromkeys(jobs))


def test_each_job_of_a_round_puts_all_gpus_under_load() -> None:
    host, one, two, inside = jobs_of_a_round(6, (0, 2, 5), frozenset({(0, 2), (2, 0)}))
    assert {(copy.kind, copy.source, copy.destination) for copy in host.copies} == {
        *(("h2d", "host", f"gpu:{gpu}") for gpu in (0, 2, 5)),
        *(("d2h", f"gpu:{gpu}", "host") for gpu in (0, 2, 5)),
    }
    ends = [(copy.source, copy.destination) for copy in (*one.copies, *two.copies)]
    assert sorted(ends) == [(f"gpu:{a}", f"gpu:{b}") for a, b in permutations((0, 2, 5), 2)]
    kinds = {copy.gpus: copy.kind for copy in (*one.copies, *two.copies)}
    assert kinds[0, 2] == "p2p_direct"
    assert kinds[2, 5] == "p2p_staged"
    assert [copy.source for copy in inside.copies] == ["gpu:0", "gpu:2", "gpu:5"]
    assert len(jobs_of_a_round(2, (1,))) == 2


def test_it_lasts_as_long_as_it_is_asked_to_and_has_a_series() -> None:
    found = run(EngineDouble(gpus=3, peers=ALL_PEERS, each_s=0.5))
    soak = found.soak
    assert soak is not None
    assert (*found.samples, *found.failures) == ()
    assert (found.complete, found.level) == (True, None)
    assert soak.intervals[-1].end_s == pytest.approx(600, abs=2)
    assert 50 <= len(soak.intervals) <= 60
    last = {(one.kind, one.gpus): one.gb_per_s for one in soak.intervals[-2].rates}
    assert last["h2d", (2,)] == pytest.approx(12.0)
    assert last["d2d_local", (0,)] == pytest.approx(800.0)
    assert last["p2p_direct", (2, 1)] == pytest.approx(12.0)
    assert all(interval.copied_bytes.keys() == {0, 1, 2} for interval in soak.intervals[:-1])
    assert schema.decode(schema.encode(found), Bandwidth, origin="here") == found


@pytest.mark.parametrize(("soak_s", "interval_s"), [(3600.0, 60.0), (60.0, 5.0)])
def test_intervals_are_a_share_of_the_time(soak_s: float, interval_s: float) -> None:
    soak = run(EngineDouble(gpus=1, each_s=interval_s / 20), SessionRequest(soak_s=soak_s)).soak
    assert soak is not None
    assert soak.intervals[0].end_s == pytest.approx(interval_s, rel=0.2)


def test_data_that_differ_end_it_with_what_there_is() -> None:
    engine = EngineDouble(gpus=2, each_s=0.5)

    def rate(copy: Copy) -> float:
        if engine.clock.now_s > 100:
            engine.faults = {("h2d", "host", "gpu:1"): "WRONG_DATA"}
        return 12.0

    engine.rate = rate
    found = run(engine)
    (failure,) = found.failures
    assert (failure.kind, failure.destination, failure.reason) == ("h2d", "gpu:1", "WRONG_DATA")
    assert engine.clock.now_s < 110
    assert found.soak is not None
    assert len(found.soak.intervals) >= 9
    (left_out,) = found.not_measured
    assert left_out.reason == "a copy failed (WRONG_DATA)"
    assert left_out.what.endswith("to 10.0 min")
    judged = msgspec.structs.replace(machine(2), bandwidth=found)
    assert "bandwidth.wrong_data" in {one.id for one in find_bandwidth(judged)}


def test_ctrl_c_gives_the_intervals_until_then() -> None:
    found = run(EngineDouble(gpus=2, each_s=0.5, interrupt_after=100))
    assert found.soak is not None
    assert not found.complete
    assert found.not_measured[-1].reason == "interrupted"
    assert found.soak.intervals


def with_counters(minutes: float) -> Machine:
    """Return a machine that has counted errors for so long: replays on GPU 0, an NVLink's on GPU 1."""
    count = int(minutes)
    gpus = (
        Gpu(index=0, pci_address="0000:01:00.0", pcie=Pcie(replay_counter=100 + 30 * count)),
        Gpu(
            index=1,
            pci_address="0000:02:00.0",
            nvlinks=(NvLink(link=3, active=True, errors={"replay": 2 * count, "recovery": 0}),),
        ),
        Gpu(index=2, pci_address="0000:03:00.0", pcie=Pcie(aer={"correctable": 7, "fatal": 0})),
    )
    return Machine(source="live", driver=Driver(status="ok"), gpus=gpus)


@dataclass
class WatcherDouble:
    clock: Clock
    xids: list[Xid] = field(default_factory=list)
    xid_reason: str | None = None
    stop: DriverStop | None = None

    def observe(self) -> MachineSample:
        xids, self.xids = tuple(self.xids), []
        gpus = tuple(GpuSample(gpu=gpu, temperature_c=60, gpu_utilization_percent=90) for gpu in range(3))
        return MachineSample(time_s=self.clock(), gpus=gpus, xids=xids)

    def close(self) -> None:
        pass


def soaked(
    engine: EngineDouble, read: Callable[[float], Machine], *xids: Xid
) -> tuple[Machine, SoakReadings]:
    clock = engine.clock
    readings = SoakReadings(
        read(0.0),
        600.0,
        lambda: read(clock() / 60),
        watch=lambda _: WatcherDouble(clock, list(xids)),
        now=clock,
        epoch=lambda: 1_700_000_000.0 + clock(),
    )
    measure_one = engine.measure

    def measured(
        job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> CopyWindow:
        readings.tick()
        return measure_one(job, sizes, while_running)

    engine.measure = measured  # type: ignore[method-assign]
    with readings:
        bandwidth = run(engine)
        return msgspec.structs.replace(readings.machine(), bandwidth=bandwidth), readings


def test_counters_that_grow_under_load_are_found_with_their_rate() -> None:
    found, readings = soaked(EngineDouble(gpus=3, each_s=0.5), with_counters, Xid(code=74, gpu=1))
    assert 55 <= len(found.samples) <= 63
    by_gpu = {one.subject.gpus[0]: one for one in find_bandwidth(found) if one.id == "soak.errors"}
    assert by_gpu.keys() == {0, 1}
    assert by_gpu[0].severity == "warning"
    assert "PCIe replay counter by 300 (30 a minute, " in by_gpu[0].says
    assert "per GB copied" in by_gpu[0].says
    assert by_gpu[1].evidence["rose"] == {"nvlink 3 replay": 20}
    assert "NVLink 3 replay by 20 (2 a minute, " in by_gpu[1].says
    with_watched = find_bandwidth(found, readings.history)
    assert [one.evidence["xid"] for one in with_watched if one.id == "driver.xid"] == [74]


def test_a_rate_that_falls_as_a_gpu_heats_up_is_found() -> None:
    engine = EngineDouble(gpus=3, each_s=0.5)

    def rate(copy: Copy) -> float:
        hot = engine.clock.now_s > 300 and copy.destination == "gpu:1"
        return 9.0 if hot else 12.0

    def read(minutes: float) -> Machine:
        gpus = tuple(
            msgspec.structs.replace(
                gpu, temperature_c=msgspec.structs.replace(gpu.temperature_c, gpu=60 + int(2 * minutes))
            )
            for gpu in with_counters(0.0).gpus
        )
        return msgspec.structs.replace(with_counters(0.0), gpus=gpus)

    engine.rate = rate
    found, _ = soaked(engine, read)
    fell = [one for one in find_bandwidth(found) if one.id == "soak.rate_fell"]
    assert [one.subject.text for one in fell] == ["gpu:1"]
    assert "from the host 12 to 9 GB/s (-25%)" in fell[0].says
    assert "from other GPUs through the host 12 to 9 GB/s (-25%)" in fell[0].says
    assert "60 °C at the first reading, 80 °C at most" in fell[0].says


def test_a_driver_that_hangs_is_not_asked_again() -> None:
    asked: list[float] = []

    def read(minutes: float) -> Machine:
        asked.append(minutes)
        status: Any = "hung" if minutes > 2 else "ok"
        return msgspec.structs.replace(with_counters(minutes), driver=Driver(status=status))

    found, _ = soaked(EngineDouble(gpus=3, each_s=0.5), read)
    assert len([one for one in asked if one > 2]) == 2  # once more for the end
    assert all(sample.gpus for sample in found.samples)


def test_what_could_not_be_read_is_noted() -> None:
    clock = Clock()
    stop = DriverStop("hung", "nvmlDeviceGetName", (1,), "did not return within 10 s")
    watchers = [
        WatcherDouble(clock),
        WatcherDouble(clock, xid_reason="NO_PERMISSION"),
        WatcherDouble(clock, stop=stop),
    ]

    def notes(watch: Callable[[Sequence[int]], Any]) -> tuple[str, ...]:
        with SoakReadings(machine(1), 600.0, lambda: machine(1), watch=watch, now=clock) as readings:
            readings.tick()
            return readings.notes()

    assert [notes(lambda _, one=one: one) for one in watchers] == [  # type: ignore[misc]
        (),
        ("Xid errors were not watched: NVML NO_PERMISSION",),
        (f"no clocks, temperatures and Xid errors from then on: {stop.text}",),
    ]

    def refused(_: Sequence[int]) -> Any:
        raise NotReadError("LIBRARY_NOT_FOUND")

    assert notes(refused) == ("no clocks, temperatures and Xid errors were sampled: NVML LIBRARY_NOT_FOUND",)


def port(address: str, parent: str | None = None, kind: Any = "bridge", **aer: int) -> PciNode:
    return PciNode(address=f"0000:{address}.0", kind=kind, root="pci0000:00", parent=parent, aer=aer)


def test_errors_of_a_slot_are_those_of_its_gpu_and_others_the_machine_s() -> None:
    def read(minutes: float) -> Machine:
        count = int(minutes)
        nodes = (
            port("00:01", correctable=5, fatal=0),
            port("00:02", "0000:00:01.0", correctable=3 * count),
            port("01:00", "0000:00:02.0", "gpu", correctable=count),
            port("00:03", nonfatal=count),
        )
        return msgspec.structs.replace(with_counters(0.0), pci=nodes)

    last, readings = soaked(EngineDouble(gpus=3, each_s=0.5), read)
    ports = readings.port_errors()
    assert ports == {"0000:00:02.0": {"correctable": 30}, "0000:00:03.0": {"nonfatal": 10}}
    bandwidth = last.bandwidth
    assert bandwidth is not None
    assert bandwidth.soak is not None
    soak = msgspec.structs.replace(bandwidth.soak, port_errors=ports)
    bandwidth = msgspec.structs.replace(bandwidth, soak=soak)
    found = find_bandwidth(msgspec.structs.replace(last, bandwidth=bandwidth))
    assert {(one.id, one.subject.text, one.severity) for one in found} == {
        ("soak.errors", "gpu:0", "info"),
        ("soak.errors", "machine", "error"),
    }
    (of_slot,) = (one.says for one in found if one.subject.text == "gpu:0")
    assert "PCIe AER errors correctable of 0000:00:02.0 by 30" in of_slot
