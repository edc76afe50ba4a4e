"""Doubles of machines with NVIDIA GPUs, for tests and benchmarks without GPUs.

- `specs`: the parts of a machine as frozen values: GPUs, bridges, NICs, NUMA nodes, NVLinks. The hops between
  GPUs are derived from the bridges. `changed(scenario, gpus={2: {...}})` makes variants.
- `scenarios`: the machines, such as `SCENARIOS["7gforce"]`, healthy and idle. `distinct`: a machine whose
  numbers all differ.
- `faults`: named faults for any machine, which can be combined:
  `broken("four", "power_cap_low@2", "acs_on")`.
- `nvml`: `FakeNvml(scenario)` replaces `pynvml.nvmlLib`, so pynvml's own marshalling, struct versions and
  exceptions run. It can refuse calls with a code (`GpuSpec.refuses` or
  `fake.refuse("nvmlDeviceGetClockInfo[2]", 3)`: the numbers in brackets are the call's plain arguments), omit
  symbols as old drivers do (`fake.without(...)`), lose a GPU after n calls (`fake.lose`), change clocks from
  call to call (`fake.script_clock`), report Xid errors (`fake.raise_xid`), and hang or crash (`fake.spoil`).
  It records every call in `calls`, and every call that would change a setting in `writes`. Use it as
  `with installed(fake): ...`.
- `sysfs`: `write_tree(scenario, folder)` writes the same machine as /sys, /proc and /dev under a folder.
- `machines`: `read(scenario, folder)` does both and returns the Machine that gputopo reads;
  `machine_of(name)` does this once for all tests.
- `command`: `python -m tests.kit.command 7gforce+lost@3 -- inspect --json` runs the command line on such a
  machine, optionally with faults, in a separate process. `--tree FOLDER` keeps the tree for the next time.
- `faulty_nvml`: a libnvidia-ml.so.1 in C in which one call hangs, crashes, refuses or returns garbage.
- `cuda`: a double of libcuda.so.1 in C for the same machines, with its own faults in words;
  `python -m tests.kit.command 2x4 --cuda wrong@h2d:3 -- bandwidth` runs on both doubles.

Everything depends on the number of calls, never on a clock. Nothing here needs a GPU, a driver or root.
"""
