"""Words for a shell: whatever a name holds, pasted it is one word, and no character of it does anything by itself.

Quotes alone are not enough for what is shown to be copied: a line break or an escape sequence acts on the terminal
before the shell sees it. Such characters are written as octal numbers, which `printf` of every POSIX shell turns back.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llm_perf_opt.regions.names import UNSAFE

if TYPE_CHECKING:
    from llm_perf_opt.regions.model import NCUProfileRegion

# What a printf format inside single quotes cannot hold as it is.
_ESCAPED = re.compile(rf"[\\']|{UNSAFE.pattern}")


def shell_word(text: str) -> str:
    """A text as one word of a POSIX shell, in printable characters. No argument can end in a line break this way."""
    text = text.replace("\0", "\\0")  # no argument can hold a zero byte
    if not UNSAFE.search(text):
        return shlex.quote(text)
    return f"\"$(printf '%b' '{_ESCAPED.sub(_octal, text)}')\""


def shell_line(words: Iterable[str]) -> str:
    return " ".join(map(shell_word, words))


def _octal(found: re.Match[str]) -> str:
    return "".join(
        f"\\0{byte:03o}" for byte in found[0].encode("utf-8", "surrogateescape" if _is_byte(found) else "replace")
    )


def _is_byte(found: re.Match[str]) -> bool:
    return "\udc80" <= found[0] <= "\udcff"


def ncu_options(region: NCUProfileRegion) -> list[str]:
    """Options that make ncu profile the region's kernels; none where ncu cannot see the region."""
    if not region.nvtx_include:
        return []
    options = ["--nvtx-include", region.nvtx_include]
    # Kernels of threads without ranges (autograd) are found only when ranges count for the whole process.
    return [*options, "--nvtx-push-pop-scope", "process"] if region.adopted_kernels else options
