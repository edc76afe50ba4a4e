"""Names that `nvidia-smi` prints and that have no place in a Machine: known, and passed over.

What is neither here nor declared by a field nor in a table is listed as not understood. A name stands for
itself and for all below it; `*` at the end stands for any ending. Of a name that a field declares the field
is read, whatever is listed here.
"""


def _names(text: str) -> tuple[str, ...]:
    """Return the names of a list that commas part, in lower case."""
    return tuple(" ".join(name.lower().split()) for name in text.split(","))


XML = _names(
    """
    timestamp, attached_gpus, display_mode, display_attached, addressing_mode, accounting_mode,
    accounting_mode_buffer_size, driver_model, serial, pdi, minor_number,
    multigpu_board, board_id, board_part_number, gpu_part_number, gpu_fru_part_number, gpu_module_id,
    platforminfo, inforom_version, inforom_bbx_flush, inforom_checksum, gpu_operation_mode, c2c_mode,
    ibmnpu, capabilities, fabric/clique*, fabric/cluster*,
    voltage, clock_policy, deferred_clocks/mem_clock, supported_clocks, supported_gpu_target_temp,
    accounted_processes, encoder_stats, fbc_stats, dram_encryption_mode, sparse_operation_mode,
    cc_protected_memory_usage, gpu_memory_power_readings, module_power_readings, power_smoothing,
    power_profiles, edpp_multiplier, gpu_virtualization_mode/host_vgpu_mode,
    gpu_virtualization_mode/vgpu_heterogeneous_mode, pci/pci_bus, pci/pci_device, pci/pci_domain,
    pci/pci_base_class, pci/pci_sub_class, pci/pci_sub_system_id, pci/pci_bridge_chip,
    pci/tx_util, pci/rx_util, pci/atomic_caps_*,
    pci/pci_gpu_link_info/pcie_gen/device_current_link_gen, fb_memory_usage/reserved,
    mig_devices/mig_device, utilization/encoder_util, utilization/decoder_util, utilization/jpeg_util,
    utilization/ofa_util, retired_pages/multiple_single_bit_retirement/retired_page*,
    retired_pages/double_bit_retirement/retired_page*, remapped_rows/remapped_row_corr_inactive,
    remapped_rows/remapped_row_unc_inactive,
    temperature/gpu_temp_max_mem_tlimit_threshold, gpu_power_readings/power_state,
    gpu_power_readings/gpu_base_power, inforom_time_data, vgpu_driver_capability, vgpu_device_capability,
    vgpu_software_licensed_product,
    power_readings/power_state, power_readings/power_management, processes/process_info/gpu_instance_id,
    processes/process_info/compute_instance_id
    """
)

TEXT = _names(
    """
    Timestamp, Attached GPUs, Display Mode, Display Attached, Addressing Mode, Accounting Mode,
    Accounting Mode Buffer Size, Driver Model, Serial Number, GPU PDI, Minor Number,
    MultiGPU Board, Board ID, Board Part Number, GPU Part Number, FRU Part Number, Module ID,
    Platform Info, Inforom Version, Inforom BBX Object Flush, GPU Operation Mode, GPU C2C Mode,
    IBMNPU, Capabilities, Fabric/Clique*, Fabric/Cluster*,
    Voltage, Clock Policy, Deferred Clocks/Memory, Supported Clocks, Accounted Processes, Encoder Stats,
    FBC Stats, DRAM Encryption Mode, Sparse Operation Mode, Conf Compute Protected Memory Usage,
    GPU Memory Power Readings, Module Power Readings, Power Smoothing, Workload Power Profiles,
    EDPp Multiplier, Power Samples, Module Power Samples, SM Clock Samples, Memory Clock Samples,
    GPU Utilization Samples, Memory Utilization Samples, ENC Utilization Samples,
    DEC Utilization Samples, JPEG Utilization Samples, OFA Utilization Samples, Video Encoder Stats,
    GPU Virtualization Mode/Host VGPU Mode, GPU Virtualization Mode/vGPU Heterogeneous Mode, PCI/Bus,
    PCI/Device, PCI/Domain, PCI/Base Classcode, PCI/Sub Classcode, PCI/Sub System Id, PCI/Bridge Chip,
    PCI/Tx Throughput, PCI/Rx Throughput, PCI/Atomic Caps *,
    PCI/GPU Link Info/PCIe Generation/Device Current, FB Memory Usage/Reserved, MIG Device,
    Utilization/Encoder, Utilization/Decoder, Utilization/JPEG, Utilization/OFA,
    Remapped Rows/Inactive Correctable Error, Remapped Rows/Inactive Uncorrectable Error,
    Temperature/Memory Max Operating T.Limit Temp,
    GPU Power Readings/Power State, Power Readings/Power State, Power Readings/Power Management,
    GPU Power Readings/GPU Base Power, Inforom Time Data, vGPU Driver Capability, vGPU Device Capability,
    vGPU Software Licensed Product, vGPU Software Licensed Product/Product Name,
    Processes/GPU instance ID, Processes/Compute instance ID
    """
)

CSV = _names(
    """
    timestamp, count, index, serial, gpu_serial, hostname, display_mode, display_attached,
    addressing_mode, accounting.*, driver_model.*, inforom.*,
    gom.*, compute_cap, vgpu_driver_capability.*, vgpu_device_capability.*, pci.domain, pci.bus,
    pci.device, pci.baseclass, pci.subclass, pci.sub_device_id, pcie.link.gen.gpucurrent,
    memory.reserved, utilization.encoder, utilization.decoder, utilization.jpeg, utilization.ofa,
    encoder.stats.*, dramencryption.*, clocks_event_reasons.supported,
    clocks_throttle_reasons.supported, power.management, module.*,
    power_smoothing.*, edpp_multiplier, gsp.mode.*, c2c.mode,
    protected_memory.*, fabric.clique*, fabric.cluster*, platform.*, minor_number,
    remapped_rows.correctable_inactive, remapped_rows.uncorrectable_inactive, gpu.base.*, bbx.*
    """
)
