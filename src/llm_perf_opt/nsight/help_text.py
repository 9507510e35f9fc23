"""What the installed profilers understand, read from their own help, and argv lists held against it.

Options and their values come and go with versions (ncu 2024.1 has no `--import-sass`, no set is called
`brief` any more), and a wrong one costs a program start, or worse: ncu takes an unknown set with a
warning and writes a report without counters. So the help text of the very tool that will be run
decides, before anything is launched. A list of values is believed only where the whole of it could be
read; otherwise any value passes, and the tool has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, evolve

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.spelling import nearest


@define(frozen=True)
class OptionHelp:
    """One option, as its tool describes it."""

    name: str  # the long form, with its dashes
    takes_value: bool
    values: tuple[str, ...] | None = None  # None: any value; `[:N]` and `:N` stand for a number
    many: bool = False  # takes several values with commas between
    repeatable: bool = False  # may be given more than once
    regex: bool = False  # `regex:…` is compared with `values`


# Both spellings of an option, `-k` and `--kernel-name`, lead to the same help.
KnownOptions = dict[str, OptionHelp]

_MANY = re.compile(r"separated by (?:a )?commas?|combined using ','|comma[ -]separated", re.IGNORECASE)
_OFTEN = re.compile(r"(?:given|specified|used) (?:more than once|multiple times)|more than one type", re.IGNORECASE)


# -- ncu -------------------------------------------------------------------------------------------

_NCU_OPTION = re.compile(
    r"^  (?:(?P<short>-\w) \[ (?P<long>--[\w-]+) \]|(?P<only>--[\w-]+))"
    r"(?P<arg> arg)?(?: \(=(?P<default>.*?)\))?(?:\s{2,}(?P<text>\S.*?))?\s*$"
)
# `kernel`, `kernel (default)`, `global (default) : text`, `details: text`, `on/off`, `per-nvtx.`
_NCU_VALUE = re.compile(r"^(?P<value>[A-Za-z0-9][\w.,/-]*?)\.?(?: \(default\))?(?:\s*:\s.*)?$")

# ncu's help does not say which options may be repeated; these were tried.
_NCU_REPEATABLE = (
    *("--section", "--section-folder", "--section-folder-recursive", "--rule"),
    *(f"--{kind}-{way}" for kind in ("nvtx", "native", "python") for way in ("include", "exclude")),
)


def parse_ncu_help(help_text: str, sets: str = "", sections: str = "") -> KnownOptions:
    """Options in the output of `ncu --help`; the names of sets and sections from `--list-sets`, `--list-sections`."""
    known: KnownOptions = {}
    for match, body, column in _ncu_options(help_text.splitlines()):
        name = match["long"] or match["only"]
        description = " ".join([match["text"] or "", *(line.strip() for line in body)])
        option = OptionHelp(
            name,
            takes_value=match["arg"] is not None,
            values=_ncu_values(body, column, match["default"]) if match["arg"] else None,
            many=bool(_MANY.search(description)),
            repeatable=name in _NCU_REPEATABLE or bool(_OFTEN.search(description)),
        )
        if name == "--set" and (names := parse_listing(sets)):
            option = evolve(option, values=names)
        if name == "--section" and (names := parse_listing(sections)):
            option = evolve(option, values=names, regex=True)
        known[name] = option
        if match["short"]:
            known[match["short"]] = option
    return known


def parse_listing(text: str) -> tuple[str, ...]:
    """The first column of ncu's tables (`--list-sets`, `--list-sections`); cells that wrap continue a row above."""
    lines = text.splitlines()
    rulers = [i for i, line in enumerate(lines) if re.fullmatch(r"-[- ]*", line)]
    if len(rulers) < 2:
        return ()
    width = len(lines[rulers[0]].split()[0])
    rows = (line[:width].strip() for line in lines[rulers[1] + 1 :] if not line.startswith("=="))
    return tuple(row for row in rows if row)


