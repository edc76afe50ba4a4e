# ruff: noqa: E101, E501
"""Invented captures of one two-socket box in every format: two GPUs of one switch, one of the other socket.

GPU 0 and 1 hang on one switch of socket 0, GPU 2 on a root port of socket 1. No number is of a real machine.
"""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gputopo.captures import load, read_measurements, read_text
from gputopo.measurements import RunFolders
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import Measurement
from tests import there

GPUS = ("0000:05:00.0", "0000:06:00.0", "0000:85:00.0")


def in_turn(*lists: Iterable[object]) -> list[tuple[Any, ...]]:
    """Return tuples in which each member of each list occurs at least once: far fewer than their product."""
    each = [list(one) for one in lists]
    return [tuple(one[at % len(one)] for one in each) for at in range(max(map(len, each)))]


def measured_of(text: str, origin: str = "log") -> tuple[Machine, Bandwidth]:
    """Return what is read of a text, which must hold a bandwidth."""
    machine = read_text(text, origin=origin)
    return machine, there(machine.bandwidth)


def whole_of(text: str) -> tuple[Machine, Bandwidth]:
    """Return what is read of a text whose bandwidth is all that it holds."""
    machine, bandwidth = measured_of(text)
    assert (machine.unread, machine.contradictions, bandwidth.complete) == ((), (), True)
    return machine, bandwidth


