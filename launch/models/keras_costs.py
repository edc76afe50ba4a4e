"""The costs of a Keras model by block, counted in its graph, as `gputopo.workload.sketch` defines them.

The model is traced once for one example. A tensor that depends on the input is a feature; a tensor that
depends only on variables is not. A block begins at each product with new variables: a convolution, a dense
layer or an Einsum. The body of a loop (recurrent layers) is counted once.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.models.keras_building import KerasModel
from gputopo.launch.models.keras_checks import shapes_of, traced_of
from gputopo.launch.models.keras_sources import foreign
from gputopo.launch.spec.model_names import KERAS_CPU_BATCH, KERAS_GPU_BATCH, KERAS_LEARNING_RATE
from gputopo.workload import BlockCost, BlockCounter, Workload

Operation = Any
Tensor = Any
# Ops, other than products, whose outputs backward needs. ReLU, bias, reshapes and casts work in place.
_KEPT = """
    MaxPool MaxPool3D AvgPool AvgPool3D Mean ConcatV2 Mul Sigmoid Tanh Erf Softmax Softplus FusedBatchNormV3
    ResizeBilinear ResizeNearestNeighbor
"""
_FEATURES = frozenset(_KEPT.split())
_ADDITIONS = frozenset(("AddV2", "AddN", "Sub"))
_FUNCTIONS = {
    "PartitionedCall": "f",
    "StatefulPartitionedCall": "f",
    "While": "body",
    "StatelessWhile": "body",
}


def count_costs(built: KerasModel, name: str) -> Workload:
    """Return the costs of a model, with the defaults of Keras models.

    Raises UsageError if its forward pass fails.
    """
    shape, _ = shapes_of(built.keras, name)
    with foreign(*built.fails):
        graph = traced_of(built.keras, shape).output.graph
    counted = _Counted(
        [variable.value.handle for variable in built.keras.trainable_variables], built.variables
    )
    counted.follow_model(graph)
    return Workload(
        name=name,
        data_name="own",
        input_shape=built.input_shape,
        classes=built.classes,
        parameters=sum(math.prod(variable.shape) for variable in built.variables),
        state=sum(math.prod(variable.shape) for variable in built.state),
        gpu_batch=KERAS_GPU_BATCH,
        cpu_batch=KERAS_CPU_BATCH,
        learning_rate=KERAS_LEARNING_RATE,
        blocks=counted.blocks(),
    )


class _Counted:
    """The costs of the graphs counted so far. Tensors are identified by name, which is unique in a graph."""

    def __init__(self, handles: Sequence[Tensor], variables: Sequence[Any]) -> None:
        self._handles = handles
        self._sizes = [math.prod(variable.shape) for variable in variables]
        self._used: set[int] = set()
        self._blocks: list[BlockCounter] = []

    def blocks(self) -> tuple[BlockCost, ...]:
        """Return the blocks in forward order. Unused variables belong to the first block."""
        unused = [size for number, size in enumerate(self._sizes) if number not in self._used]
        blocks = [
            block for block in self._blocks if block.variables or block.multiply_accumulates or block.features
        ]
        blocks = blocks or [BlockCounter("model")]
        blocks[0].variables[:0] = unused
        return tuple(block.cost for block in blocks)

    def follow_model(self, graph: Any) -> None:
        """Count a graph whose first input is the example and whose other inputs are the variables."""
        number = {id(handle): index for index, handle in enumerate(self._handles)}
        variables = {
            inner.name: {number[id(outer)]} for outer, inner in graph.captures if id(outer) in number
        }
        self._follow(graph, {graph.inputs[0].name}, variables)

    def _follow(self, graph: Any, features: set[str], variables: dict[str, set[int]]) -> None:
        live = _live(graph)
        for operation in graph.get_operations():
            if operation.name not in live:
                continue
            inputs = [tensor.name for tensor in operation.inputs]
            used = set[int]().union(*(variables.get(name, ()) for name in inputs))
            if not features.intersection(inputs):
                variables.update((output.name, used) for output in operation.outputs if used)
                continue
            features.update(output.name for output in operation.outputs if _has_numbers(output))
            attribute = _FUNCTIONS.get(operation.type)
            function = attribute and graph._get_function(operation.get_attr(attribute).name)
            inner = getattr(function, "graph", None)
            if inner is not None:
                given = list(zip(inner.inputs, inputs, strict=False))
                carried = _carried(inner) if "While" in operation.type else set[str]()
                self._follow(
                    inner,
                    {tensor.name for tensor, name in given if name in features} | carried,
                    {tensor.name: variables.get(name, set()) for tensor, name in given},
                )
            elif operation.outputs and operation.outputs[0].dtype.is_floating:
                self._count(operation, used, features)

    def _count(self, operation: Operation, variables: set[int], features: set[str]) -> None:
        products = _products(operation)
        new = sorted(variables - self._used)
        if not self._blocks or (products and new):
            self._blocks.append(BlockCounter(operation.name.rpartition("/")[0] or operation.name))
        block = self._blocks[-1]
        block.variables += [self._sizes[number] for number in new]
        self._used.update(new)
        block.multiply_accumulates += products
        added = (
            operation.type in _ADDITIONS and sum(tensor.name in features for tensor in operation.inputs) > 1
        )
        if products or added or operation.type in _FEATURES:
            block.features += _elements(operation.outputs[0])


def _has_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor holds floats, or a list of float tensors, and not a shape or an index."""
    return bool(tensor.dtype.is_floating or tensor.dtype == tf.variant)


