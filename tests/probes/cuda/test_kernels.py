"""The kernels' text: ptxas takes it for every chip that it knows."""

import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from gputopo.probes.cuda.kernels import PTX, grid
from gputopo.probes.cuda.pattern import BLOCK_BYTES, SEEDS, block, seed_of, splitmix64
from tests.probes.cuda.ptx import Memory, run


@cache
def ptxas() -> str | None:
    """Return the path of ptxas: on PATH, or of a wheel (nvidia-cuda-nvcc, nvidia-cuda-nvcc-cu12)."""
    spec = find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or () if spec else ())]
    wheels = [str(file) for folder in folders for file in sorted(folder.glob("*/bin/ptxas"))]
    return shutil.which("ptxas") or next(iter(wheels), None)


@pytest.mark.skipif(ptxas() is None, reason="no ptxas here: neither on PATH nor of a wheel nvidia-cuda-nvcc")
def test_the_assembler_takes_the_kernels_for_every_chip_that_it_knows(tmp_path: Path) -> None:
    assembler = str(ptxas())
    (tmp_path / "k.ptx").write_text(PTX)
    text = subprocess.run(
        [assembler, "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    chips = sorted(set(re.findall(r"'(sm_\d+[af]?)'", text)))
    assert chips
    for chip in chips:
        command = [assembler, f"-arch={chip}", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{chip}: {done.stderr}"


def test_a_grid_fills_the_chip_but_has_no_idle_threads() -> None:
    assert grid(132, 2**25) == (264, 512)
    assert grid(132, 1) == (1, 512)
    assert grid(1, 513) == (2, 512)


@pytest.mark.parametrize("words", [0, 1, 191, 192, 1001])
@pytest.mark.parametrize(("to", "start"), [(0, 0), (8, 0), (0, 8)])
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
    assert [memory[0x10000 + 8 * place] for place in range(words)] == [
        splitmix64(seed + n) for n in range(words)
    ]
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


def test_splitmix64_gives_the_published_numbers() -> None:
    # The first three outputs of the reference generator (prng.di.unimi.it/splitmix64.c) from state 0.
    gamma = 0x9E3779B97F4A7C15
    found = [splitmix64(n * gamma & (2**64 - 1)) for n in range(3)]
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_block_is_what_the_kernels_write() -> None:
    for seed in (seed_of(0), seed_of(7), seed_of(SEEDS - 1)):
        words = block(seed).cast("Q")
        assert len(words) * 8 == BLOCK_BYTES
        for index in (0, 1, 4711, 32767):
            assert words[index] == splitmix64(seed + index)


def test_every_word_differs_from_one_window_to_the_next() -> None:
    seeds = [seed_of(window) for window in range(SEEDS)]
    assert len(set(seeds)) == SEEDS
    one, next_one = block(seeds[3]).cast("Q"), block(seeds[4]).cast("Q")
    assert all(a != b for a, b in zip(one, next_one, strict=True))
