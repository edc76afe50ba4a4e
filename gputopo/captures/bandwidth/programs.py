"""Pasted texts of bandwidth tools: outputs of one or several programs, one below the other.

Each program's reader takes its own lines; lines that no reader understood are left for the other formats.
"""

import re
from typing import Literal

from msgspec.structs import replace

from gputopo.captures import merging
from gputopo.captures.bandwidth.texts import Program, ProgramRead, plain, without_cut_number
from gputopo.captures.ledger import Format, is_noise
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, Unread

# Each line that identifies a program has one of these words.
_WORDS = re.compile(
    r"bandwidth|P2P|memcpy|memory (?:transfers|latency)|CAN(?:NOT)? Access Peer|D\\D|_(?:ce|sm|copy)\b"
    r"|Couldn't connect|Completion with error|CM event"
    r"|Port number \d"
    r"|\[(?:MB|MiB|Gb)/sec\]|\[usec\]|\b(?:BW|Latency) Test\b"
    r"|algbw|in-place|nThreads?\b|Test (?:NCCL|CUDA)"
    r"|\b(?:u?int(?:8|32|64)|char|half|b?float(?:16)?|double|f8e\dm\d)\b",
    re.I,
)
_HINT = "copy the whole output of the program again"
_MAX_UNREAD = 200


def detect(text: str) -> bool:
    """Return whether the text has a line from one of these programs."""
    return not text.lstrip().startswith("{") and _programs(text) != []


def parse(text: str, *, origin: str) -> Machine:
    """Read the outputs of these programs. Raises InputError for a text without any."""
    machine, rest = take(text, origin=origin)
    return with_unread(machine, rest)


def take(text: str, *, origin: str) -> tuple[Machine, str]:
    """Read the outputs of these programs, and return the text without the lines that they understood.

    Raises InputError if the text has no results of the programs.
    """
    whole = without_cut_number(text)
    machines: list[Machine] = []
    understood: frozenset[int] = frozenset()
    for program in _programs(whole):
        read = program.read(whole, origin=origin)
        results = read.machine.bandwidth
        if read.machine.links or (results and (results.samples or results.failures or results.not_measured)):
            machines.append(read.machine)
            understood |= read.understood
    if not machines:
        raise InputError(f"{origin}: no result of a bandwidth test found", _HINT)
    lines = enumerate(text.splitlines(), 1)
    rest = "\n".join("" if number in understood else line for number, line in lines)
    return merging.merge(machines), rest


def read_program(
    program: Literal["iperf3", "ib_write_bw", "nccl-tests"], text: str, *, origin: str
) -> ProgramRead:
    """Read the output of a program that measured between hosts.

    `origin`: the program in messages. Raises InputError for JSON that is cut, and for programs for AMD GPUs.
    """
    from gputopo.captures.bandwidth import nccl_tests, network

    if program == "iperf3":
        return ProgramRead(network.parse(text, origin=origin), frozenset())
    if program == "nccl-tests":
        return nccl_tests.read(text, origin=origin)
    return network.read_perftest(text, origin=origin)


def with_unread(machine: Machine, rest: str) -> Machine:
    """Add the first 200 lines that were not understood."""
    unread = [
        Unread(source=machine.source, line=number, text=" ".join(line.split())[:200])
        for number, line in enumerate(rest.splitlines(), 1)
        if plain(line) and not is_noise(line)
    ]
    return replace(machine, unread=(*machine.unread, *unread[:_MAX_UNREAD]))


def _programs(text: str) -> list[Program]:
    """Return the parsers that recognize the text. They are loaded only if it has one of their words."""
    if _WORDS.search(text) is None:
        return []
    from gputopo.captures.bandwidth import bandwidth_test, nccl_tests, network, nvbandwidth, p2p_test

    readers = (p2p_test, bandwidth_test, nvbandwidth, nccl_tests, network)
    known = [reader.PROGRAM for reader in readers]
    return [program for program in known if program.detect(text)]


FORMAT = Format(
    "`bandwidthTest`, `p2pBandwidthLatencyTest`, `nvbandwidth`, nccl-tests (`all_reduce_perf`, ...) "
    "or perftest (`ib_write_bw`, ...) text",
    "measured copies, latencies, peer access, collective operations, bandwidth between hosts",
    detect,
    parse,
)
