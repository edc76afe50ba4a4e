import math
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from gputopo.probes import (
    CallLimits,
    CallSlot,
    Channel,
    CopyJob,
    CopyWindow,
    SessionProgress,
    SessionRequest,
    describe,
    measure_watched,
)
from gputopo.probes.session import Doors
from gputopo.values.bandwidth import Bandwidth, Copied
from gputopo.values.errors import UsageError
from tests.kit.driver_time import DriverTime
from tests.probes.session.double import EngineDouble, doors, machine

TIME = DriverTime()
# Of what returns: never reached, however busy the machine is.
PATIENT = CallLimits(start_s=60.0, call_s=60.0, nvml_s=60.0, quiet_s=60.0, end_s=60.0, reap_s=60.0)
End = Callable[[], None]


def hang() -> None:
    TIME.sleep(math.inf)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@dataclass
class Faulty(EngineDouble):
    """Does `fault` in a call of `function` about `gpu` in the first job whose description has `job` in it."""

    fault: End = crash
    function: str = "cuMemAlloc"
    gpu: int = 1
    job: str = "h2d host -> gpu:1"
    slot: CallSlot = field(default_factory=lambda: CallSlot(bytearray(256), 0))  # type: ignore[arg-type]

    def measure(
        self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> CopyWindow:
        if self.job in describe(job):
            self.slot.begin(self.function, str(self.gpu))
            self.fault()
        self.slot.begin("cuEventQuery", "0")
        self.slot.end()
        return super().measure(job, sizes, while_running)


def run(engine: Faulty, gpus: int = 3, *, limits: CallLimits = PATIENT) -> Bandwidth:
    def opened(feed: Channel) -> Doors:
        engine.slot = feed.cuda
        return doors(engine)

    engine.gpus = gpus
    return measure_watched(machine(gpus), SessionRequest(), doors=opened, limits=limits, poll=TIME.look)


def kinds(found: Bandwidth) -> set[tuple[str, str, str]]:
    return {(one.kind, one.source, one.destination) for one in found.samples}


def test_a_session_in_a_child_gives_what_one_in_this_process_gives() -> None:
    reported: list[SessionProgress] = []
    engine = EngineDouble(gpus=2)
    found = measure_watched(machine(2), SessionRequest(), reported.append, doors=lambda _: doors(engine))
    assert not engine.asked  # that was in the child
    assert (found.failures, found.complete) == ((), True)
    assert {"h2d", "d2h", "d2d_local", "p2p_staged", "latency"} <= {one.kind for one in found.samples}
    assert reported[0].now == "host memory"
    assert reported[-1].done == reported[-1].total - 1


@pytest.mark.parametrize(
    ("fault", "reason", "how"),
    [
        (hang, "TIMED_OUT", "did not return within 60 s"),
        (crash, "CRASHED", "ended the process with SIGSEGV"),
    ],
)
def test_a_call_that_does_not_return_costs_its_gpu_and_the_rest_goes_on(
    fault: End, reason: str, how: str
) -> None:
    found = run(Faulty(fault=fault))
    (failure,) = found.failures
    assert (failure.kind, failure.destination, failure.reason) == ("h2d", "gpu:1", reason)
    assert failure.says == f"cuMemAlloc of GPU 1 {how}"
    assert found.complete
    places = {place for one in found.samples for place in (one.source, one.destination)}
    assert places == {"host", "gpu:0", "gpu:2"}
    assert ("p2p_staged", "gpu:0", "gpu:2") in kinds(found)
    reason = f"gpu:1 is no longer used: {failure.says}"
    assert [one.what for one in found.not_measured if one.reason == reason] == ["other copies of gpu:1"]


def test_nothing_is_measured_twice_after_a_restart() -> None:
    found = run(Faulty(job="d2d_local gpu:1"))
    names = [
        (one.kind, one.source, one.destination, one.path, one.pinned, one.method, one.group)
        for one in found.samples
        if isinstance(one, Copied)
    ]
    assert len(names) == len(set(names))
    assert ("h2d", "host", "gpu:1") in kinds(found)
    assert len(found.not_measured) == len({one.what for one in found.not_measured})


def test_several_gpus_are_given_up_one_after_another() -> None:
    @dataclass
    class TwoFaults(Faulty):
        def measure(
            self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
        ) -> CopyWindow:
            for gpu in (1, 2):
                if f"h2d host -> gpu:{gpu}" in describe(job):
                    self.slot.begin("cuMemAlloc", str(gpu))
                    crash()
            return EngineDouble.measure(self, job, sizes, while_running)

    found = run(TwoFaults(), 4)
    assert [(one.destination, one.reason) for one in found.failures] == [
        ("gpu:1", "CRASHED"),
        ("gpu:2", "CRASHED"),
    ]
    assert ("p2p_staged", "gpu:3", "gpu:0") in kinds(found)


def test_a_process_that_is_killed_leaves_what_was_measured() -> None:
    found = run(Faulty(fault=lambda: os.kill(os.getpid(), signal.SIGKILL), job="d2h gpu:1 -> host"))
    assert (found.complete, found.failures) == (False, ())
    assert ("h2d", "host", "gpu:1") in kinds(found)
    reasons = {one.reason for one in found.not_measured}
    assert any(
        reason.startswith("cuMemAlloc of GPU 1 ended the process with SIGKILL, as the kernel does")
        for reason in reasons
    )


def test_a_fault_of_ours_is_raised_here() -> None:
    def broken(feed: Channel) -> Doors:
        raise ZeroDivisionError("ours")

    with pytest.raises(RuntimeError, match="ZeroDivisionError: ours"):
        measure_watched(machine(2), SessionRequest(), doors=broken, limits=PATIENT)


def test_bad_usage_is_found_before_anything_is_started() -> None:
    with pytest.raises(UsageError, match="there is no GPU 9"):
        measure_watched(machine(2), SessionRequest(gpus=(9,)), doors=lambda _: pytest.fail("started"))


@pytest.mark.parametrize("end_s", [60.0, 0.3])
def test_ctrl_c_gives_what_was_measured_until_then_also_of_a_child_that_does_not_end(end_s: float) -> None:
    class Interrupted(Faulty):
        def measure(
            self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
        ) -> CopyWindow:
            if "d2h gpu:1 -> host" in describe(job):
                if end_s < 1:
                    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                os.kill(os.getppid(), signal.SIGINT)
                signal.pause()
            return super().measure(job, sizes, while_running)

    found = run(Interrupted(job="none"), limits=PATIENT._replace(end_s=end_s))
    assert not found.complete
    assert ("h2d", "host", "gpu:1") in kinds(found)
    assert {one.what for one in found.not_measured if one.reason == "interrupted"} >= {
        "d2h gpu:1 -> host",
        "d2h gpu:2 -> host" if end_s > 1 else "the rest of the copies",
    }
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_soak_ends_with_the_call_that_does_not_return() -> None:
    class Late(Faulty):
        def measure(
            self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
        ) -> CopyWindow:
            self.job = "pairs 1 apart" if self.clock.now_s > 30 else "none"
            return super().measure(job, sizes, while_running)

    engine = Late(each_s=0.2)
    engine.gpus = 3

    def opened(feed: Channel) -> Doors:
        engine.slot = feed.cuda
        return doors(engine)

    pauses: list[int] = []
    found = measure_watched(
        machine(3),
        SessionRequest(soak_s=600.0),
        doors=opened,
        limits=PATIENT,
        on_pause=lambda: pauses.append(1),
    )
    assert not found.complete
    assert {one.reason for one in found.failures} == {"CRASHED"}
    assert [(one.source, one.destination) for one in found.failures] == [
        ("gpu:0", "gpu:1"),
        ("gpu:1", "gpu:2"),
    ]
    assert found.soak is not None
    assert found.soak.intervals[-1].end_s == pytest.approx(25, abs=6)
    assert any(note.startswith("the measurement ended early: cuMemAlloc of GPU 1") for note in found.notes)
    assert pauses
