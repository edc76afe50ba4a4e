"""A run to start on several hosts that are alike, and its command there. Pure."""

import msgspec

from gputopo.launch.hosts.hostlists import HostAddress


class HostsStart(msgspec.Struct, frozen=True, kw_only=True):
    """A run on `size` hosts, each with GPUs as the pattern has them.

    `hosts`: their names, empty where they are not known. `gpus`: those of each host that it takes, of the
    `has` that one has. `words`: options of `gputopo run` but for hosts and GPUs, with --model. `program`: of
    the user, empty for the core. `folder`: where it starts; `folders`: others that it reads or writes.
    `may_lose`: it goes on without hosts that are lost.
    """

    size: int
    gpus: tuple[int, ...]
    has: int
    words: tuple[str, ...]
    folder: str
    hosts: tuple[HostAddress, ...] = ()
    program: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    may_lose: bool = False

    @property
    def job_name(self) -> str:
        """What the job is called: by its program, without a path."""
        return f"gputopo-{self.program[0].rpartition('/')[2] if self.program else 'run'}"

    def on_named_gpus(self, *more: str) -> list[str]:
        """Return the command for a host that has all its GPUs; `more`: options of hosts."""
        return self._command((*more, "--gpus", ",".join(map(str, self.gpus))))

    def on_all_gpus(self, *more: str) -> list[str]:
        """Return the command for a host that sees its share of the GPUs alone."""
        return self._command((*more, "--num-gpus", str(self.size * len(self.gpus))))

    def _command(self, where: tuple[str, ...]) -> list[str]:
        own = ["gputopo", "run", *self.words, *where, "--require-gpu"]
        return [*own, "--", *self.program] if self.program else own
