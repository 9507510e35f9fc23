r"""The pattern language for regions, and its translation into ncu's NVTX filter expressions.

One small language everywhere: shell globs over range names, ``A/B`` for a range directly inside
another, ``**`` for any number of levels, ``DOMAIN@NAME`` for a domain. ``\`` takes the meaning from
the character after it. ``regex:…`` matches the region's key, ``ncu:…`` is handed to ncu as it is.

- A pattern without a domain matches in every domain.
- People write a domain as such, into the name, or both: ``decode`` in domain LLM, ``LLM@decode`` in the
  default domain and ``LLM@decode`` in domain LLM are the same to ``LLM@*``, ``LLM@decode`` and ``dec*``.
  ``@NAME`` is a range of the default domain that is called just that.
- A pattern matches the innermost names of a region's path: ``decode*`` finds ``run/decode_step``.
  A region below a matching one is selected with it, as ncu does.

ncu's own rules (all of them tried on real reports, see tests/test_patterns.py): a push/pop range ends
in ``/``, a start/end range does not; ``@ , [ ] / * +`` are escaped with a backslash; ``regex:`` stands
first, before the domain, applies to the domain and to each level on its own, matches parts of names
unless anchored, and understands ``\xNN``, which is the one form that takes every character;
``[`` in front means the bottom of the stack. ``A/B`` wants B directly inside A.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from attrs import define

from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.columns import PooledName
from llm_perf_opt.regions.table import region_key

_ANY_LEVELS = "**"
_GLOB_TOKEN = re.compile(r"\\.|\[.[^\]]*\]|.", re.DOTALL)  # an escaped character, a set of them, or one
_WILDCARDS = {"*": ".*", "?": "."}
_DIGIT, _WORD = re.compile("[0-9]"), re.compile(r"\w")
_NCU_SPECIAL = re.compile(r"([@,\[\]/*+])")


@define(frozen=True)
class RegionPattern:
    """One compiled pattern."""

    text: str
    _levels: tuple[str, ...] = ()  # globs, outermost first
    _domain: str | None = None  # a glob; None: any domain, "": the default one
    _regex: re.Pattern[str] | None = None
    ncu: str | None = None  # `ncu:` expression, matched by ncu alone

    def matches(self, domain: str, path: Sequence[str]) -> bool:
        """Does the pattern name this very region?"""
        if self.ncu is not None:
            return False
        if self._regex is not None:
            return self._regex.search(region_key(domain, path)) is not None
        if self._domain and not domain and _levels_match(self._as_labels(), path, self._domain):
            return True
        if self._domain is not None and not _glob_regex(self._domain).match(domain):
            return False
        return _levels_match(self._levels, path, self._domain)

    def asks_for(self, name: str, by: re.Pattern[str]) -> bool:
        """Does the pattern mean a range of this name, by a part that `by` finds in it?"""
        if self._regex is not None:
            return by.search(self._regex.pattern) is not None and self._regex.search(name) is not None
        telling = (level for level in self._levels if by.search(level))
        return any(_name_regex(level, self._domain).match(name) for level in telling)

    def ncu_expressions(self) -> list[str]:
        """Expressions for `--nvtx-include` when nothing is known of the program's ranges.

        Several mean "or": ncu takes the flag repeated. Push/pop ranges only; a timeline resolves the
        rest (see `exact_expression`).
        """
        if self.ncu is not None:
            return [self.ncu]
        if self._regex is not None:
            raise UserError(
                f"The pattern {self.text!r} cannot be translated for ncu without a timeline.",
                "Record one first (llm-perf profile does), or write the ncu expression yourself as ncu:EXPRESSION.",
            )
        levels = _ncu_levels(self._levels, self._domain)
        if self._domain is None:
            return [f"regex:^.*$@{levels}"]  # every domain, the default one included
        if not self._domain:
            return [f"regex:{levels}"]
        return [f"regex:^{_ncu_glob(self._domain)}$@{levels}", f"regex:{_ncu_levels(self._as_labels(), self._domain)}"]

    def _as_labels(self) -> tuple[str, ...]:
        """The levels for the default domain: there the outermost name holds the domain."""
        return (f"{self._domain}@{self._levels[0]}", *self._levels[1:])


def parse_pattern(text: str) -> RegionPattern:
    """Compile a pattern; a malformed one is a `UserError` that says what to write."""
    if text.startswith("ncu:"):
        if not text[4:]:
            raise UserError(
                "The pattern 'ncu:' is empty.", "Write the ncu expression after the colon, as in ncu:LLM@prefill/"
            )
        return RegionPattern(text, ncu=text[4:])
    if text.startswith("regex:"):
        return RegionPattern(text, regex=_compiled(text))
    if not text.strip():
        raise UserError("An empty region pattern matches nothing.", "Use '*' for every region.")
    parts = _split(text, "@", 1)
    body = parts[-1]
    # People add the slash that ncu wants behind push/pop ranges: it changes nothing here.
    levels = [level for level in _split(body, "/") if level]
    if not levels:
        raise UserError(
            f"The pattern {text!r} names no range.", f"Write {text.rstrip('/')}* or give a range name after the @."
        )
    return RegionPattern(text, tuple(levels), parts[0] if len(parts) == 2 else None)


@define(frozen=True)
class RegionFilter:
    """Include and exclude patterns together: default all, exclude wins, both reach down the tree."""

    include: tuple[RegionPattern, ...] = ()
    exclude: tuple[RegionPattern, ...] = ()

    @staticmethod
    def of(include: Iterable[str] = (), exclude: Iterable[str] = ()) -> RegionFilter:
        return RegionFilter(tuple(map(parse_pattern, include)), tuple(map(parse_pattern, exclude)))

    def keeps(self, domain: str, path: Sequence[str]) -> bool:
        stacks = [path[:length] for length in range(1, len(path) + 1)]
        if any(p.matches(domain, stack) for p in self.exclude for stack in stacks):
            return False
        return not self.include or any(p.matches(domain, stack) for p in self.include for stack in stacks)

    def asks_for(self, name: str) -> bool:
        """Does a pattern mean ranges of this name, and not just any?"""
        return any(pattern.asks_for(name, _WORD) for pattern in (*self.include, *self.exclude))

    def asks_for_number(self, name: str) -> bool:
        """Does a pattern mean this very range by a number in its name, as `Batch 3` does?"""
        return any(pattern.asks_for(name, _DIGIT) for pattern in (*self.include, *self.exclude))

    def as_json(self) -> dict[str, list[str]]:
        return {"include_patterns": [p.text for p in self.include], "exclude_patterns": [p.text for p in self.exclude]}


@define(frozen=True)
class NameFilter:
    """Include and exclude patterns over kernel names: globs, or `regex:`; exclude wins, default all.

    A glob without wildcards is the exact name; names are tried as given (full and short form).
    """

    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()

    @staticmethod
    def of(include: Iterable[str] = (), exclude: Iterable[str] = ()) -> NameFilter:
        return NameFilter(tuple(map(_name_pattern, include)), tuple(map(_name_pattern, exclude)))

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def keeps(self, *names: str) -> bool:
        if any(p.search(name) for p in self.exclude for name in names):
            return False
        return not self.include or any(p.search(name) for p in self.include for name in names)


def _name_pattern(text: str) -> re.Pattern[str]:
    if not text:
        raise UserError("An empty kernel pattern matches nothing.", "Use '*' for every kernel.")
    return _compiled(text)


def _compiled(text: str) -> re.Pattern[str]:
    """A glob, or a regular expression behind `regex:`."""
    try:
        return re.compile(text[6:]) if text.startswith("regex:") else _glob_regex(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(
            f"The pattern {text!r} is not a valid regular expression: {error}.",
            "Correct it, or use a glob: * stands for any characters.",
        ) from error


def exact_expression(
    domain: str,
    path: Sequence[str],
    *,
    anchored: bool = False,
    start_end: bool = False,
    pools: Mapping[str, PooledName] | None = None,
) -> str:
    """The ncu expression that selects a path of ranges, each directly inside the one before.

    `anchored`: only from the bottom of the stack; otherwise the path may lie deeper in it. Names that
    ncu cannot take with backslashes (they hold one, or begin with `regex:`) are written as a regular
    expression of `\\xNN` codes, and names that stand for several (`pools`) as one that matches all of those.
    """
    pools = pools or {}
    tail = "" if start_end else "/"
    bottom = "[" if anchored and not start_end else ""
    if any(map(_needs_codes, (domain, *path) if domain else path)) or any(name in pools for name in path):
        prefix = f"^{coded(domain)}$@" if domain else ""
        levels = (pools[name].expression if name in pools else coded(name) for name in path)
        return "regex:" + prefix + bottom + "/".join(f"^{level}$" for level in levels) + tail
    prefix = f"{_escaped(domain)}@" if domain else ""
    return prefix + bottom + "/".join(_escaped(name) for name in path) + tail


def push_pop_expressions(text: str) -> list[str]:
    """ncu's expressions for push/pop ranges as people write them: ncu takes a bare name for a start/end range.

    What is ncu's own form already stays: a slash at the end, a comma, a bracket; `ncu:` hands over anything else.
    """
    if text.startswith("ncu:"):
        return [text[4:]]
    if text.endswith("/"):
        return [text]
    if text.startswith("regex:"):
        return [f"{text}/"]
    if re.search(r"(?<!\\)[*?]", text):
        return parse_pattern(text).ncu_expressions()
    return [text if re.search(r"(?<!\\)[,\[\]]", text) else f"{text}/"]


# -- parts -----------------------------------------------------------------------------------------


def _split(text: str, separator: str, times: int = -1) -> list[str]:
    """Split at unescaped separators; escapes stay for the glob translation."""
    parts = [""]
    for token in re.findall(r"\\.|.", text, re.DOTALL):
        if token == separator and len(parts) != times + 1:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _translated(glob: str, literal: Callable[[str], str], characters: Callable[[str], str]) -> str:
    """A regular expression for a glob with backslash escapes.

    `literal`: how a character is written that means itself; `characters`: how a set of them is, `[a-z]` or `[!a-z]`.
    """
    result = ""
    for token in _GLOB_TOKEN.findall(glob):
        if token in _WILDCARDS:
            result += _WILDCARDS[token]
        elif len(token) > 2:
            result += characters(token)
        else:
            result += literal(token[-1])
    return result


def _labelled(glob: str, domain: str | None, translate: Callable[[str], str], at: str) -> str:
    """The expression of a name that may begin with the pattern's domain, or without one with any: `^(LLM@)?name$`."""
    name = translate(glob)
    # A star at the beginning takes a label along; in the default domain a name is what it says.
    if domain == "" or glob.startswith(("*", f"{domain}@")):
        return f"^{name}$"
    label = f"[^{at}]*" if domain is None else translate(domain)
    return f"^({label}{at})?{name}$"


