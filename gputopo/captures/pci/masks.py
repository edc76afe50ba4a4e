"""CPU masks in hexadecimal: NCCL's and the kernel's `00000000,00ffffff`, hwloc's `0x00000303,,0x0000ffff`."""

import re

_MASK = re.compile(r"(?:(?:0x)?[0-9a-f]{0,16})(?:,(?:0x)?[0-9a-f]{0,16})*", re.IGNORECASE)
_MOST_CPUS = 8192  # Linux: CONFIG_NR_CPUS_RANGE_END


def cpus(text: str) -> frozenset[int] | None:
    """Give the CPUs of a mask, or None where the text is none.

    Words of 32 bits, the highest first, parted by commas; an empty word is 0. hwloc's `0xf...f` (all CPUs
    without end) is None: it names none.
    """
    if not text or _MASK.fullmatch(text) is None:
        return None
    words = [word.lower().removeprefix("0x") for word in text.split(",")]
    if len(words) * 32 > _MOST_CPUS or any(len(word) > 8 for word in words[1:]) or not any(words):
        return None
    mask = 0
    for word in words:
        mask = mask << 32 | int(word or "0", 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
