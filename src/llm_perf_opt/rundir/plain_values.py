"""Which values may be written down: those that are plainly a path, a number, an identifier, a known word, or a list of these.

A secret cannot be recognised by its looks, but most values that people need to see again can. Whatever is not
plainly one of them is hidden, so a kind of secret that nobody thought of is hidden too. What counts is what a person
would say at a glance: `meta-llama/Llama-3-8B` is a name, `x7Kq-9fPz2` is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

_LONGEST = 4096
_MOST_PARTS = 200
_KNOWN = """
    true false yes no on off none null nil auto default all any first last middle every
    cpu cuda gpu xpu mps hpu tpu meta nccl gloo mpi ucc
    int4 int8 int16 int32 int64 uint4 uint8 fp4 fp8 fp16 fp32 fp64 tf32 bf16 bfloat16 float16 float32 float64 float8
    float half double nf4 nvfp4 mxfp4 mxfp8 e4m3 e5m2 e4m3fn e4m3fnuz e5m2fnuz fp8_e4m3 fp8_e5m2 float8_e4m3fn
    float8_e5m2 w4a16 w8a8 w8a16 w4a4 int4wo int8wo gptq awq gguf marlin q4_0 q4_k_m q8_0
    sdpa eager flash xformers flashinfer flash_attn flash_attention_2 flash_attention_3 triton inductor
    adam adamw sgd cosine linear constant train eval test prefill decode generate serve bench chat
    utf-8 utf8 latin-1 ascii json yaml csv md html txt base64
