"""Known error messages: a finding with its cause and what to do, alone and next to any other text."""

import pytest

from gputopo.captures import read_text
from gputopo.findings import find
from gputopo.report import inspection_document
from gputopo.values.finding import Inspection
from gputopo.values.machine import Machine
from tests import there
from tests.captures import samples
from tests.report.shown import answer_of

MISMATCH = "version_mismatch"
ERRORS = {
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.154": MISMATCH,
    "kernel version 470.57.2 does not match DSO version 470.63.1 -- cannot find working devices": MISMATCH,
    "Error 803: system has unsupported display driver / cuda driver combination": MISMATCH,
    "RuntimeError: The NVIDIA driver on your system is too old (found version 10010).": "too_old",
    "-> CUDA driver version is insufficient for CUDA runtime version": "too_old",
    "RuntimeError: Unexpected error. Error 802: system not yet initialized": "not_ready",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.": "not_loaded",
    "AssertionError: Found no NVIDIA driver on your system.": "not_loaded",
    "bash: nvidia-smi: command not found": "library_missing",
    "load library failed: libnvidia-ml.so.1: cannot open shared object file": "library_missing",
    "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.": "not_loaded",
    "Could not load dynamic library 'libcuda.so.1'; dlerror: cannot open": "library_missing",
    "Failed to initialize NVML: Insufficient Permissions": "no_permission",
    "Failed to initialize NVML: Unknown Error": "failed",
    "No devices were found": "failed",
    "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.": MISMATCH,
    "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please": "too_old",
    "nvidia-container-cli: detection error: nvml error: gpu is lost: unknown.": "failed",
    "failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_UNKNOWN: unknown error": "failed",
}


# One line of each kind, with the id of its finding and a word of the remedy.
MESSAGES = {
    "x.cu:256 CUDA error code=802(cudaErrorSystemNotReady)": ("driver.not_ready", "fabricmanager"),
    "cudaGetDeviceCount returned 802": ("driver.not_ready", "fabricmanager"),
    "cudaGetDeviceCount returned 35": ("driver.too_old", "Update the driver"),
    "CUDA error: 804": ("driver.version_mismatch", "Reboot"),
    "cudaSetDevice: CUDA error code 100": ("driver.failed", "CUDA_VISIBLE_DEVICES"),
    "cudaSetDevice returned 46": ("program.error", "compute mode"),
    "NVML_ERROR_GPU_IS_LOST": ("driver.failed", "power-cycle"),
    "n:1:2 [0] transport/nvls.cc:379 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory": (
        "program.error", "fabric manager",
    ),
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)": ("program.error", "rank"),
    "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:93": ("program.error", "rank"),
    "ncclRemoteError: A call failed possibly due to a network error": ("program.error", "rank"),
    "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error.": ("program.error", "shm"),
    "Error while creating shared memory segment /dev/shm/nccl-x (size 9)": ("program.error", "shm"),
    "[  9.000000] Out of memory: Killed process 4711 (python)": ("program.error", "input workers"),
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0": ("program.error", "input workers"),
    "CUDA_ERROR_INVALID_PTX: a PTX JIT compilation failed": ("program.error", "explain install"),
    "UserWarning: X with CUDA capability sm_120 is not compatible with the current PyTorch installation.": (
        "program.error", "explain install",
    ),
    "W TensorFlow was not built with CUDA kernel binaries compatible with compute capability 12.0.": (
        "program.error", "ComputeCache",
    ),
    "W gpu_device.cc:2] Cannot dlopen some GPU libraries. Please make sure": ("program.error", "and-cuda"),
    "Could not load dynamic library 'libcudart.so.11.0'; dlerror: no file": ("program.error", "and-cuda"),
    "CUDA backend failed to initialize: Unable to load cuDNN.": ("program.error", "jax[cuda12]"),
    "OOM when allocating tensor with shape[64,3]": ("program.error", "smaller batch"),
    "E Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED": ("program.error", "cuDNN"),
    "RuntimeError: `merge_call` called while defining a new graph or a tf.function.": (
        "program.error", "strategy.run",
    ),
    "Trying to access resource Resource-1-at-0x1 located in device /job:x/GPU:0 from GPU:1": (
        "program.error", "jit_compile=False",
    ),
    'docker: could not select device driver "" with capabilities: [[gpu]].': ("program.error", "Toolkit"),
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.": ("program.error", "Toolkit"),
    "nvidia-container-cli: device error: 1: unknown device": ("program.error", "Toolkit"),
    "node1: gres/gpu count reported lower than configured (7 < 8)": ("program.error", "lost"),
    "GPU 00000000:05:00.0 is currently in use by another process": ("program.error", "lsof"),
    "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files": ("program.error", "nvrm"),
    "        License Status                    : Unlicensed (Restricted)": ("program.error", "gridd"),
    "CUDA error at x.cu:9 code=999(cudaErrorUnknown)": ("program.error", "xid"),
}  # fmt: skip


