"""Which lines launch, of several recordings, of which none is at hand any more: answers that were asked for in time."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define

from llm_perf_opt.analysis.code_lines import CodeLines, LaunchedFrom
from llm_perf_opt.regions.code import Place


@define(eq=False)
class KnownCode:
    """As `CodeLines` answers."""

    source: str
    _launches: dict[str, list[LaunchedFrom]] = Factory(dict)
    _callers: dict[str, dict[Place, Place]] = Factory(dict)

    @staticmethod
    def of(code: CodeLines, keys: Sequence[str]) -> KnownCode:
        """`keys`: of the regions that will be asked for."""
        return KnownCode(
            code.source, {key: code.launches(key) for key in keys}, {key: code.callers(key) for key in keys}
        )

    @staticmethod
    def together(parts: Sequence[KnownCode]) -> KnownCode:
        found = KnownCode("functions" if any(part.source == "functions" for part in parts) else parts[0].source)
        for part in parts:
            for key, launches in part._launches.items():
                found._launches.setdefault(key, []).extend(launches)
            for key, callers in part._callers.items():
                found._callers.setdefault(key, {}).update(callers)
        return found

    def launches(self, key: str) -> list[LaunchedFrom]:
        return self._launches.get(key, [])

    def callers(self, key: str) -> dict[Place, Place]:
        return self._callers.get(key, {})
