"""How a text is encoded, from its beginning."""

from __future__ import annotations


def encoding_of(head: bytes) -> str:
    """UTF-8, or UTF-16 as PowerShell's `>` writes it, with a mark at the beginning or without."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    # What is read here is ASCII but for names: in UTF-16 nearly every second byte is zero, and no other.
    for encoding, zeros, letters in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if zeros and zeros.count(0) > 0.8 * len(zeros) and not letters.count(0):
            return encoding
    return "utf-8-sig"
