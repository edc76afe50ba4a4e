"""Memory and copies, through the door. Addresses are plain numbers, sizes bytes."""

from gputopo.probes.cuda.calling import CudaCalls, Stream

_PORTABLE_MAPPED = 0x01 | 0x02  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP (cuda.h)
_PORTABLE = 0x01


class MemoryCalls(CudaCalls):
    """Allocations of the device that is current, and copies that a stream carries out."""

    def free_and_total(self) -> tuple[int, int]:
        """Give the bytes of device memory that are free, and all."""
        free, total = self.ask("cuMemGetInfo")
        return int(free), int(total)

    def allocate(self, size: int) -> int:
        """Take device memory and give its address."""
        return int(self.ask("cuMemAlloc", size))

    def release(self, address: int) -> None:
        """Give device memory back."""
        self.ask("cuMemFree", address)

    def allocate_host(self, size: int, *, mapped: bool = False) -> int:
        """Take page-locked host memory that every device can use, and give its address."""
        return int(self.ask("cuMemHostAlloc", size, _PORTABLE_MAPPED if mapped else _PORTABLE))

    def release_host(self, address: int) -> None:
        """Give page-locked host memory back."""
        self.ask("cuMemFreeHost", address)

    def device_view(self, host: int) -> int:
        """Give the address under which the current device sees page-locked host memory."""
        return int(self.ask("cuMemHostGetDevicePointer", host, 0))

    def upload(self, device: int, host: int, size: int, stream: Stream) -> None:
        """Copy host memory to the device."""
        self.ask("cuMemcpyHtoDAsync", device, host, size, stream)

    def download(self, host: int, device: int, size: int, stream: Stream) -> None:
        """Copy device memory to the host."""
        self.ask("cuMemcpyDtoHAsync", host, device, size, stream)

    def copy_inside(self, destination: int, source: int, size: int, stream: Stream) -> None:
        """Copy within the memory of one device."""
        self.ask("cuMemcpyDtoDAsync", destination, source, size, stream)

    def set_bytes(self, address: int, value: int, size: int, stream: Stream) -> None:
        """Set every byte of device memory to one value."""
        self.ask("cuMemsetD8Async", address, value, size, stream)
