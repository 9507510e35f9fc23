"""What of the environment may be written down: everything but what looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Names that hold secrets, and values that are one whatever they are called.
_NAMES = re.compile(
    r"(?<!tik)token(?!iz)|secret|passw|passwd|api[_-]?key|access[_-]?key|private|credential|auth|cookie"
    r"|session[_-]?(?:id|key)|signature|^pgpass|_pat$|^key$|[_-]key$",
    re.IGNORECASE,
)
_VALUES = re.compile(
    r"hf_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_|AKIA[0-9A-Z]{16}|sk-[A-Za-z0-9_-]{16,}|xox[abprs]-"
    r"|eyJ[A-Za-z0-9_-]{10,}\.|-----BEGIN|://[^/\s:@]+:[^/\s@]+@|AIza[0-9A-Za-z_-]{30,}|glpat-"
)
REMOVED = "(removed: looks like a secret)"


def is_secret(name: str, value: str) -> bool:
    return bool(_NAMES.search(name) or _VALUES.search(value))


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with the values of suspicious variables replaced."""
    return {name: REMOVED if is_secret(name, value) else value for name, value in sorted(environment.items())}


def clean_argv(argv: list[str]) -> list[str]:
    """A command line without secrets: `--token X`, `--token=X`, and values that look like one."""
    result: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        if hide_next or (_VALUES.search(word) and not equals):
            result.append(REMOVED)
        elif equals and is_secret(name.lstrip("-"), value):
            result.append(f"{name}={REMOVED}")
        else:
            result.append(word)
        hide_next = word.startswith("--") and not equals and bool(_NAMES.search(word.lstrip("-")))
    return result
