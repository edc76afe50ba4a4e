"""The bytes that are copied to be recognised."""

from gputopo.probes.cuda.pattern import BLOCK_BYTES, SEEDS, block, seed_of, splitmix64


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
