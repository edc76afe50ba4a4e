"""The PCI tree of a Machine as NCCL and lspci print it."""

from collections.abc import Iterable, Sequence

from gputopo.values.machine import Gpu, Machine, PciNode


def nccl(machine: Machine) -> str:
    """Return the XML of `NCCL_TOPO_DUMP_FILE`. Each switch has only its bridge towards the CPU."""
    lines = ['<system version="1">']
    for numa in machine.host.numa_nodes or ():
        lines.append(f'  <cpu numaid="{numa.index}" affinity="{_mask(numa.cpus or "")}" arch="x86_64">')
        for root in [node for node in machine.pci if node.parent is None and node.numa_node == numa.index]:
            lines += _nccl_below(machine, root, 4, is_port=True)
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>", ""])


def _nccl_below(machine: Machine, node: PciNode, indent: int, *, is_port: bool) -> list[str]:
    below = [one for one in machine.pci if one.parent == node.address]
    if is_port and node.kind == "bridge":
        return [line for one in below for line in _nccl_below(machine, one, indent, is_port=False)]
    margin = " " * indent
    width = min(node.max_width or 0, node.width or 16) if node.kind != "bridge" else node.max_width
    attributes = f'class="0x{node.class_code}" vendor="0x{node.vendor_id}" device="0x{node.device_id}"'
    speed = f'link_speed="{node.max_speed_gt_per_s} GT/s PCIe" link_width="{width}"'
    lines = [f'{margin}<pci busid="{node.address}" {attributes} {speed}>']
    if node.kind == "gpu":
        lines += _nccl_gpu(machine, node, margin)
    elif node.kind == "nic":
        name = next(nic.name for nic in machine.nics if nic.index == _position(machine, node))
        lines += [f"{margin}  <nic>", f'{margin}    <net name="{name}" dev="0" speed="100000"/>']
        lines += [f"{margin}  </nic>"]
    else:
        lines += [line for one in below for line in _nccl_below(machine, one, indent + 2, is_port=True)]
    return [*lines, f"{margin}</pci>"]


def _nccl_gpu(machine: Machine, node: PciNode, margin: str) -> list[str]:
    gpu = _gpu_of(machine, node)
    links = {
        link.b if link.a == gpu.index else link.a: link.nvlinks or 0
        for link in machine.links
        if gpu.index in (link.a, link.b)
    }
    address = {one.index: one.pci_address for one in machine.gpus}
    lines = [f'{margin}  <gpu dev="{gpu.index}" sm="60" rank="{gpu.index}" gdr="0">']
    lines += [
        f'{margin}    <nvlink target="{address[other]}" count="{count}" tclass="0x030200"/>'
        for other, count in sorted(links.items())
        if count
    ]
    return [*lines, f"{margin}  </gpu>"]


def _position(machine: Machine, node: PciNode) -> int:
    return [one.address for one in machine.pci if one.kind == node.kind].index(node.address)


def _gpu_of(machine: Machine, node: PciNode) -> Gpu:
    return next(gpu for gpu in machine.gpus if gpu.pci_address == node.address)


def _cpus(text: str) -> Iterable[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _mask(cpus: str) -> str:
    """Return a list of CPUs as the kernel's mask: words of 32 bits, the highest first."""
    mask = sum(1 << cpu for cpu in _cpus(cpus))
    words = [f"{mask >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(1, mask.bit_length()), 32)]
    return ",".join(reversed(words))


def _buses(machine: Machine, nodes: Sequence[PciNode]) -> list[str]:
    """Return the bus numbers of these nodes and of all nodes below them, in ascending order."""
    found = {node.address[5:7] for node in nodes}
    for node in nodes:
        found |= set(_buses(machine, [one for one in machine.pci if one.parent == node.address]))
    return sorted(found)


def lspci_tree(machine: Machine) -> str:
    """Return the text of `lspci -tv`."""
    roots = sorted({node.root for node in machine.pci}, reverse=True)
    blocks = []
    for root in roots:
        tops = [node for node in machine.pci if node.root == root and node.parent is None]
        blocks.append(_joined(f"[0000:{root[-2:]}]", [_block(machine, node) for node in tops], "-", "--"))
    if len(blocks) == 1:
        return "\n".join(["-" + blocks[0][0], *(" " + line for line in blocks[0][1:]), ""])
    return "\n".join([*_joined("", blocks, "-", "-"), ""])


def _block(machine: Machine, node: PciNode) -> list[str]:
    place = node.address[8:]
    below = [one for one in machine.pci if one.parent == node.address]
    if node.kind != "bridge":
        return [f"{place}  {node.name}"]
    buses = _buses(machine, below)
    head = f"{place}-[{buses[0]}{'' if buses[0] == buses[-1] else '-' + buses[-1]}]"
    return _joined(head, [_block(machine, one) for one in below], "--", "---")


def _joined(head: str, blocks: Sequence[Sequence[str]], several: str, one: str) -> list[str]:
    """Join blocks of lines to a head: `[05]--+-00.0` if there are several, else `[05]----00.0`."""
    if len(blocks) == 1:
        start = f"{head}{one}-"
        return [start + blocks[0][0], *(" " * len(start) + line for line in blocks[0][1:])]
    lines: list[str] = []
    margin = " " * (len(head) + len(several))
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        start = f"{head}{several}+-" if number == 0 else f"{margin}{chr(92) if last else '+'}-"
        lines.append(start + block[0])
        lines += [f"{margin}{' ' if last else '|'} {line}" for line in block[1:]]
    return lines


def lspci_verbose(machine: Machine) -> str:
    """Return the text of `lspci -vvv -nn`."""
    return "\n".join(_verbose(machine, node) for node in machine.pci)


def _verbose(machine: Machine, node: PciNode) -> str:
    titles = {
        "060400": "PCI bridge",
        "030000": "VGA compatible controller",
        "020700": "Infiniband controller",
    }
    code = node.class_code or ""
    ids = f"[{node.vendor_id}:{node.device_id}]"
    lines = [f"{node.address[5:]} {titles[code]} [{code[:4]}]: {node.name} {ids} (rev a1)"]
    lines.append(f"\tNUMA node: {node.numa_node}")
    if node.kind == "bridge":
        buses = _buses(machine, [one for one in machine.pci if one.parent == node.address])
        lines.append(f"\tBus: primary={node.address[5:7]}, secondary={buses[0]}, subordinate={buses[-1]}")
    lines.append(
        f"\t\tLnkCap:\tPort #0, Speed {node.max_speed_gt_per_s:g}GT/s, Width x{node.max_width}, ASPM L1"
    )
    if node.width is not None:
        slow = " (downgraded)" if node.width != node.max_width else " (ok)"
        lines.append(f"\t\tLnkSta:\tSpeed {node.speed_gt_per_s:g}GT/s (ok), Width x{node.width}{slow}")
    if node.acs is not None:
        sign = "+" if node.acs else "-"
        lines.append(f"\t\tACSCtl:\tSrcValid{sign} TransBlk- ReqRedir{sign} CmpltRedir{sign}")
    return "\n".join([*lines, ""])
