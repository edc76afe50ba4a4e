"""Freed memory goes back to the system within the context, and never at the cost of what the context does."""

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gputopo.launch.train import host_memory
from gputopo.launch.train.host_memory import freed_memory_given_back

# 64 MiB in pieces that malloc keeps in its heap when they are freed, as one of them stays at the heap's end.
_HOLES = """
import ctypes, re
from gputopo.launch.train.host_memory import freed_memory_given_back

def mib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(1 << 16) for _ in range(1024)]
for piece in pieces:
    ctypes.memset(piece, 1, 1 << 16)
with_all = mib()
for piece in pieces[:-1]:
    libc.free(piece)
kept = mib()
with freed_memory_given_back():
    pass
print(with_all - kept, with_all - mib())
"""


def _with_trim(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    library = SimpleNamespace(**functions)
    monkeypatch.setattr("gputopo.launch.train.host_memory.ctypes.CDLL", lambda _: library)


def test_what_malloc_kept_has_gone_back_when_the_context_ends() -> None:
    done = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True)
    before, after = map(float, done.stdout.split())
    assert before < 16, "malloc gives this memory back by itself: the test shows nothing"
    assert after > 48


def test_memory_is_given_back_while_the_context_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    called = threading.Event()
    _with_trim(monkeypatch, malloc_trim=lambda kept: called.set())
    monkeypatch.setattr(host_memory, "_EVERY_S", 0.001)
    with freed_memory_given_back():
        assert called.wait(timeout=30)


def test_nothing_is_left_running_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_trim(monkeypatch, malloc_trim=lambda kept: None)
    before = threading.active_count()
    with pytest.raises(KeyError), freed_memory_given_back():
        raise KeyError
    assert threading.active_count() == before


def test_a_c_library_without_the_function_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_trim(monkeypatch)
    before = threading.active_count()
    with freed_memory_given_back():
        assert threading.active_count() == before
