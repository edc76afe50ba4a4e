"""Checks of large copies in parts, and of bytes that still change while they are compared."""

import ctypes
import os
import threading

import pytest

from gputopo.probes.cuda import BLOCK_BYTES, CudaError, block, compare, in_parts


def test_bytes_that_are_right_shortly_after_are_wrong_data_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = ctypes.create_string_buffer(BLOCK_BYTES)
    monkeypatch.setattr(ctypes, "string_at", lambda address, size: bytes(block(0)[:size]))
    with pytest.raises(CudaError, match="were wrong and then right") as caught:
        compare(ctypes.addressof(copied), 0, BLOCK_BYTES, BLOCK_BYTES, 0)
    assert caught.value.reason == "WRONG_DATA"


MIB = 2**20


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


@pytest.mark.parametrize("size", [0, 8, 40 * MIB + 24, 513 * MIB - 8])
def test_all_bytes_are_worked_on_once(size: int) -> None:
    parts: list[tuple[int, int]] = []
    in_parts(size, lambda offset, part: parts.append((offset, part)))
    end = 0
    for offset, part in sorted(parts):
        assert offset == end
        assert offset % BLOCK_BYTES == 0
        end += part
    assert end == size
    assert len(parts) <= 8


def test_a_system_without_threads_works_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    parts: list[tuple[int, int]] = []
    in_parts(64 * MIB, lambda offset, part: parts.append((offset, part)))
    assert parts == [(0, 64 * MIB)]
