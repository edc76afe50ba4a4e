"""`gputopo bandwidth --network`: hosts are asked what they can measure with, and then to measure."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.hosts.asking import hosts_to_ask, read, to_ask
from gputopo.cli.printing import note
from gputopo.copies.network import FULL, QUICK, Done, Order, ToolChoice
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.remote_ask import HostProcess, answers
from gputopo.values import schema
from gputopo.values.bandwidth import NotMeasured
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError

LATE_S = 15.0  # for a result: a transfer that fails takes 5 s; not measured

if TYPE_CHECKING:
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
    from gputopo.launch.jobs.network import measure

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
        ask = partial(read, hosts=hosts, within_s=options.join_timeout, python=python)
        found = {process.start: one for process, one in answers(processes.values(), ask).items()}
        there = [one for one in found.values() if isinstance(one, Joining)]
        absent = {start.host: one for start, one in found.items() if isinstance(one, GputopoError)}
        if len(there) < 2:
            raise next(
                iter(absent.values()),
                UsageError("--network is between hosts, and one is named", "name others"),
            )
        taking_part = [processes[one.rank] for one in there]
        do = partial(_done, processes=taking_part, python=python)
        measured = measure(there, FULL if level == "full" else QUICK, tool, do, note)
    lacking = [NotMeasured(what=f"transfers of {name}", reason=why.what) for name, why in absent.items()]
    measured = msgspec.structs.replace(
        measured,
        not_measured=(*measured.not_measured, *lacking),
        complete=measured.complete and not lacking,
    )
    return report(measured, there[0].machine.nics if there[0].machine is not None else ())


def _done(
    orders: Mapping[int, Order], processes: Sequence[HostProcess], python: str
) -> Mapping[int, Done | GputopoError]:
    """Have hosts do what is ordered, and return what each measured, or why it did not."""
    for rank, order in orders.items():
        processes[rank].tell(schema.encode(order))
    timing = next(iter(orders.values())).timing
    within_s = timing.transfer_s + max(order.limit_s for order in orders.values()) + LATE_S

    def result(process: HostProcess) -> Done:
        try:
            return msgspec.json.decode(process.line(within_s, python), type=Done)
        except schema.UNREADABLE as error:
            raise HardwareError(f"{process.start.host} reported no result: {error}", "") from error

    return answers(orders, lambda rank: result(processes[rank]))
