"""Whether the installed TensorFlow can use the GPUs: its CUDA libraries, its kernels, the driver, cuDNN.

Commands that train stop on an error. `inspect` reports an error as a warning: you may not want to train.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

from gputopo.findings.rule import Fault, Rule, check, present
from gputopo.reference import expected_of
from gputopo.values.install import install_tensorflow, missing_libraries, pip_install
from gputopo.values.machine import Gpu, Machine, TensorFlowInstall
from gputopo.values.subject import MACHINE

CANNOT_USE = Rule(
    "tensorflow.cannot_use",
    "the installed TensorFlow cannot use a GPU of this machine",
    remedy="Install a TensorFlow that can: gputopo explain install.",
)
MAY_FAIL = Rule(
    "tensorflow.may_fail",
    "the installed TensorFlow may fail on a GPU of this machine",
    remedy="Try it: gputopo screen trains on each GPU for some seconds.",
)
FIRST_START = Rule(
    "tensorflow.first_start",
    "the driver compiles kernels of TensorFlow for this GPU at the first start",
    remedy=(
        "None needed: later starts find them in ~/.nv/ComputeCache. CUDA_CACHE_MAXSIZE=4294967296 keeps "
        "them for other programs, too."
    ),
    severities=("info",),
)
UNREACHED = Rule(
    "tensorflow.unreached_library",
    "TensorFlow does not find a CUDA library that is installed",
    remedy=(
        "None needed for gputopo, which loads it. For other programs, add its folder in "
        "site-packages/nvidia to LD_LIBRARY_PATH."
    ),
    severities=("info",),
)

Version = tuple[int, int]

# The oldest drivers for versions of CUDA (CUDA Toolkit Release Notes, table of driver versions).
_DRIVERS: dict[Version, str] = {
    (12, 0): "525.60.13",
    (12, 3): "545.23.06",
    (12, 5): "555.42.02",
    (13, 0): "580.65.06",
}
# TensorFlow's element-wise kernels (Cast, Mul, AddV2, ...) are only PTX for compute capability 9.0 and later.
# The version of CUDA whose PTX they are, read from the wheels of 2.16 to 2.21. A driver must know that
# version, unlike for compiled kernels (CUDA Compatibility, minor version compatibility).
_PTX_CUDA: dict[Version, Version] = {
    (2, 16): (12, 0),
    (2, 17): (12, 3),
    (2, 18): (12, 3),
    (2, 19): (12, 5),
    (2, 20): (12, 5),
    (2, 21): (12, 5),
}
# Before this version these kernels are PTX for sm_90a, which only GPUs of 9.0 can load (read from the wheels;
# CUDA_ERROR_INVALID_PTX in tensorflow#89272, #97387, #99592, #101746).
_FIRST_WITH_PTX_FOR_LATER: Version = (2, 21)
_HOPPER: Version = (9, 0)
_OTHER_BUILD = "use a build of TensorFlow for this GPU: gputopo explain install lists some"
# The first cuDNN without GPUs before Turing (support matrix of cuDNN 9.11.0; machine code in its files).
_CUDNN_FROM_TURING: Version = (9, 11)
_TURING: Version = (7, 5)
_LAST_DRIVER_BEFORE_TURING = "580"  # CUDA 13 release notes: later drivers ignore Maxwell, Pascal and Volta
_KERNEL = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


class Support(NamedTuple):
    """Whether TensorFlow can use a GPU, the reason as a clause, and what to do.

    `compiles`: the driver compiles some of TensorFlow's kernels for the GPU at the first start.
    """

    level: Literal["fine", "warning", "error"] = "fine"
    reason: str = ""
    remedy: str = ""
    compiles: bool = False


def install_support(install: TensorFlowInstall) -> Support:
    """Return whether a TensorFlow can use any NVIDIA GPU: built with CUDA, and its libraries are there."""
    name = _name(install)
    if install.is_cuda_build is False:
        return Support("error", f"{name} is built without CUDA", _cuda_build(install))
    if install.missing_libraries is None:
        reason = f"it is unknown whether the CUDA libraries of {name} are installed"
        return Support("warning", reason, "if TensorFlow finds no GPU, see gputopo explain install")
    if install.missing_libraries:
        reason = f"{name} cannot use GPUs: {missing_libraries(install.missing_libraries)}"
        return Support("error", reason, install_tensorflow(install.version, cuda=True))
    return Support()


def gpu_support(capability: Version, driver_cuda: Version | None, install: TensorFlowInstall) -> Support:
    """Return whether a TensorFlow has kernels for a GPU, and whether the driver can load them.

    `capability`: of the GPU, `(8, 6)`. `driver_cuda`: the newest CUDA that the driver supports, None if that
    is not known. NVIDIA's rules (CUDA C++ Programming Guide, binary and PTX compatibility; CUDA
    Compatibility): a kernel for sm_X.y runs on X.z if z >= y. A driver compiles PTX of its CUDA version or an
    earlier one for the capability of the PTX and any later one. A driver for CUDA 12.x loads the compiled
    kernels of every CUDA 12.y.
    """
    name, kernels = _name(install), _kernels(install)
    built_cuda = version_of(install.cuda_version)
    if not kernels:
        return Support()
    lowest = min(kernel.capability for kernel in kernels)
    if capability < lowest:  # TensorFlow ignores such a GPU
        supported = f"{name} supports compute capability {_dotted(lowest)} and later"
        reason = f"{supported}; this GPU has {_dotted(capability)}"
        return Support("error", reason, "use other GPUs, or --cpu")
    if driver_cuda is not None and built_cuda is not None and driver_cuda[0] < built_cuda[0]:
        reason = (
            f"{name} needs a driver for CUDA {built_cuda[0]}; this one supports CUDA {_dotted(driver_cuda)}"
        )
        return Support("error", reason, _update_driver((built_cuda[0], 0), capability))
    if any(kernel.runs_on(capability) for kernel in kernels):
        return _cudnn_support(capability, install)
    if not any(kernel.compiles_for(capability) for kernel in kernels):
        reason = f"{name} has no kernels for compute capability {_dotted(capability)}"
        return Support("error", reason, _OTHER_BUILD)
    return _ptx_support(capability, driver_cuda, install)


def _ptx_support(capability: Version, driver_cuda: Version | None, install: TensorFlowInstall) -> Support:
    """Return whether the driver can compile the kernels that TensorFlow has for a GPU only as PTX."""
    name, release = _name(install), version_of(install.version)
    nearest = max(kernel.capability for kernel in _kernels(install) if kernel.compiles_for(capability))
    is_for_this = nearest[0] == capability[0]
    if not is_for_this and release is not None and release < _FIRST_WITH_PTX_FOR_LATER:
        reason = f"{name} has kernels that this GPU cannot load (CUDA_ERROR_INVALID_PTX)"
        first = _dotted(_FIRST_WITH_PTX_FOR_LATER)
        return Support("error", reason, pip_install(f"tensorflow[and-cuda]>={first}"))
    known = _PTX_CUDA.get(release) if release is not None and nearest == _HOPPER else None
    needed = known or version_of(install.cuda_version)
    if driver_cuda is not None and needed is not None and driver_cuda < needed:
        reason = (
            f"{name} has some kernels for this GPU only as PTX of CUDA {_dotted(needed)}; "
            f"this driver supports CUDA {_dotted(driver_cuda)}"
        )
        return Support("warning" if known is None else "error", reason, _update_driver(needed, capability))
    if is_for_this:
        return Support(compiles=True)
    reason = f"the driver compiles all kernels of {name} for this GPU at the first start; XLA fails on it"
    return Support("warning", reason, "do not use --xla; gputopo explain install lists other builds")


def _cudnn_support(capability: Version, install: TensorFlowInstall) -> Support:
    """Return whether cuDNN supports a GPU for which TensorFlow has kernels."""
    cudnn = version_of(install.cudnn_version)
    if cudnn is None or capability >= _TURING or cudnn < _CUDNN_FROM_TURING:
        return Support()
    reason = f"cuDNN {install.cudnn_version} does not support compute capability {_dotted(capability)}"
    return Support("warning", reason, pip_install(f"nvidia-cudnn-cu12<{_dotted(_CUDNN_FROM_TURING)}"))


class _Kernel(NamedTuple):
    """What TensorFlow is built for. `only`: it runs on no other capability (sm_90a)."""

    capability: Version
    is_ptx: bool
    only: bool

    def runs_on(self, capability: Version) -> bool:
        """Return whether it is compiled for a capability, or for one that the GPU understands."""
        if self.only:
            return not self.is_ptx and capability == self.capability
        return not self.is_ptx and capability[0] == self.capability[0] and capability >= self.capability

    def compiles_for(self, capability: Version) -> bool:
        """Return whether a driver can compile it for a capability."""
        return self.is_ptx and (
            capability == self.capability or (capability > self.capability and not self.only)
        )


def _kernels(install: TensorFlowInstall) -> list[_Kernel]:
    matches = [match for text in install.kernels if (match := _KERNEL.fullmatch(text))]
    return [
        _Kernel((int(major), int(minor)), kind == "compute", suffix == "a")
        for kind, major, minor, suffix in (match.groups() for match in matches)
    ]


def version_of(text: str | None) -> Version | None:
    """Return the first two numbers of a version, None if it has none."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return None if match is None else (int(match[1]), int(match[2]))


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _name(install: TensorFlowInstall) -> str:
    name = install.distribution or "tensorflow"
    return " ".join(["TensorFlow" if name == "tensorflow" else name, *filter(None, [install.version])])


