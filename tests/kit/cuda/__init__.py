"""A double of the CUDA driver: a C library that replaces libcuda.so.1.

Real, unchanged `cuda.bindings.driver` calls of its 12.x and 13.x lines run against it. It implements the
calls that gputopo uses (`src/names.c` lists them) and returns "not found" for all others, as an old driver
does.

- Copies are flows over resources (links per direction, card memory, host memory, the link between sockets),
  each with a capacity and a latency. Flows over the same resource share it max-min fair. Time is virtual: it
  passes only when the host makes a call, waits or polls, so all numbers are exact and repeatable on any
  machine.
- Each call that submits work costs 5 us of virtual time. A measurement that does not hold the streams back
  includes this cost.
- The bytes are really moved, when the copy ends. Kernels are known by name and do their work. Device memory
  is stored in tiles, and equal tiles are shared, so that eight cards full of a pattern that repeats every
  256 KiB cost little; other contents cost their size (`memory=BYTES` limits the memory of a card).
- A kernel that waits for a word (`gputopo_hold`) ends when the word is written, or after its time limit,
  which is real time.
- A copy from or to pageable memory is synchronous. If it, or any other wait, is behind work that cannot end,
  the double gives up after five seconds of real time, with CUDA_ERROR_LAUNCH_TIMEOUT and a line on
  stderr.
- With CUDA_LAUNCH_BLOCKING=1 at cuInit, a launch waits for the end of its kernel. If a stream takes only
  `depth` commands, the call that adds one more waits for the first of them.
- Streams of the default kind (handles 0, 1, 2) are ordinary streams of their GPU: they wait for no other.
- The call returns its own errors. An error of the copy itself is returned once, by the next query of its
  event or stream. A kernel that accesses memory without permission makes its GPU unusable, as on a real card.
- One call can hang, crash or be slow in real time: FAKE_CUDA_CALL selects it (`src/faulty.c`).
- Costs of real cards: a local copy that fits the L2 is faster than the memory, an idle stream starts a copy
  after some us, a change of peer access takes ms and is limited to eight devices (`Settings`, `CudaGpu`).
- Freeing memory waits for running work, as on a real card, but not for work that is held back.

`scenario` has the values and writes the file that the library reads (FAKE_CUDA_SCENARIO), `derive` makes them
from a machine of the kit, `layouts` has more machines, `words` reads faults (`wrong@h2d:3+lost@4`), `build`
compiles the library once and returns its path, `session` returns the environment of a process that uses it.

A process uses the double if LD_LIBRARY_PATH contains its folder when the process starts, or if the process
has already loaded it (`ctypes.CDLL(path)`; the soname then selects it). With LD_PRELOAD, the double also
replaces sched_setaffinity and sched_getaffinity, so that a thread can be bound to CPUs that only the scenario
has, and syscall(2) for set_mempolicy, get_mempolicy and move_pages. Pinned memory is on the node to which the
allocating thread is bound, else on the node of its CPUs. FAKE_CUDA_NODE sets the node of all CPUs.
"""