def _live(graph: Any) -> set[str]:
    """Return the operations that an output of the graph depends on."""
    live: set[str] = set()
    waiting = [output.op for output in graph.outputs]
    while waiting:
        operation = waiting.pop()
        if operation.name not in live:
            live.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    return live


def _carried(body: Any) -> set[str]:
    """Return the inputs of a loop's body that hold results of the previous iteration."""
    carried = set()
    for before, after in zip(body.inputs, body.outputs, strict=True):
        while after.op.type == "Identity":
            after = after.op.inputs[0]
        if _has_numbers(before) and after.name != before.name:
            carried.add(before.name)
    return carried


def _products(operation: Operation) -> int:
    """Return the multiply-accumulates of an operation."""
    kind, inputs = operation.type, [_sides(tensor) for tensor in operation.inputs]
    made = _elements(operation.outputs[0])
    if kind in ("Conv2D", "Conv3D"):
        return made * math.prod(inputs[1][:-1])
    if kind == "DepthwiseConv2dNative":
        return made * math.prod(inputs[1][:2])
    if kind in ("Conv2DBackpropInput", "Conv3DBackpropInputV2"):  # transposed convolutions
        return math.prod(inputs[2]) * math.prod(inputs[1][:-1])
    if kind == "MatMul":
        return made * inputs[0][0 if operation.get_attr("transpose_a") else 1]
    if kind in ("BatchMatMulV2", "BatchMatMulV3"):
        return made * inputs[0][-2 if operation.get_attr("adj_x") else -1]
    if kind == "Einsum":
        return made * _summed(operation.get_attr("equation").decode(), inputs)
    return 0


def _summed(equation: str, inputs: Sequence[Sequence[int]]) -> int:
    """Return the number of products in each element of an Einsum's result."""
    terms, _, result = equation.partition("->")
    sizes: dict[str, int] = {}
    for term, sides in zip(terms.split(","), inputs, strict=True):
        before, _, after = term.partition("...")
        sizes.update(zip(before, sides, strict=False))
        sizes.update(zip(reversed(after), reversed(sides), strict=False))
    return math.prod(size for label, size in sizes.items() if label not in result)


def _sides(tensor: Tensor) -> list[int]:
    """Return the shape. A dimension that is only known when the graph runs is 1."""
    return [] if tensor.shape.rank is None else [side or 1 for side in tensor.shape]


def _elements(tensor: Tensor) -> int:
    return math.prod(_sides(tensor))