"""
_WORDS = frozenset(_KNOWN.split())
_NUMBER = re.compile(
    r"[+-]?(?:\d{1,10}|\d{1,3}(?:[_,]\d{3})+)?(?:\.\d{1,17})?(?:[eE][+-]?\d{1,3})?"
    r"(?:[kKMGTP]i?[Bb]?|B|[numµ]?s|ms|min|m|h|d|%|Hz|[kMG]Hz|x|(?:[kMGT]?B|[MGTP]FLOP)/s)?"
)
_RANGE = re.compile(r"\d{1,6}(?:[-:x]\d{1,6}){1,3}")
_GPU = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VERSION = re.compile(r"v?\d{1,4}(?:\.\d{1,6}){1,3}(?:[a-z]+\d{0,4})?(?:\+[a-z]{2,4}\d{0,4})?")
# Letters and then digits or the other way round, or so short that there is nothing to hide.
_MIXED = re.compile(
    r"[A-Za-z]+\d{1,4}|\d{1,6}(?:[A-Za-z]{1,4}|layers|steps|tokens|heads|gpus|nodes|experts)|v\d[a-z\d]?|[A-Za-z\d]{1,4}"
)
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NO_VOWELS = re.compile(r"[bcdfghjklmnpqrstvwxzBCDFGHJKLMNPQRSTVWXZ]{6}")
_IDENTIFIER = re.compile(r"[A-Za-z_\d][\w.+-]*", re.ASCII)
_HASH = re.compile(
    r"[0-9a-f]{7,64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{1,14}"
)  # of a path, made by programs
_TEMPORARY = re.compile(r"(?:tmp|[a-z][a-z-]{2,20}[-._])[A-Za-z0-9_]{6,10}")  # as mkdtemp and mktemp make them
_SEGMENT = re.compile(r"[\w.+@%,=~: -]+")
_ASSIGNED = re.compile(r"([\w-]+)[:=]([^/:@]+@?)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,15}://")
_PRIVATE_PLACE = re.compile(r"hook|secret|token|passw|credential", re.IGNORECASE)


def is_plain(value: str) -> bool:
    """May this value of an option or variable be written down?"""
    if not value:
        return True
    if len(value) > _LONGEST or not value.isprintable() or _is_assigned(value):
        return False
    return _is_one(value) or _is_list(value) or _is_structure(value)


def _is_assigned(value: str) -> bool:
    """Looks like a path and is `/password:…`, `/a/token=…` or `user:…@host`."""
    from llm_perf_opt.rundir.secrets import is_secret_name

    return any(found[2][-1] == "@" or is_secret_name(found[1]) for found in _ASSIGNED.finditer(value))


def is_known_word(value: str) -> bool:
    """A word that says something in this field, and nothing about a person."""
    return value.lower() in _WORDS


def is_number(value: str) -> bool:
    return any(c.isdigit() for c in value) and any(p.fullmatch(value) for p in (_NUMBER, _RANGE, _VERSION, _GPU))


@lru_cache(maxsize=4096)
def is_identifier(value: str) -> bool:
    """A name that people gave: words, abbreviations and small numbers, as in `Qwen2.5-7B-Instruct`."""
    if is_known_word(value):
        return True
    parts = [part for part in re.split(r"[_.+-]", value) if part]
    if not _IDENTIFIER.fullmatch(value) or len(value) > 100 or not 0 < len(parts) <= 16:
        return False
    words = [part for part in parts if len(part) > 1]
    strange = sum(any(c.isdigit() for c in part) and any(c.isalpha() for c in part) for part in words)
    return all(map(_is_word, parts)) and (strange <= 2 or 2 * strange <= len(words))


def is_path(value: str) -> bool:
    """A path; of one that begins nowhere (`a/b`), all parts must be names."""
    begins = value.startswith(("/", "./", "../", "~/")) or value in (".", "..", "~")
    if not begins and "/" not in value:
        return _is_file_name(value)
    return all(map(_is_folder if begins else _is_file_name, filter(None, value.split("/"))))


def _is_one(value: str) -> bool:
    if is_known_word(value) or is_number(value) or is_identifier(value):
        return True
    return _is_url(value) if _SCHEME.match(value) else is_path(value)


def _is_word(part: str) -> bool:
    if part.isdigit():
        return len(part) <= 8
    if not part.isalpha():
        return _MIXED.fullmatch(part) is not None or is_known_word(part)
    humps = _HUMPS.findall(part)
    readable = len(part) <= 8 or len(part) >= 3 * len(humps)
    return readable and len(humps) <= max(2, len(part) // 3) and not _NO_VOWELS.search(part) and len(part) <= 20


def _is_file_name(part: str) -> bool:
    return part in (".", "..") or is_identifier(part.lstrip(".")) or is_identifier(part.strip("*?"))


def _is_folder(part: str) -> bool:
    """Of a path from the root: also what programs name by hashes and at random."""
    if _is_file_name(part) or _HASH.fullmatch(part) or _TEMPORARY.fullmatch(part):
        return True
    if not _SEGMENT.fullmatch(part):
        return False
    pieces = [piece for piece in re.split(r"[_.+@%,=~: -]", part) if piece]
    return all(_is_word(piece) or _HASH.fullmatch(piece) or piece.islower() for piece in pieces)


def _is_url(value: str) -> bool:
    """An address without a user, a query or a part that is no name: what they hold may open a door."""
    try:
        parts = urlsplit(value)
        odd = (
            parts.username is not None or parts.query or parts.fragment or "@" in value or _PRIVATE_PLACE.search(value)
        )
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    named = is_number(host) or is_identifier(host) or parts.scheme in ("file", "s3", "gs")
    return not odd and named and all(map(_is_file_name, filter(None, parts.path.split("/"))))


def _is_list(value: str) -> bool:
    """`a,b`, `[1,2]`, `/a:/b`, `cuda:0`, `name:True,size:128`, `+x,-y`."""
    inside = value[1:-1] if value[0] + value[-1] in ("[]", "()") else value
    if not inside:
        return True
    if inside.startswith(("/", "~", ":")) and ":" in inside and "," not in inside:
        return inside.count(":") < _MOST_PARTS and all(is_path(p) or is_number(p) for p in inside.split(":") if p)
    parts = [part.strip() for part in re.split(r"[,;]", inside)]
    if len(parts) > _MOST_PARTS or (len(parts) == 1 and inside == value and ":" not in value and value[0] not in "+^"):
        return False
    return all(map(_is_item, parts))


def _is_item(part: str) -> bool:
    """One of a list, alone or `name:value`; what `user:password` might be is none."""
    part = part.strip("'\"").removeprefix("^").removeprefix("+")
    name, colon, value = part.partition(":")
    if colon and not _SCHEME.match(part):
        telling = is_number(value) or is_known_word(value) or ("." in name and is_identifier(value))
        return telling and (is_identifier(name) or is_number(name))
    return not part or _is_one(part)


def _is_structure(value: str) -> bool:
    """JSON of plain names and values."""
    if value[0] + value[-1] not in ("{}", "[]"):
        return False
    try:
        return _is_plain_content(json.loads(value))
    except (ValueError, RecursionError):
        return False


def _is_plain_content(content: Any) -> bool:
    from llm_perf_opt.rundir.secrets import is_secret_name

    if isinstance(content, Mapping):
        return all(
            is_identifier(name) and not is_secret_name(name) and _is_plain_content(v) for name, v in content.items()
        )
    if isinstance(content, list):
        return all(map(_is_plain_content, content))
    return not isinstance(content, str) or is_plain(content)
