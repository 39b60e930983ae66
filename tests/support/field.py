"""What the trials of field reports share; see test_field_cases.py."""

from __future__ import annotations

import numpy as np
from support import calls, cases, tolerance
from support.cases import Mask

HEAD_DIMS = (64, 128)
ODD_LENGTHS = (1, 2, 31, 33, 63, 64, 65, 127, 128, 129, 191, 193, 1025)


def column_mask(*bounds, causal: bool = True) -> Mask:
    columns = np.stack([np.asarray(bound, np.int32) for bound in bounds], axis=-1)
    return Mask(columns[None, None], causal)


def documents(lengths: list[int]) -> Mask:
    return column_mask(cases.document_bounds(lengths)[1])


class Count:
    """One COUNT call: results of one lane of one head, all lanes and heads being equal."""

    def __init__(self, mask: Mask, rows: int, columns: int, head_dim: int, dtype: str):
        self.inputs = calls.count_inputs(1, rows, columns, 2, 2, head_dim)
        self.results = calls.run(self.inputs, mask, dtype=dtype, grads="out")
        calls.assert_right(self.results, self.inputs, mask, dtype, grads="out")
        exact = calls.exact(self.inputs, mask, grads="out")
        # float32 is held against the printed arrays itself; the 16-bit types were held against the
        # exact maths by their own rule, and the exact maths is held against the printed arrays.
        numbers = self.results if dtype == "float32" else exact
        self.out = numbers.out[0, :, 0, 0]
        self.grad_value = numbers.grad_value[0, :, 0, 0]


def check_count(mask, rows, columns, head_dim, dtype, *, out, grad_value=None) -> None:
    count = Count(mask, rows, columns, head_dim, dtype)
    tolerance.assert_printed(count.out, out)
    if grad_value is not None:
        tolerance.assert_printed(count.grad_value, grad_value)
