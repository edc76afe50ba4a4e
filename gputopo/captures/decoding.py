"""From the bytes of a capture to its text, whatever shell or editor wrote it."""

import re

_MARKS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16, as PowerShell redirects
# Signs that no text has: control characters other than tab, line ends, form feed, escape and Ctrl-Z.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x19\x1c-\x1f]")
# A name of a user or a path in an old code page is a few letters of a whole capture. Ours.
_MOST_FOREIGN = 0.05
# Of ASCII in UTF-16 every second byte is zero; a name in another script leaves some out. Ours.
_LEAST_ZEROS = 0.8


def decoded(data: bytes) -> str | None:
    """Give the text of UTF-8, of UTF-16 with its mark or without, or of a code page; None: it is no text.

    Letters that cannot be known, as the code page is not, become U+FFFD.
    """
    try:
        text = data.decode("utf-16") if data[:2] in _MARKS else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _foreign(data)
    return text if "\0" not in text else _unmarked(data)


def _foreign(data: bytes) -> str | None:
    if data[:2] in _MARKS or _CONTROL.search(data):
        return None
    text = data.decode("utf-8", errors="replace")
    return text if text.count("\ufffd") <= _MOST_FOREIGN * len(text) else None


def _unmarked(data: bytes) -> str | None:
    for codec, zeros in (("utf-16-le", data[1::2]), ("utf-16-be", data[::2])):
        if len(data) % 2 == 0 and zeros.count(0) >= _LEAST_ZEROS * len(zeros):
            try:
                text = data.decode(codec)
            except UnicodeDecodeError:
                return None
            return text if "\0" not in text else None
    return None