@pytest.mark.parametrize(("message", "name"), samples.in_turn(MESSAGES, ["topo", "lspci -vvv", "nvlink -s"]))
def test_an_error_next_to_any_text_is_found_and_hides_nothing(message: str, name: str) -> None:
    bare = read(samples.ALL[name])
    machine = read(f"{samples.ALL[name]}\n{message}\n")
    (found,) = [one for one in find(machine) if one.id in ("program.error", machine_status(machine))]
    id_, remedy = MESSAGES[message]
    assert (found.id, found.severity != "info", remedy in there(found.remedy)) == (id_, True, True)
    assert (machine.gpus, machine.links, machine.unread) == (bare.gpus, bare.links, bare.unread)
    assert sum(of.not_understood for of in machine.lines) == len(bare.unread)


def machine_status(machine: Machine) -> str:
    return f"driver.{machine.driver.status}"


def test_an_error_of_the_driver_counts_next_to_an_output_of_a_driver_that_answers() -> None:
    machine = read(f"{samples.OVERVIEW}\nRuntimeError: Error 802: system not yet initialized\n")
    (found,) = [one for one in find(machine) if one.id.startswith("driver.")]
    assert (found.id, found.severity) == ("driver.not_ready", "error")
    assert (len(machine.gpus), machine.contradictions) == (3, ())


@pytest.mark.parametrize(
    "line",
    [
        "hwmon GPU1: unable to get fan speed - GPU is lost (15)",
        "WARN: NVML: cannot get power for GPU #1, error code 15",
    ],
)
def test_a_gpu_that_nvml_lost_is_named_and_marked_among_the_others(line: str) -> None:
    for text in (line, f"{samples.OVERVIEW}\n{line}\n"):
        machine = read(text)
        assert [gpu.index for gpu in machine.gpus if gpu.lost] == [1]
        assert [one.id for one in find(machine) if one.severity == "error"] == ["gpu.lost"]


RAS = """\
Job summary
===========

Errors
======

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  Rank 12 -- GPU 4 managed by process 4711 on node 10.0.0.1
"""


def test_the_status_of_nccls_ras_client_is_read_without_the_addresses_of_hosts() -> None:
    (found,) = find(read(RAS))
    assert found.id == "program.error"
    assert "MISMATCH; Communicator ranks have different AllGather operation counts" in found.says
    assert "Rank 12 -- GPU 4" in found.says
    assert "10.0.0.1" not in found.says


def test_a_long_text_ends_between_two_words() -> None:
    words = " ".join(f"word{number}" for number in range(100))
    (event,) = read(f"CUDA out of memory. {words}\n").kernel_events
    *whole, last = event.text.split(" ")
    assert (last, f"CUDA out of memory. {words} ".startswith(" ".join([*whole, ""]))) == ("...", True)
    assert 280 < len(event.text) <= 300


def test_a_part_that_is_refused_is_reported_next_to_an_error() -> None:
    machine = read("GPU0 GPU1\nGPU0 X PIX\nGPU1 PHB X\nCUDA out of memory. Tried to allocate 2 GiB\n")
    ids = {one.id: one.says for one in find(machine)}
    assert "not symmetric" in ids["capture.incomplete"]
    assert "program.error" in ids


