"""Starts CUDA with the settings that copies need, or reports why it cannot."""

import contextlib
import os
from collections.abc import Iterator

from gputopo.probes.cuda.door import ABSENT, NO_LOG, CallLog, Cuda, CudaError, NoCudaError, nameless
from gputopo.values.install import pip_install

_UPDATE = "install a current NVIDIA driver; nvidia-smi shows the installed version"
_SEE_INSPECT = "run gputopo inspect: it shows what of the driver is missing"
_REMEDIES = {
    "CUDA_ERROR_NO_DEVICE": "check that the driver is loaded and that CUDA_VISIBLE_DEVICES hides no GPU;"
    " gputopo inspect shows more",
    "CUDA_ERROR_STUB_LIBRARY": "remove the stubs folder of the CUDA toolkit from LD_LIBRARY_PATH",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start nvidia-fabricmanager, which NVSwitch machines need",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "reboot, or reload the kernel module: library and module differ",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "remove the cuda-compat folder from LD_LIBRARY_PATH",
    "CUDA_ERROR_OPERATING_SYSTEM": "check the rights on /dev/nvidia*; in a container, that it was given GPUs",
}

# Settings that CUDA reads at its start and with the first context of a device. With lazy loading, the default
# since CUDA 12, a kernel that is loaded at its first launch may wait for all streams of its device, including
# blocked ones (CUDA C++ Programming Guide, Lazy Loading, Concurrent Execution). If every launch waits for its
# end, as users set to find errors, a launch in a blocked stream never returns. Streams that share a hardware
# queue run one after the other (CUDA C++ Programming Guide, CUDA Environment Variables). Training often sets
# one queue for all, and the default of 8 is too few for copies between one GPU and 15 others at once.
_SETTINGS = {
    "CUDA_MODULE_LOADING": "EAGER",
    "CUDA_LAUNCH_BLOCKING": "0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # the maximum
}
# Number devices by PCI address, as NVML does; CUDA's own order puts the fastest first. Not set if the user
# chose devices: the numbers in that list are in the user's order, and must hide the same GPUs here as from
# programs.
_IN_PCI_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_CHOSEN = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def open_cuda(log: CallLog = NO_LOG) -> Iterator[Cuda]:
    """Start CUDA, and release all resources at the end. `log` is notified of each call.

    Raises NoCudaError if libcuda.so.1 is missing, too old or unusable, if there is no device, or if cuInit
    fails.
    """
    with cuda_settings():
        cuda = _start(log)
        try:
            yield cuda
        finally:
            cuda.close()


@contextlib.contextmanager
def cuda_settings() -> Iterator[None]:
    """Set the variables that CUDA reads, and restore them: programs started later need their own values."""
    settings = _SETTINGS if _CHOSEN in os.environ else _SETTINGS | _IN_PCI_ORDER
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start(log: CallLog) -> Cuda:
    try:
        from cuda.bindings import driver  # 60 ms, and few commands need it
    except ImportError as error:
        raise NoCudaError(
            "BINDINGS_MISSING",
            f"cuda.bindings cannot be imported: {error}",
            pip_install("cuda-bindings>=12.6"),
        ) from error
    log.begin("cuInit", None)
    try:
        (code,) = driver.cuInit(0)
    except RuntimeError as error:
        raise _no_library(error) from error
    except ValueError as error:
        raise _refused(nameless("cuInit", error)) from error
    finally:
        log.end()
    try:
        if int(code):
            says = str(code.name).removeprefix("CUDA_ERROR_").replace("_", " ").lower()
            raise CudaError(str(code.name), f"cuInit: {says}")
        cuda = Cuda(driver, log)
    except CudaError as error:
        raise _refused(error) from error
    if not cuda.devices:
        says = "; ".join(cuda.unreadable) or "CUDA finds no device"
        raise NoCudaError("CUDA_ERROR_NO_DEVICE", says, _REMEDIES["CUDA_ERROR_NO_DEVICE"])
    return cuda


def _no_library(error: RuntimeError) -> NoCudaError:
    # Compares the name of cuda.pathfinder's DynamicLibNotFoundError, which older versions have in another
    # module.
    if type(error).__name__ == "DynamicLibNotFoundError":
        says = "the CUDA driver's library (libcuda.so.1) is not on this machine"
        return NoCudaError("LIBRARY_MISSING", says, _SEE_INSPECT)
    says = f"libcuda.so.1 is too old, or is not NVIDIA's: {error}"
    return NoCudaError("LIBRARY_ODD", says, _UPDATE)


def _refused(error: CudaError) -> NoCudaError:
    if error.reason == ABSENT:
        return NoCudaError("LIBRARY_ODD", f"libcuda.so.1 is too old: {error.says}", _UPDATE)
    return NoCudaError(
        error.reason, f"CUDA does not start: {error}", _REMEDIES.get(error.reason, _SEE_INSPECT)
    )