def _cuda_build(install: TensorFlowInstall) -> str:
    """Return how to get a TensorFlow with CUDA in place of one without."""
    if install.platform != "x86_64":  # its wheel has no CUDA; the extra and-cuda does not change that
        return _OTHER_BUILD
    install_it = install_tensorflow(install.version, cuda=True)
    if install.distribution in (None, "tensorflow"):
        return install_it
    uninstall = [sys.executable, "-m", "pip", "uninstall", "-y", install.distribution]
    return f"{shlex.join(uninstall)} && {install_it}"


def _update_driver(cuda: Version, capability: Version) -> str:
    oldest = f" ({_DRIVERS[cuda]} or later)" if cuda in _DRIVERS else ""
    newest = f"; {_LAST_DRIVER_BEFORE_TURING} is the last for this GPU" if capability < _TURING else ""
    return f"install an NVIDIA driver that supports CUDA {_dotted(cuda)}{oldest}{newest}"


def support_of(machine: Machine, gpu: Gpu) -> Support:
    """Return whether the TensorFlow of a machine has kernels for one of its GPUs; fine if that is unknown."""
    model = expected_of(gpu)
    if machine.tensorflow is None or model is None or model.compute_capability is None:
        return Support()
    return gpu_support(model.compute_capability, version_of(machine.driver.cuda_version), machine.tensorflow)


@check(CANNOT_USE, MAY_FAIL, FIRST_START, UNREACHED)
def tensorflow(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that the installed TensorFlow cannot use, or not without trouble."""
    install, gpus = machine.tensorflow, present(machine)
    if install is None or not gpus:
        return
    rules = {"error": CANNOT_USE, "warning": MAY_FAIL}
    whole = install_support(install)
    if whole.level != "fine":
        yield rules[whole.level].fault(MACHINE, whole.reason, {"tensorflow": install}, remedy=whole.remedy)
    if whole.level == "error":
        return
    if install.unreached_libraries:
        libraries = ", ".join(install.unreached_libraries)
        yield UNREACHED.fault(
            MACHINE, f"{_name(install)} does not find {libraries}", {"libraries": libraries}
        )
    for gpu in gpus:
        support = support_of(machine, gpu)
        evidence = {"tensorflow": install.version, "kernels": install.kernels}
        if support.level != "fine":
            yield rules[support.level].fault(gpu, support.reason, evidence, remedy=support.remedy)
        elif support.compiles:
            yield FIRST_START.fault(gpu, FIRST_START.title, evidence)
