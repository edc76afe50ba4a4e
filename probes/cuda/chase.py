"""How long one access to a GPU's memory takes: a chain of pointers, each read after the one before it."""

import ctypes
import functools
import random
from array import array

from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.card import CHAIN_BYTES, Card
from gputopo.probes.cuda.hold import Hold
from gputopo.probes.cuda.pattern import BLOCK_BYTES
from gputopo.probes.cuda.transfer import Transfer
from gputopo.probes.cuda.verify import WRONG_DATA
from gputopo.probes.cuda.waiting import Waiter

# One pointer a cache line (128 bytes), in 2 MiB as nvbandwidth has it, in an order that nothing can foresee.
_STRIDE = 128
_NODES = CHAIN_BYTES // _STRIDE
STEPS = 4096  # about 3 to 10 ms over PCIe


class Chase(Transfer):
    """The acting GPU follows a chain in the memory of the way's source."""

    @property
    def _out(self) -> int:
        return self.acting.small + CHAIN_BYTES + 8

    def prepare(self, waiter: Waiter) -> None:
        """Lay the chain once, and clear the result. Raises CudaError."""
        assert self.streams  # made now, as those of other copies
        owner = self.origin.card
        if not owner.has_chain:
            _lay(owner, waiter)
            owner.has_chain = True
        stream, event = self.acting.stream(0), self.acting.event()
        self.acting.cuda.set_bytes(self._out, 0, 8, stream)
        waiter.stream(stream, event, 8)

    def enqueue(self, hold: Hold) -> None:
        """Give the kernel to the stream, behind the hold. Raises CudaError."""
        ((card, stream),) = self.streams
        assert card.kernels is not None
        card.use()
        hold.hold(card.ordinal, stream)
        self.start = card.event()
        card.cuda.record(self.start, stream)
        words = (self.origin.card.small + _STRIDE * _order()[0], STEPS, self._out)
        card.cuda.launch(card.kernels["gputopo_chase"], stream, words, (1, 1))
        self._mark(card, stream)

    def verify(self, waiter: Waiter) -> None:
        """Compare the last pointer with the one that the chain has there. Raises CudaError."""
        card = self.acting
        scratch = card.scratch()
        stream, event = card.stream(0), card.event()
        card.cuda.download(scratch, self._out, 8, stream)
        waiter.stream(stream, event, 8)
        found = ctypes.c_uint64.from_address(scratch).value
        if found != self.origin.card.small + _STRIDE * _order()[STEPS % _NODES]:
            raise CudaError(WRONG_DATA, f"after {STEPS} steps through a chain of pointers the last is wrong")


@functools.cache
def _order() -> tuple[int, ...]:
    """Give the nodes in the order in which they are visited; the same in every run."""
    nodes = list(range(_NODES))
    random.Random(1).shuffle(nodes)
    return tuple(nodes)


def chain(base: int) -> "array[int]":
    """Give the 2 MiB of a chain that lies at `base`: one cycle through all nodes."""
    words = array("Q", bytes(CHAIN_BYTES))
    order = _order()
    for here, there in zip(order, (*order[1:], order[0]), strict=True):
        words[here * _STRIDE // 8] = base + _STRIDE * there
    return words


def _lay(card: Card, waiter: Waiter) -> None:
    """Write the chain and read it back: a wrong pointer would end the context of whoever follows it."""
    data = memoryview(chain(card.small)).cast("B")
    scratch, stream = card.scratch(), card.stream(0)
    for offset in range(0, CHAIN_BYTES, BLOCK_BYTES):
        block = bytes(data[offset : offset + BLOCK_BYTES])
        ctypes.memmove(scratch, block, BLOCK_BYTES)
        card.cuda.upload(card.small + offset, scratch, BLOCK_BYTES, stream)
        waiter.stream(stream, card.event(), BLOCK_BYTES)
        ctypes.memset(scratch, 0, BLOCK_BYTES)
        card.cuda.download(scratch, card.small + offset, BLOCK_BYTES, stream)
        waiter.stream(stream, card.event(), BLOCK_BYTES)
        if ctypes.string_at(scratch, BLOCK_BYTES) != block:
            raise CudaError(
                WRONG_DATA, "a chain of pointers did not arrive as it was sent: it is not followed"
            )
