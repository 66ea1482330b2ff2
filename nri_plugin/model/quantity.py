"""Kubernetes quantities: `1500m`, `2Gi`, `100Mi`, `1e3`, as exact whole numbers.

Amounts that are no whole number of the requested unit are rounded up, so that a request is never
taken for a smaller one. Source: k8s.io/apimachinery/pkg/api/resource/quantity.go.
"""

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"([+-]?)([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})([a-zA-Z]*|[eE][+-]?[0-9]{1,2})\Z"
)

_FACTORS: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{suffix: Fraction(1000 ** (power + 1)) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Fraction(1024 ** (power + 1)) for power, suffix in enumerate("KMGTPE")},
}


def parse_quantity(text: str) -> Fraction:
    """The exact number a quantity stands for.

    Raises:
        ValueError: not a quantity.
    """
    match = _QUANTITY.match(text.strip())
    if match is None:
        raise ValueError(f"'{text[:80]}' is not a quantity such as 1500m, 4 or 2Gi")
    sign, number, suffix = match.groups()
    factor = _FACTORS.get(suffix)
    if factor is None:
        factor = _exponent(text, suffix)
    amount = Fraction(number) * factor
    return -amount if sign == "-" else amount


def parse_cpu_milli(text: str) -> int:
    """Thousandths of a CPU.

    Raises:
        ValueError: not a quantity, or negative.
    """
    return _whole(text, 1000)


def parse_bytes(text: str) -> int:
    """Bytes.

    Raises:
        ValueError: not a quantity, or negative.
    """
    return _whole(text, 1)


SHORT = 5
"""Longest exact amount that reads well, such as 512Gi."""


def format_bytes(amount: int) -> str:
    """The shortest quantity of exactly `amount` bytes with a binary suffix, for people."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        factor = int(_FACTORS[suffix])
        if amount and amount % factor == 0:
            return f"{amount // factor}{suffix}"
    return str(amount)


def round_down(amount: int) -> str:
    """At most `amount` bytes in a few digits, for people: exact where that is short, else in tenths of a unit."""
    exact = format_bytes(amount)
    if len(exact) <= SHORT:
        return exact
    unit = next(suffix for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki") if amount >= _FACTORS[suffix])
    tenths = amount * 10 // int(_FACTORS[unit])
    return f"{tenths // 10}.{tenths % 10}{unit}"


def _exponent(text: str, suffix: str) -> Fraction:
    if suffix[:1] in {"e", "E"} and suffix[1:].lstrip("+-").isdigit():
        return Fraction(10) ** int(suffix[1:])
    raise ValueError(
        f"'{text[:80]}' has the unknown suffix '{suffix}'; known are {', '.join(k for k in _FACTORS if k)}"
    )


def _whole(text: str, units: int) -> int:
    amount = parse_quantity(text) * units
    if amount < 0:
        raise ValueError(f"'{text[:80]}' is negative; the smallest amount is 0")
    return -(-amount.numerator // amount.denominator)
