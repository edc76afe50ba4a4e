"""The error for a text that no format fits names its tool, and what to give instead."""

import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("    | NVIDIA-SMI 418.39    Driver Version: 418.39 |\n", "the overview of nvidia-smi", "-q > FILE"),
        ("===== ROCm System Management Interface =====\nGPU0 0 52\n", "of AMD's tools", "NVIDIA GPUs only"),
        (" CUDA Device Query (Runtime API) version (CUDART static linking)\n", "of deviceQuery", "topo -m"),
        (
            "# gpu   pid  type  sm   mem\n# Idx     #   C/G   %     %\n    0  1234     C   9     4\n",
            "pmon",
            "-q",
        ),
        (
            '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n'
            '  <object type="OSDev" name="nvml0"><info name="GPUModel" value="NVIDIA A100"/></object>\n',
            "the topology of hwloc",
            "nvidia-smi topo -m > FILE",
        ),
        ('<graphs version="1">\n  <graph id="0" pattern="4"/>\n</graphs>\n', "rings and trees", "TOPO_DUMP"),
        (
            "Server listening on TCP port 5001\n[  3]  0.0-10.0 sec  1.1 GBytes\n",
            "text of iperf",
            "iperf3 -J",
        ),
        ("0, 8192 MiB, 2100 MHz, 3\n1, 8192 MiB, 2100 MHz, 3\n", "of nvidia-smi --query-gpu", "not noheader"),
        ("# OSU MPI-CUDA Bandwidth Test v5.8\n# Size  Bandwidth (MB/s)\n1 0.2\n", "OSU", "ib_write_bw"),
        ("CA 'mlx5_0'\n\tCA type: MT4129\n", "network ports", "inspect on that host"),
        ("box:12:34 [0] NCCL INFO Bootstrap : Using eth0\n", "an NCCL log", "NCCL_DEBUG=INFO"),
    ],
)
def test_a_known_tool_is_named_with_what_to_give_instead(text: str, says: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(text, origin="box.txt")
    assert caught.value.what.startswith("box.txt is ")
    assert says in caught.value.what
    assert hint in caught.value.hint
