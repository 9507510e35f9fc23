"""What may be written down of an environment, a command line or a text: everything but what looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Names that hold secrets, and values that are one whatever they are called. A token is one, `max_new_tokens` and a
# tokenizer are not.
_NAMES = re.compile(
    r"(?<!tik)token(?!s|iz|_id|_type)|secret|passw|passwd|api[_-]?key|access[_-]?key|private|credential|auth(?!or)|cookie"
    r"|session[_-]?(?:id|key)|signature|^pgpass|_pat$|^key$|[_-]key$"
    r"|passphrase|[_-]pass$|[_-]pwd$|[_-]dsn$|connection_string|webhook|bearer|jwt",
    re.IGNORECASE,
)
_TOKENS = (
    r"hf_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w+|AKIA[0-9A-Z]{16}|sk-[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[\w-]+|eyJ[A-Za-z0-9_-]{10,}\.[\w.-]*|AIza[0-9A-Za-z_-]{30,}|glpat-[\w-]+"
)
_VALUES = re.compile(rf"{_TOKENS}|-----BEGIN|://[^/\s:@]+:[^/\s@]+@")
SECRET_IN_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    rf"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|{_TOKENS}",
    re.DOTALL,
)
# `HF_TOKEN=…` as a shell or a program prints it, and `--api-key …` of a command line.
_ASSIGNED = re.compile(
    r"(?P<name>\b[A-Z][A-Z0-9_]*)(?P<between>[\"']?\s?[=:]\s?[\"']?)(?P<value>(?!\(removed)[^\s\"'<>,;]{4,})"
    r"|(?P<option>(?<![\w-])--[a-z][\w-]*)(?P<space>[= ]\s*[\"']?)(?P<word>(?!\(removed)[^\s\"'<>-][^\s\"'<>]*)"
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


def without_secret_text(text: str) -> str:
    """A log or a document without what looks like a secret."""

    def assigned(found: re.Match[str]) -> str:
        name, between = (found["name"], found["between"]) if found["name"] else (found["option"], found["space"])
        return f"{name}{between}{REMOVED}" if _NAMES.search(name.lstrip("-")) else found[0]

    return _ASSIGNED.sub(assigned, SECRET_IN_TEXT.sub(REMOVED, text))


def clean_settings(value: Any, name: str = "") -> Any:
    """Settings of any shape without secrets: lists of words are command lines, numbers are never secret."""
    if isinstance(value, Mapping):
        return {key: clean_settings(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        words = list(value)
        return clean_argv(words) if all(isinstance(word, str) for word in words) else [clean_settings(w) for w in words]
    if isinstance(value, str) and value and is_secret(name, value):
        return REMOVED
    return value
