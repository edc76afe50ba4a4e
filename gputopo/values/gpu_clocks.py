"""Clocks, power, temperature and load of a GPU, each with its declaration."""

from typing import Annotated

from gputopo.values.fields import Fact, Metric, Smi, Value


class ClockMhz(Value, frozen=True):
    """One clock domain, in MHz: now, the card's maximum, application clock set and default, boost clock."""

    now: Annotated[
        int | None, Fact(stability="volatile", metric=Metric("gpu_clock_hertz", "clock of a GPU now"))
    ] = None
    max: Annotated[
        int | None,
        Fact(stability="fixed", peers=True, metric=Metric("gpu_clock_max_hertz", "maximum clock of a GPU")),
    ] = None
    application: Annotated[
        int | None,
        Fact(peers=True, metric=Metric("gpu_clock_application_hertz", "clock that is set for applications")),
    ] = None
    default_application: Annotated[
        int | None,
        Fact(
            peers=True, metric=Metric("gpu_clock_default_application_hertz", "default clock for applications")
        ),
    ] = None
    boost: Annotated[
        int | None, Fact(peers=True, metric=Metric("gpu_clock_boost_hertz", "boost clock of a GPU"))
    ] = None


class ClocksMhz(Value, frozen=True):
    """The clock domains of a GPU. `nvidia-smi -q -d CLOCK` shows the same."""

    graphics: Annotated[
        ClockMhz,
        Fact(
            "graphics clock",
            labels={"domain": "graphics"},
            smi_within={
                "now": Smi(
                    xml="clocks/graphics_clock",
                    text="Clocks/Graphics",
                    csv=("clocks.current.graphics", "clocks.gr"),
                ),
                "max": Smi(
                    xml="max_clocks/graphics_clock",
                    text="Max Clocks/Graphics",
                    csv=("clocks.max.graphics", "clocks.max.gr"),
                ),
                "application": Smi(
                    xml="applications_clocks/graphics_clock",
                    text="Applications Clocks/Graphics",
                    csv=("clocks.applications.graphics", "clocks.applications.gr"),
                ),
                "default_application": Smi(
                    xml="default_applications_clocks/graphics_clock",
                    text="Default Applications Clocks/Graphics",
                    csv=("clocks.default_applications.graphics", "clocks.default_applications.gr"),
                ),
                "boost": Smi(
                    xml="max_customer_boost_clocks/graphics_clock", text="Max Customer Boost Clocks/Graphics"
                ),
            },
        ),
    ] = ClockMhz()
    sm: Annotated[
        ClockMhz,
        Fact(
            "SM clock",
            labels={"domain": "sm"},
            smi_within={
                "now": Smi(xml="clocks/sm_clock", text="Clocks/SM", csv=("clocks.current.sm", "clocks.sm")),
                "max": Smi(xml="max_clocks/sm_clock", text="Max Clocks/SM", csv="clocks.max.sm"),
                "application": Smi(xml="applications_clocks/sm_clock", text="Applications Clocks/SM"),
                "default_application": Smi(
                    xml="default_applications_clocks/sm_clock", text="Default Applications Clocks/SM"
                ),
                "boost": Smi(xml="max_customer_boost_clocks/sm_clock", text="Max Customer Boost Clocks/SM"),
            },
        ),
    ] = ClockMhz()
    memory: Annotated[
        ClockMhz,
        Fact(
            "memory clock",
            labels={"domain": "memory"},
            smi_within={
                "now": Smi(
                    xml="clocks/mem_clock", text="Clocks/Memory", csv=("clocks.current.memory", "clocks.mem")
                ),
                "max": Smi(
                    xml="max_clocks/mem_clock",
                    text="Max Clocks/Memory",
                    csv=("clocks.max.memory", "clocks.max.mem"),
                ),
                "application": Smi(
                    xml="applications_clocks/mem_clock",
                    text="Applications Clocks/Memory",
                    csv=("clocks.applications.memory", "clocks.applications.mem"),
                ),
                "default_application": Smi(
                    xml="default_applications_clocks/mem_clock",
                    text="Default Applications Clocks/Memory",
                    csv=("clocks.default_applications.memory", "clocks.default_applications.mem"),
                ),
                "boost": Smi(
                    xml="max_customer_boost_clocks/mem_clock", text="Max Customer Boost Clocks/Memory"
                ),
            },
        ),
    ] = ClockMhz()
    video: Annotated[
        ClockMhz,
        Fact(
            "video clock",
            labels={"domain": "video"},
            smi_within={
                "now": Smi(
                    xml="clocks/video_clock",
                    text="Clocks/Video",
                    csv=("clocks.current.video", "clocks.video"),
                ),
                "max": Smi(xml="max_clocks/video_clock", text="Max Clocks/Video"),
                "application": Smi(xml="applications_clocks/video_clock", text="Applications Clocks/Video"),
                "default_application": Smi(
                    xml="default_applications_clocks/video_clock", text="Default Applications Clocks/Video"
                ),
                "boost": Smi(
                    xml="max_customer_boost_clocks/video_clock", text="Max Customer Boost Clocks/Video"
                ),
            },
        ),
    ] = ClockMhz()


