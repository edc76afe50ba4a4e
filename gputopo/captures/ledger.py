"""Which lines of an input hold nothing about the machine, whatever its format: prompts, commands, fences."""

import re

_LONGEST = 200
_TOOLS = (
    r"nvidia-smi|lspci|lscpu|numactl|dmesg|journalctl|lstopo(?:-no-graphics)?|cat|grep|watch|ssh|srun|docker"
    r"|p2pBandwidthLatencyTest|bandwidthTest|nvbandwidth|gputopo"
)
_NOISE = re.compile(
    r"^(?:\W*(?:text|console|bash|sh(?:ell)?|plaintext|log)?\W*"  # rules, fences
    r"|[^\s$%#>]{0,80}(?:[$%>]|#{1,6}) .*"  # prompts, headings of Markdown
    r"|(?:\(\w+\) )?\S+@\S*[$#].*|PS [A-Z]:\\\S*>.*|[A-Z]:\\[^>]{0,80}>.*"
    rf"|(?:\+ )?(?:sudo )?\S*(?:{_TOOLS})(?:\.exe)?(?: +[-/|\w].*)?"
    r"|Every \d+(?:[.,]\d+)?s: .*)$"
)


def is_noise(line: str) -> bool:
    """Return whether a line is blank, a rule, a fence, a prompt or the command that printed the output."""
    return _NOISE.match(line.strip()[:_LONGEST]) is not None
