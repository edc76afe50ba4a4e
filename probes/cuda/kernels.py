"""The kernels, as PTX text: patterns, checks, copies by the cores, pointer chasing, blocking a stream.

Written by hand for PTX 6.4 (CUDA 10.1, driver 418) and sm_50, which every later driver compiles for its chip.
ptxas of CUDA 12.9 (V12.9.86) and of CUDA 13 (V13.5.37) accept it for every chip that they support, sm_50 to
sm_121.

All parameters are .u64. The kernels are launched in one dimension with any number of threads (`gputopo_chase`
and `gputopo_hold`: with one).

- gputopo_fill(dst, words, seed): 64-bit word i becomes splitmix64(seed + (i mod 32768)).
- gputopo_check(src, words, seed, counter): adds to *counter the number of words that differ from the pattern.
- gputopo_copy(dst, src, words): each thread issues eight loads of 16 bytes before the first store, to keep
  the long path to a peer busy. Loads have 8 bytes if an address is not a multiple of 16, and for the odd
  word.
- gputopo_chase(start, steps, out): *start is the address of the next word, and so on; the last address goes
  to *out. The loads are volatile: every step goes to the memory itself, never to a cache of this GPU.
- gputopo_hold(word, value, ns): ends if the 32-bit *word is at least `value`, or after `ns` nanoseconds.
"""

_BLOCK = 512  # threads in a block, as in nvbandwidth's copy kernel
_BLOCKS_PER_MULTIPROCESSOR = 2  # 1024 threads are resident on every chip since Maxwell

_HEAD = """
.version 6.4
.target sm_50
.address_size 64
"""

_REGISTERS = """
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<48>;
"""

# The first index of this thread in %rd20, the number of all threads in %rd21.
_GRID = """
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd20, %r1, %r2;
    cvt.u64.u32 %rd22, %r3;
    add.u64 %rd20, %rd20, %rd22;
    mul.wide.u32 %rd21, %r4, %r2;
"""

# splitmix64(seed %rd2 + (index %rd20 mod 32768)) into %rd10.
_PATTERN = """
    and.b64 %rd10, %rd20, 32767;
    add.u64 %rd10, %rd10, %rd2;
    add.u64 %rd10, %rd10, 0x9E3779B97F4A7C15;
    shr.u64 %rd11, %rd10, 30;
    xor.b64 %rd10, %rd10, %rd11;
    mul.lo.u64 %rd10, %rd10, 0xBF58476D1CE4E5B9;
    shr.u64 %rd11, %rd10, 27;
    xor.b64 %rd10, %rd10, %rd11;
    mul.lo.u64 %rd10, %rd10, 0x94D049BB133111EB;
    shr.u64 %rd11, %rd10, 31;
    xor.b64 %rd10, %rd10, %rd11;
"""


def _kernel(name: str, parameters: tuple[str, ...], memory: tuple[str, ...], body: str) -> str:
    """Return a kernel: parameters in %rd0, %rd1, ...; the addresses in `memory` are converted to global."""
    declared = ", ".join(f".param .u64 {parameter}" for parameter in parameters)
    loads = [f"    ld.param.u64 %rd{place}, [{parameter}];" for place, parameter in enumerate(parameters)]
    loads += [f"    cvta.to.global.u64 %rd{place}, %rd{place};" for place in map(parameters.index, memory)]
    begin = "\n".join(loads)
    return f"\n.visible .entry {name}({declared})\n{{{_REGISTERS}{begin}\n{body}    ret;\n}}\n"


def _each_word(body: str) -> str:
    """Return a loop over the words of this thread: the address of each in %rd12, its pattern in %rd10.

    %rd0: the address of the first word; %rd1: the number of words.
    """
    return f"""{_GRID}
again:
    setp.ge.u64 %p1, %rd20, %rd1;
    @%p1 bra done;
{_PATTERN}
    shl.b64 %rd12, %rd20, 3;
    add.u64 %rd12, %rd12, %rd0;
{body}
    add.u64 %rd20, %rd20, %rd21;
    bra again;
done:
"""


_FILL = _kernel(
    "gputopo_fill", ("dst", "words", "seed"), ("dst",), _each_word("    st.global.u64 [%rd12], %rd10;")
)

_COMPARE = """
    ld.global.u64 %rd13, [%rd12];
    setp.ne.u64 %p2, %rd13, %rd10;
    @%p2 add.u64 %rd15, %rd15, 1;
"""
_CHECK = _kernel(
    "gputopo_check",
    ("src", "words", "seed", "counter"),
    ("src", "counter"),
    f"""
    mov.u64 %rd15, 0;
{_each_word(_COMPARE)}
    setp.eq.u64 %p3, %rd15, 0;
    @%p3 bra none;
    red.global.add.u64 [%rd3], %rd15;
none:
""",
)

