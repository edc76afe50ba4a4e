"""Outputs of bandwidth tools, written for tests."""

import json
from collections.abc import Sequence
from typing import Any

Numbers = Sequence[Sequence[float | None]]  # rows; None: no number


def p2p_matrix(heading: str, rows: Numbers, corner: str = "D\\D", empty: str = "—") -> str:
    """Write one matrix as p2pBandwidthLatencyTest does."""
    head = f"   {corner}" + "".join(f"{index:6d} " for index in range(len(rows)))
    lines = [
        f"{index:6d} " + " ".join(empty if cell is None else f"{cell:6.2f}" for cell in row)
        for index, row in enumerate(rows)
    ]
    return "\n".join([*([heading] if heading else []), head, *lines]) + "\n"


def p2p_head(names: Sequence[str], access: Sequence[Sequence[bool]]) -> str:
    """Write device lines, access lines and the connectivity matrix."""
    count = len(names)
    lines = ["[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]"]
    lines += [
        f"Device: {i}, {name}, pciBusID: {i + 5:x}, pciDeviceID: 0, pciDomainID:0"
        for i, name in enumerate(names)
    ]
    lines += [
        f"Device={a} {'CAN' if access[a][b] else 'CANNOT'} Access Peer Device={b}"
        for a in range(count)
        for b in range(count)
        if a != b
    ]
    lines += ["", "***NOTE: In case a device doesn't have P2P access to other one, it falls back to normal"]
    lines += ["P2P Connectivity Matrix", "     D\\D" + "".join(f"{i:6d}" for i in range(count))]
    lines += [
        f"     {a}\t" + "".join(f"{int(a == b or access[a][b]):6d}" for b in range(count))
        for a in range(count)
    ]
    return "\n".join(lines) + "\n"


def bandwidth_test(name: str, rates: dict[str, float], *, index: int = 0, unit: str = "MB") -> str:
    """Write a quick run of bandwidthTest: rates in its unit by `Host to Device` and so on."""
    lines = ["[CUDA Bandwidth Test] - Starting...", "Running on...", "", f" Device {index}: {name}"]
    lines += [" Quick Mode", ""]
    for way, rate in rates.items():
        lines += [f" {way} Bandwidth, 1 Device(s)", " PINNED Memory Transfers"]
        lines += [f"   Transfer Size (Bytes)\tBandwidth({unit}/s)", f"   33554432\t\t\t{rate:.1f}", ""]
    return "\n".join([*lines, "Result = PASS", ""]) + "\n"


def nvbandwidth_table(test: str, heading: str, rows: Numbers, *, empty: str = "N/A", key: str = "") -> str:
    """Write one testcase as nvbandwidth does; `key` is the name on its SUM line, where it is another."""
    return f"Running {test}.\n{nvbandwidth_matrix(heading, rows, key or test, empty=empty)}"


def nvbandwidth_matrix(heading: str, rows: Numbers, key: str, *, empty: str = "N/A") -> str:
    """Write one matrix of a testcase with its SUM line."""
    lines = [heading, "  " + "".join(f"{index:10d}" for index in range(len(rows[0])))]
    lines += [
        f"{index:2d}" + "".join(f"{empty:>10s}" if cell is None else f"{cell:10.2f}" for cell in row)
        for index, row in enumerate(rows)
    ]
    total = sum(cell or 0 for row in rows for cell in row)
    return "\n".join([*lines, "", f"SUM {key} {total:.2f}", ""]) + "\n"


def nvbandwidth_json(cases: list[dict[str, Any]], devices: Sequence[str] = (), **more: Any) -> str:
    """Write the JSON of nvbandwidth -j."""
    head = {"CUDA Runtime Version": 12080, "Driver Version": "570.86.16", "version": "v0.8"}
    return json.dumps({"nvbandwidth": head | {"GPU Device list": list(devices), "testcases": cases} | more})


def json_case(name: str, rows: Sequence[Sequence[float | str]], **more: Any) -> dict[str, Any]:
    """Write one passed testcase of the JSON."""
    matrix = [[cell if isinstance(cell, str) else f"{cell:g}" for cell in row] for row in rows]
    return {"name": name, "status": "Passed", "bandwidth_matrix": matrix, "sum": 1.0} | more
