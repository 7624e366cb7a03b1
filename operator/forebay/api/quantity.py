"""Kubernetes quantities ("500m", "4Gi") as exact numbers, so that two spellings of one amount compare equal.

The API server rewrites quantities to a canonical spelling, so text must never be compared. Used by the rules of
`common` and by the operator.
"""

import re
from fractions import Fraction
from typing import Final

from forebay.contract.errors import InvalidSpec

QUANTITY_PATTERN: Final = "([0-9]+[.]?[0-9]*|[.][0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?"
"""A quantity that is not negative, in the syntax that CEL and Python share.

Two digits of exponent: exact arithmetic on a longer one would take memory and time without bound.
"""

_QUANTITY: Final = re.compile(QUANTITY_PATTERN)
_FACTORS: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def parse_quantity(value: str | int) -> Fraction:
    """The amount in base units (bytes, cores). Raises `InvalidSpec` for text that is not a quantity."""
    if isinstance(value, int):
        return Fraction(value)
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise InvalidSpec(f"{value!r} is not a quantity such as 500m, 2 or 4Gi", field="resources")
    number, suffix = match.group(1), match.group(2) or ""
    if suffix not in _FACTORS:
        return Fraction(number) * Fraction(10) ** int(suffix[1:])
    return Fraction(number) * _FACTORS[suffix]
