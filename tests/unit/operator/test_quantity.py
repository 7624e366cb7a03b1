"""Quantities compare by amount, not by spelling."""

from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from forebay.contract.errors import InvalidSpec
from forebay.operator.quantity import format_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1000m", 1),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1Gi", 2**30),
        ("1024Mi", 2**30),
        ("1G", 10**9),
        ("1e3", 1000),
        ("2E-1", Fraction(1, 5)),
        (7, 7),
        ("1.5Ki", 1536),
        ("1E", 10**18),
    ],
)
def test_spellings_of_one_amount_are_equal(text: str | int, amount: int | Fraction) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize("text", ["", "4 Gi", "4GB", "-1", "1.2.3", "Gi", "1e", "٣", "1e100", "1E-999"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_quantity(text)


@given(st.integers(0, 2**60))
def test_plain_integers_are_themselves(value: int) -> None:
    assert parse_quantity(str(value)) == parse_quantity(value) == value


def test_bytes_are_written_for_people() -> None:
    assert [format_bytes(n) for n in (5, 2048, 3 * 2**20, 3 * 2**29)] == ["5 B", "2.00 KiB", "3.00 MiB", "1.50 GiB"]
