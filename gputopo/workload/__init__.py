"""The networks that gputopo trains, each written once, as calls on a `Layers`: no TensorFlow here.

`sketch` follows the calls with shapes alone and counts; the training core follows them with tensors.
A new network is a function here and an entry in `catalogue`.
"""
