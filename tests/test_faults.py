"""A fixed part of the fault matrix (see `fault_matrix`); `make faults` tries all of it, and kills at random moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_matrix import Bench, Fault, Unavailable, faults

QUICK = [fault for fault in faults() if fault.quick]


@pytest.mark.parametrize("fault", QUICK, ids=[fault.name for fault in QUICK])
def test_what_goes_wrong_ends_as_it_should(tmp_path: Path, fault: Fault) -> None:
    try:
        wrong = Bench(tmp_path / "bench").attempt(fault)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert wrong == []
