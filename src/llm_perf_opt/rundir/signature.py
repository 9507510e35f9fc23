"""Distinguishes a run that this user made from one that came from elsewhere.

To resume a run means to start the command that is written in it. An untrusted folder must not decide what is
started here, so the part of a manifest that does, its launch spec, is signed (HMAC) with a key that never leaves
the user's cache folder. Only a run whose signature is this user's is resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.files import cache_folder
from llm_perf_opt.untrusted import read_bytes

_BYTES = 32


def key_file() -> Path:
    """`$XDG_CACHE_HOME/llm-perf-opt/signing.key`. Without it no run is this user's."""
    return cache_folder() / "signing.key"


def sign(content: Mapping[str, Any]) -> str:
    """The signature of a content; empty where this user can keep no key."""
    try:
        key = _read(key_file()) or _make(key_file())
    except OSError:
        return ""
    return _signature(content, key)


def is_signed(content: Mapping[str, Any], signature: str) -> bool:
    """Was this very content signed by this user?"""
    try:
        key = _read(key_file())
    except OSError:
        return False
    return (
        key is not None
        and bool(signature)
        and hmac.compare_digest(_signature(content, key).encode(), signature.encode())
    )


def _signature(content: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode("ascii"), hashlib.sha256).hexdigest()


def _read(file: Path) -> bytes | None:
    try:
        key = read_bytes(file, _BYTES)
    except (FileNotFoundError, ValueError):  # ValueError: too long for one of ours
        return None
    return key if len(key) == _BYTES else None


def _make(file: Path) -> bytes:
    """A new key, readable by this user alone; of two that are made at once, the first one holds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(secrets.token_bytes(_BYTES))
        if file.exists() and _read(file) is None:
            file.unlink()  # damaged: nothing can be checked with it
        with contextlib.suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        temporary.unlink()
    key = _read(file)
    if key is None:
        raise OSError("the key was not kept")
    return key
