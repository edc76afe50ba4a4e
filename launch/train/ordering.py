"""What within a step's graph waits for what: who reads a tensor, so that an update in place comes after."""

from collections.abc import Iterable
from typing import Any

Tensor = Any
Operation = Any

# Ops whose output is their input under another name or shape: who reads that reads the same memory.
_VIEWS = frozenset({"Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StridedSlice"})


def needed_for(tensors: Iterable[Tensor]) -> frozenset[Operation]:
    """Return the ops that must run for these tensors. TensorFlow prunes all others from a step."""
    found: set[Operation] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [source.op for source in op.inputs]
            waiting += op.control_inputs
    return frozenset(found)


def readers_of(value: Tensor, needed: frozenset[Operation]) -> list[Operation]:
    """Return the ops among the `needed` that read the value, or a view of it.

    When they are done its memory may change. One that was missed would cost memory and nothing else:
    TensorFlow gives a variable that is still being read new memory for its new value.
    """
    readers: list[Operation] = []
    for op in value.consumers():
        if op in needed:
            views = _views_of(value, op) if op.type in _VIEWS else []
            of_views = [reader for view in views for reader in readers_of(view, needed)]
            readers += of_views or [op]
    return readers


def _views_of(value: Tensor, op: Operation) -> list[Tensor]:
    """Return the outputs of an op that are the value."""
    return [view for source, view in zip(op.inputs, op.outputs, strict=False) if source is value]
