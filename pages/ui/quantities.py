"""Figures as people read them: three significant digits, a unit, shares in percent."""

import math


def significant(value: float, digits: int = 3) -> str:
    """Returns `value` with `digits` significant digits and no exponent between 1e-4 and 1e6."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 5:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - size, 0)}f}"


def share(value: float) -> str:
    """Returns a share 0..1 as a percentage."""
    if not math.isfinite(value):
        return "–"
    percent = 100 * value
    if 0 < percent < 0.01:
        return "< 0.01 %"
    text = "100" if percent >= 99.95 else significant(percent)
    return f"{text} %"


def duration(seconds: float) -> str:
    """Returns a time in ms, s or min."""
    if seconds < 0.0995:
        return f"{max(1, round(1000 * seconds))} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def count(value: int) -> str:
    """Returns a large count with its unit: 117.7 M."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return (
                f"{value / size:.1f} {unit}" if value < 1000 * size else f"{value // size} {unit}"
            )
    return str(value)