@cache
def _glob_regex(glob: str) -> re.Pattern[str]:
    return re.compile(f"^{_python_glob(glob)}$", re.DOTALL)


@cache
def _name_regex(glob: str, domain: str | None) -> re.Pattern[str]:
    return re.compile(_labelled(glob, domain, _python_glob, "@"), re.DOTALL)


def _python_glob(glob: str) -> str:
    def characters(token: str) -> str:
        return fnmatch.translate(token).removeprefix("(?s:").removesuffix(r")\Z")

    return _translated(glob, re.escape, characters)


def _levels_match(levels: Sequence[str], path: Sequence[str], domain: str | None) -> bool:
    """Do the globs match the innermost names of the path? `domain`: what names may be labelled with."""
    if not levels:
        return True
    if levels[-1] == _ANY_LEVELS:
        rest = levels[:-1]
        return not rest or any(_levels_match(rest, path[:n], domain) for n in range(len(path) + 1))
    if not path or not _name_regex(levels[-1], domain).match(path[-1]):
        return False
    return _levels_match(levels[:-1], path[:-1], domain)


def _needs_codes(name: str) -> bool:
    # A lone "@" is taken for a separator even behind a backslash.
    return "\\" in name or name.startswith("regex:") or name in ("@", "")


def _escaped(name: str) -> str:
    return _NCU_SPECIAL.sub(r"\\\1", name)


def coded(name: str) -> str:
    """Every ASCII character that is not a letter, digit or underscore as a code, so that none has a meaning."""
    return re.sub(r"[^\w]", lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 128 else m[0], name)


def _ncu_levels(levels: Sequence[str], domain: str | None) -> str:
    """ncu's regular-expression form of levels of globs; `domain`: what names may be labelled with."""
    parts: list[str] = []
    for level in levels:
        if level != _ANY_LEVELS:
            parts.append(_labelled(level, domain, _ncu_glob, r"\x40"))
        elif parts and parts[-1] != "*":
            parts.append("*")
    # ncu refuses a "*" at either end, where it adds nothing: paths are open outside and inclusive inside.
    if parts and parts[-1] == "*":
        parts.pop()
    return "/".join(parts or ["^.*$"]) + "/"


def _ncu_glob(glob: str) -> str:
    """Like `_python_glob`, with characters that mean something to ncu itself as `\\xNN` codes."""

    def characters(token: str) -> str:
        inner = token[1:-1]
        return f"[{'^' if inner.startswith('!') else ''}{inner.lstrip('!')}]"

    return _translated(glob, coded, characters)
