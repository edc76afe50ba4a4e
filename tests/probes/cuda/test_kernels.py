"""The kernels' text: ptxas takes it, and it does what it is for."""

import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from gputopo.probes.cuda import BLOCK_BYTES, PTX, block, grid, seed_of
from tests.probes.cuda.ptx import Memory, run


@cache
def ptxas() -> str | None:
    """Return the path of ptxas: on PATH, or of a wheel (nvidia-cuda-nvcc, nvidia-cuda-nvcc-cu12)."""
    spec = find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or () if spec else ())]
    wheels = [str(file) for folder in folders for file in sorted(folder.glob("*/bin/ptxas"))]
    return shutil.which("ptxas") or next(iter(wheels), None)


@pytest.mark.skipif(ptxas() is None, reason="no ptxas here: neither on PATH nor of a wheel nvidia-cuda-nvcc")
def test_the_assembler_takes_the_kernels_for_old_and_new_chips(tmp_path: Path) -> None:
    assembler = str(ptxas())
    (tmp_path / "k.ptx").write_text(PTX)
    text = subprocess.run(
        [assembler, "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    chips = sorted(set(re.findall(r"'(sm_\d+[af]?)'", text)))
    assert chips
    for chip in (chips[0], chips[-1]):
        command = [assembler, f"-arch={chip}", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{chip}: {done.stderr}"


def test_a_grid_fills_the_chip_but_has_no_idle_threads() -> None:
    assert grid(132, 2**25) == (264, 512)
    assert grid(132, 1) == (1, 512)
    assert grid(1, 513) == (2, 512)


@pytest.mark.parametrize(
    ("words", "to", "start"), [(0, 0, 0), (191, 0, 0), (1001, 0, 0), (192, 8, 0), (191, 0, 8)]
)
def test_a_copy_moves_every_word_once_and_no_other(words: int, to: int, start: int) -> None:
    source, target = 0x10000 + start, 0x20000 + to
    memory = {source + 8 * place: 1000 + place for place in range(words)}
    memory |= {target + 8 * place: 1 for place in range(-1, words + 1)}
    sizes = run(PTX, "gputopo_copy", (target, source, words), memory, blocks=3, threads=4)
    assert [memory[target + 8 * place] for place in range(words)] == [1000 + place for place in range(words)]
    assert (memory[target - 8], memory[target + 8 * words]) == (1, 1)
    assert sum(sizes) == 2 * 8 * words
    assert sizes.count(16) == (0 if to or start else words // 2 * 2)


def test_a_fill_is_the_pattern_and_a_check_counts_what_is_not() -> None:
    words, seed, counter = 100, 61, 0x90000
    memory: Memory = dict.fromkeys(range(0x10000, 0x10000 + 8 * words, 8), 0) | {counter: 0}
    run(PTX, "gputopo_fill", (0x10000, words, seed), memory, blocks=2, threads=8)
    assert [memory[0x10000 + 8 * place] for place in range(words)] == [*block(seed).cast("Q")[:words]]
    memory[0x10000 + 8 * 70] ^= 1
    memory[0x10000] ^= 1 << 63
    run(PTX, "gputopo_check", (0x10000, words, seed, counter), memory, blocks=2, threads=8)
    assert memory[counter] == 2


def test_a_chase_follows_the_pointers() -> None:
    memory = {0x100: 0x300, 0x300: 0x200, 0x200: 0x100, 0x800: 0}
    run(PTX, "gputopo_chase", (0x100, 5, 0x800), memory, blocks=1, threads=1)
    assert memory[0x800] == 0x200


@pytest.mark.parametrize(("word", "asked"), [(7, 1), (8, 1), (6, 4)])
def test_a_hold_ends_with_the_word_or_after_its_time(word: int, asked: int) -> None:
    memory = {0x100: word}
    accesses = run(PTX, "gputopo_hold", (0x100, 7, 4), memory, blocks=1, threads=1)
    assert len(accesses) == asked
    assert memory == {0x100: word}


def test_the_words_are_the_first_numbers_of_the_reference_generator() -> None:
    """Of splitmix64 (prng.di.unimi.it/splitmix64.c) from the states 0 and 1."""
    assert [*block(0).cast("Q")[:2]] == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]


SEEDS = 128


def test_every_word_differs_from_one_window_to_the_next() -> None:
    seeds = [seed_of(window) for window in range(SEEDS)]
    assert len(set(seeds)) == SEEDS
    assert seed_of(SEEDS) == seeds[0]
    one, next_one = block(seeds[3]).cast("Q"), block(seeds[4]).cast("Q")
    assert len(one) * 8 == BLOCK_BYTES
    assert all(a != b for a, b in zip(one, next_one, strict=True))
    assert block(seeds[-1]).cast("Q")[-61:] != one[-61:]
