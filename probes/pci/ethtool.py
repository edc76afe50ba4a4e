"""The link modes that a network interface supports, from the kernel's ethtool interface (`ethtool eth0`)."""

import array
import errno
import fcntl
import socket
import struct

# linux/sockios.h, linux/ethtool.h: the request, and struct ethtool_link_settings without its bit masks.
_SIOCETHTOOL = 0x8946
_GET_LINK_SETTINGS = 0x4C
_HEAD_BYTES = 48
_WORDS_AT = 15  # offset of link_mode_masks_nwords, a signed byte
_MAX_WORDS = 127

# Gbit/s of each bit of enum ethtool_link_mode_bit_indices in linux/ethtool.h; 0 for what is no rate.
_RANGES: tuple[tuple[int, int, float], ...] = (
    (0, 1, 0.01),
    (2, 3, 0.1),
    (4, 5, 1.0),
    (6, 11, 0),  # autonegotiation and connectors
    (12, 12, 10.0),
    (13, 14, 0),  # pause frames
    (15, 15, 2.5),
    (16, 16, 0),  # backplane
    (17, 17, 1.0),
    (18, 20, 10.0),
    (21, 22, 20.0),
    (23, 26, 40.0),
    (27, 30, 56.0),
    (31, 33, 25.0),
    (34, 35, 50.0),
    (36, 39, 100.0),
    (40, 40, 50.0),
    (41, 41, 1.0),
    (42, 46, 10.0),
    (47, 47, 2.5),
    (48, 48, 5.0),
    (49, 51, 0),  # forward error correction
    (52, 56, 50.0),
    (57, 61, 100.0),
    (62, 66, 200.0),
    (67, 67, 0.1),
    (68, 68, 1.0),
    (69, 73, 400.0),
    (74, 74, 0),
    (75, 79, 100.0),
    (80, 84, 200.0),
    (85, 89, 400.0),
    (90, 91, 0.1),
    (92, 92, 0.01),
    (93, 98, 800.0),
    (99, 102, 0.01),
    (103, 108, 200.0),
    (109, 114, 400.0),
)
_RATES = {bit: rate for low, high, rate in _RANGES for bit in range(low, high + 1)}


def max_rate(interface: str) -> float | str:
    """Return the Gbit/s of the fastest link mode that an interface supports, or the reason why it is unknown.

    Any user may ask. Nothing is sent and nothing is changed.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
            head = _ask(door, interface, 0)
            words = struct.unpack_from("b", head, _WORDS_AT)[0]
            if not 0 < -words <= _MAX_WORDS:
                return "NO_LINK_MODES"
            answer = _ask(door, interface, -words)
    except OSError as error:
        return f"ETHTOOL_{errno.errorcode.get(error.errno or 0, 'FAILED')}"
    return rate_of(answer[_HEAD_BYTES : _HEAD_BYTES + 4 * -words])


def rate_of(mask: bytes) -> float | str:
    """Return the Gbit/s of the fastest mode of a mask of 32-bit words, or why it is unknown."""
    bits = int.from_bytes(
        b"".join(word.to_bytes(4, "little") for (word,) in struct.iter_unpack("=I", mask)), "little"
    )
    modes = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
    if any(bit not in _RATES for bit in modes):
        return "UNKNOWN_LINK_MODE"
    return max((_RATES[bit] for bit in modes), default=0) or "NO_LINK_MODES"


def _ask(door: socket.socket, interface: str, words: int) -> bytes:
    buffer = array.array("B", bytes(_HEAD_BYTES + 3 * 4 * words))
    struct.pack_into("=I", buffer, 0, _GET_LINK_SETTINGS)
    struct.pack_into("b", buffer, _WORDS_AT, words)
    request = struct.pack("16sP16x", interface.encode()[:15], buffer.buffer_info()[0])
    fcntl.ioctl(door, _SIOCETHTOOL, request)
    return buffer.tobytes()
