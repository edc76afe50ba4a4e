"""Drills without a GPU: simulated runs with scripted faults, and the required verdict and cause.

`box` is a machine whose physical state is scripted over the steps of a training. `going` runs it: its GPUs
are read through the double of NVML and the watch of a run, and its events go through the record of a run to
the result and the report. `table` lists the drills. `tests.benchmarks.bench_drills` runs them with random
numbers.
"""
