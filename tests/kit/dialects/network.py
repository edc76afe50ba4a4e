"""Measurements between hosts as perftest and iperf3 print them.

Columns and formats are from perftest's perftest_parameters.h and iperf3's iperf_locale.c and units.c.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from gputopo.values.bandwidth import Transfer, TransferLatency, TransferRate
from gputopo.values.ends import End

CLIENT, SERVER = "host:client", "host:server"
_RULE = "-" * 87
_VERBS = {
    "Send": "RDMA send",
    "RDMA_Write": "RDMA write",
    "RDMA_Read": "RDMA read",
    "Atomic": "RDMA atomic",
}


@dataclass(frozen=True, slots=True)
class Perftest:
    """The output of one perftest program. `unit`: of rates; None: a latency."""

    verb: str = "RDMA_Write"
    unit: str | None = "Gb"
    bidirectional: bool = False
    duration: bool = False  # -D: no peak; for a latency, only the average
    streams: int = 1

    @property
    def title(self) -> str:
        """The name of the test in its heading."""
        verb = f"{self.verb} FETCH_AND_ADD" if self.verb == "Atomic" else self.verb
        what = "Latency" if self.unit is None else f"{'Bidirectional ' if self.bidirectional else ''}BW"
        return f"{verb} {what} Test"


def perftest(random: Random, form: Perftest, sizes: Sequence[int]) -> tuple[str, tuple[Transfer, ...]]:
    """Return the output of a program, and the samples in it."""
    rows: list[str] = []
    samples: list[Transfer] = []
    for size in sizes:
        words, value = _row(random, form, size)
        rows.append(f" {words}")
        to_client = form.verb == "RDMA_Read"
        more: dict[str, Any] = {
            "source": End(SERVER if to_client else CLIENT),
            "destination": End(CLIENT if to_client else SERVER),
            "bytes": size,
            "tool": f"ib_{form.verb.removeprefix('RDMA_').lower()}_{'lat' if form.unit is None else 'bw'}",
            "transport": _VERBS[form.verb],
            "streams": form.streams,
        }
        if form.unit is None:
            samples.append(TransferLatency(median_us=value, **more))
            continue
        kind: Literal["network", "network_bidirectional"] = "network"
        if form.bidirectional:
            kind = "network_bidirectional"
        samples.append(TransferRate(kind=kind, median_gb_per_s=value * _GB_PER_S[form.unit], **more))
    head = [
        _RULE,
        f"                    {form.title}",
        " Dual-port       : OFF\t\tDevice         : mlx5_0",
        f" Number of qps   : {form.streams}\t\tTransport type : IB",
        " Connection type : RC\t\tUsing SRQ      : OFF",
        " PCIe relax order: ON\t\tLock-free      : OFF",
        " ibv_wr* API     : ON\t\tUsing Enhanced Reorder      : OFF",
        " TX depth        : 128",
        " CQ Moderation   : 100",
        " Mtu             : 4096[B]",
        " Link type       : IB",
        " Max inline data : 0[B]",
        " rdma_cm QPs\t : OFF",
        " Data ex. method : Ethernet",
        _RULE,
        " local address: LID 0x0b QPN 0x0108 PSN 0x9b5a8e RKey 0x180f00 VAddr 0x007f5e5c6e9000",
        " remote address: LID 0x0c QPN 0x0109 PSN 0x9b5a8f RKey 0x180f01 VAddr 0x007f5e5c6e9001",
        _RULE,
        _columns(form),
    ]
    return "\n".join([*head, *rows, _RULE, ""]), tuple(samples)


_GB_PER_S = {"Gb": 1 / 8, "MiB": 2**20 / 1e9, "MB": 2**20 / 1e9}


def _columns(form: Perftest) -> str:
    if form.unit is None and form.duration:
        return " #bytes        #iterations       t_avg[usec]    tps average"
    if form.unit is None:
        return (
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
            "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
        )
    rates = f"BW peak[{form.unit}/sec]    BW average[{form.unit}/sec]   MsgRate[Mpps]"
    return f" #bytes     #iterations    {rates}"


def _row(random: Random, form: Perftest, size: int) -> tuple[str, float]:
    """Return a row and its main number."""
    if form.unit is None:
        typical = round(random.uniform(0.8, 400.0), 2)
        if form.duration:
            return f"{size:<7}       {1000}            {typical:<7.2f}        {1e6 / typical:<7.2f}", typical
        others = [round(typical * factor, 2) for factor in (0.7, 20.0, 1.1, 0.3, 3.0, 9.0)]
        low, high, mean, deviation, nearly, most = others
        words = f"{low:<7.2f}        {high:<7.2f}      {typical:<7.2f}  \t       {mean:<7.2f}     \t"
        return f"{size:<7} 1000          {words}{deviation:<7.2f}\t\t{nearly:<7.2f} \t\t{most:<7.2f}", typical
    value = round(random.uniform(0.2, 390.0 if form.unit == "Gb" else 48_000.0), 2)
    peak = 0.0 if form.duration else value * 1.01
    words = f"{peak:<7.2f}            {value:<7.2f}\t\t     {value / size:<7.6f}"
    return f"{size:<7}    {5000:<10}       {words}", value


@dataclass(frozen=True, slots=True)
class Iperf3:
    """The options of one run of iperf3."""

    streams: int = 1
    reverse: bool = False
    bidirectional: bool = False
    udp: bool = False


def iperf3_json(random: Random, form: Iperf3) -> tuple[str, tuple[Transfer, ...]]:
    """Return the output of `iperf3 -J`, and the samples in it."""
    end: dict[str, Any] = {"streams": []}
    samples = []
    for way in [form.reverse] if not form.bidirectional else [False, True]:
        suffix = "_bidir_reverse" if form.bidirectional and way else ""
        bits = random.uniform(1e6, 4e11)
        end[f"sum_sent{suffix}"] = {"bits_per_second": bits * 1.01, "retransmits": 7, "sender": not way}
        end[f"sum_received{suffix}"] = {"bits_per_second": bits, "sender": not way}
        source, destination = (SERVER, CLIENT) if way else (CLIENT, SERVER)
        samples.append(
            TransferRate(
                kind="network",
                source=End(source),
                destination=End(destination),
                with_reverse=form.bidirectional,
                median_gb_per_s=bits / 8e9,
                tool="iperf3",
                transport="UDP" if form.udp else "TCP",
                streams=form.streams,
            )
        )
    start = {
        "connected": [{"socket": 5, "local_host": "10.1.0.7", "remote_host": "10.1.0.8"}],
        "version": "iperf 3.16",
        "connecting_to": {"host": "10.1.0.8", "port": 5201},
        "test_start": {
            "protocol": "UDP" if form.udp else "TCP",
            "num_streams": form.streams,
            "reverse": int(form.reverse),
            "bidir": int(form.bidirectional),
        },
    }
    return json.dumps({"start": start, "intervals": [], "end": end}, indent="\t"), tuple(samples)


def any_iperf3(random: Random) -> Iperf3:
    """Return random options for iperf3."""
    both = random.random() < 0.3
    return replace(
        Iperf3(),
        streams=random.choice((1, 1, 2, 8)),
        bidirectional=both,
        reverse=not both and random.random() < 0.4,
        udp=random.random() < 0.3,
    )
