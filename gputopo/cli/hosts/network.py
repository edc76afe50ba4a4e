"""`gputopo bandwidth --network`: hosts are asked what they can measure with, and then to measure."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.hosts.asking import hosts_to_ask, read, to_ask
from gputopo.cli.printing import note
from gputopo.copies.nccl_hosts import ALL_LIMIT_S, LIMIT_S
from gputopo.copies.network import (
    FULL,
    NCCL_TESTS,
    PROBE,
    QUICK,
    NetworkResult,
    Order,
    ToolChoice,
    bandwidth_of,
    seconds_of,
)
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.remote_ask import HostProcess, answers
from gputopo.values import schema
from gputopo.values.bandwidth import NotMeasured
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError

if TYPE_CHECKING:
    from gputopo.copies.network import Timing
    from gputopo.values.bandwidth import Bandwidth, Level
    from gputopo.values.machine import Nic


def measure_network(
    options: HostOptions,
    level: "Level | None",
    tool: ToolChoice,
    report: "Callable[[Bandwidth, Sequence[Nic]], int]",
) -> int:
    """Measure between all hosts that answer, and return the exit code of `report`, which prints.

    `report` gets the network cards of the first host, too, where nccl-tests measured. Raises GputopoError.
    """
    hosts = hosts_to_ask(options)
    if hosts is None:
        raise UsageError(
            "--network is between hosts, and no others are named",
            "name the hosts, which are asked by ssh: --hosts LIST; or start the command on each by srun",
        )
    if not hosts:
        return ExitCode.OK
    public = ["public"] if options.allow_public_address else []
    starts, python = to_ask(hosts, options, "network", tool, *public)
    with ExitStack() as held:
        processes = {start.rank: held.enter_context(HostProcess(start)) for start in starts}
        found = answers(processes, partial(read, within_s=options.join_timeout, python=python))
        there, absent = [], {}
        for rank, answer in found.items():
            name = str(hosts[rank].name)
            if isinstance(answer, Joining):
                own = answer.name if hosts[rank].is_ip else name
                there.append(msgspec.structs.replace(answer, rank=rank, name=own))
            else:
                note(answer.what)
                absent[name] = answer
        if len(there) < 2:
            raise next(
                iter(absent.values()),
                UsageError("--network is between hosts, and one is named", "name others"),
            )
        taking_part = [processes[one.rank] for one in there]
        measured = _measured(there, taking_part, FULL if level == "full" else QUICK, tool, python)
    lacking = [NotMeasured(what=f"transfers of {name}", reason=why.what) for name, why in absent.items()]
    measured = msgspec.structs.replace(
        measured,
        not_measured=(*measured.not_measured, *lacking),
        complete=measured.complete and not lacking,
    )
    return report(measured, there[0].machine.nics if there[0].machine is not None else ())


def _measured(
    hosts: Sequence[Joining],
    processes: Sequence[HostProcess],
    timing: "Timing",
    tool: ToolChoice,
    python: str,
) -> "Bandwidth":
    """Measure by nccl-tests, else, or where they measure nothing, by TCP. Raises HardwareError."""
    from gputopo.launch.jobs.network import LATE_S, order_of

    order = order_of(hosts, timing, tool)
    if order.tool == NCCL_TESTS:
        limit = f"at most {LIMIT_S:g} s for each round of pairs"
        note(f"measuring between {len(hosts)} hosts by {NCCL_TESTS}: {limit}")
        (first,) = _done(order, processes[:1], len(hosts) * LIMIT_S + ALL_LIMIT_S, python).values()
        if isinstance(first, NetworkResult) and first.nccl is not None:
            return first.nccl
        why = first.error if isinstance(first, NetworkResult) else first.what
        order = order_of(hosts, timing, tool, failed=str(why))
    seconds = seconds_of(len(hosts), order.timing)
    note(f"measuring between {len(hosts)} hosts by {PROBE}: {seconds:.0f} s")
    found = _done(order, processes, seconds + LATE_S, python)
    results = {rank: one for rank, one in found.items() if isinstance(one, NetworkResult)}
    absent = {rank: one.what for rank, one in found.items() if isinstance(one, GputopoError)}
    return bandwidth_of(order, results, absent)


def _done(
    order: Order, processes: Sequence[HostProcess], within_s: float, python: str
) -> Mapping[int, NetworkResult | GputopoError]:
    """Have hosts do what is ordered, and return what each measured, or why it did not."""
    for rank, process in enumerate(processes):
        process.tell(schema.encode(msgspec.structs.replace(order, rank=rank)))

    def result(process: HostProcess) -> NetworkResult:
        try:
            return msgspec.json.decode(process.line(within_s, python), type=NetworkResult)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HardwareError(f"{process.start.host} reported no result: {error}", "") from error

    return answers(dict(enumerate(processes)), result)