def _ncu_options(lines: Sequence[str]) -> Iterator[tuple[re.Match[str], list[str], int]]:
    """Each option line with the lines below it, and the column where descriptions stand."""
    matches = [(i, match) for i, line in enumerate(lines) if (match := _NCU_OPTION.match(line))]
    column = next((match.start("text") for _, match in matches if match["text"]), 40)
    for i, match in matches:
        body = []
        for line in lines[i + 1 :]:
            if line.strip() and _indent(line) < column:
                break
            body.append(line)
        yield match, [line for line in body if line.strip()], column


def _ncu_values(body: Sequence[str], column: int, default: str | None) -> tuple[str, ...] | None:
    """Values stand indented below the description, all equally deep, their explanations in brackets or deeper."""
    depth = next((_indent(line) for line in body if _indent(line) > column), None)
    values: list[str] = []
    for line in (line.strip() for line in body if _indent(line) == depth):
        if line.startswith("("):
            continue
        if (match := _NCU_VALUE.match(line)) is None:
            return None  # prose or a placeholder such as <kernel name>
        values += match["value"].split("/")
    if {"yes", "no"} <= set(values):
        # The help is short of ncu's own message: "Valid choices are 'on|off', 'yes|no', '1|0' and 'true|false'".
        values += ["1", "0", "true", "false"]
    # A default that is not among the values: the list was misread.
    return tuple(values) if values and (default is None or default in values) else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


# -- nsys ------------------------------------------------------------------------------------------

_NSYS_OPTION = re.compile(
    r"^\t(?:\([A-Za-z]+\) )?(?:(?P<short>-\w), )?(?P<long>--[\w-]+)(?:\[(?P<forms>[\w|]+)\])?(?P<value>=.*)?\s*$"
)
_NSYS_VALUES = re.compile(r"(?:Possible|Optional) values are:? (.*?)\.(?:\s|$)")
_NSYS_PART_VALUES = re.compile(r"Possible values for <([^>]+)> are (.*?)\.(?:\s|$)")
_NSYS_TWO_PARTS = re.compile(r"=<([^>]+)>\[:<([^>]+)>\]$")


def parse_nsys_help(help_text: str) -> KnownOptions:
    """Options in the output of `nsys profile --help`."""
    known: KnownOptions = {}
    lines = help_text.splitlines()
    starts = [(i, match) for i, line in enumerate(lines) if (match := _NSYS_OPTION.match(line))]
    ends = [*(i for i, _ in starts), len(lines)][1:]
    for (i, match), end in zip(starts, ends, strict=False):
        description = " ".join(line.strip() for line in lines[i + 1 : end])
        values = _nsys_values(match["value"] or "", description)
        # `--nvtx-domain-[include|exclude]=` stands for two options.
        for form in (match["forms"] or "").split("|"):
            option = OptionHelp(
                match["long"] + form,
                takes_value=match["value"] is not None or values is not None,
                values=values,
                many=bool(_MANY.search(description)),
                repeatable=bool(_OFTEN.search(description)),
            )
            known[option.name] = option
            if match["short"]:
                known[match["short"]] = option
    return known


def _nsys_values(placeholder: str, description: str) -> tuple[str, ...] | None:
    if parts := _NSYS_TWO_PARTS.match(placeholder):
        lists = {name: _quoted(sentence) for name, sentence in _NSYS_PART_VALUES.findall(description)}
        first, second = lists.get(parts[1]), lists.get(parts[2])
        if not first or not second:
            return None
        return (*first, *(f"{a}:{b}" for a in first for b in second))
    # Values that "may be appended with a threshold" are more than the list says.
    if "may be appended" in description or (found := _NSYS_VALUES.search(description)) is None:
        return None
    return _quoted(found[1])


def _quoted(sentence: str) -> tuple[str, ...] | None:
    """`'a', 'b'(experimental) or 'c'`, or `a, b, c`; None where there is more to the sentence than a list."""
    if values := re.findall(r"'([^']*)'", sentence):
        rest = re.sub(r"'[^']*'(?:\s*\(\w+\))?", "", sentence)
        return None if re.sub(r"\b(?:and|or)\b|[,\s]", "", rest) else tuple(values)
    words = re.split(r",\s*(?:or\s+)?|\s+or\s+", sentence)
    return tuple(words) if all(re.fullmatch(r"[\w-]+", word) for word in words) else None


