"""The GPUs as CUDA numbers them."""

import msgspec

from gputopo.probes.cuda.calling import CudaCalls, CudaError
from gputopo.probes.pci.nodes import normal_address

_NAME_BYTES = 256
_ADDRESS_BYTES = 32


class CudaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: its number in this process, and `pci_address` as `Gpu.pci_address` has it.

    `multiprocessors`: how many the chip has.
    """

    ordinal: int
    pci_address: str | None
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    multiprocessors: int = 1


def read_device(calls: CudaCalls, binding_attributes: object, ordinal: int) -> CudaDevice:
    """Ask for one device. Raises CudaError where even its name is refused."""
    handle = calls.ask("cuDeviceGet", ordinal)

    def attribute(name: str) -> int:
        return int(calls.ask("cuDeviceGetAttribute", getattr(binding_attributes, name), handle))

    def attribute_or_none(name: str) -> int | None:
        try:
            return attribute(name)
        except CudaError:
            return None

    return CudaDevice(
        ordinal=ordinal,
        pci_address=normal_address(text_of(calls.ask("cuDeviceGetPCIBusId", _ADDRESS_BYTES, handle))),
        name=text_of(calls.ask("cuDeviceGetName", _NAME_BYTES, handle)),
        memory_bytes=int(calls.ask("cuDeviceTotalMem", handle)),
        compute_capability=(
            attribute("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"),
            attribute("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR"),
        ),
        multiprocessors=attribute_or_none("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT") or 1,
    )


def text_of(told: bytes) -> str:
    """Give the text before the first NUL: cuda.bindings gives the whole buffer, with what lies behind it."""
    return bytes(told).split(b"\0")[0].decode(errors="replace").strip()
