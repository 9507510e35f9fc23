"""Takes secrets out of the logs of a step when it has ended.

What a program prints is its own business until we keep it in a file that is made to be shown to others. The values
of variables and options that look like secrets are taken out wherever they stand. Texts that only look like a secret
are searched for in the beginning and the end of a log: a program may have printed gigabytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from llm_perf_opt.files import replacing
from llm_perf_opt.rundir.scrub.private import Private
from llm_perf_opt.rundir.secrets import REMOVED, without_secret_text

_PART = 1 << 20
_LONGEST_LINE = 1 << 16  # a longer one is taken in pieces, which a secret may lie across
_SEARCHED = 1 << 20  # bytes at either end that are searched for what looks like a secret
# A line without any of these holds nothing that `without_secret_text` would find; asking is far cheaper.
_SIGNS = (
    *(b"token", b"secret", b"pass", b"key", b"private", b"credential", b"auth", b"cookie", b"signature", b"_pat"),
    *(b"hook", b"sig", b"pw", b"otp", b"psk", b"cred", b"salt", b"sas", b"pin", b"sk_", b"rk_", b"pk_", b"rk-", b"pk-"),
    *(b"session", b"_pwd", b"-pwd", b"dsn", b"connection_string", b"webhook", b"bearer", b"jwt"),
    *(b"hf_", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"akia", b"sk-", b"xox", b"eyj", b"aiza"),
    *(b"glpat-", b"-----begin", b"@"),
)


def clean_logs(paths: Sequence[Path], command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Rewrite the logs that hold a secret. Best effort: a log that cannot be rewritten stays as it is."""
    private = Private()
    private.learn_environment(os.environ if environment is None else environment)
    private.learn_command(command)
    values = sorted((secret.encode("utf-8", "surrogateescape") for secret in private.secrets), key=len, reverse=True)
    for path in paths:
        with contextlib.suppress(OSError):
            if not path.is_symlink() and path.is_file() and _is_needed(path, values):
                _clean(path, values)


def _is_needed(path: Path, values: list[bytes]) -> bool:
    """Most logs hold no secret: then nothing is written."""
    with path.open("rb") as log:
        size = path.stat().st_size
        for start in {0, max(size - _SEARCHED, 0)}:
            log.seek(start)
            if any(_without_looks(line) != line for line in log.read(_SEARCHED).splitlines()):
                return True
        log.seek(0)
        overlap = max(map(len, values), default=1) - 1
        before = b""
        while part := log.read(_PART):
            if any(value in before + part for value in values):
                return True
            before = part[-overlap:] if overlap else b""
    return False


def _clean(path: Path, values: list[bytes]) -> None:
    status = path.stat()
    with replacing(path, 0o600) as out, path.open("rb") as log:
        at = 0
        for lines in _lines(log):
            # A secret of several lines is found as long as they were read together.
            part = b"".join(lines)
            kept = part
            for value in values:
                kept = kept.replace(value, REMOVED.encode())
            if at < _SEARCHED or at + len(part) > status.st_size - _SEARCHED:
                kept = b"".join(map(_without_looks, kept.splitlines(keepends=True)))
            at += len(part)
            out.write(kept)
        os.fchmod(out.fileno(), status.st_mode & 0o7777)


def _lines(log: IO[bytes]) -> Iterator[list[bytes]]:
    """Whole lines, about a part at a time."""
    lines: list[bytes] = []
    size = 0
    while line := log.readline(_LONGEST_LINE):
        lines.append(line)
        size += len(line)
        if size >= _PART:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def _without_looks(line: bytes) -> bytes:
    lowered = line.lower()
    if not any(sign in lowered for sign in _SIGNS):
        return line
    return without_secret_text(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
