"""`gputopo bandwidth --from` what other programs printed when they did not come to their end."""

import json
from pathlib import Path

import pytest

from gputopo.values.machine import Machine, Nic, NicPort
from gputopo.values.schema import encode
from tests.cli.conftest import Call
from tests.kit.dialects import bandwidthtest, nvbandwidth, p2p

WHY = "no CUDA-capable device is detected"
NVBANDWIDTHS = f"[CUDA_ERROR_NO_DEVICE] {WHY} in expression cuInit(0)"
FAILED = {
    "bandwidthTest": f"[CUDA Bandwidth Test] - Starting...\ncudaGetDeviceCount returned 100\n-> {WHY}\n",
    "p2pBandwidthLatencyTest": f"Cuda failure p2pBandwidthLatencyTest.cu:605: '{WHY}'\n",
    "nvbandwidth": f"nvbandwidth Version: v0.8\n{NVBANDWIDTHS}\n",
    "nvbandwidth -j": nvbandwidth.json_of_cases([], error=NVBANDWIDTHS),
}


@pytest.mark.parametrize("program", FAILED)
def test_a_program_that_cuda_failed_is_a_finding_whichever_it_is(
    program: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "failed.txt").write_text(FAILED[program])
    asked = ("bandwidth", "--from", tmp_path / "failed.txt")
    done = call(*asked)
    assert (done.code, done.err) == (1, "")
    assert "driver.failed" in done.out
    assert WHY in " ".join(done.out.split())


def test_a_capture_that_stops_early_is_no_baseline(call: Call, tmp_path: Path) -> None:
    whole = bandwidthtest.quick("A", {"Host to Device": 12000.0})
    (tmp_path / "half.txt").write_text(whole.rpartition("Result")[0])
    done = call("bandwidth", "--from", tmp_path / "half.txt", "--save")
    assert done.code == 0
    assert "The capture ends early" in done.out
    assert done.err.startswith("gputopo: not saved: ")


BOTH = [
    [750.0, 48.5, 48.4, 96.9],
    [48.5, 750.0, 96.9, 17.0],
    [48.4, 96.9, 750.0, 48.5],
    [96.8, 17.1, 48.5, 750.0],
]


def test_a_file_of_both_directions_only_is_planned_by_it(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "both.txt"
    file.write_text(p2p.matrix("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", BOTH))
    done = call("plan", "--from", file, "--model", "alexnet", "--num-gpus", "2")
    assert done.code == 0
    assert "GPUs 0 and 3: measured 96.8 GB/s both directions, direct" in done.out


def nccl_run(*, wrong: int = 0, hosts: tuple[str, str] = ("box", "box")) -> str:
    ranks = [
        f"#  Rank  {n} Group  0 Pid 9 on {host} device  {n} [0000:0{n + 1}:00] NVIDIA L40S"
        for n, host in enumerate(hosts)
    ]
    row = f" 1073741824  268435456  float  sum  -1  51130.00  21.00  21.00  {wrong}"
    return "\n".join(
        [
            "# Collective test starting: all_reduce_perf",
            "# nThread 1 nGpus 2 minBytes 1073741824 maxBytes 1073741824 step: 2(factor) warmup iters: 5",
            *ranks,
            f"{row}  51130.00  21.00  21.00  0",
            f"# Out of bounds values : {wrong and 1} {'FAILED' if wrong else 'OK'}",
            "# Avg bus bandwidth    : 21 ",
            "",
        ]
    )


@pytest.mark.parametrize("command", ["bandwidth", "inspect", "plan"])
def test_collective_operations_are_read_by_every_command(command: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "nccl.txt").write_text(nccl_run())
    model = ("--model", "alexnet", "--num-gpus", "1") if command == "plan" else ()
    done = call(command, *model, "--from", tmp_path / "nccl.txt")
    assert done.code == 0
    assert "nccl-tests" in done.out
    assert ("all-reduce" in done.out) is (command == "bandwidth")


def test_nccl_over_several_hosts_is_judged_with_the_ports_of_one_of_them(call: Call, tmp_path: Path) -> None:
    (tmp_path / "nccl.txt").write_text(nccl_run(hosts=("n1", "n2")))
    port = NicPort(index=0, rdma_device="mlx5_0", state="ACTIVE", rate_gbit_per_s=400.0)
    machine = Machine(source="live", nics=(Nic(index=0, ports=(port,)),))
    (tmp_path / "n1.json").write_bytes(encode(machine))
    alone = call("bandwidth", "--from", tmp_path / "nccl.txt", "--fail-on", "warning")
    assert (alone.code, "nccl-tests" in alone.out, "on 2 hosts" in alone.out) == (0, True, True)
    judged = call(
        *("bandwidth", "--from", tmp_path / "nccl.txt", "--from", tmp_path / "n1.json"),
        *("--fail-on", "warning", "--json"),
    )
    assert judged.code == 1
    assert "collectives.network_slow" in {one["id"] for one in json.loads(judged.out)["findings"]}


def test_wrong_results_of_nccl_are_an_error(call: Call, tmp_path: Path) -> None:
    (tmp_path / "nccl.txt").write_text(nccl_run(wrong=37))
    done = call("bandwidth", "--from", tmp_path / "nccl.txt")
    assert done.code == 1
    assert "bandwidth.wrong_data" in done.out
    assert "37 wrong elements at 1073741824 bytes" in " ".join(done.out.split())


def test_collective_operations_replace_no_saved_result(call: Call, tmp_path: Path) -> None:
    (tmp_path / "nccl.txt").write_text(nccl_run())
    done = call("bandwidth", "--from", tmp_path / "nccl.txt", "--save")
    assert "not saved: collective operations show no single path" in done.err
