"""The networks that gputopo trains, each written once, as calls to a `Layers`, without TensorFlow.

`sketch` follows the calls with shapes only and counts; the training core follows them with tensors. To add a
network, add a function here and an entry in `catalogue`.
"""
