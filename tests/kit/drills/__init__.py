"""Drills without a GPU: simulated runs with scripted faults, and the verdict and cause that are demanded.

`box` is a machine whose physical state is scripted over the steps of a training; `going` runs it: its GPUs
are read through the double of NVML and the watch of a run, its events go through the record of a run to the
result and the report. `table` lists the drills. `tests.benchmarks.bench_drills` draws their numbers anew.
"""
