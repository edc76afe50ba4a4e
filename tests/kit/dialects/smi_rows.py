"""The rows with facts of `nvidia-smi -q`, `-q -x` and `--query-gpu`, driver 352 to 595, in the text's order.

Columns: heading in text, element in XML, column of the query, value, drivers. `-`: not printed there. A
value is a fact and how it is printed; a row without a value is a section. Drivers are the first and the last
one; `?`: printed only if the GPU has a value (always in the query). In XML, rows below a row with a value are
its siblings. Rows without facts are only in captures. Sources: captures of drivers 352, 418, 515, 525, 535,
560, 580, 590 and 595, the DTD (v7) that driver 352 prints, and the release notes of the drivers between them.
"""

import functools
from dataclasses import dataclass, field

ERAS = (352, 418, 525, 560, 595)


@dataclass(slots=True)
class Row:
    """One row with the rows below it. `fact` None: a section."""

    text: str | None
    xml: str | None
    csv: str | None
    fact: str | None
    printed: str
    optional: bool
    rows: list["Row"] = field(default_factory=list)


_OUTLINE = """
Product Name                    | product_name                 | name                | name words
Product Brand                   | product_brand                | -                   | brand words
Product Architecture            | product_architecture         | -                   | architecture words           | 495-
Display Active                  | display_active               | display_active      | display_active switch
Persistence Mode                | persistence_mode             | persistence_mode    | persistence_mode switch
MIG Mode                        | mig_mode                     | -                   |                              | 450-
    Current                     | current_mig                  | mig.mode.current    | mig.mode switch              | 450-
    Pending                     | pending_mig                  | mig.mode.pending    | mig.mode_pending switch      | 450-
MIG Device                      | mig_devices                  | -                   | mig.instances instances      | 450-
GPU UUID                        | uuid                         | uuid                | uuid words
VBIOS Version                   | vbios_version                | vbios_version       | vbios_version words
Board Part Number               | board_part_number            | -                   | board_part_number words      | 525-
Inforom Version                 | inforom_version              | -                   |
    Image Version               | img_version                  | inforom.img         | inforom_version words
GPU C2C Mode                    | c2c_mode                     | c2c.mode            | c2c_mode switch              | 535-
GPU Virtualization Mode         | gpu_virtualization_mode      | -                   |                              | 390-
    Virtualization Mode         | virtualization_mode          | -                   | virtualization title         | 390-
GPU Reset Status                | gpu_reset_status             | -                   |                              | 530-560
    Reset Required              | reset_required               | reset_status.reset_required | recovery_action reset | 530-560
    Drain and Reset Recommended | drain_and_reset_recommended  | reset_status.drain_and_reset_recommended | recovery_action drain | 530-560
GPU Recovery Action             | gpu_recovery_action          | gpu_recovery_action | recovery_action title        | 570-
GSP Firmware Version            | gsp_firmware_version         | -                   | gsp_firmware_version words   | 470-
PCI                             | pci                          | -                   |
    Device Id                   | pci_device_id                | pci.device_id       | pci_device_id device
    Bus Id                      | pci_bus_id                   | pci.bus_id          | pci_address address
    Sub System Id               | pci_sub_system_id            | pci.sub_device_id   | pci_subsystem_id subsystem
    GPU Link Info               | pci_gpu_link_info            | -                   |
        PCIe Generation         | pcie_gen                     | -                   |
            Max                 | max_link_gen                 | pcie.link.gen.max   | pcie.gen_max count
            Current             | current_link_gen             | pcie.link.gen.current | pcie.gen_now count
            Device Max          | max_device_link_gen          | pcie.link.gen.gpumax | pcie.gen_max_device count   | 520-
            Host Max            | max_host_link_gen            | pcie.link.gen.hostmax | pcie.gen_max_host count    | 520-
        Link Width              | link_widths                  | -                   |
            Max                 | max_link_width               | pcie.link.width.max | pcie.width_max width
            Current             | current_link_width           | pcie.link.width.current | pcie.width_now width
    Replays since reset         | replay_counter               | -                   | pcie.replay_counter count    | 352-418
    Replays Since Reset         | replay_counter               | -                   | pcie.replay_counter count    | 450-
    Replay Number Rollovers     | replay_rollover_counter      | -                   | pcie.replay_rollovers count                          | 418-
Fan Speed                       | fan_speed                    | fan.speed           | fan_percent %
Performance State               | performance_state            | pstate              | pstate words
-                               | -                            | clocks_throttle_reasons.active | throttle.mask mask | -530
-                               | -                            | clocks_event_reasons.active | throttle.mask mask   | 535-
Clocks Throttle Reasons         | clocks_throttle_reasons      | -                   |                              | -530
    Idle                        | clocks_throttle_reason_gpu_idle | clocks_throttle_reasons.gpu_idle | throttle.gpu_idle active | -530
    Applications Clocks Setting | clocks_throttle_reason_applications_clocks_setting | clocks_throttle_reasons.applications_clocks_setting | throttle.applications_clocks_setting active | -530
    SW Power Cap                | clocks_throttle_reason_sw_power_cap | clocks_throttle_reasons.sw_power_cap | throttle.sw_power_cap active | -530
    HW Slowdown                 | clocks_throttle_reason_hw_slowdown | clocks_throttle_reasons.hw_slowdown | throttle.hw_slowdown active | -530
        HW Thermal Slowdown     | clocks_throttle_reason_hw_thermal_slowdown | clocks_throttle_reasons.hw_thermal_slowdown | throttle.hw_thermal_slowdown active | 390-530
        HW Power Brake Slowdown | clocks_throttle_reason_hw_power_brake_slowdown | clocks_throttle_reasons.hw_power_brake_slowdown | throttle.hw_power_brake_slowdown active | 390-530
    Sync Boost                  | clocks_throttle_reason_sync_boost | clocks_throttle_reasons.sync_boost | throttle.sync_boost active | 390-530
    SW Thermal Slowdown         | clocks_throttle_reason_sw_thermal_slowdown | clocks_throttle_reasons.sw_thermal_slowdown | throttle.sw_thermal_slowdown active | 390-530
    Display Clock Setting       | clocks_throttle_reason_display_clocks_setting | - | throttle.display_clock_setting active | 418-530
    Unknown                     | clocks_throttle_reason_unknown | -                 | throttle.unknown active      | -352
Clocks Event Reasons            | clocks_event_reasons         | -                   |                              | 535-
    Idle                        | clocks_event_reason_gpu_idle | clocks_event_reasons.gpu_idle | throttle.gpu_idle active | 535-
    Applications Clocks Setting | clocks_event_reason_applications_clocks_setting | clocks_event_reasons.applications_clocks_setting | throttle.applications_clocks_setting active | 535-
    SW Power Cap                | clocks_event_reason_sw_power_cap | clocks_event_reasons.sw_power_cap | throttle.sw_power_cap active | 535-
    HW Slowdown                 | clocks_event_reason_hw_slowdown | clocks_event_reasons.hw_slowdown | throttle.hw_slowdown active | 535-
        HW Thermal Slowdown     | clocks_event_reason_hw_thermal_slowdown | clocks_event_reasons.hw_thermal_slowdown | throttle.hw_thermal_slowdown active | 535-
        HW Power Brake Slowdown | clocks_event_reason_hw_power_brake_slowdown | clocks_event_reasons.hw_power_brake_slowdown | throttle.hw_power_brake_slowdown active | 535-
    Sync Boost                  | clocks_event_reason_sync_boost | clocks_event_reasons.sync_boost | throttle.sync_boost active | 535-
    SW Thermal Slowdown         | clocks_event_reason_sw_thermal_slowdown | clocks_event_reasons.sw_thermal_slowdown | throttle.sw_thermal_slowdown active | 535-
    Display Clock Setting       | clocks_event_reason_display_clocks_setting | - | throttle.display_clock_setting active | 535-
Clocks Event Reasons Counters   | clocks_event_reasons_counters | -                  |                              | 580-
    SW Power Capping            | clocks_event_reasons_counters_sw_power_cap | clocks_event_reasons_counters.sw_power_cap | violation_ns.sw_power_cap us | 580-
    Sync Boost                  | clocks_event_reasons_counters_sync_boost | clocks_event_reasons_counters.sync_boost | violation_ns.sync_boost us | 580-
    SW Thermal Slowdown         | clocks_event_reasons_counters_sw_therm_slowdown | clocks_event_reasons_counters.sw_thermal_slowdown | violation_ns.sw_thermal_slowdown us | 580-
    HW Thermal Slowdown         | clocks_event_reasons_counters_hw_therm_slowdown | clocks_event_reasons_counters.hw_thermal_slowdown | violation_ns.hw_thermal_slowdown us | 580-
    HW Power Braking            | clocks_event_reasons_counters_hw_power_brake | clocks_event_reasons_counters.hw_power_brake_slowdown | violation_ns.hw_power_brake_slowdown us | 580-
FB Memory Usage                 | fb_memory_usage              | -                   |
    Total                       | total                        | memory.total        | memory_mib.total MiB
    Used                        | used                         | memory.used         | memory_mib.used MiB
    Free                        | free                         | memory.free         | memory_mib.free MiB
BAR1 Memory Usage               | bar1_memory_usage            | -                   |
    Total                       | total                        | -                   | bar1_mib.total MiB
    Used                        | used                         | -                   | bar1_mib.used MiB
    Free                        | free                         | -                   | bar1_mib.free MiB
Compute Mode                    | compute_mode                 | compute_mode        | compute_mode mode
Utilization                     | utilization                  | -                   |
    Gpu                         | gpu_util                     | utilization.gpu     | utilization_percent.gpu %    | -560
    GPU                         | gpu_util                     | utilization.gpu     | utilization_percent.gpu %    | 580-
    Memory                      | memory_util                  | utilization.memory  | utilization_percent.memory %
Ecc Mode                        | ecc_mode                     | -                   |                              | -535
    Current                     | current_ecc                  | ecc.mode.current    | ecc.mode switch              | -535
    Pending                     | pending_ecc                  | ecc.mode.pending    | ecc.mode_pending switch      | -535
ECC Mode                        | ecc_mode                     | -                   |                              | 545-
    Current                     | current_ecc                  | ecc.mode.current    | ecc.mode switch              | 545-
    Pending                     | pending_ecc                  | ecc.mode.pending    | ecc.mode_pending switch      | 545-
-                               | -                            | ecc.errors.corrected.volatile.total | ecc.corrected_volatile count | 418-
-                               | -                            | ecc.errors.uncorrected.volatile.total | ecc.uncorrected_volatile count | 418-
-                               | -                            | ecc.errors.corrected.aggregate.total | ecc.corrected_aggregate count | 418-
-                               | -                            | ecc.errors.uncorrected.aggregate.total | ecc.uncorrected_aggregate count | 418-
ECC Errors                      | ecc_errors                   | -                   |
    Volatile                    | volatile                     | -                   |
        Single Bit              | single_bit                   | -                   |                              | -390
            Device Memory       | device_memory                | ecc.errors.corrected.volatile.device_memory | ecc.counts[volatile.single_bit.device_memory] count | -390
            Register File       | register_file                | ecc.errors.corrected.volatile.register_file | ecc.counts[volatile.single_bit.register_file] count | -390
            L1 Cache            | l1_cache                     | ecc.errors.corrected.volatile.l1_cache | ecc.counts[volatile.single_bit.l1_cache] count | -390
            L2 Cache            | l2_cache                     | ecc.errors.corrected.volatile.l2_cache | ecc.counts[volatile.single_bit.l2_cache] count | -390
            Texture Memory      | texture_memory               | ecc.errors.corrected.volatile.texture_memory | ecc.counts[volatile.single_bit.texture_memory] count | -390
            Total               | total                        | ecc.errors.corrected.volatile.total | ecc.corrected_volatile count | -390
        Double Bit              | double_bit                   | -                   |                              | -390
            Device Memory       | device_memory                | ecc.errors.uncorrected.volatile.device_memory | ecc.counts[volatile.double_bit.device_memory] count | -390
            Register File       | register_file                | ecc.errors.uncorrected.volatile.register_file | ecc.counts[volatile.double_bit.register_file] count | -390
            L1 Cache            | l1_cache                     | ecc.errors.uncorrected.volatile.l1_cache | ecc.counts[volatile.double_bit.l1_cache] count | -390
            L2 Cache            | l2_cache                     | ecc.errors.uncorrected.volatile.l2_cache | ecc.counts[volatile.double_bit.l2_cache] count | -390
            Texture Memory      | texture_memory               | ecc.errors.uncorrected.volatile.texture_memory | ecc.counts[volatile.double_bit.texture_memory] count | -390
            Total               | total                        | ecc.errors.uncorrected.volatile.total | ecc.uncorrected_volatile count | -390
        SRAM Correctable        | sram_correctable             | ecc.errors.corrected.volatile.sram | ecc.counts[volatile.sram_correctable] count | 418-
        SRAM Uncorrectable      | sram_uncorrectable           | ecc.errors.uncorrected.volatile.sram | ecc.counts[volatile.sram_uncorrectable] count | 418-?
        SRAM Uncorrectable Parity | sram_uncorrectable_parity  | ecc.errors.uncorrected.volatile.sram.parity | ecc.counts[volatile.sram_uncorrectable_parity] count | 545-?
        SRAM Uncorrectable SEC-DED | sram_uncorrectable_secded | ecc.errors.uncorrected.volatile.sram.secded | ecc.counts[volatile.sram_uncorrectable_secded] count | 545-?
        DRAM Correctable        | dram_correctable             | ecc.errors.corrected.volatile.dram | ecc.counts[volatile.dram_correctable] count | 418-
        DRAM Uncorrectable      | dram_uncorrectable           | ecc.errors.uncorrected.volatile.dram | ecc.counts[volatile.dram_uncorrectable] count | 418-
    Aggregate                   | aggregate                    | -                   |
        Single Bit              | single_bit                   | -                   |                              | -390
            Device Memory       | device_memory                | ecc.errors.corrected.aggregate.device_memory | ecc.counts[aggregate.single_bit.device_memory] count | -390
            Register File       | register_file                | ecc.errors.corrected.aggregate.register_file | ecc.counts[aggregate.single_bit.register_file] count | -390
            Total               | total                        | ecc.errors.corrected.aggregate.total | ecc.corrected_aggregate count | -390
        Double Bit              | double_bit                   | -                   |                              | -390
            Device Memory       | device_memory                | ecc.errors.uncorrected.aggregate.device_memory | ecc.counts[aggregate.double_bit.device_memory] count | -390
            L2 Cache            | l2_cache                     | ecc.errors.uncorrected.aggregate.l2_cache | ecc.counts[aggregate.double_bit.l2_cache] count | -390
            Total               | total                        | ecc.errors.uncorrected.aggregate.total | ecc.uncorrected_aggregate count | -390
        SRAM Correctable        | sram_correctable             | ecc.errors.corrected.aggregate.sram | ecc.counts[aggregate.sram_correctable] count | 418-
        SRAM Uncorrectable      | sram_uncorrectable           | ecc.errors.uncorrected.aggregate.sram | ecc.counts[aggregate.sram_uncorrectable] count | 418-?
        SRAM Uncorrectable Parity | sram_uncorrectable_parity  | ecc.errors.uncorrected.aggregate.sram.parity | ecc.counts[aggregate.sram_uncorrectable_parity] count | 545-?
        SRAM Uncorrectable SEC-DED | sram_uncorrectable_secded | ecc.errors.uncorrected.aggregate.sram.secded | ecc.counts[aggregate.sram_uncorrectable_secded] count | 545-?
        DRAM Correctable        | dram_correctable             | ecc.errors.corrected.aggregate.dram | ecc.counts[aggregate.dram_correctable] count | 418-
        DRAM Uncorrectable      | dram_uncorrectable           | ecc.errors.uncorrected.aggregate.dram | ecc.counts[aggregate.dram_uncorrectable] count | 418-
        SRAM Threshold Exceeded | sram_threshold_exceeded      | ecc.errors.uncorrected.aggregate.sram.thresholdExceeded | ecc.counts[aggregate.sram_threshold_exceeded] yes | 545-?
    Aggregate Uncorrectable SRAM Sources | aggregate_uncorrectable_sram_sources | -  |                              | 545-
        SRAM L2                 | sram_l2                      | ecc.errors.uncorrected.aggregate.sram.l2 | ecc.counts[aggregate_uncorrectable_sram_sources.sram_l2] count | 545-?
        SRAM SM                 | sram_sm                      | ecc.errors.uncorrected.aggregate.sram.sm | ecc.counts[aggregate_uncorrectable_sram_sources.sram_sm] count | 545-?
        SRAM Microcontroller    | sram_microcontroller         | ecc.errors.uncorrected.aggregate.sram.mcu | ecc.counts[aggregate_uncorrectable_sram_sources.sram_microcontroller] count | 545-?
        SRAM PCIE               | sram_pcie                    | ecc.errors.uncorrected.aggregate.sram.pcie | ecc.counts[aggregate_uncorrectable_sram_sources.sram_pcie] count | 545-?
        SRAM Other              | sram_other                   | ecc.errors.uncorrected.aggregate.sram.other | ecc.counts[aggregate_uncorrectable_sram_sources.sram_other] count | 545-?
    Channel Repair Pending      | channel_repair_pending       | -                   | ecc.channel_repair_pending yes | 580-?
    TPC Repair Pending          | tpc_repair_pending           | -                   | ecc.tpc_repair_pending yes                         | 580-?
    Unrepairable Memory         | unrepairable_memory          | -                   | ecc.unrepairable_memory yes                         | 590-?
Retired Pages                   | retired_pages                | -                   |
    Single Bit ECC              | multiple_single_bit_retirement/retired_count | retired_pages.single_bit_ecc.count | retired_pages.single_bit count
    Double Bit ECC              | double_bit_retirement/retired_count | retired_pages.double_bit.count | retired_pages.double_bit count
    Pending                     | pending_retirement           | retired_pages.pending | retired_pages.pending yes  | -418
    Pending Page Blacklist      | pending_blacklist            | retired_pages.pending | retired_pages.pending yes  | 450-
Remapped Rows                   | remapped_rows                | -                   |                              | 450-
    Correctable Error           | remapped_row_corr            | remapped_rows.correctable | remapped_rows.correctable count | 450-
    Uncorrectable Error         | remapped_row_unc             | remapped_rows.uncorrectable | remapped_rows.uncorrectable count | 450-
    Pending                     | remapped_row_pending         | remapped_rows.pending | remapped_rows.pending yes  | 450-
    Remapping Failure Occurred  | remapped_row_failure         | remapped_rows.failure | remapped_rows.failure yes  | 450-
    Bank Remap Availability Histogram | row_remapper_histogram | -                   |                              | 450-
        Max                     | row_remapper_histogram_max   | remapped_rows.histogram.max | remapped_rows.banks.max banks | 450-
        High                    | row_remapper_histogram_high  | remapped_rows.histogram.high | remapped_rows.banks.high banks | 450-
        Partial                 | row_remapper_histogram_partial | remapped_rows.histogram.partial | remapped_rows.banks.partial banks | 450-
        Low                     | row_remapper_histogram_low   | remapped_rows.histogram.low | remapped_rows.banks.low banks | 450-
        None                    | row_remapper_histogram_none  | remapped_rows.histogram.none | remapped_rows.banks.none banks | 450-
Temperature                     | temperature                  | -                   |
    GPU Current Temp            | gpu_temp                     | temperature.gpu     | temperature_c.gpu C          | 340-
    GPU T.Limit Temp            | gpu_temp_tlimit              | temperature.gpu.tlimit | temperature_c.margin C    | 535-
    GPU Shutdown Temp           | gpu_temp_max_threshold       | -                   | temperature_c.shutdown C     | 340-?
    GPU Shutdown T.Limit Temp   | gpu_temp_max_tlimit_threshold | -                  | temperature_c.margin_shutdown C | 535-?
    GPU Slowdown Temp           | gpu_temp_slow_threshold      | -                   | temperature_c.slowdown C     | 340-?
    GPU Slowdown T.Limit Temp   | gpu_temp_slow_tlimit_threshold | -                 | temperature_c.margin_slowdown C | 535-?
    GPU Max Operating Temp      | gpu_temp_max_gpu_threshold   | -                   | temperature_c.max_operating C | 390-?
    GPU Max Operating T.Limit Temp | gpu_temp_max_gpu_tlimit_threshold | -           | temperature_c.margin_max_operating C | 535-?
    GPU Target Temperature      | gpu_target_temperature       | -                   | temperature_c.target C       | 450-
    Memory Current Temp         | memory_temp                  | temperature.memory  | temperature_c.memory C       | 390-
    Memory Max Operating Temp   | gpu_temp_max_mem_threshold   | -                   | temperature_c.memory_max_operating C | 390-?
Power Readings                  | power_readings               | -                   |                              | -525
    Power Draw                  | power_draw                   | power.draw          | power_w.draw W               | -525
    Power Limit                 | power_limit                  | power.limit         | power_w.limit W              | -525
    Default Power Limit         | default_power_limit          | power.default_limit | power_w.default_limit W      | -525
    Enforced Power Limit        | enforced_power_limit         | enforced.power.limit | power_w.enforced_limit W    | -525
    Min Power Limit             | min_power_limit              | power.min_limit     | power_w.min W                | -525
    Max Power Limit             | max_power_limit              | power.max_limit     | power_w.max W                | -525
GPU Power Readings              | gpu_power_readings           | -                   |                              | 535-
    Power Draw                  | power_draw                   | power.draw          | power_w.draw W               | 535-560
    Average Power Draw          | average_power_draw           | power.draw          | power_w.draw W               | 580-
    Instantaneous Power Draw    | instant_power_draw           | power.draw.instant  | power_w.draw instant         | 580-
    Current Power Limit         | current_power_limit          | enforced.power.limit | power_w.enforced_limit W    | 535-
    Requested Power Limit       | requested_power_limit        | power.limit         | power_w.limit W              | 535-
    Default Power Limit         | default_power_limit          | power.default_limit | power_w.default_limit W      | 535-
    Min Power Limit             | min_power_limit              | power.min_limit     | power_w.min W                | 535-
    Max Power Limit             | max_power_limit              | power.max_limit     | power_w.max W                | 535-
Clocks                          | clocks                       | -                   |
    Graphics                    | graphics_clock               | clocks.current.graphics | clocks_mhz.graphics.now MHz
    SM                          | sm_clock                     | clocks.current.sm   | clocks_mhz.sm.now MHz
    Memory                      | mem_clock                    | clocks.current.memory | clocks_mhz.memory.now MHz
    Video                       | video_clock                  | clocks.current.video | clocks_mhz.video.now MHz    | 375-
Applications Clocks             | applications_clocks          | -                   |
    Graphics                    | graphics_clock               | clocks.applications.graphics | clocks_mhz.graphics.application MHz | -560
    Memory                      | mem_clock                    | clocks.applications.memory | clocks_mhz.memory.application MHz | -560
Default Applications Clocks     | default_applications_clocks  | -                   |
    Graphics                    | graphics_clock               | clocks.default_applications.graphics | clocks_mhz.graphics.default_application MHz | -560
    Memory                      | mem_clock                    | clocks.default_applications.memory | clocks_mhz.memory.default_application MHz | -560
Max Clocks                      | max_clocks                   | -                   |
    Graphics                    | graphics_clock               | clocks.max.graphics | clocks_mhz.graphics.max MHz
    SM                          | sm_clock                     | clocks.max.sm       | clocks_mhz.sm.max MHz
    Memory                      | mem_clock                    | clocks.max.memory   | clocks_mhz.memory.max MHz
    Video                       | video_clock                  | -                   | clocks_mhz.video.max MHz     | 375-
Max Customer Boost Clocks       | max_customer_boost_clocks    | -                   |                              | 390-
    Graphics                    | graphics_clock               | -                   | clocks_mhz.graphics.boost MHz | 390-
Fabric                          | fabric                       | -                   |                              | 535-
    State                       | state                        | fabric.state        | fabric.state title           | 535-
    Status                      | status                       | fabric.status       | fabric.status title          | 535-
    CliqueId                    | cliqueId                     | fabric.cliqueId     | fabric.clique_id count       | 560-
    Health                      | health                       | -                   |                              | 560-
        Summary                 | summary                      | fabric.health.summary | fabric.health.summary title | 580-
        Bandwidth               | bandwidth                    | fabric.health.bandwidth | fabric.health.bandwidth title | 560-
        Route Recovery in progress | route_recovery_in_progress | fabric.health.route_recovery_in_progress | fabric.health.route_recovery_in_progress title | 580-
        Route Unhealthy         | route_unhealthy              | fabric.health.route_unhealthy | fabric.health.route_unhealthy title | 580-
        Access Timeout Recovery | access_timeout_recovery      | fabric.health.access_timeout_recovery | fabric.health.access_timeout_recovery title | 580-
        Incorrect Configuration | incorrect_configuration      | fabric.health.incorrect_configuration | fabric.health.incorrect_configuration title | 590-
        Partition Assigned      | partition_assigned           | -                   | fabric.health.partition_assigned title | 595-
Processes                       | processes                    | -                   | processes processes
"""  # noqa: E501


@functools.cache
def rows(era: int) -> tuple[Row, ...]:
    """Return the rows that the drivers of an era print for each GPU; each has the rows below it."""
    top: list[Row] = []
    above: list[tuple[int, list[Row]]] = [(-1, top)]
    for line in _OUTLINE.strip("\n").splitlines():
        name, xml, csv, value, drivers = [*(cell.strip() for cell in line.split("|")), ""][:5]
        first, _, last = drivers.strip("?").partition("-")
        if not int(first or 0) <= era <= int(last or 999):
            continue
        indent = len(line) - len(line.lstrip())
        fact, _, printed = value.partition(" ")
        text_name, tag, column = (None if one == "-" else one for one in (name, xml, csv))
        row = Row(text_name, tag, column, fact or None, printed, drivers.endswith("?"))
        while above[-1][0] >= indent:
            above.pop()
        above[-1][1].append(row)
        above.append((indent, row.rows))
    return tuple(top)
