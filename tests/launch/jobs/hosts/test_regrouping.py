"""Who is left of the hosts of a run after a failure, and whether it goes on."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from gputopo.launch.jobs.hosts.regrouping import Regrouping
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values import schema
from gputopo.values.run.events import RankFailed
from tests.launch.jobs.test_restarting import host_failed, hosts_spec

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


def test_another_host_that_is_lost_meanwhile_is_left_out_as_well() -> None:
    hosts = Hosts({3: "host n3 is lost"}, {})
    hosts.lose(2)
    rest, cause = hosts.rest(group_of(hosts), host_failed("killed", 137, rank=2))
    assert (ranks(rest), cause) == ((0, 1), "host n2 is lost and host n3 is lost")
    assert [one.ranks for one in hosts.specs] == [(0, 1, 3), (0, 1)]


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


def test_a_server_that_could_not_be_reached_although_all_hosts_are_there_is_started_again() -> None:
    hosts = Hosts(LATE, {})
    rest, cause = hosts.rest(group_of(hosts), host_failed("unreachable", 3, rank=1))
    assert (ranks(rest), cause) == ((0, 1, 2, 3), "c")


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


@pytest.mark.parametrize(("least", "goes_on"), [(1, True), (2, True), (3, False)])
def test_it_goes_on_as_long_as_enough_are_left(least: int, goes_on: bool) -> None:
    hosts = Hosts({})
    hosts.lose(1, 2)
    rest, _ = hosts.rest(group_of(hosts, least), host_failed("killed", 137, rank=2))
    assert (rest is not None) == goes_on
    said = [] if goes_on else ["Training cannot go on: 2 hosts are left, and --min-hosts is 3."]
    assert hosts.noted == said
    assert bool(hosts.specs) == goes_on


def test_all_others_may_be_lost_where_rank_0_is_enough() -> None:
    hosts = Hosts()
    hosts.lose(1, 2, 3)
    hosts._serves = True
    rest, _ = group_of(hosts, 1).rest(SPEC, host_failed("killed", 137), 4, lambda until, _: True, print)
    assert ranks(rest) == (0,)


@pytest.mark.parametrize("waits", [(STOPPED,), ({3: "host n3 is lost"}, STOPPED)])
def test_a_signal_ends_the_wait(waits: tuple[dict[int, str] | str, ...]) -> None:
    hosts = Hosts(*waits)
    hosts.lose(2)
    assert hosts.rest(group_of(hosts), host_failed("killed", 137, rank=2)) == (None, "")


def test_nothing_is_left_of_a_run_whose_last_step_is_saved() -> None:
    hosts = Hosts()
    hosts.lose(2)
    assert hosts.rest(group_of(hosts), host_failed("killed", 137, rank=2), counted=10)[0] is None
    assert hosts.specs == []


def test_a_host_that_what_was_asked_for_needs_is_not_done_without() -> None:
    hosts = Hosts()
    hosts.lose(2)
    spec = msgspec.structs.replace(SPEC, all_reduce="psgpu#4")
    failed = host_failed("killed", 137, rank=2)
    rest, _ = group_of(hosts).rest(spec, failed, 4, hosts.wait, hosts.noted.append)
    assert rest is None
    (said,) = hosts.noted
    assert said.startswith("Training cannot go on without this host: --all-reduce psgpu#4 cannot be used")
