"""Failures that programs report: CUDA, NCCL, a framework, a container runtime or a test of the hardware."""

from collections.abc import Iterator

from gputopo.findings.kernel_log import event_evidence, kernel_events
from gputopo.findings.rule import Case, Fault, Rule, check
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE

# Its cases: by what the messages have in common, the first that fits.
PROGRAM_ERROR = Rule(
    "program.error",
    "a program reports an error",
    remedy=(
        "Run it again with nothing else on the GPU, and see sudo dmesg | grep -i -e xid -e nvrm and "
        "nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE. If it fails again, run NVIDIA's field diagnostic "
        "(required for an RMA)."
    ),
    severities=("error", "warning"),
    cases=(
        Case(
            "nvls",
            "multicast of the NVSwitches (NVLS) does not work",
            severity="error",
            remedy=(
                "Start the fabric manager in the version of the driver (sudo systemctl status "
                "nvidia-fabricmanager; nvidia-smi -q shows Fabric: State Completed), then reset the GPUs "
                "or reboot. Until then NCCL_NVLS_ENABLE=0 trains without NVLS."
            ),
        ),
        Case(
            "collective operation",
            "a rank of a collective operation failed, hangs or is late",
            severity="error",
            remedy=(
                "Find the rank that failed first or is late: check its log (NCCL_DEBUG=INFO), sudo dmesg "
                "| grep -i xid and gputopo inspect on its host."
            ),
        ),
        Case(
            "shared memory",
            "too little shared memory, or an input worker ended",
            severity="error",
            remedy=(
                "See df -h /dev/shm and free -m. Start a container with more (docker run --shm-size=8g, "
                "or --ipc=host), or use fewer input workers."
            ),
        ),
        Case(
            "host ran out of memory",
            "the kernel killed a process because the host or its container ran out of memory",
            severity="error",
            remedy=(
                "See free -m. Use fewer input workers, a smaller shuffle buffer or batch, or give the "
                "job more memory (docker run -m, Slurm --mem, limits of Kubernetes)."
            ),
        ),
        Case(
            "crashed in a library",
            "a program crashed in a library of CUDA, NCCL or the framework",
            severity="warning",
            remedy=(
                "See sudo dmesg | grep -i xid for the same time: an Xid is the cause. Otherwise update "
                "NCCL, the driver and the framework together, and report it with a stack trace (gdb, "
                "py-spy)."
            ),
        ),
        Case(
            "no code for this gpu",
            "the framework or its compiler does not support this GPU; not a fault of the machine",
            severity="error",
            remedy=(
                "Install a build of the framework for the GPU's compute capability, or use NVIDIA's "
                "container of it: gputopo explain install."
            ),
        ),
        Case(
            "first start",
            "the driver compiles kernels for this GPU at the first start",
            severity="warning",
            remedy=(
                "Wait for the first start to end: later ones find the kernels in ~/.nv/ComputeCache. A "
                "build for the GPU's compute capability starts at once."
            ),
        ),
        Case(
            "cuda libraries",
            "the framework does not find CUDA's libraries, and runs on the CPU",
            severity="error",
            remedy=(
                "Install the framework with its CUDA packages (pip install 'tensorflow[and-cuda]', pip "
                "install 'jax[cuda12]') in a separate environment: gputopo explain install. See "
                "nvidia-smi for the driver."
            ),
        ),
        Case(
            "cudnn",
            "cuDNN failed, or has another version than the framework needs",
            severity="error",
            remedy=(
                "Install the cuDNN that the framework was built with (pip install 'tensorflow[and-cuda]' "
                "brings it). If nvidia-smi shows a GPU with full memory, stop the programs on it or take "
                "a smaller batch."
            ),
        ),
        Case(
            "merge call",
            "a synchronization within a nested tf.function; not a fault of the machine",
            severity="warning",
            remedy=(
                "Do not decorate train_step with tf.function, and wrap the whole strategy.run in one "
                "tf.function."
            ),
        ),
        Case(
            "access resource",
            "a variable on another device than the compiled code (XLA); not a fault of the machine",
            severity="warning",
            remedy="Compile the model without XLA under a strategy: model.compile(..., jit_compile=False).",
        ),
        Case(
            "for the container",
            "a container or pod gets no GPU",
            severity="error",
            remedy=(
                "See nvidia-smi on the host, and install the NVIDIA Container Toolkit there: sudo "
                "nvidia-ctk runtime configure --runtime=docker, then sudo systemctl restart docker (CDI: "
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml). Kubernetes: see kubectl "
                "describe node and the log of the nvidia-device-plugin pod."
            ),
        ),
        Case(
            "fewer gpus than configured",
            "Slurm finds fewer GPUs on a node than configured",
            severity="error",
            remedy="See nvidia-smi and sudo dmesg | grep -i xid on that node: a GPU may be lost.",
        ),
        Case(
            "cannot be reset",
            "a GPU that programs use cannot be reset",
            severity="warning",
            remedy=(
                "Stop the programs on it (sudo lsof /dev/nvidia*), stop nvidia-persistenced and "
                "nvidia-fabricmanager, and reset it again."
            ),
        ),
        Case(
            "device files",
            "the driver has no device files",
            severity="error",
            remedy=(
                "See nvidia-smi, and sudo dmesg | grep -i nvrm: the module is not loaded, or found no "
                "GPU that it supports."
            ),
        ),
        Case(
            "windows driver",
            "the Windows driver was reset",
            severity="warning",
            remedy=(
                "See nvidia-smi -q on that machine; 13, 14 and 153 also follow from resets of the driver."
            ),
        ),
        Case(
            "license",
            "the vGPU has no license",
            severity="warning",
            remedy=(
                "See sudo journalctl -u nvidia-gridd and /etc/nvidia/gridd.conf: without a license a "
                "vGPU works at a fraction of its speed."
            ),
        ),
        Case(
            "gb/s of pcie",
            "a GPU has a slower PCIe path than another GPU",
            severity="warning",
            remedy=(
                "See sudo lspci -vvv for LnkCap and LnkSta of the GPU and of the bridges above it. "
                "Reseat the card or riser, or use a slot with more lanes."
            ),
            fits="slot",
        ),
        Case(
            "thermal",
            "the GPU got too hot",
            severity="error",
            remedy=(
                "Improve the air flow (fans, dust, space between cards, air temperature), and run the "
                "test again."
            ),
            fits="cooling",
        ),
        Case(
            "remapping",
            "row remapping pending",
            severity="error",
            remedy=(
                "Stop all programs on the GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot; the "
                "row is then remapped. It only qualifies for an RMA if remapping failed (nvidia-smi -q "
                "-d ROW_REMAPPER)."
            ),
        ),
        Case(
            "ecc",
            "uncorrectable memory error",
            severity="error",
            remedy=(
                "See nvidia-smi -q -d ECC,ROW_REMAPPER and sudo dmesg | grep -i xid for the GPU. Stop "
                "its programs and reset it (sudo nvidia-smi -r -i GPU), or reboot; if it happens again, "
                "run NVIDIA's field diagnostic (required for an RMA)."
            ),
        ),
        Case(
            "nvlink",
            "uncorrectable NVLink error",
            severity="error",
            remedy=(
                "See sudo dmesg | grep -i xid, nvidia-smi nvlink -s and -e for the GPU and the link. "
                "Stop all programs and reset the GPUs (sudo nvidia-smi -r), or reboot."
            ),
            fits="bridge",
        ),
        Case(
            "contained",
            "uncorrectable error, contained to this program",
            severity="error",
            remedy=(
                "See sudo dmesg | grep -i xid for the GPU (94: its memory; 144 to 150: NVLink), and "
                "start the program again."
            ),
        ),
        Case(
            "busy or unavailable",
            "the GPU was in use",
            severity="warning",
            remedy=(
                "Stop all programs on the GPU (nvidia-smi), set its compute mode to Default (sudo "
                "nvidia-smi -i GPU -c 0), and start the program again."
            ),
        ),
        Case(
            "devicesunavailable",
            "the GPU was in use",
            severity="warning",
            remedy=(
                "Stop all programs on the GPU (nvidia-smi), set its compute mode to Default (sudo "
                "nvidia-smi -i GPU -c 0), and start the program again."
            ),
        ),
        Case(
            "out of memory",
            "too little free GPU memory; not a fault of the machine",
            severity="warning",
            remedy="Check nvidia-smi for programs that use the memory, or use a smaller batch.",
        ),
        Case(
            "couldn't init",
            "the test did not start",
            severity="warning",
            remedy=(
                "Build the test program for this GPU and its driver's CUDA, and run it again: the GPU "
                "was not tested."
            ),
        ),
        Case(
            "no kernel image",
            "not built for this GPU; not a fault of the machine",
            severity="warning",
            remedy="Install a build of the framework for the GPU's compute capability.",
        ),
        Case(
            "invalid device ordinal",
            "a GPU that the program does not see",
            severity="warning",
            remedy=(
                "Compare the number with nvidia-smi -L and CUDA_VISIBLE_DEVICES; a GPU may be lost (sudo "
                "dmesg | grep -i xid)."
            ),
        ),
        Case(
            "illegal",
            "invalid access by the program",
            severity="warning",
            remedy="Debug the program first (compute-sanitizer); the GPU is rarely the cause.",
        ),
        Case(
            "misaligned",
            "invalid access by the program",
            severity="warning",
            remedy="Debug the program first (compute-sanitizer); the GPU is rarely the cause.",
        ),
        Case(
            "assert",
            "an assertion of the program failed",
            severity="warning",
            remedy="Debug the program first (CUDA_LAUNCH_BLOCKING=1); the GPU is rarely the cause.",
        ),
        Case(
            "launch",
            "a kernel of the program failed",
            severity="warning",
            remedy=(
                "See sudo dmesg | grep -i xid: without an Xid debug the program (compute-sanitizer), "
                "with one see gputopo explain driver.xid."
            ),
        ),
        Case(
            "cublas",
            "cuBLAS failed",
            severity="warning",
            remedy=(
                "See sudo dmesg | grep -i xid and the free memory (nvidia-smi); without either debug the "
                "program (CUDA_LAUNCH_BLOCKING=1)."
            ),
        ),
    ),
)


@check(PROGRAM_ERROR)
def program_errors(machine: Machine) -> Iterator[Fault]:
    """Find failures that programs report. They number the GPUs as CUDA does: none is named as the subject."""
    for _, event in kernel_events(machine, "program"):
        says, case = f"{event.device_driver} reports {event.text}", PROGRAM_ERROR.case_in(event.text)
        yield PROGRAM_ERROR.fault(MACHINE, says, event_evidence(event), case=case, part=event.text)
