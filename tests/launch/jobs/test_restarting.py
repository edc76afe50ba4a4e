"""The rest of a run after a failure of its worker."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.jobs.restarting import (
    Regrouping,
    SavedSteps,
    continued,
    fewer_of,
    is_loss,
    is_of_nccl,
    may_restart,
    require_losable,
    without_hosts,
)
from gputopo.launch.spec.job_spec import Server
from gputopo.launch.spec.names import device_name
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values import schema
from gputopo.values.errors import UsageError
from gputopo.values.run.drill import read_drills
from gputopo.values.run.events import BUILDING, NCCL_TEST, CheckpointSaved, Device, RankFailed, Step
from gputopo.values.run.verdict import Expected, Known
from tests.launch.specs import cpu_spec


def step(number: int) -> Step:
    return Step(time_s=0.0, step=number, seconds=0.1, images=8, loss=1.0, marks=())


def saved(steps: int) -> CheckpointSaved:
    return CheckpointSaved(time_s=0.0, path="c", steps=steps, bytes=1, seconds=0.1)


def test_only_counted_steps_before_a_checkpoint_are_kept_also_over_restarts() -> None:
    kept = SavedSteps()
    for event in (step(0), step(1), step(2), saved(3), step(3)):
        kept.add(event)
    assert (kept.counted, kept.trained) == (2, 3)
    kept.begin_again()
    for event in (step(0), step(1), saved(5)):
        kept.add(event)
    assert (kept.counted, kept.trained) == (4, 5), "of a worker that goes on the warm-up counts, too"


def test_the_rest_trains_as_many_steps_as_an_uninterrupted_run() -> None:
    cases: list[tuple[int, tuple[int, int] | None]] = [
        (0, (3, 10)),
        (4, (3, 3)),
        (8, (1, 1)),
        (9, (0, 1)),
        (10, None),
    ]
    for counted, steps in cases:
        rest = continued(cpu_spec(num_batches=10, num_warmup_batches=3), counted)
        assert (None if rest is None else (rest.num_warmup_batches, rest.num_batches)) == steps
        assert rest is None or rest.lifecycle.resume_or_start


def test_what_comes_again_is_not_tried_again() -> None:
    cases: list[tuple[str, int, bool]] = [
        ("killed", 137, True),
        ("hung", 3, True),
        ("error", 3, True),
        ("error", 2, False),
        ("out_of_memory", 3, False),
        ("disk_full", 3, False),
        ("interrupted", 130, False),
    ]
    for kind, code, again in cases:
        failed = RankFailed(time_s=0.0, kind=kind, cause="c", remedy="r", exit_code=code)
        assert may_restart(failed) == again


def test_nccl_failed_where_its_test_ended_by_an_error_a_crash_or_a_hang() -> None:
    cases: list[tuple[str, str | None, bool]] = [
        ("placement", None, True),  # a wrong sum, or an error of TensorFlow's
        ("error", None, True),  # of Python, or of the loader
        ("killed", "SIGABRT", True),
        ("killed", "SIGSEGV", True),
        ("hung", None, True),
        ("killed", "SIGKILL", False),  # by somebody
        ("out_of_memory", None, False),
        ("disk_full", None, False),
        ("interrupted", "SIGINT", False),
        ("terminated", "SIGTERM", False),
    ]
    for kind, signal, of_nccl in cases:
        failed = RankFailed(time_s=0.0, kind=kind, cause="c", remedy="r", exit_code=3, signal=signal)
        assert is_of_nccl(failed, NCCL_TEST) == of_nccl, kind
        assert not is_of_nccl(failed, BUILDING)
        assert not is_of_nccl(failed, None)


def test_a_drill_that_happened_does_not_happen_again_and_a_slow_gpu_stays_slow_from_the_same_step_on() -> (
    None
):
    drills = read_drills("--drill", ["slow-gpu=1:0.9@10", "slow-gpu=1:0.8@50", "hang@20", "lost-gpu=0@21"])
    rest = continued(cpu_spec(num_batches=100, drills=drills), 20)
    assert rest is not None
    assert [one.typed for one in rest.drills] == ["slow-gpu=1:0.9", "slow-gpu=1:0.8@30"]


def hosts_spec(*of_each: int, **fields: Any) -> RunSpec:
    """A run over hosts n0, n1, ... with so many CPU devices each."""
    places = [(rank, number) for rank, count in enumerate(of_each) for number in range(count)]
    devices = tuple(
        Device(tower=tower, device=device_name("CPU", number, rank), rank=rank, host=f"n{rank}")
        for tower, (rank, number) in enumerate(places)
    )
    servers = tuple(
        Server(host=f"n{rank}", address=f"10.0.0.{rank}:1", cores=4) for rank in range(len(of_each))
    )
    copies = {"variable_update": "replicated", "ps_device": None, "all_reduce": "copy"}
    return cpu_spec(**{"devices": devices, "servers": servers, **copies, **fields})


def host_failed(kind: str, code: int, rank: int = 1) -> RankFailed:
    return RankFailed(time_s=0.0, rank=rank, kind=kind, cause="c", remedy="r", exit_code=code)


def test_a_host_is_lost_by_what_the_others_do_not_share() -> None:
    cases: list[tuple[str, int, bool]] = [
        ("unreachable", 3, True),  # silent, or its server gone
        ("killed", 137, True),  # its server
        ("terminated", 143, True),  # by its batch system, such as a node that is taken back
        ("error", 3, True),  # a port that is taken
        ("disk_full", 3, True),
        ("interrupted", 130, False),  # by who sits there
        ("error", 2, False),  # refused
        ("error", 70, False),  # a bug, which every host has
    ]
    for kind, code, lost in cases:
        assert is_loss(host_failed(kind, code)) == lost
        assert not is_loss(host_failed(kind, code, rank=0)), "rank 0 cannot be lost"


@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.data())
def test_what_is_left_trains_as_before_on_its_own_devices(of_each: list[int], data: st.DataObject) -> None:
    count = sum(of_each)
    batches = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    lost = data.draw(st.sets(st.integers(1, len(of_each) - 1)))
    groups, first = [], 0
    for own in of_each:
        groups.append(tuple(range(first, first + own)))
        first += own
    before = hosts_spec(*of_each, batch_size=tuple(batches), all_reduce="hierarchical")
    exchange = msgspec.structs.replace(before.exchange, groups=tuple(groups))
    before = msgspec.structs.replace(before, exchange=exchange)
    left = without_hosts(before, lost)
    assert set(left.ranks) == set(range(len(of_each))) - lost
    assert [one.tower for one in left.devices] == list(range(len(left.devices)))
    batch_of = {one.device: batch for one, batch in zip(before.devices, before.batches, strict=True)}
    assert left.batches == tuple(batch_of[one.device] for one in left.devices)
    assert [{left.devices[tower].rank for tower in group} for group in left.exchange.groups] == [
        {rank} for rank in left.ranks
    ]
    assert left.servers == before.servers
    assert without_hosts(left, ()) == left


def test_the_learning_rate_stays_unless_it_was_to_be_scaled_with_the_devices() -> None:
    plain = hosts_spec(1, 2, 1, learning_rate=0.4)
    assert without_hosts(plain, {1}).learning_rate == 0.4
    scaled = hosts_spec(1, 2, 1, learning_rate=0.4, asked={"scale_learning_rate": True})
    assert without_hosts(scaled, {1}).learning_rate == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        (
            {
                "variable_update": "parameter_server",
                "all_reduce": None,
                "ps_device": device_name("CPU", 0, 2),
                "asked": {"ps": "host:2"},
            },
            r"the variables were on n2 \(--ps host:2\)",
        ),
        ({"all_reduce": "psgpu#3"}, "psgpu#3 adds on 3 devices, there are 2"),
    ],
)
def test_no_host_is_done_without_that_what_was_asked_for_needs(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        without_hosts(hosts_spec(1, 1, 1, **fields), {2})


def test_a_mode_whose_state_a_host_takes_with_it_cannot_lose_one() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"variable_update": "independent", "all_reduce": None}, "--variable-update independent"),
        ({"exchange": {"asynchronous": True}}, "--async"),
        ({"exchange": {"staged": True}}, "--staged-vars"),
        ({"exchange": {"relaxed": True}}, "--variable-consistency relaxed"),
    ]
    for fields, what in cases:
        spec = hosts_spec(1, 1)
        if "exchange" in fields:
            fields = {"exchange": msgspec.structs.replace(spec.exchange, **fields["exchange"])}
        with pytest.raises(UsageError, match=f"--min-hosts cannot be combined with {what}"):
            require_losable(msgspec.structs.replace(spec, **fields), 1, 1)


def test_min_hosts_needs_a_restart_and_no_more_hosts_than_there_are() -> None:
    spec = hosts_spec(1, 1)
    require_losable(spec, 2, 1)
    with pytest.raises(UsageError, match="--restart is 0"):
        require_losable(spec, 1, 0)
    with pytest.raises(UsageError, match="--min-hosts 3 is more than the 2 hosts of this training"):
        require_losable(spec, 3, 1)


def test_what_is_different_is_said_and_what_is_known_of_the_devices_goes_with_them() -> None:
    before = hosts_spec(1, 2, 1, learning_rate=0.4)
    speed = Expected(images_per_sec=1.0, low=1.0, high=1.0, source="s")
    known = Known(
        expected=speed, speeds={0: speed, 1: speed, 3: speed}, sharing={3: (2, 3)}, memory_mib={"2:0": 8}
    )
    fewer = fewer_of(before, without_hosts(before, {1}), known)
    assert fewer is not None
    assert fewer.lost == ("n1",)
    assert fewer.known == Known(speeds={0: speed, 1: speed}, sharing={1: (1,)}, memory_mib={"2:0": 8})
    assert fewer.says.startswith(
        "on 2 devices of 2 hosts, with 8 images a step, 16 before; the learning rate is the same. "
    )
    assert fewer_of(before, before, known) is None


SPEC = hosts_spec(1, 1, 1, 1, num_batches=10, num_warmup_batches=0)
LATE, STOPPED = "late", "stopped"


class Hosts:
    """The meeting with three other hosts, and the wait for them: what happens in each wait is given.

    Each is what comes to be meanwhile: hosts that are lost, by rank; `LATE`: nothing in time; `STOPPED`: a
    signal; nothing: all hosts that are left serve.
    """

    decided_s = 10.0

    def __init__(self, *waits: dict[int, str] | str) -> None:
        self._waits: Iterator[dict[int, str] | str] = iter(waits)
        self._lost: dict[int, str] = {}
        self._serves: bool = True
        self.specs: list[RunSpec] = []
        self.waited_s: list[float] = []
        self.noted: list[str] = []

    def members(self) -> contextlib.AbstractContextManager["Hosts"]:
        return contextlib.nullcontext(self)

    def lost(self) -> dict[int, str]:
        return dict(self._lost)

    def lose(self, *ranks: int) -> None:
        self._lost |= {rank: f"host n{rank} is lost" for rank in ranks}

    def serving(self) -> bool:
        return self._serves

    def start_again(self, spec: bytes) -> None:
        self._serves = False
        self.specs.append(schema.decode(spec, RunSpec, origin="the answer"))

    def give_up(self, why: str) -> None:
        self._lost |= {rank: f"host n{rank}: it {why}" for rank in self.specs[-1].ranks if rank == 3}

    def wait(self, until: Callable[[], bool], timeout_s: float) -> bool | None:
        if until():
            return True
        self.waited_s.append(timeout_s)
        came = next(self._waits)
        if isinstance(came, str):
            return None if came == STOPPED else False
        self._lost |= came
        self._serves = not came
        return until()

    def rest(self, group: Regrouping, failed: RankFailed, counted: int = 4) -> tuple[RunSpec | None, str]:
        return group.rest(SPEC, failed, counted, self.wait, self.noted.append)


def group_of(hosts: Hosts, least: int = 2) -> Regrouping:
    return Regrouping(hosts, least, 60.0)  # type: ignore[arg-type]


def ranks(rest: RunSpec | None) -> tuple[int, ...]:
    assert rest is not None
    return rest.ranks


def test_the_rest_is_for_those_that_are_left_once_they_serve() -> None:
    hosts = Hosts({})
    hosts.lose(2)
    rest, cause = hosts.rest(group_of(hosts), host_failed("killed", 137, rank=2))
    assert (ranks(rest), cause) == ((0, 1, 3), "host n2 is lost")
    assert hosts.specs == [rest]
    assert rest is not None
    assert rest.num_batches == 6, "of ten steps four are saved"


def test_a_host_that_does_not_serve_in_time_is_lost() -> None:
    hosts = Hosts(LATE, {})
    hosts.lose(2)
    rest, cause = hosts.rest(group_of(hosts), host_failed("killed", 137, rank=2))
    assert ranks(rest) == (0, 1)
    assert "host n3: it did not start its server again within 60 s" in cause


def test_whose_server_is_gone_is_found_by_who_falls_silent() -> None:
    hosts = Hosts({3: "host n3 is lost"}, {})
    rest, cause = hosts.rest(group_of(hosts), host_failed("unreachable", 3, rank=1))
    assert (ranks(rest), cause) == ((0, 1, 2), "host n3 is lost")
    assert hosts.waited_s == [10.0, 60.0]


def test_after_a_failure_of_rank_0_alone_the_servers_start_again() -> None:
    hosts = Hosts({}, {})
    group = group_of(hosts)
    hosts.lose(2)
    hosts.rest(group, host_failed("killed", 137, rank=2))
    rest, cause = hosts.rest(group, host_failed("hung", 3, rank=0))
    assert (ranks(rest), cause) == ((0, 1, 3), "c")
    assert [one.ranks for one in hosts.specs] == [(0, 1, 3), (0, 1, 3)]


def test_where_no_host_may_be_lost_one_that_does_not_start_again_ends_it() -> None:
    hosts = Hosts(LATE)
    group = Regrouping(hosts, None, 60.0)  # type: ignore[arg-type]
    assert not group.may_lose
    assert hosts.rest(group, host_failed("killed", 137, rank=0)) == (None, "")
    assert hosts.noted == [
        "Training cannot go on: 3 hosts are left, and without --min-hosts all 4 are needed."
    ]


def test_it_goes_on_as_long_as_enough_are_left() -> None:
    cases: list[tuple[int, bool]] = [(1, True), (2, True), (3, False)]
    for least, goes_on in cases:
        hosts = Hosts({})
        hosts.lose(1, 2)
        rest, _ = hosts.rest(group_of(hosts, least), host_failed("killed", 137, rank=2))
        assert (rest is not None) == goes_on
        said = [] if goes_on else ["Training cannot go on: 2 hosts are left, and --min-hosts is 3."]
        assert hosts.noted == said
        assert bool(hosts.specs) == goes_on


def test_a_host_that_what_was_asked_for_needs_is_not_done_without() -> None:
    hosts = Hosts()
    hosts.lose(2)
    spec = msgspec.structs.replace(SPEC, all_reduce="psgpu#4")
    failed = host_failed("killed", 137, rank=2)
    rest, _ = group_of(hosts).rest(spec, failed, 4, hosts.wait, hosts.noted.append)
    assert rest is None
    (said,) = hosts.noted
    assert said.startswith("Training cannot go on without this host: --all-reduce psgpu#4 cannot be used")
