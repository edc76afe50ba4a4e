"""Copies whose bytes still change while they are compared."""

import ctypes

import pytest

from gputopo.probes.cuda import verify
from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.pattern import BLOCK_BYTES, block


class SaysWrong:
    """A comparison that came before the last bytes did."""

    def memcmp(self, *_: object) -> int:
        return 1


def test_bytes_that_are_right_a_moment_later_are_wrong_data_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "_LIBC", SaysWrong())
    copied = ctypes.create_string_buffer(bytes(block(0)), BLOCK_BYTES)
    with pytest.raises(CudaError, match="were wrong and then right") as caught:
        verify._compare(ctypes.addressof(copied), 0, BLOCK_BYTES, BLOCK_BYTES, 0)
    assert caught.value.reason == verify.WRONG_DATA