# -- validation ------------------------------------------------------------------------------------


def validate(
    argv_options: Sequence[str], known: Mapping[str, OptionHelp], tool: str = "The installed profiler"
) -> list[Diagnosis]:
    """What the tool would refuse, or take silently for something else, in the options of a command.

    `argv_options` is the part between the tool and the program (`ncu_arguments`, `nsys_arguments`),
    `tool` its name and version for the messages. Everything reported as "error" must stop the launch.
    """
    if known:
        return list(_errors(argv_options, known, tool))
    return [diagnose("UNCHECKED_OPTIONS", tool=tool)]


def _errors(argv_options: Sequence[str], known: Mapping[str, OptionHelp], tool: str) -> Iterator[Diagnosis]:
    seen: set[str] = set()
    # Folders of the user's own bring sets and sections that the list does not have.
    own_sections = any(part.startswith("--section-folder") for part in argv_options)
    rest = list(argv_options)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            yield diagnose("STRAY_ARGUMENT", word=word, tool=tool)
            continue
        written, value = _taken_apart(word, known)
        option = _find(written, known)
        if option is None:
            near = nearest(written, [option.name for option in known.values()], 3)
            yield diagnose("UNKNOWN_OPTION", tool=tool, option=written, nearest=", ".join(near))
            # Its value, as far as can be told; otherwise it would be reported as a stray word too.
            if value is None and rest and not rest[0].startswith("-"):
                rest.pop(0)
            continue
        name = option.name
        if name in seen and not option.repeatable:
            yield diagnose("REPEATED_OPTION", option=name, tool=tool)
        seen.add(name)
        if not option.takes_value:
            if value is not None:
                yield diagnose("BAD_VALUE.of_flag", option=name, tool=tool)
            continue
        if value is None and not rest:
            yield diagnose("MISSING_VALUE", option=name, tool=tool)
            continue
        if value is None and len(rest[0]) == 2 and rest[0] in known:
            word = rest[0]
            yield diagnose("MISSING_VALUE.like_option", tool=tool, value=word, option=name, letter=word[1:])
            continue
        if value is None:
            value = rest.pop(0)
        if not (own_sections and name in ("--set", "--section")):
            yield from _bad_values(option, value, tool)


def _taken_apart(token: str, known: Mapping[str, OptionHelp]) -> tuple[str, str | None]:
    """`--opt=value` and `-ovalue` hold their value in the same element."""
    if token.startswith("--"):
        name, equals, value = token.partition("=")
        return name, value if equals else None
    if len(token) > 2 and token[:2] in known:
        return token[:2], token[2:]
    return token, None


def _find(written: str, known: Mapping[str, OptionHelp]) -> OptionHelp | None:
    """Both tools take the beginning of a long option for the whole, where only one begins so."""
    if written in known:
        return known[written]
    longer = {name for name in known if written.startswith("--") and len(written) > 2 and name.startswith(written)}
    return known[longer.pop()] if len(longer) == 1 else None


def _bad_values(option: OptionHelp, given: str, tool: str) -> list[Diagnosis]:
    if option.values is None:
        return []
    allowed = option.values
    # `cuda,sass` is one value of --print-source.
    values = given.split(",") if option.many and given not in allowed else [given]
    bad = [value for value in values if not _allows(option, value)]
    listed = ", ".join(allowed)
    near = {value: nearest(value, allowed, 1)[0] for value in bad}
    return [
        diagnose("BAD_VALUE", tool=tool, value=value, option=option.name, nearest=near[value], allowed=listed)
        for value in bad
    ]


def _allows(option: OptionHelp, value: str) -> bool:
    allowed = option.values or ()
    if option.regex and value.startswith("regex:"):
        try:
            return any(re.search(value[6:], name) for name in allowed)
        except re.error:
            return True  # ncu's dialect of regular expressions is not Python's
    numbered = [re.escape(name).replace(r"\[:N\]", r"(?::\d+)?") for name in allowed]
    return any(re.fullmatch(re.sub(r":N$", r":\\d+", name), value) for name in numbered)