_DEPTH = 8  # loads of 16 bytes in progress in each thread
_LOADS = "".join(
    f"    ld.global.v2.u64 {{%rd{30 + 2 * i}, %rd{31 + 2 * i}}}, [%rd12];\n    add.u64 %rd12, %rd12, %rd23;\n"
    for i in range(_DEPTH)
)
_STORES = "".join(
    f"    st.global.v2.u64 [%rd13], {{%rd{30 + 2 * i}, %rd{31 + 2 * i}}};\n    add.u64 %rd13, %rd13, %rd23;\n"
    for i in range(_DEPTH)
)


def _addresses(shift: int) -> str:
    """Return code for the addresses of element %rd20 of 2^shift bytes: source in %rd12, target in %rd13."""
    return f"""
    shl.b64 %rd12, %rd20, {shift};
    add.u64 %rd13, %rd12, %rd0;
    add.u64 %rd12, %rd12, %rd1;
"""


# %rd27: pairs of words, 0 if an address is not a multiple of 16; %rd28: this thread's first word after them.
# %rd23: bytes from one pair of a thread to its next pair; %rd24: pairs that all threads copy in one round.
_COPY = _kernel(
    "gputopo_copy",
    ("dst", "src", "words"),
    ("dst", "src"),
    f"""{_GRID}
    or.b64 %rd26, %rd0, %rd1;
    and.b64 %rd26, %rd26, 15;
    setp.eq.u64 %p1, %rd26, 0;
    shr.u64 %rd27, %rd2, 1;
    selp.b64 %rd27, %rd27, 0, %p1;
    shl.b64 %rd28, %rd27, 1;
    add.u64 %rd28, %rd28, %rd20;
    shl.b64 %rd23, %rd21, 4;
    mul.lo.u64 %rd24, %rd21, {_DEPTH};
    mul.lo.u64 %rd25, %rd21, {_DEPTH - 1};
rounds:
    add.u64 %rd26, %rd20, %rd25;
    setp.ge.u64 %p1, %rd26, %rd27;
    @%p1 bra pairs;
{_addresses(4)}{_LOADS}{_STORES}
    add.u64 %rd20, %rd20, %rd24;
    bra rounds;
pairs:
    setp.ge.u64 %p2, %rd20, %rd27;
    @%p2 bra tail;
{_addresses(4)}
    ld.global.v2.u64 {{%rd30, %rd31}}, [%rd12];
    st.global.v2.u64 [%rd13], {{%rd30, %rd31}};
    add.u64 %rd20, %rd20, %rd21;
    bra pairs;
tail:
    mov.u64 %rd20, %rd28;
single:
    setp.ge.u64 %p3, %rd20, %rd2;
    @%p3 bra done;
{_addresses(3)}
    ld.global.u64 %rd30, [%rd12];
    st.global.u64 [%rd13], %rd30;
    add.u64 %rd20, %rd20, %rd21;
    bra single;
done:
""",
)

_CHASE = _kernel(
    "gputopo_chase",
    ("start", "steps", "out"),
    ("out",),
    """
again:
    setp.eq.u64 %p1, %rd1, 0;
    @%p1 bra done;
    cvta.to.global.u64 %rd3, %rd0;
    ld.volatile.global.u64 %rd0, [%rd3];
    sub.u64 %rd1, %rd1, 1;
    bra again;
done:
    st.global.u64 [%rd2], %rd0;
""",
)

# A volatile load acts as a load with system scope (PTX ISA, ld.volatile): it sees the host's write.
_HOLD = _kernel(
    "gputopo_hold",
    ("word", "value", "ns"),
    ("word",),
    """
    mov.u64 %rd10, %globaltimer;
    add.u64 %rd10, %rd10, %rd2;
    cvt.u32.u64 %r1, %rd1;
again:
    ld.volatile.global.u32 %r2, [%rd0];
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra done;
    mov.u64 %rd11, %globaltimer;
    setp.lt.u64 %p2, %rd11, %rd10;
    @%p2 bra again;
done:
""",
)

KERNELS = ("gputopo_fill", "gputopo_check", "gputopo_copy", "gputopo_chase", "gputopo_hold")

PTX = _HEAD + _FILL + _CHECK + _COPY + _CHASE + _HOLD


def grid(multiprocessors: int, words: int, at_once: int = 1) -> tuple[int, int]:
    """Return (blocks, threads in each block) that fill the chip, at most one thread for each word.

    `at_once`: the number of kernels that run on the chip at the same time. Each gets the same share, because
    a kernel that finds the chip full waits for the end of another.
    """
    wanted = -(-words // _BLOCK)
    return max(1, min(wanted, multiprocessors * _BLOCKS_PER_MULTIPROCESSOR // at_once)), _BLOCK
