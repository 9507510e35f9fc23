"""Declared options as arguments of argparse, and what was parsed, or a manifest holds, as values of options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_perf_opt.errors import UserError
from llm_perf_opt.options import Option, options_of
from llm_perf_opt.options.help_groups import COMMON, GROUPS, group_of
from llm_perf_opt.options.option import ALLOWED, Kind, fits
from llm_perf_opt.options.values import bytes_of, parse_seconds

if TYPE_CHECKING:
    from llm_perf_opt.capture.rank_job import RankJob
    from llm_perf_opt.request import ProfileRequest


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option[Any]], *, grouped: bool = True) -> None:
    """Give a parser its options, in the groups of its help; a few need no groups."""
    parser._optionals.title = COMMON if grouped else "options"  # where --help is
    groups = {group.title: group for group in parser._action_groups}
    for title in GROUPS:
        if grouped and any(group_of(option.flag) == title for option in options) and title not in groups:
            groups[title] = parser.add_argument_group(title)
    either = parser.add_mutually_exclusive_group() if any(option.either for option in options) else parser
    for option in options:
        place = either if option.either else groups[group_of(option.flag) if grouped else "options"]
        names = [name for name in (option.short, option.flag) if name]
        settings: dict[str, Any] = {"help": _help(option), "default": option.unset}
        if option.kind == "switch":
            place.add_argument(*names, action="store_true", **settings)
            continue
        if isinstance(option.unset, list):
            settings["action"] = "append"
        if option.choices:
            settings["choices"] = option.choices
        if option.metavar:
            settings["metavar"] = option.metavar
        place.add_argument(*names, type=_TYPES.get(option.kind, str), **settings)


def values_of(arguments: argparse.Namespace) -> dict[Option[Any], Any]:
    """What was parsed, by option; a switch that is not there says nothing."""
    found = {}
    for option in options_of(arguments.verb):
        value = getattr(arguments, option.dest)
        if option.kind != "switch":
            found[option] = value
        elif value:
            found[option] = not option.default if option.given is None else option.given
    return found


def of_rank(request: ProfileRequest, verb: str) -> tuple[ProfileRequest, RankJob | None]:
    """What this rank of a job is asked for; the request itself where no launcher says that there are ranks."""
    from llm_perf_opt.inject.place import place_in_job
    from llm_perf_opt.options.of_jobs import CHOSEN_RANKS, COUNTER_RANK

    chosen = request.value(CHOSEN_RANKS) != CHOSEN_RANKS.default or request.value(COUNTER_RANK) is not None
    if place_in_job() is None and not chosen:
        return request, None
    from llm_perf_opt.capture.rank_job import join  # here: most runs have no ranks, and it takes a while to import

    return join(request, verb) or (request, None)


def stored_values(settings: Mapping[str, Any], verb: str, run: str) -> dict[str, Any]:
    """Parsed arguments as a manifest holds them: a setting of another version is left out, a wrong one refused.

    A manifest may be untrusted, and what is wrong in it must be known before anything is started.
    """
    found = {}
    for option in options_of(verb):
        found[option.dest] = value = settings.get(option.dest, option.unset)
        if not option.could_be_typed(value):
            raise UserError(
                f"The options of {run} are not those of a run: {option.dest} is {ascii(value)[:60]}.",
                "Start a new run.",
            )
    return found


def given_of(arguments: argparse.Namespace, verb: str) -> list[Option[Any]]:
    """The options that the command line has, and not by chance with their defaults."""
    return [option for option in options_of(verb) if getattr(arguments, option.dest) != option.unset]


def _help(option: Option[Any]) -> str:
    text = option.flag_help or option.help
    head = text[:1].lower() + text[1:] if text[1:2].islower() else text
    head = head.removesuffix(".")
    if option.kind != "switch" and option.unset not in (None, "", []) and "(default" not in head:
        head += f" (default {option.unset})"
    return head.replace("%", "%%")


def _typed(kind: Kind) -> Callable[[str], int | float]:
    """A number of this kind, or why what was typed is none."""

    def parse(text: str) -> int | float:
        try:
            number = _seconds(text) if kind == "seconds" else int(text)
        except (ValueError, UserError):
            number = -1
        if not fits(kind, number):
            raise argparse.ArgumentTypeError(f"{text!r} is not {ALLOWED[kind]}")
        return number

    return parse


def _seconds(text: str) -> float:
    """`40`, and `40s` or `2m` as the options that take a time."""
    try:
        return float(text)
    except ValueError:
        return parse_seconds(text)


def _kernel(text: str) -> str:
    if not fits("kernel", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {ALLOWED['kernel']}")
    return text


def _as_typed(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Refuse what cannot be read; the manifest keeps it as it was typed."""

    def check(text: str) -> str:
        try:
            parse(text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
        return text

    return check


_TYPES: dict[str, Callable[[str], Any]] = {
    "count": _typed("count"),
    "number": _typed("number"),
    "seconds": _typed("seconds"),
    "kernel": _kernel,
    "size": _as_typed(bytes_of),
    "duration": _as_typed(parse_seconds),
}