def read(text: str) -> Machine:
    return read_text(text, origin="paste")


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_a_finding_of_the_driver(error: str) -> None:
    machine = read(f"me@box:~$ nvidia-smi\n{error}\nme@box:~$ ")
    assert machine.driver.status == ERRORS[error]
    (found,) = find(machine)
    assert (found.id, found.severity) == (f"driver.{ERRORS[error]}", "error")
    assert machine.unread == ()


def test_the_versions_that_differ_are_named() -> None:
    (found,) = find(read("kernel version 470.57.2 does not match DSO version 470.63.1 -- cannot find"))
    assert "library 470.63.1, kernel module 470.57.2" in found.says
    assert (
        read("Driver/library version mismatch\nNVML library version: 535.154\n").driver.nvml_version
        == "535.154"
    )


@pytest.mark.parametrize(
    ("gpu", "named"),
    [
        ("GPU0000:41:00.0", "GPU 0000:41:00.0"),
        ("GPU3: 0000:41:00.0", "GPU 3"),
    ],
)
def test_a_gpu_that_is_lost_is_named_by_its_address_and_by_a_number_that_is_shown(
    gpu: str, named: str
) -> None:
    machine = read(f"Unable to determine the device handle for {gpu}: GPU is lost.  Reboot the system\n" * 2)
    (found,) = find(machine)
    assert found.id == "gpu.lost"
    assert "0000:41:00.0" in found.says
    assert "(GPU is lost. R" in found.says
    assert answer_of(machine, found) == f"1 GPU: {named} is lost. 1 error."
    (table,) = inspection_document(Inspection(machine=machine, findings=(found,))).tables
    assert table.rows == ((named.removeprefix("GPU "), "LOST"),)


_EMPTY = "|                           | "
REPORTED = [
    ("Tested 3 GPUs:\n\tGPU 0: OK\n\tGPU 1: OK\n\tGPU 2: FAULTY\n", "GPU 2: FAULTY", "error", ""),
    ("9.1%  proc'd: 0 - 7   errors: 0 - 12  (DIED!)\n", "errors; 0 - 12 (DIED!)", "error", "field"),
    ('Couldn\'t init a GPU test: Error in "init": X\n', "Couldn't init a GPU test", "warning", "Build"),
    (
        f"| GPU Memory                | Pass - GPUs: 0, 2     |\n{_EMPTY}Fail - GPU: 1         |\n"
        f"| Warning                   | GPU 1 Thermal violat  |\n{_EMPTY}ions of 3 s           |\n",
        "dcgmi diag reports GPU Memory Fail - GPU 1; GPU 1 Thermal violations of 3 s",
        "error",
        "air flow",
    ),
    (
        f"| memory                    | Fail       |\n{_EMPTY}GPU0: Pass |\n{_EMPTY}GPU1: Fail |\n",
        "reports memory Fail GPU1 Fail",
        "error",
        "",
    ),
    (
        "Internal: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC "
        "error encountered\n",
        "a CUDA program reports CUDA_ERROR_ECC_UNCORRECTABLE",
        "error",
        "ROW_REMAPPER",
    ),
    ("CUDA error: an illegal memory access was encountered\n", "illegal memory", "warning", "sanitizer"),
    ("CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink\n", "CONTAINED", "error", "94"),
    ("OutOfMemoryError: CUDA out of memory. Tried\n", "out of memory", "warning", "smaller batch"),
]


@pytest.mark.parametrize(("text", "says", "severity", "remedy"), REPORTED)
def test_an_error_of_a_program_is_one_finding_alone_and_beside_a_list_of_gpus(
    text: str, says: str, severity: str, remedy: str
) -> None:
    for above in ("", "GPU 0: NVIDIA H200 (UUID: GPU-0a)\nGPU 1: NVIDIA H200 (UUID: GPU-1a)\n"):
        machine = read(above + text)
        (found,) = [one for one in find(machine) if one.severity != "info"]
        assert (found.id, found.severity, len(machine.gpus)) == ("program.error", severity, 2 * bool(above))
        assert says in found.says
        assert remedy in there(found.remedy)
