"""Quantities: units are checked, so that a mistake of a factor of a million cannot pass."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.metrics.quantity import UNITS, Quantity, UnitError, nanoseconds, shown, total
from llm_perf_opt.report.text import duration
from llm_perf_opt.report.text import quantity as text_of_reports

amounts = st.floats(min_value=1e-6, max_value=1e18)


def test_a_nanosecond_is_not_a_second() -> None:
    assert nanoseconds(1).to("s") == Quantity(1e-9, "s")
    assert Quantity(1, "s").to("ns") == Quantity(1e9, "ns")
    assert Quantity(2, "s") + nanoseconds(5e8) == Quantity(2.5, "s")
    assert nanoseconds(999_999_999) < Quantity(1, "s")


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Quantity(16_450, "token/s"), "16,450 token/s"),
        (Quantity(999.7, "token/s"), "1,000 token/s"),
        (Quantity(999.7e9, "B"), "1,000 GB"),
        (Quantity(1e18, "FLOP"), "1,000 PFLOP"),
    ],
)
def test_no_number_has_an_exponent(quantity: Quantity, text: str) -> None:
    assert shown(quantity) == text
    assert "e+" not in text_of_reports(quantity.value, quantity.unit) + duration(quantity.value)


def test_quotients_find_their_unit() -> None:
    flops, time, traffic = Quantity(2e12, "FLOP"), Quantity(4, "s"), Quantity(1e9, "B")
    assert flops / time == Quantity(5e11, "FLOP/s")
    assert flops / traffic == Quantity(2000, "FLOP/B")
    assert (traffic / nanoseconds(1e6)).of("B/s") == pytest.approx(1e12)
    assert flops / Quantity(1e12, "FLOP/s") == Quantity(2, "s")
    assert (Quantity(8, "token") / nanoseconds(2e9)).of("token/s") == pytest.approx(4)
    assert (nanoseconds(500) / Quantity(1, "s")).unit == "ratio"
    assert Quantity(1e12, "FLOP/s") / Quantity(4e12, "B/s") == Quantity(0.25, "FLOP/B")
    assert Quantity(3, "B/s") * Quantity(2, "s") == Quantity(6, "B")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Quantity(1, "s") + Quantity(1, "B"),
        lambda: Quantity(1, "FLOP") - Quantity(1, "B"),
        lambda: Quantity(1, "FLOP/s") < Quantity(1, "B/s"),
        lambda: Quantity(1, "s") + 1,  # type: ignore[operator]
        lambda: Quantity(1, "s") * Quantity(1, "s"),
        lambda: Quantity(1, "B") / Quantity(1, "FLOP"),
        lambda: Quantity(1, "B").to("s"),
        lambda: Quantity(1, "TB"),
        lambda: Quantity(math.inf, "B"),
        lambda: Quantity(math.nan, "s"),
        lambda: Quantity(1, "B") / Quantity(0, "s"),
    ],
)
def test_what_does_not_fit_together_is_refused(wrong: object) -> None:
    with pytest.raises(UnitError):
        wrong()  # type: ignore[operator]


@given(amounts, amounts)
def test_rates_times_time_give_the_amount_back(amount: float, time: float) -> None:
    rate = Quantity(amount, "B") / nanoseconds(time)
    assert (rate * nanoseconds(time)).of("B") == pytest.approx(amount)


@given(amounts, st.sampled_from(UNITS))
def test_every_unit_is_its_own_ratio(amount: float, unit: str) -> None:
    assert (Quantity(amount, unit) / Quantity(amount, unit)).of("ratio") == pytest.approx(1)


def test_sums_of_nothing_have_a_unit() -> None:
    assert total([], "ns") == nanoseconds(0)
    assert total([Quantity(1, "s"), nanoseconds(1)], "ns") == nanoseconds(1e9 + 1)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (nanoseconds(575_000_000), "575 ms"),
        (nanoseconds(0), "0 ns"),
        (Quantity(1.2345, "s"), "1.23 s"),
        (Quantity(4.8e12, "B/s"), "4.8 TB/s"),
        (Quantity(989.5e12, "FLOP/s"), "990 TFLOP/s"),
        (Quantity(0.4215, "ratio"), "42.1 %"),
        (Quantity(2454.4, "token/s"), "2,454 token/s"),
        (None, "–"),
    ],
)
def test_as_people_read_it(quantity: Quantity | None, text: str) -> None:
    assert shown(quantity) == text
