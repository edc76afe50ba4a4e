"""The command with which a user can check the findings of a rule without gputopo."""

from collections.abc import Iterable

_LINKS = "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv"
_KERNEL = "sudo dmesg | grep -i -e nvrm -e xid"
# By the beginning of the rule's id; the longest match is used. GPU and ADDRESS are replaced from the finding.
_COMMANDS = {
    "": "nvidia-smi -q -i GPU",
    "bandwidth.": "nvbandwidth",
    "bandwidth.copy_failed": _KERNEL,
    "bandwidth.hung": _KERNEL,
    "bandwidth.throttled": "nvidia-smi -q -i GPU -d PERFORMANCE",
    "capture.": "gputopo inspect --all --json --from FILE",
    "clocks.": "nvidia-smi -q -i GPU -d CLOCK,PERFORMANCE",
    "collectives.": "NCCL_DEBUG=INFO all_reduce_perf -b 64M -e 512M -f 2 -g 2",
    "configuration.compute": "nvidia-smi -q -i GPU -d COMPUTE",
    "cuda.": "nvidia-smi --query-gpu=index,name,pci.bus_id --format=csv",
    "driver.": "nvidia-smi",
    "driver.hung": "ps -eo pid,stat,wchan:30,cmd | grep ' D'",
    "driver.kernel_error": "sudo dmesg | grep -i nvrm",
    "driver.library_missing": "ldconfig -p | grep libnvidia-ml",
    "driver.no_permission": "ls -l /dev/nvidia*",
    "driver.not_loaded": "lsmod | grep nvidia",
    "driver.not_ready": "systemctl status nvidia-fabricmanager",
    "driver.other_driver": "lspci -k -d 10de:",
    "driver.version_mismatch": "cat /proc/driver/nvidia/version",
    "driver.xid": "sudo dmesg | grep -i xid",
    "ecc.": "nvidia-smi -q -i GPU -d ECC",
    "fleet.": "gputopo inspect --all",
    "gpu.busy": "nvidia-smi -q -i GPU -d UTILIZATION,MEMORY,PIDS",
    "gpu.hung_kernel": "nvidia-smi -q -i GPU -d UTILIZATION,POWER,PIDS",
    "gpu.lost": _KERNEL,
    "gpu.no_answer": _KERNEL,
    "gpu.reset": "nvidia-smi --query-gpu=index,gpu_recovery_action --format=csv",
    "host.busy": "top -b -n 1 | head -20",
    "machine.": "nvidia-smi -L",
    "machine.no_nvidia_device": "lspci -d 10de:",
    "machine.unknown_host": "hostname",
    "memory.": "nvidia-smi -q -i GPU -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    "nccl.": "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH all_reduce_perf -g 2",
    "network.": "iperf3 -c HOST",
    "nic.": "ip -s link",
    "nic.gpu_far": "nvidia-smi topo -m",
    "nic.gpudirect_off": "lsmod | grep -e nvidia_peermem -e nv_peer_mem",
    "numa.": "numactl --hardware",
    "numa.affinity_cut": "nvidia-smi topo -m",
    "nvlink.": "nvidia-smi nvlink -s -i GPU",
    "nvlink.errors": "nvidia-smi nvlink -e -i GPU",
    "nvlink.fabric": "nvidia-smi -q -i GPU | grep -A 6 Fabric",
    "p2p.": "nvidia-smi topo -p2p r",
    "p2p.acs_on": "sudo lspci -vvv | grep ACSCtl",
    "p2p.direct_slower_than_staged": "p2pBandwidthLatencyTest",
    "p2p.iommu": "sudo dmesg | grep -i -e iommu -e dmar",
    "pcie.": "sudo lspci -vvv -s ADDRESS",
    "pcie.errors": "sudo dmesg | grep -i -e aer -e 'bus error'",
    "pcie.link": _LINKS,
    "pcie.replays": "nvidia-smi -q -i GPU | grep -i replay",
    "pcie.shared_uplink": "lspci -tv",
    "power.": "nvidia-smi -q -i GPU -d POWER",
    "program.": "sudo dmesg | grep -i -e nvrm -e xid -e oom",
    "soak.": "nvidia-smi -q -i GPU -d PERFORMANCE,ECC",
    "tensorflow.": "python -c 'import tensorflow as tf; print(tf.config.list_physical_devices())'",
    "thermal.": "nvidia-smi -q -i GPU -d TEMPERATURE,PERFORMANCE",
    "throttle.": "nvidia-smi -q -i GPU -d PERFORMANCE",
    "topology.": "nvidia-smi topo -m",
}


def check_command(rule_id: str, gpus: Iterable[int] = (), address: str | None = None) -> str:
    """Return the command. `gpus`, `address`: from the finding; the default is all GPUs."""
    command = _COMMANDS[max(filter(rule_id.startswith, _COMMANDS), key=len)]
    listed = ",".join(map(str, gpus))
    command = command.replace("-i GPU", f"-i {listed}") if listed else command.replace(" -i GPU", "")
    return command.replace("-s ADDRESS", f"-s {address}" if address else "-d 10de:")
