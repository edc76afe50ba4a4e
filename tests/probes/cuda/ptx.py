"""Executes the few PTX instructions that the kernels use, thread after thread, on memory by address.

%globaltimer advances by one nanosecond with each reading.
"""

import re
from collections.abc import Callable, Mapping

MASK = 2**64 - 1
Memory = dict[int, int]  # 64-bit words by their address

_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "cvta": lambda a: a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "selp": lambda a, b, p: a if p else b,
}
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def run(
    ptx: str, name: str, words: tuple[int, ...], memory: Memory, *, blocks: int, threads: int
) -> list[int]:
    """Run a kernel of a text. Returns the bytes of each access to memory."""
    head, _, rest = ptx.partition(f".entry {name}(")[2].partition(")")
    body = rest[rest.index("{") + 1 : rest.index("\n}")]
    parameters = dict(zip(re.findall(r"\.u64 (\w+)", head), words, strict=True))
    lines = [line.strip().rstrip(";") for line in body.splitlines()]
    code = [line for line in lines if line and not line.startswith(".")]
    accesses: list[int] = []
    for block in range(blocks):
        for thread in range(threads):
            special = {"%ctaid.x": block, "%ntid.x": threads, "%tid.x": thread, "%nctaid.x": blocks}
            _thread(code, {**parameters, **special}, memory, accesses)
    return accesses


def _thread(code: list[str], values: dict[str, int], memory: Memory, accesses: list[int]) -> None:
    labels = {line[:-1]: place for place, line in enumerate(code) if line.endswith(":")}
    place = 0
    while code[place] != "ret":
        line = code[place]
        place += 1
        if line.endswith(":"):
            continue
        guarded = re.match(r"@(%p\d) (.*)", line)
        if guarded:
            if not values[guarded[1]]:
                continue
            line = guarded[2]
        what, _, text = line.partition(" ")
        operands = re.findall(r"\{[^}]*\}|[^,\s]+", text)
        if what == "bra":
            place = labels[operands[0]]
        elif operands[-1] == "%globaltimer":
            values[operands[0]] = values["%globaltimer"] = values.get("%globaltimer", 0) + 1
        elif what.startswith("ld.param"):
            values[operands[0]] = values[operands[1].strip("[]")]
        elif what.startswith(("ld.", "st.", "red.")):
            _access(what, operands, values, memory, accesses)
        elif what.startswith("setp"):
            a, b = (_value(one, values) for one in operands[1:])
            values[operands[0]] = int(_COMPARED[what.split(".")[1]](a, b))
        else:
            found = _OPERATIONS[what.split(".")[0]](*(_value(one, values) for one in operands[1:]))
            values[operands[0]] = found & MASK


def _access(
    what: str, operands: list[str], values: dict[str, int], memory: Memory, accesses: list[int]
) -> None:
    place, registers = operands if operands[0].startswith("[") else operands[::-1]
    address = values[place.strip("[]")]
    names = registers.strip("{}").replace(" ", "").split(",")
    assert len(names) == (2 if ".v2." in what else 1)
    assert address % (8 * len(names)) == 0, f"{what} at {address:#x}"
    accesses.append(8 * len(names))
    for number, name in enumerate(names):
        at = address + 8 * number
        if what.startswith("ld."):
            values[name] = memory[at]
        elif what.startswith("red."):
            memory[at] = (memory[at] + values[name]) & MASK
        else:
            memory[at] = values[name]


def _value(text: str, values: Mapping[str, int]) -> int:
    return values[text] if text in values else int(text, 0)