class Throttle(Value, frozen=True):
    """Why the clocks are throttled: NVML's raw mask and its bits in words. `nvidia-smi -q -d PERFORMANCE`."""

    mask: Annotated[
        int | None,
        Fact(
            smi=Smi(kind="mask", csv=("clocks_event_reasons.active", "clocks_throttle_reasons.active")),
            metric=Metric("gpu_throttle_mask", "NVML's mask of the clock event reasons"),
        ),
    ] = None
    reasons: tuple[str, ...] | None = None


class PowerW(Value, frozen=True):
    """Power of one card in watts. `nvidia-smi -q -d POWER`.

    Since driver 530, the software limit is called "requested", and the limit in force "current".
    """

    draw: Annotated[
        float | None,
        Fact(
            stability="volatile",
            smi=Smi(
                xml=(
                    "gpu_power_readings/average_power_draw",
                    "gpu_power_readings/power_draw",
                    "gpu_power_readings/instant_power_draw",
                    "power_readings/average_power_draw",
                    "power_readings/power_draw",
                    "power_readings/instant_power_draw",
                ),
                text=(
                    "GPU Power Readings/Average Power Draw",
                    "GPU Power Readings/Power Draw",
                    "GPU Power Readings/Instantaneous Power Draw",
                    "Power Readings/Average Power Draw",
                    "Power Readings/Power Draw",
                    "Power Readings/Instantaneous Power Draw",
                ),
                csv=("power.draw", "power.draw.average", "power.draw.instant"),
            ),
            metric=Metric("gpu_power_watts", "power that a GPU draws"),
        ),
    ] = None
    limit: Annotated[
        float | None,
        Fact(
            peers=True,
            smi=Smi(
                xml=(
                    "gpu_power_readings/gpu_ceiling_power_limit/requested_power_limit",
                    "gpu_power_readings/gpu_ceiling_power_limit/power_limit",
                    "gpu_power_readings/requested_power_limit",
                    "gpu_power_readings/power_limit",
                    "power_readings/requested_power_limit",
                    "power_readings/power_limit",
                ),
                text=(
                    "GPU Power Readings/GPU Ceiling Power Limit/Requested Power Limit",
                    "GPU Power Readings/GPU Ceiling Power Limit/Power Limit",
                    "GPU Power Readings/Requested Power Limit",
                    "GPU Power Readings/Power Limit",
                    "Power Readings/Requested Power Limit",
                    "Power Readings/Power Limit",
                ),
                csv="power.limit",
            ),
            metric=Metric("gpu_power_limit_watts", "power limit that is set"),
        ),
    ] = None
    default_limit: Annotated[
        float | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(
                xml=(
                    "gpu_power_readings/gpu_ceiling_power_limit/default_power_limit",
                    "gpu_power_readings/default_power_limit",
                    "power_readings/default_power_limit",
                ),
                text=(
                    "GPU Power Readings/GPU Ceiling Power Limit/Default Power Limit",
                    "GPU Power Readings/Default Power Limit",
                    "Power Readings/Default Power Limit",
                ),
                csv="power.default_limit",
            ),
            metric=Metric("gpu_power_default_limit_watts", "power limit that a GPU starts with"),
        ),
    ] = None
    enforced_limit: Annotated[
        float | None,
        Fact(
            peers=True,
            smi=Smi(
                xml=(
                    "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit",
                    "gpu_power_readings/gpu_ceiling_power_limit/enforced_power_limit",
                    "gpu_power_readings/current_power_limit",
                    "gpu_power_readings/enforced_power_limit",
                    "power_readings/current_power_limit",
                    "power_readings/enforced_power_limit",
                ),
                text=(
                    "GPU Power Readings/GPU Ceiling Power Limit/Current Power Limit",
                    "GPU Power Readings/GPU Ceiling Power Limit/Enforced Power Limit",
                    "GPU Power Readings/Current Power Limit",
                    "GPU Power Readings/Enforced Power Limit",
                    "Power Readings/Current Power Limit",
                    "Power Readings/Enforced Power Limit",
                ),
                csv="enforced.power.limit",
            ),
            metric=Metric("gpu_power_enforced_limit_watts", "power limit that is enforced"),
        ),
    ] = None
    min: Annotated[
        float | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(
                xml=("gpu_power_readings/min_power_limit", "power_readings/min_power_limit"),
                text=("GPU Power Readings/Min Power Limit", "Power Readings/Min Power Limit"),
                csv="power.min_limit",
            ),
            metric=Metric("gpu_power_min_limit_watts", "lowest power limit that can be set"),
        ),
    ] = None
    max: Annotated[
        float | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(
                xml=("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
                text=("GPU Power Readings/Max Power Limit", "Power Readings/Max Power Limit"),
                csv="power.max_limit",
            ),
            metric=Metric("gpu_power_max_limit_watts", "highest power limit that can be set"),
        ),
    ] = None


