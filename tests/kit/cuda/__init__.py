"""A double of the CUDA driver: a C library that stands in the place of libcuda.so.1.

Real, unchanged `cuda.bindings.driver` calls of its 12.x and 13.x lines run against it; it answers those calls
that gputopo uses (`src/names.c` lists them) and says "not found" for all others, as an old driver does.

- Copies are flows over resources (links per direction, card memory, host memory, the link between sockets)
  with a capacity each and a latency. Flows that meet share max-min fair. Time is virtual: it passes when the
  host makes a call, waits or asks, never by itself, so all numbers are exact and repeatable on any machine.
- Each call that gives work costs 5 us of virtual time. Who does not hold the streams back measures that too.
- The bytes are really moved, when the copy ends; kernels are known by name and do their work. What lies in
  device memory is kept in tiles that equal places share, so that eight cards full of a pattern that repeats
  every 256 KiB cost little; other contents cost what they are (`memory=BYTES` bounds what a card has).
- A kernel that waits for a word (`gputopo_hold`) ends when it is written, or after its time, which is real.
- A copy from or to pageable memory is synchronous. Behind work that cannot end, that and every other wait is
  given up after `block_s` seconds of real time with CUDA_ERROR_LAUNCH_TIMEOUT and a line on stderr.
- With CUDA_LAUNCH_BLOCKING=1 at cuInit a launch waits for the end of its kernel. Where a stream takes only
  `depth` commands, the call that adds one more waits for the first of them.
- Streams of the default kind (handles 0, 1, 2) are ordinary streams of their GPU: they wait for no other.
- An error of the call comes back from it; one of the copy itself from the next query of its event or stream,
  once. A kernel that touches what it may not makes its GPU useless, as on a real card.
- One call can hang, crash or be slow in real time: FAKE_CUDA_CALL names it (`src/faulty.c`).
- Real cards' costs: a local copy that fits the L2 outruns the memory, a stream that was idle starts a copy
  after some us, peer access takes ms to change and is limited to eight devices (`Settings`, `CudaGpu`).
- `double_now` is its clock for programs (`clock`).
- Freeing memory waits for the work under way, as on a real card, but not for work that is held back.

`scenario` holds the values and writes the file that the library reads (FAKE_CUDA_SCENARIO), `derive` makes
them from a machine of the kit, `layouts` has more machines, `words` reads faults (`wrong@h2d:3+lost@4`),
`build` compiles the library once and returns where it is, `session` returns the environment of a process that
uses it.

A process uses the double if LD_LIBRARY_PATH names its folder when the process starts, or if it loaded it
itself before (`ctypes.CDLL(path)`; the soname then makes it the one). With LD_PRELOAD the double also takes
sched_setaffinity and sched_getaffinity, so that a thread can be bound to CPUs that only the scenario has, and
syscall(2) for set_mempolicy, get_mempolicy and move_pages; pinned memory lies on the node to which the thread
that allocates it is bound, else on that of its CPUs. FAKE_CUDA_NODE sets the node of all CPUs.
"""
