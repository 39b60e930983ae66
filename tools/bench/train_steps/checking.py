"""Whether loss and gradients are right: against float64, by the two-times rule of `harness.check`.

For each trained weight the error is |its - exact| / |exact| in the Euclidean norm, and it may be at
most twice that of the same stack with the attention written out in the same dtype, plus a floor of
one rounding. The loss is one number, whose error with the written-out attention can be small by
chance: its floor is the rounding of a mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TIMES_PLAIN = 2.0
# A unit in the last place of the dtype, relative.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
# Sums in another order lose more than one rounding in float32: as in `harness.check`.
FLOAT32_FLOOR = 1e-5


class Checked(NamedTuple):
    """A loss, and the gradients of the trained weights by name, arrays of any framework."""

    loss: float
    gradients: dict[str, Any]


def verdict(exact: Checked, plain: Checked, found: Checked, dtype: str) -> dict[str, Any]:
    """Return the columns of a check: the worst weight with its error and what is allowed."""
    floor = max(ROUNDING[dtype], FLOAT32_FLOOR if dtype == "float32" else 0.0)
    worst = ("", 0.0, 1.0)
    for name, right in exact.gradients.items():
        allowed = TIMES_PLAIN * _error(plain.gradients[name], right) + floor
        error = _error(found.gradients[name], right)
        if not error / allowed <= worst[1] / worst[2]:  # also for NaN
            worst = (name, error, allowed)
    scale = abs(exact.loss)
    loss_error = abs(found.loss - exact.loss) / scale
    loss_allowed = TIMES_PLAIN * abs(plain.loss - exact.loss) / scale + floor
    is_right = worst[1] <= worst[2] and loss_error <= loss_allowed
    return {
        "is_right": bool(is_right),
        "checked": worst[0],
        "error": worst[1],
        "allowed": worst[2],
        "loss_error": loss_error,
        "loss_allowed": loss_allowed,
    }


def _error(found: Any, right: Any) -> float:
    difference = float(((found - right) ** 2).sum()) ** 0.5  # in float64, as `right` is
    return difference / max(float((right**2).sum()) ** 0.5, 1e-300)
