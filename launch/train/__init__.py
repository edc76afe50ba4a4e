"""The training core: TensorFlow code that only the worker loads.

Read it in this order: `training` (a run from its spec to its export), `loop` (warm-up and counted steps),
`step` (forward, backward, reduce, update), `towers` (one tower's passes), `placement` (where variables are
stored, and reductions), `updating` (learning rate, clipping, optimizer).
"""
