"""Amounts for people, and the exact reading of quantities that the API package owns.

Called by `checks`, `diff` and the builders of desired objects.
"""

from fractions import Fraction

from forebay.api.quantity import parse_quantity

__all__ = ["format_bytes", "parse_quantity"]


def format_bytes(amount: int | Fraction) -> str:
    """An amount of bytes for people: "1.50 GiB"."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if amount >= 1024**power:
            return f"{float(amount / 1024**power):.2f} {unit}"
    return f"{int(amount)} B"