class TemperatureC(Value, frozen=True):
    """Temperatures in degrees Celsius. Newer cards report margins instead of thresholds (T.Limit).

    `margin`: the remaining margin. `margin_slowdown` and the others: the margins at which the card acts, at
    or below 0. `nvidia-smi -q -d TEMPERATURE`.
    """

    gpu: Annotated[
        int | None,
        Fact(
            "GPU",
            stability="volatile",
            labels={"sensor": "gpu"},
            smi=Smi(
                xml="temperature/gpu_temp",
                text=("Temperature/GPU Current Temp", "Temperature/Gpu"),
                csv="temperature.gpu",
            ),
            metric=Metric("gpu_temperature_celsius", "temperature now"),
        ),
    ] = None
    memory: Annotated[
        int | None,
        Fact(
            stability="volatile",
            labels={"sensor": "memory"},
            smi=Smi(
                xml="temperature/memory_temp",
                text="Temperature/Memory Current Temp",
                csv="temperature.memory",
            ),
            metric=Metric("gpu_temperature_celsius", "temperature now"),
        ),
    ] = None
    slowdown: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi(xml="temperature/gpu_temp_slow_threshold", text="Temperature/GPU Slowdown Temp"),
            metric=Metric("gpu_temperature_slowdown_celsius", "temperature: slowdown"),
        ),
    ] = None
    shutdown: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi(xml="temperature/gpu_temp_max_threshold", text="Temperature/GPU Shutdown Temp"),
            metric=Metric("gpu_temperature_shutdown_celsius", "temperature: shutdown"),
        ),
    ] = None
    max_operating: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi(xml="temperature/gpu_temp_max_gpu_threshold", text="Temperature/GPU Max Operating Temp"),
            metric=Metric("gpu_temperature_max_operating_celsius", "temperature: max operating"),
        ),
    ] = None
    memory_max_operating: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi(
                xml="temperature/gpu_temp_max_mem_threshold", text="Temperature/Memory Max Operating Temp"
            ),
            metric=Metric(
                "gpu_temperature_memory_max_operating_celsius", "temperature: memory max operating"
            ),
        ),
    ] = None
    target: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi(
                xml="temperature/gpu_target_temperature",
                text=(
                    "Temperature/GPU Target Temperature",
                    "Temperature/GPU Target Temperature Specification",
                ),
            ),
            metric=Metric("gpu_temperature_target_celsius", "temperature: target"),
        ),
    ] = None
    margin: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi(
                xml="temperature/gpu_temp_tlimit",
                text=("Temperature/GPU T.Limit Temp", "Temperature/GPU Current T.Limit Temp"),
                csv="temperature.gpu.tlimit",
            ),
            metric=Metric("gpu_temperature_margin_celsius", "temperature: margin"),
        ),
    ] = None
    margin_slowdown: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi(
                xml="temperature/gpu_temp_slow_tlimit_threshold", text="Temperature/GPU Slowdown T.Limit Temp"
            ),
            metric=Metric("gpu_temperature_margin_slowdown_celsius", "temperature: margin slowdown"),
        ),
    ] = None
    margin_shutdown: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi(
                xml="temperature/gpu_temp_max_tlimit_threshold", text="Temperature/GPU Shutdown T.Limit Temp"
            ),
            metric=Metric("gpu_temperature_margin_shutdown_celsius", "temperature: margin shutdown"),
        ),
    ] = None
    margin_max_operating: Annotated[
        int | None,
        Fact(
            peers=True,
            smi=Smi(
                xml="temperature/gpu_temp_max_gpu_tlimit_threshold",
                text="Temperature/GPU Max Operating T.Limit Temp",
            ),
            metric=Metric(
                "gpu_temperature_margin_max_operating_celsius", "temperature: margin max operating"
            ),
        ),
    ] = None


class UtilizationPercent(Value, frozen=True):
    """Share of time in which kernels ran, and in which memory was read or written, in percent."""

    gpu: Annotated[
        int | None,
        Fact(
            "GPU",
            smi=Smi(xml="utilization/gpu_util", text="Utilization/GPU", csv="utilization.gpu"),
            metric=Metric("gpu_utilization_ratio", "share of time that kernels ran"),
        ),
    ] = None
    memory: Annotated[
        int | None,
        Fact(
            smi=Smi(xml="utilization/memory_util", text="Utilization/Memory", csv="utilization.memory"),
            metric=Metric("gpu_memory_utilization_ratio", "share of time that memory was read or written"),
        ),
    ] = None
