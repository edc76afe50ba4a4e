"""Measures the network between pairs of hosts in rounds, with external programs."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.captures import read_program
from gputopo.launch.jobs.network_tools import (
    ALL_LIMIT_S,
    ALL_REDUCE,
    BYTES,
    HINTS,
    PAIR_LIMIT_S,
    PORTS,
    SECONDS,
    START_S,
    Command,
    Ends,
    NetworkHost,
    choose,
    failure,
    method,
    nccl_command,
    placed,
    rounds,
    transfer,
)
from gputopo.values.bandwidth import (
    ALL_HOSTS_AT_ONCE,
    NCCL_TESTS,
    Bandwidth,
    CollectiveRate,
    Failure,
    NetworkTool,
    NetworkToolChoice,
    NotMeasured,
    Samples,
    TransferRate,
)
from gputopo.values.errors import HardwareError, InputError

# A host that failed with this many partners is skipped. Not measured.
_MAX_FAILED = 2
_SKIPPED = "skipped: it failed with other hosts"
_MAX_WORDS = 200
_PATHS = ("NET/", "GDRDMA", "card ", "SHM", "P2P")  # prefixes of the facts about the path


class EndedCommand(NamedTuple):
    """The output of a program and its exit code, which is None if it was ended; `why` is the reason."""

    text: str
    code: int | None
    why: str | None = None


# Runs commands on their hosts at the same time, each for a limited number of seconds.
Run = Callable[[Sequence[Command], float], Sequence[EndedCommand]]


def measure_between_hosts(
    hosts: Sequence[NetworkHost],
    level: str,
    asked: NetworkToolChoice,
    run: Run,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Bandwidth:
    """Measure with the first tool that all hosts have.

    `note`: prints a line. Raises HardwareError if there is no such tool, or it measures nothing.
    """
    tool, passed_over = choose(asked, hosts)
    seconds, all_rounds, is_nccl = SECONDS[level], rounds(tool, len(hosts)), tool == NCCL_TESTS
    each_s = PAIR_LIMIT_S if is_nccl else seconds + 2
    duration = f"{'at most' if is_nccl else 'about'} {len(all_rounds) * each_s:.0f} s"
    note(f"measuring between {len(hosts)} hosts by {tool}: {duration}")

    def transfers(tried: Sequence[Ends]) -> list[TransferRate | str]:
        commands: list[Command] = []
        for ends, port in zip(tried, random.sample(PORTS, len(tried)), strict=True):
            commands += transfer(tool, hosts, ends, seconds, port, environ)
        ended = run(commands, PAIR_LIMIT_S if is_nccl else seconds + START_S)
        return [read(tool, client) for client in ended[:: 1 if is_nccl else 2]]  # the others are servers

    samples, failures = _pairs(tool, hosts, all_rounds, transfers)
    if not samples:
        first = failures[0]
        why = f"{first.source.host} to {first.destination.host}: {first.says}"
        raise HardwareError(
            f"{tool} measured nothing between these hosts: {why}",
            f"{HINTS[tool]}; or use another tool: --network-tool",
        )
    how = method(tool, hosts, samples)
    bandwidth = Bandwidth(
        source="live",
        samples=Samples(samples),
        failures=tuple(failures),
        notes=(f"{how}; {passed_over}" if passed_over else how,),
    )
    if not is_nccl or failures:
        return bandwidth
    return _with_all_reduce(bandwidth, hosts, seconds, run, environ)


def _pairs(
    tool: NetworkTool,
    hosts: Sequence[NetworkHost],
    all_rounds: Sequence[Sequence[Ends]],
    transfers: Callable[[Sequence[Ends]], Sequence[TransferRate | str]],
) -> tuple[list[TransferRate], list[Failure]]:
    """Measure round by round. The last round, with all hosts at once, runs only if no pair has failed."""
    samples: list[TransferRate] = []
    failures: list[Failure] = []
    failed: dict[int, set[int]] = {rank: set() for rank in range(len(hosts))}  # partners with which it failed
    for ends_of_round in all_rounds:
        is_at_once = len(ends_of_round) == len(hosts) > 2
        if is_at_once and failures:
            break
        tried = [ends for ends in ends_of_round if all(len(failed[rank]) < _MAX_FAILED for rank in ends)]
        for ends, result in zip(tried, transfers(tried), strict=True):
            if isinstance(result, str):
                failures.append(failure(hosts, ends, result))
                failed[ends[0]].add(ends[1])
                failed[ends[1]].add(ends[0])
            else:
                result = replace(result, group=ALL_HOSTS_AT_ONCE if is_at_once else None)
                samples += placed(tool, hosts, ends, result)
        failures += [failure(hosts, ends, _SKIPPED) for ends in ends_of_round if ends not in tried]
    return samples, failures


def _with_all_reduce(
    pairs: Bandwidth, hosts: Sequence[NetworkHost], seconds: int, run: Run, environ: Mapping[str, str]
) -> Bandwidth:
    """Add the result of an all-reduce over all GPUs of all hosts, or why there is none."""
    gpus = [(host.address, host.gpus) for host in hosts]
    ranks = sum(number for _, number in gpus)
    more: Bandwidth | str = f"{ALL_REDUCE} is not installed"
    if ALL_REDUCE in hosts[0].programs:
        command = nccl_command(gpus, hosts[0], seconds, environ, ALL_REDUCE)
        (ended,) = run([command], ALL_LIMIT_S)
        more = _of_nccl_tests(ended, ALL_REDUCE, ranks=ranks, hosts=len(gpus))
    if isinstance(more, Bandwidth):
        # Wrong data is a finding. After any other failure, the all-reduce is reported as not measured.
        more = next((failed.says for failed in more.failures if failed.reason != "WRONG_DATA"), more)
    if isinstance(more, str):
        lacking = NotMeasured(what=f"all-reduce over all {ranks} GPUs", reason=more)
        return replace(pairs, not_measured=(*pairs.not_measured, lacking))
    return replace(
        pairs,
        samples=pairs.samples + more.samples,
        failures=(*pairs.failures, *more.failures),
        notes=(*pairs.notes, *more.notes),
    )


def read(tool: NetworkTool, ended: EndedCommand) -> TransferRate | str:
    """Return what a program measured for a transfer, or why it did not."""
    if tool == NCCL_TESTS:
        of_pair = _of_nccl_tests(ended, "sendrecv_perf", ranks=2, hosts=2)
        if isinstance(of_pair, str):
            return of_pair
        if of_pair.failures:
            return of_pair.failures[0].says
        first = of_pair.samples.of(CollectiveRate)[0]
        return TransferRate(
            kind="network",
            source=first.source,
            destination=first.destination,
            bytes=BYTES,
            with_reverse=True,
            median_gb_per_s=first.median_gb_per_s,
            tool=NCCL_TESTS,
            transport="NCCL",
            nccl=tuple(fact for fact in first.nccl if fact.startswith(_PATHS)),
        )
    if ended.why is not None:
        return f"{tool} {ended.why}"
    try:
        bandwidth = read_program(tool, ended.text, origin=tool).machine.bandwidth
    except InputError:
        bandwidth = None
    if bandwidth is not None and bandwidth.failures:
        return bandwidth.failures[0].says
    rates = bandwidth.samples.of(TransferRate) if bandwidth is not None else ()
    if ended.code == 0 and rates:
        return rates[-1]
    last = _shown((ended.text.strip().splitlines() or [""])[-1])
    how = f"{tool} printed no result" if ended.code == 0 else f"{tool} ended with exit code {ended.code}"
    return f"{how}: {last}" if last else how


def _of_nccl_tests(ended: EndedCommand, program: str, *, ranks: int, hosts: int) -> Bandwidth | str:
    """Return the results of a run, out of place before in place, or why there are none.

    All ranks must have taken part: a program that was built without MPI runs separately on each host.
    """
    if ended.why is not None:
        return f"mpirun {ended.why}"
    try:
        parsed = read_program(NCCL_TESTS, ended.text, origin=program)
    except InputError as error:
        return error.what
    bandwidth = parsed.machine.bandwidth
    assert bandwidth is not None, "a reader of bandwidths"
    samples = sorted(
        (sample for sample in bandwidth.samples.of(CollectiveRate) if sample.bus_gb_per_s is not None),
        key=lambda sample: bool(sample.in_place),
    )
    if any(sample.ranks == 1 for sample in samples):
        return f"{program} ran as {ranks} single processes: it was built without MPI=1"
    if bandwidth.failures:
        return bandwidth
    if ended.code != 0 or not samples or not samples[0].median_gb_per_s:
        lines = enumerate(ended.text.splitlines(), 1)
        others = (line.strip() for number, line in lines if number not in parsed.understood)
        words = next(
            (line for line in others if line.strip("-=*") and not line.startswith(("#", "Warning:"))), ""
        )
        how = (
            f"{program} printed no result" if ended.code == 0 else f"mpirun ended with exit code {ended.code}"
        )
        return f"{how}: {_shown(words)}" if _shown(words) else how
    first = samples[0]
    if (first.ranks, first.hosts) != (ranks, hosts):
        return f"{program} ran {first.ranks} ranks on {first.hosts or '?'} hosts, not {ranks} on {hosts}"
    return replace(bandwidth, samples=Samples(samples))


def _shown(words: str) -> str:
    return "".join(filter(str.isprintable, words))[:_MAX_WORDS]
