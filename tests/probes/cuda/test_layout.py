"""Who gets which part of a buffer."""

from gputopo.probes.cuda import parts
from tests.probes.cuda.doubled import d2h, direct, h2d, staged


def test_paths_that_receive_in_one_memory_get_parts_of_it() -> None:
    _, host = parts([d2h(0, 0), d2h(1, 1), d2h(2, 0), staged(3, 4), h2d(5, 0), h2d(6, 0)])
    assert host == {0: (0, 2), 2: (1, 2), 1: (0, 1), 3: (0, 1), 4: (0, 2), 5: (1, 2)}


def test_paths_to_one_gpu_get_parts_of_its_buffer() -> None:
    device, host = parts([direct(0, 2), direct(1, 2), direct(2, 0)])
    assert device == {0: (0, 2), 1: (1, 2), 2: (0, 1)}
    assert host == {}
