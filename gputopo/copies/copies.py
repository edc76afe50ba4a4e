"""What is to be copied, as values: single copies, and those that are timed in one window."""

from typing import Literal

import msgspec

from gputopo.values.bandwidth import Kind, Method

CopyKind = Literal["h2d", "d2h", "p2p_direct", "p2p_staged", "d2d_local"]


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of copying: `source` and `destination` are places (`gpu:0`, `host`).

    `pinned`: whether the host side is page-locked; None between GPUs. `numa_node`: the host memory's node,
    None: wherever it comes to lie. A staged copy goes through pinned host memory.
    """

    kind: CopyKind
    source: str
    destination: str
    pinned: bool | None = None
    method: Method = "copy_engine"
    numa_node: int | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Copies that run at once and are timed in one window; a single one runs alone.

    `kind`: what the result is called: that of its copies, `bidirectional` (two copies, their sum is the
    number) or `latency` (one copy of a few bytes, repeated). `group` names the set where each copy keeps its
    own number. `bytes`: of each copy in one window; None: chosen by its speed, and `min_bytes` at least.
    """

    kind: Kind
    copies: tuple[Copy, ...]
    group: str | None = None
    bytes: int | None = None
    min_bytes: int = 0