def loaded(folder: Path, *texts: str) -> Machine:
    """Return the machine of texts that are files of a folder."""
    paths = [folder / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return load([str(path) for path in paths])


def runs_in(text: str, name: str = "train.log") -> tuple[Measurement, ...]:
    """Return the training runs in a text that is a file of this name."""
    ours = RunFolders()
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return read_measurements([str(path)], read_run=ours.run, read_json=ours.document).measurements


NIC = "0000:86:00.0"

TOPO = """\
\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tSYS\tSYS\t0-3\t0
GPU1\tPIX\t X \tSYS\tSYS\t0-3\t0
GPU2\tSYS\tSYS\t X \tPHB\t4-7\t1
mlx5_0\tSYS\tSYS\tPHB\t X
"""

NCCL = """\
<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79">
    <pci busid="0000:03:00.0" class="0x060400" vendor="0x10b5" device="0x8747" link_speed="8.0 GT/s PCIe" link_width="16">
      <pci busid="0000:05:00.0" class="0x030000" vendor="0x10de" device="0x1b81" link_speed="8.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="61" rank="0" gdr="0"/>
      </pci>
      <pci busid="0000:06:00.0" class="0x030000" vendor="0x10de" device="0x1b81" link_speed="8.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="61" rank="1" gdr="0"/>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="000000f0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79">
    <pci busid="0000:85:00.0" class="0x030000" vendor="0x10de" device="0x1b81" link_speed="8.0 GT/s PCIe" link_width="16">
      <gpu dev="2" sm="61" rank="2" gdr="0"/>
    </pci>
    <pci busid="0000:86:00.0" class="0x020700" vendor="0x15b3" device="0x1013" link_speed="8.0 GT/s PCIe" link_width="8">
      <nic>
        <net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" maxconn="262144" gdr="0"/>
      </nic>
    </pci>
  </cpu>
</system>
"""

LSPCI_TREE = """\
-+-[0000:80]-+-02.0-[85]--+-00.0  NVIDIA Corporation GP104 [GeForce GTX 1070]
 |           |            \\-00.1  NVIDIA Corporation GP104 High Definition Audio Controller
 |           +-03.0-[86]----00.0  Mellanox Technologies MT27700 Family [ConnectX-4]
 |           \\-05.0  Intel Corporation Xeon E7 v4/Xeon E5 v4/Xeon E3 v4/Xeon D Map/VTd_Misc/System Management
 \\-[0000:00]-+-00.0  Intel Corporation Xeon E7 v4/Xeon E5 v4/Xeon E3 v4/Xeon D DMI2
             +-02.0-[03-06]----00.0-[04-06]--+-08.0-[05]--+-00.0  NVIDIA Corporation GP104 [GeForce GTX 1070]
             |                               |            \\-00.1  NVIDIA Corporation GP104 High Definition Audio Controller
             |                               +-10.0-[06]--+-00.0  NVIDIA Corporation GP104 [GeForce GTX 1070]
             |                               |            \\-00.1  NVIDIA Corporation GP104 High Definition Audio Controller
             |                               \\-11.0-[07]--
             \\-1f.0  Intel Corporation C610/X99 series chipset LPC Controller
"""


def lspci_bridge(slot: str, behind: str, width: int = 16, acs: str = "-") -> str:
    """Return a bridge as `lspci -vvv` shows it; `acs`: the sign of what is redirected."""
    return f"""\
{slot} PCI bridge: PLX Technology, Inc. PEX 8747 48-Lane, 5-Port PCI Express Gen 3 (8.0 GT/s) Switch (rev ca) (prog-if 00 [Normal decode])
	NUMA node: {int(slot >= "80")}
	Bus: primary={slot[:2]}, secondary={behind}, subordinate=ff, sec-latency=0
		LnkCap:	Port #8, Speed 8GT/s, Width x{width}, ASPM L1, Exit Latency L1 <4us
		LnkSta:	Speed 8GT/s (ok), Width x{width} (ok)
		ACSCap:	SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
		ACSCtl:	SrcValid{acs} TransBlk- ReqRedir{acs} CmpltRedir{acs} UpstreamFwd{acs} EgressCtrl- DirectTrans-
	Kernel driver in use: pcieport

"""


def _lspci_gpu(slot: str, width: str = "x16 (ok)") -> str:
    return f"""\
{slot} VGA compatible controller: NVIDIA Corporation GP104 [GeForce GTX 1070] (rev a1) (prog-if 00 [VGA controller])
	NUMA node: {int(slot >= "80")}
	Region 1: Memory at 387fe0000000 (64-bit, prefetchable) [size=256M]
		LnkCap:	Port #0, Speed 8GT/s, Width x16, ASPM L0s L1, Exit Latency L0s <512ns, L1 <16us
		LnkSta:	Speed 2.5GT/s (downgraded), Width {width}
	Kernel driver in use: nvidia

{slot[:-1]}1 Audio device: NVIDIA Corporation GP104 High Definition Audio Controller (rev a1)

"""


LSPCI_VERBOSE = (
    lspci_bridge("00:02.0", "03", acs="+")
    + lspci_bridge("03:00.0", "04")
    + lspci_bridge("04:08.0", "05")
    + lspci_bridge("04:10.0", "06", width=8)
    + _lspci_gpu("05:00.0")
    + _lspci_gpu("06:00.0", "x8 (downgraded)")
    + lspci_bridge("80:02.0", "85")
    + _lspci_gpu("85:00.0")
)

NVLINK = """\
GPU 0: GeForce GTX 1070 (UUID: GPU-11111111-0000-0000-0000-000000000000)
	 Link 0: 25.781 GB/s
	 Link 1: <inactive>
GPU 1: GeForce GTX 1070 (UUID: GPU-22222222-0000-0000-0000-000000000000)
	 Link 0: 25.781 GB/s
	 Link 1: <inactive>
GPU 2: GeForce GTX 1070 (UUID: GPU-33333333-0000-0000-0000-000000000000)
NVML: Unable to retrieve NVLink information as all links are inActive
"""

P2P = """\
$ nvidia-smi topo -p2p r
 \tGPU0\tGPU1\tGPU2\t
 GPU0\tX\tOK\tTNS\t
 GPU1\tOK\tX\tTNS\t
 GPU2\tTNS\tTNS\tX\t

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown
"""


def _tf_1(number: int) -> str:
    return (
        "2019-01-01 00:00:00.000000: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1639] "
        f"Found device {number} with properties:\n"
        "name: GeForce GTX 1070 major: 6 minor: 1 memoryClockRate(GHz): 1.7715\n"
        f"pciBusID: {GPUS[number]}\ntotalMemory: 7.92GiB freeMemory: 7.83GiB\n"
    )


def _tf_2(number: int) -> str:
    return (
        "2021-01-01 00:00:00.000000: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1733] "
        f"Found device {number} with properties:\n"
        f"pciBusID: {GPUS[number]} name: GeForce GTX 1070 computeCapability: 6.1\n"
        "coreClock: 1.7715GHz coreCount: 15 deviceMemorySize: 7.92GiB deviceMemoryBandwidth: 238.66GiB/s\n"
    )


_STAMP = "2019-01-01 00:00:00.000000: I tensorflow/core/common_runtime/gpu/gpu_device.cc"
_PEERS = (
    f"{_STAMP}:1180] Device interconnect StreamExecutor with strength 1 edge matrix:\n"
    f"{_STAMP}:1186]      0 1 2 \n{_STAMP}:1199] 0:   N Y N \n{_STAMP}:1199] 1:   Y N N \n{_STAMP}:1199] 2:   N N N \n"
)
TF_1 = "".join(_tf_1(number) for number in range(3)) + _PEERS
TF_2 = "".join(_tf_2(number) for number in range(3)) + _PEERS
TF_CREATED = "".join(
    f"I tensorflow/core/common_runtime/gpu/gpu_device.cc:1928] Created device /job:localhost/replica:0/task:0/"
    f"device:GPU:{number} with 7000 MB memory:  -> device: {number}, name: GeForce GTX 1070, "
    f"pci bus id: {address}, compute capability: 6.1\n"
    for number, address in enumerate(GPUS)
)


def _overview_gpu(number: int) -> str:
    persistence, limit = (("Off", 151), ("On", 151), ("Off", 120))[number]
    return f"""\
|   {number}  GeForce GTX 1070    {persistence:>3}  | 0000{GPUS[number].upper()} Off |                  N/A |
|  0%   41C    P8     8W / {limit}W |      3MiB /  8119MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""


OVERVIEW = (
    """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.67       Driver Version: 418.67       CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
"""
    + "".join(map(_overview_gpu, range(3)))
    + """
+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|  No running processes found                                                 |
+-----------------------------------------------------------------------------+
"""
)

ALL = {
    "nvidia-smi": OVERVIEW,
    "topo": TOPO,
    "nccl": NCCL,
    "lspci -tv": LSPCI_TREE,
    "lspci -vvv": LSPCI_VERBOSE,
    "nvlink -s": NVLINK,
    "topo -p2p": P2P,
    "TensorFlow 1": TF_1,
    "TensorFlow 2": TF_2,
    "TensorFlow created": TF_CREATED,
}
