"""The training core: TensorFlow code that only the worker loads.

A run reads from top to bottom in `training`: place the variables (`placement`), compile the step (`step`),
check where everything is (`placement.checking`), warm up, count. Models and inputs are pure functions.
"""
