"""Values as people write them: sizes, durations and addresses."""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import urlsplit

from llm_perf_opt.errors import UserError

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LOCAL = ("localhost", "127.0.0.1", "::1")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|sec|s|min|m|h)?\s*", re.ASCII)


def bytes_of(size: Any) -> int:
    """`2GB`, `500 MB` or a plain number as bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", str(size).strip(), re.IGNORECASE)
    number = float(found[1]) * _BYTES[found[2].lower()] if found else math.inf
    if number == math.inf:  # hundreds of digits, too
        raise UserError(f"{str(size)[:40]!r} is not a size.", "Write it as in 2GB or 500MB, or 0 for no limit.")
    return int(number)


def parse_seconds(text: str) -> float:
    """Seconds of a duration; a `UserError` says how to write one."""
    plain = text.strip().lower()
    parts = _PART.findall(plain)
    bare = [number for number, unit in parts if not unit]
    seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    if _PART.sub("", plain) or (bare and len(parts) > 1) or not 0 < seconds < math.inf:
        raise UserError(f"{text!r} is not a time.", "Write it as 60s, 2m, 1m30s or 0.5h.")
    return seconds


def local_address(url: str) -> tuple[str, int, str]:
    """Host, port and path of a server on this machine."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        scheme, host, port, path = parts.scheme, parts.hostname, parts.port or 80, parts.path
    except ValueError:
        scheme, host, port, path = "", None, 0, ""
    if scheme not in ("", "http") or host is None or host not in _LOCAL:
        raise UserError(
            f"{url} is not a server on this machine.", "Give a local address, as in --url http://127.0.0.1:8000"
        )
    return host, port, path.rstrip("/").removesuffix("/v1")
