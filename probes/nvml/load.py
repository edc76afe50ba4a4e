"""NVML questions about load: clocks, throttling, power, temperature, memory, processes."""

from gputopo.probes.nvml.calling import Handle, NotReadError, NvmlDoor, first, signed
from gputopo.probes.nvml.words import CLOCKS, MARGINS, PROCESS_FUNCTIONS, THRESHOLDS, VIOLATIONS
from gputopo.topology.identities import program_name

_MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: sizeof(nvmlMemory_v2_t) | 2 << 24
_MIB = 1024 * 1024


class LoadQuestions(NvmlDoor):
    """Clocks, power, heat, memory and load of a GPU."""

    def clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Return a clock now. `clock` is a key of CLOCKS."""
        return int(self.ask("nvmlDeviceGetClockInfo", gpu, CLOCKS[clock]))

    def max_clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Return the highest a clock may go."""
        return int(self.ask("nvmlDeviceGetMaxClockInfo", gpu, CLOCKS[clock]))

    def application_clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Return the set application clock; the second name is the way where the first was removed."""
        return first(
            lambda: int(self.ask("nvmlDeviceGetApplicationsClock", gpu, CLOCKS[clock])),
            lambda: int(self.ask("nvmlDeviceGetClock", gpu, CLOCKS[clock], 1)),  # APP_CLOCK_TARGET
        )

    def default_application_clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Return the application clock that a GPU starts with."""
        return int(self.ask("nvmlDeviceGetDefaultApplicationsClock", gpu, CLOCKS[clock]))

    def boost_clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Return the highest boost clock that a user may set."""
        return int(self.ask("nvmlDeviceGetMaxCustomerBoostClock", gpu, CLOCKS[clock]))

    def pstate(self, gpu: Handle) -> str:
        """Return the performance state, "P0" (fastest) to "P15"."""
        number = int(self.ask("nvmlDeviceGetPerformanceState", gpu))
        if number > 15:  # NVML_PSTATE_UNKNOWN is 32
            raise NotReadError("UNKNOWN")
        return f"P{number}"

    def throttle_mask(self, gpu: Handle) -> int:
        """Return the clock event reasons as a mask, by their new name or the one before driver 535."""
        return first(
            lambda: int(self.ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)),
            lambda: int(self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)),
        )

    def violation_ns(self, gpu: Handle, policy: str) -> int:
        """Return how long a policy has throttled the clocks since the driver loaded. A key of VIOLATIONS."""
        return int(self.ask("nvmlDeviceGetViolationStatus", gpu, VIOLATIONS[policy]).violationTime)

    # Power, heat, memory, load

    def power_w(self, gpu: Handle, what: str) -> float:
        """Return watts: `what` is draw, limit, default_limit or enforced_limit."""
        function = {
            "draw": "nvmlDeviceGetPowerUsage",
            "limit": "nvmlDeviceGetPowerManagementLimit",
            "default_limit": "nvmlDeviceGetPowerManagementDefaultLimit",
            "enforced_limit": "nvmlDeviceGetEnforcedPowerLimit",
        }[what]
        return int(self.ask(function, gpu)) / 1000

    def power_range_w(self, gpu: Handle) -> tuple[float, float]:
        """Return the lowest and the highest power limit that may be set, in watts."""
        low, high = self.ask("nvmlDeviceGetPowerManagementLimitConstraints", gpu)
        return low / 1000, high / 1000

    def temperature_c(self, gpu: Handle) -> int:
        """Return the temperature of the chip, by the versioned call or the one that it replaced."""
        return first(
            lambda: int(self.ask("nvmlDeviceGetTemperatureV", gpu, 0)),
            lambda: int(self.ask("nvmlDeviceGetTemperature", gpu, 0)),
        )

    def memory_temperature_c(self, gpu: Handle) -> int:
        """Return the temperature of the memory."""
        return self.field(gpu, _MEMORY_TEMPERATURE)

    def temperature_threshold_c(self, gpu: Handle, what: str) -> int:
        """Return a temperature at which the GPU acts. A key of THRESHOLDS."""
        return int(self.ask("nvmlDeviceGetTemperatureThreshold", gpu, THRESHOLDS[what]))

    def temperature_margin_c(self, gpu: Handle) -> int:
        """Return the degrees left until the GPU slows down (newer GPUs)."""
        return signed(int(self.ask("nvmlDeviceGetMarginTemperature", gpu)))

    def margin_threshold_c(self, gpu: Handle, what: str) -> int:
        """Return a margin, at or below 0, at which the GPU acts (newer GPUs). A key of MARGINS."""
        return signed(self.field(gpu, MARGINS[what]))

    def fan_percent(self, gpu: Handle) -> int:
        """Return the speed that the fan is meant to have; over 100 on GPUs that may."""
        return int(self.ask("nvmlDeviceGetFanSpeed", gpu))

    def memory_mib(self, gpu: Handle) -> dict[str, int]:
        """Return total, used and free device memory; version 2 keeps the reserved part out of `used`."""
        info = first(
            lambda: self.ask("nvmlDeviceGetMemoryInfo", gpu, _MEMORY_V2),
            lambda: self.ask("nvmlDeviceGetMemoryInfo", gpu),
        )
        return {"total": info.total // _MIB, "used": info.used // _MIB, "free": info.free // _MIB}

    def bar1_mib(self, gpu: Handle) -> dict[str, int]:
        """Return the window through which the bus reaches device memory: total, used and free."""
        info = self.ask("nvmlDeviceGetBAR1MemoryInfo", gpu)
        return {
            "total": info.bar1Total // _MIB,
            "used": info.bar1Used // _MIB,
            "free": info.bar1Free // _MIB,
        }

    def utilization_percent(self, gpu: Handle) -> tuple[int, int]:
        """Return the share of time in which kernels ran, and in which memory was read or written."""
        info = self.ask("nvmlDeviceGetUtilizationRates", gpu)
        return int(info.gpu), int(info.memory)

    def processes(self, gpu: Handle, kind: str) -> tuple[tuple[int, int | None], ...]:
        """Return pid and memory in MiB (None where it is unknown) of each process. A key of PROCESS_KINDS."""
        function = PROCESS_FUNCTIONS[kind]
        found = first(lambda: self.ask(f"{function}_v3", gpu), lambda: self.ask(f"{function}_v2", gpu))
        return tuple(
            (int(one.pid), None if one.usedGpuMemory is None else one.usedGpuMemory // _MIB) for one in found
        )

    def process_name(self, pid: int) -> str:
        """Return a process's program, without folders and arguments: those are private."""
        name = program_name(str(self.ask("nvmlSystemGetProcessName", pid)))
        if name is None:
            raise NotReadError("NO_NAME")
        return name
