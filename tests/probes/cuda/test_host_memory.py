"""How much page-locked memory is taken, where, and when it is given back."""

from typing import cast

from gputopo.probes.cuda import Cuda, CudaError, HostMemory

MIB = 2**20


class Pages:
    """Stands in for CUDA: page-locked memory by address, `most` bytes of it at once."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.most = most
        self.taken: dict[int, int] = {}
        self.used: list[int] = []

    def use(self, ordinal: int) -> None:
        self.used.append(ordinal)

    def allocate_host(self, size: int) -> int:
        if size > self.most:
            raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", "no")
        address = (len(self.used) + len(self.taken) + 1) << 40
        self.taken[address] = size
        return address

    def ask(self, function: str, address: int) -> None:
        assert function == "cuMemFreeHost"
        del self.taken[address]


def memory(pages: Pages, most: int, nodes: int) -> HostMemory:
    return HostMemory(cast(Cuda, pages), most, nodes)


def test_one_node_has_memory_for_the_largest_copy() -> None:
    area = memory(Pages(), 768 * MIB, 1).pinned(0, None, None)
    assert area.receive_bytes == 512 * MIB
    assert area.receive == area.send + area.send_bytes


def test_nodes_keep_their_memory_when_jobs_alternate() -> None:
    pages = Pages()
    host = memory(pages, 768 * MIB, 4)
    areas = set[int]()
    for together in ({0}, {1}, {0, 1}, {3, 0}, set(range(4)), {1}):
        host.free_areas(together, set())
        areas |= {host.pinned(0, node, None, len(together)).send for node in together}
    assert set(pages.taken) == areas
    assert len(areas) == 4
    assert sum(pages.taken.values()) == host.pinned_bytes <= 768 * MIB


def test_more_nodes_than_fit_are_given_less_each_and_never_more_in_all() -> None:
    pages = Pages()
    host = memory(pages, 768 * MIB, 6)
    host.free_areas({0}, set())
    host.pinned(0, 0, None)
    host.free_areas({*range(6)}, set())
    for node in range(6):
        host.pinned(0, node, None, 6)
    assert len(pages.taken) == 6
    assert sum(pages.taken.values()) <= 768 * MIB
    host.free_areas({2}, set())
    assert host.pinned(0, 2, None).receive_bytes > 128 * MIB  # again, for a copy that runs alone
    assert sum(pages.taken.values()) <= 768 * MIB
    host.close()
    assert pages.taken == {}


def test_memory_in_which_a_copy_hangs_is_left_alone_and_counts() -> None:
    pages = Pages()
    host = memory(pages, 768 * MIB, 2)
    old = host.pinned(0, 0, None)
    host.abandon()
    new = host.pinned(1, 0, None)
    assert new is not old
    assert host.pinned_bytes == sum(pages.taken.values()) <= 768 * MIB
    host.close()
    assert list(pages.taken) == [old.send]


def test_memory_of_a_gpu_that_is_lost_is_taken_anew_by_another() -> None:
    pages = Pages()
    host = memory(pages, 768 * MIB, 2)
    host.pinned(0, 0, None)
    host.pinned(1, 1, None)
    host.forget(0)
    assert len(pages.taken) == 1
    host.pinned(1, 0, None)
    assert pages.used[-1] == 1


def test_a_system_with_little_to_lock_gives_what_it_has_and_is_not_asked_again() -> None:
    host = memory(Pages(9 * MIB), 768 * MIB, 1)
    area = host.pinned(0, None, None)
    assert 4 * MIB < area.send_bytes + area.receive_bytes <= 9 * MIB
    host.free_areas({None}, set())
    assert host.pinned(0, None, None) is area
