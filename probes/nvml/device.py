"""NVML questions about the driver and the identity, place and modes of a GPU."""

from gputopo.probes.nvml.calling import Handle, NotReadError, NvmlDoor, address_of, bits, first, word
from gputopo.probes.nvml.words import ARCHITECTURES, BRANDS, COMPUTE_MODES, VIRTUALIZATIONS

_MAX_INSTANCES = 64  # GPUs have up to 7 or 8; a larger count is garbage


class DeviceQuestions(NvmlDoor):
    """The library and the driver; identity, place and modes of a GPU."""

    def driver_version(self) -> str:
        """Return the driver's version, "550.163.01". `nvidia-smi --query-gpu=driver_version`."""
        return str(self.ask("nvmlSystemGetDriverVersion"))

    def nvml_version(self) -> str:
        """Return the version of libnvidia-ml, "12.550.163.01"."""
        return str(self.ask("nvmlSystemGetNVMLVersion"))

    def cuda_version(self) -> str:
        """Return the newest CUDA version that the driver runs, "12.4"."""
        number = first(
            lambda: self.ask("nvmlSystemGetCudaDriverVersion_v2"),
            lambda: self.ask("nvmlSystemGetCudaDriverVersion"),
        )
        return f"{number // 1000}.{number % 1000 // 10}"

    def device_count(self) -> int:
        """Return the number of GPUs, the lost ones included."""
        return int(self.ask("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        """Return the handle of the GPU at an index in PCI order."""
        return Handle(self.ask("nvmlDeviceGetHandleByIndex", index))

    # What it is and where

    def name(self, gpu: Handle) -> str:
        """Return the product name."""
        return str(self.ask("nvmlDeviceGetName", gpu))

    def uuid(self, gpu: Handle) -> str:
        """Return the UUID, "GPU-..."."""
        return str(self.ask("nvmlDeviceGetUUID", gpu))

    def brand(self, gpu: Handle) -> str:
        """Return the brand as nvidia-smi writes it, "GeForce"."""
        return word(BRANDS, int(self.ask("nvmlDeviceGetBrand", gpu)))

    def architecture(self, gpu: Handle) -> str:
        """Return the architecture as nvidia-smi writes it, "Ada Lovelace"."""
        return word(ARCHITECTURES, int(self.ask("nvmlDeviceGetArchitecture", gpu)))

    def vbios_version(self, gpu: Handle) -> str:
        """Return the version of the VBIOS, "90.04.84.00.06"."""
        return str(self.ask("nvmlDeviceGetVbiosVersion", gpu))

    def gsp_firmware_version(self, gpu: Handle) -> str:
        """Return the version of the firmware of the GPU System Processor (since Turing), "550.163.01".

        pynvml returns bytes here, unlike its other texts.
        """
        version = self.ask("nvmlDeviceGetGspFirmwareVersion", gpu)
        return version.decode("ascii", "replace") if isinstance(version, bytes) else str(version)

    def pci_address(self, gpu: Handle) -> str:
        """Return the PCI address as the kernel writes it, "0000:05:00.0"; NVML writes "00000000:05:00.0"."""
        return address_of(self.ask("nvmlDeviceGetPciInfo", gpu))

    def pci_device_id(self, gpu: Handle) -> str:
        """Return the chip's number, "2204". NVML packs device and vendor into one; in some VMs it is 0."""
        number = int(self.ask("nvmlDeviceGetPciInfo", gpu).pciDeviceId) >> 16
        if not number:
            raise NotReadError("UNKNOWN")
        return f"{number:04x}"

    def numa_node(self, gpu: Handle) -> int:
        """Return the NUMA node next to the GPU: the one bit of its memory affinity.

        nvmlDeviceGetNumaNodeId is not asked: it names the GPU's own memory where that is a node (Grace,
        POWER9) and is refused everywhere else.
        """
        nodes = bits(self.ask("nvmlDeviceGetMemoryAffinity", gpu, 16, 0))  # scope 0: node; 16 * 64 nodes
        if len(nodes) != 1:
            raise NotReadError("SEVERAL_NODES" if nodes else "NO_NODE")
        return nodes[0]

    def cpu_affinity(self, gpu: Handle) -> tuple[int, ...]:
        """Return the CPUs next to the GPU. Room for 1024 of them first, then for 8192, the kernel's limit."""
        cpus = first(
            lambda: bits(self.ask("nvmlDeviceGetCpuAffinity", gpu, 16)),
            lambda: bits(self.ask("nvmlDeviceGetCpuAffinity", gpu, 128)),
        )
        if not cpus:
            raise NotReadError("NO_CPUS")
        return cpus

    # How it is set

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Return whether the GPU is split into instances now and after a reset."""
        now, pending = self.ask("nvmlDeviceGetMigMode", gpu)
        return bool(now), bool(pending)

    def mig_instances(self, gpu: Handle) -> int:
        """Count the instances that a split GPU has; their numbers have gaps, which are NOT_FOUND."""
        count = 0
        for place in range(min(int(self.ask("nvmlDeviceGetMaxMigDeviceCount", gpu)), _MAX_INSTANCES)):
            try:
                self.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, place)
            except NotReadError as error:
                if error.reason != "NOT_FOUND":
                    raise
            else:
                count += 1
        return count

    def compute_mode(self, gpu: Handle) -> str:
        """Return who may use the GPU: default, exclusive_process, prohibited."""
        code = int(self.ask("nvmlDeviceGetComputeMode", gpu))
        return COMPUTE_MODES.get(code, f"unknown_{code}")

    def persistence_mode(self, gpu: Handle) -> bool:
        """Return whether persistence mode is on: the driver stays loaded without clients."""
        return bool(self.ask("nvmlDeviceGetPersistenceMode", gpu))

    def display_active(self, gpu: Handle) -> bool:
        """Return whether a screen is driven by the GPU."""
        return bool(self.ask("nvmlDeviceGetDisplayActive", gpu))

    def virtualization(self, gpu: Handle) -> str:
        """Return how a virtual machine has the GPU: none, pass-through, vgpu, host vgpu, host vsga."""
        return word(VIRTUALIZATIONS, int(self.ask("nvmlDeviceGetVirtualizationMode", gpu)))
