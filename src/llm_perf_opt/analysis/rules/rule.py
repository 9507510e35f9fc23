"""A fix rule: words for the reader, and a predicate over a region (`find`) that gives what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import Factory, define

from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found

Find = Callable[[Evaluated], Iterator[Found]]


@define(frozen=True)
class Words:
    """Why and what to do, as the answer says it; names in braces are numbers of the region, of `Found.words` too.

    Both begin in lower case: sentences of several shapes are made of them.
    """

    because: str
    action: str
    looks: bool = False  # the action finds the cause, and saves nothing by itself
    elsewhere: str = ""  # the action for programs that are not PyTorch's, where it is another one

    def action_in(self, torch: bool) -> str:
        """`torch`: is it, or may it be, a program of PyTorch?"""
        return self.action if torch or not self.elsewhere else self.elsewhere


@define(frozen=True)
class Rule:
    """One thing that can be mended."""

    id: str
    title: str  # what it is
    costs: str  # why that costs time
    seen: str  # how it is recognised
    words: Words
    find: Find
    operators: bool = False  # does it need to know the operators behind the launches?
    gain: str = "The idle time that it causes."  # how the gain is predicted
    before: str = ""  # an example in code
    after: str = ""
    unless: str = ""  # when it does not apply
    variants: dict[str, Words] = Factory(dict)  # other words for the same thing, by what `Found.texts` ends with
