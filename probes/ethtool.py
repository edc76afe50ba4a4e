"""Asks the kernel for the link modes of a network interface, as ethtool does."""

import array
import errno
import fcntl
import struct
from typing import TYPE_CHECKING

from gputopo.values.index_ranges import parse_cpus

if TYPE_CHECKING:
    import socket

# linux/sockios.h, linux/ethtool.h: the request, and struct ethtool_link_settings without its bit masks.
_SIOCETHTOOL = 0x8946
_GET_LINK_SETTINGS = 0x4C
_HEAD_BYTES = 48
_WORDS_AT = 15  # offset of link_mode_masks_nwords, a signed byte
_MAX_WORDS = 127

# Bits of enum ethtool_link_mode_bit_indices in linux/ethtool.h, by Gbit/s. 0: autonegotiation, connectors,
# pause frames, backplane and forward error correction.
_BITS_BY_RATE = {
    0: "6-11,13-14,16,49-51,74",
    0.01: "0-1,92,99-102",
    0.1: "2-3,67,90-91",
    1.0: "4-5,17,41,68",
    2.5: "15,47",
    5.0: "48",
    10.0: "12,18-20,42-46",
    20.0: "21-22",
    25.0: "31-33",
    40.0: "23-26",
    50.0: "34-35,40,52-56",
    56.0: "27-30",
    100.0: "36-39,57-61,75-79",
    200.0: "62-66,80-84,103-108",
    400.0: "69-73,85-89,109-114",
    800.0: "93-98",
}
_RATES = {bit: rate for rate, bits in _BITS_BY_RATE.items() for bit in parse_cpus(bits) or ()}


def max_rate(interface: str) -> float | str:
    """Return the Gbit/s of the fastest link mode that an interface supports, or the reason why it is unknown.

    Any user may ask. Nothing is sent and nothing is changed.
    """
    import socket  # imported here, while another process asks NVML

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
            head = read_link_settings(door, interface, 0)
            words = struct.unpack_from("b", head, _WORDS_AT)[0]
            if not 0 < -words <= _MAX_WORDS:
                return "NO_LINK_MODES"
            answer = read_link_settings(door, interface, -words)
    except OSError as error:
        return f"ETHTOOL_{errno.errorcode.get(error.errno or 0, 'FAILED')}"
    return rate_of(answer[_HEAD_BYTES : _HEAD_BYTES + 4 * -words])


def rate_of(mask: bytes) -> float | str:
    """Return the Gbit/s of the fastest mode in a mask of 32-bit words, or the reason why it is unknown."""
    bits = int.from_bytes(
        b"".join(word.to_bytes(4, "little") for (word,) in struct.iter_unpack("=I", mask)), "little"
    )
    modes = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
    if any(bit not in _RATES for bit in modes):
        return "UNKNOWN_LINK_MODE"
    return max((_RATES[bit] for bit in modes), default=0) or "NO_LINK_MODES"


def read_link_settings(door: "socket.socket", interface: str, words: int) -> bytes:
    """Return the kernel's struct ethtool_link_settings, with bit masks of a number of words each."""
    buffer = array.array("B", bytes(_HEAD_BYTES + 3 * 4 * words))
    struct.pack_into("=I", buffer, 0, _GET_LINK_SETTINGS)
    struct.pack_into("b", buffer, _WORDS_AT, words)
    request = struct.pack("16sP16x", interface.encode()[:15], buffer.buffer_info()[0])
    fcntl.ioctl(door, _SIOCETHTOOL, request)
    return buffer.tobytes()
