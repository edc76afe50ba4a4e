"""Doubles of machines with NVIDIA GPUs, for tests and benchmarks without one.

- `specs`: what a machine is made of: GPUs, bridges, NICs, NUMA nodes, NVLinks, as frozen values; the hops
  between GPUs are derived from the bridges. `changed(scenario, gpus={2: {...}})` makes variants.
- `scenarios`: the machines, `SCENARIOS["7gforce"]`, healthy and idle. `distinct`: one whose numbers all
differ. - `faults`: named faults for any of them, combinable: `broken("four", "power_cap_low@2", "acs_on")`.
- `nvml`: `FakeNvml(scenario)` stands in the place of `pynvml.nvmlLib`, so pynvml's own marshalling, struct
  versions and exceptions run. It refuses chosen calls with chosen codes (`GpuSpec.refuses` or
  `fake.refuse("nvmlDeviceGetClockInfo[2]", 3)`: the numbers in brackets are the call's plain arguments),
  lacks symbols as old drivers do (`fake.without(...)`), loses a GPU after n calls (`fake.lose`), changes
  clocks from call to call (`fake.script_clock`), reports Xid errors (`fake.raise_xid`), hangs or crashes
  (`fake.spoil`), and lists every call in `calls` and every call that would change a setting in `writes`.
  Use it as `with installed(fake): ...`.
- `sysfs`: `write_tree(scenario, folder)` writes the same machine as /sys, /proc and /dev under a folder.
- `machines`: `read(scenario, folder)` does both and gives the Machine that gputopo reads, `machine_of(name)`
  once for all tests.
- `command`: `python -m tests.kit.command 7gforce+lost@3 -- inspect --json` runs the command line on such a
  machine, with faults if wanted, in its own process; `--tree FOLDER` keeps the tree for the next time.
- `faulty_nvml`: a libnvidia-ml.so.1 in C in which one call hangs, crashes, refuses or gives garbage.
- `cuda`: a double of libcuda.so.1 in C for the same machines, with faults of its own in words;
  `python -m tests.kit.command 8switch --cuda wrong@h2d:3 -- bandwidth` runs on both doubles.

All is driven by the number of calls, never by a clock. Nothing here needs a GPU, a driver or root.
"""
