"""Kubernetes quantities such as `500m`, `1.5Gi` or `2e3`, as exact numbers.

Source: Kubernetes apimachinery, pkg/api/resource, quantity.go (the grammar in the comment of `Quantity`).
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil

NANO = 10**9
"""Finer than this a quantity cannot be; what is finer is rounded away from zero, as Kubernetes does."""

SUFFIXES: Mapping[str, Fraction] = {
    "n": Fraction(1, NANO),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}

_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[KMGTPE]i|[numkMGTPE]?))\Z"
)


def parse(text: str) -> Fraction:
    """The exact number a quantity stands for, no finer than a billionth.

    Raises:
        ValueError: `text` is no quantity.
    """
    match = _FORM.match(text)
    if match is None:
        raise ValueError(f"expected an amount such as 500m, 2 or 1.5Gi, found {text[:80] or 'nothing'}")
    factor = Fraction(10) ** int(match["exponent"]) if match["exponent"] else SUFFIXES[match["suffix"]]
    size = _at_most_nano(Fraction(match["number"]) * factor)
    return -size if match["sign"] == "-" else size


def _at_most_nano(size: Fraction) -> Fraction:
    return Fraction(ceil(size * NANO), NANO)
