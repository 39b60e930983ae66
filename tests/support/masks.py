"""Random and exhaustive masks, and what they mean cell by cell, by plain loops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from paddle_flashmask.indices import ColumnMask

FORMS = [(True, 1), (True, 2), (False, 2), (False, 4)]


def masked_by_loops(numbers, row, column, *, causal, seqlen_q, seqlen_k) -> bool:
    """Tell whether the numbers of one column mask one row, straight from the table of forms."""
    if causal and column > row + seqlen_k - seqlen_q:
        return True
    if causal and len(numbers) == 1:
        return row >= numbers[0]
    if causal:
        return numbers[0] <= row < numbers[1]
    if len(numbers) == 2:
        return row >= numbers[0] or row < numbers[1]
    return numbers[0] <= row < numbers[1] or numbers[2] <= row < numbers[3]


def dense_by_loops(mask: ColumnMask, seqlen_q: int) -> np.ndarray:
    """Return [B, Hm, Sq, Sk], bool, True where a row sees a column."""
    batch, heads, seqlen_k, _ = mask.startend_row_indices.shape
    numbers = mask.startend_row_indices.tolist()
    visible = np.zeros((batch, heads, seqlen_q, seqlen_k), bool)
    for sample, head, row, column in np.ndindex(*visible.shape):
        visible[sample, head, row, column] = not masked_by_loops(
            numbers[sample][head][column],
            row,
            column,
            causal=mask.causal,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
        )
    return visible


def runs_by_loops(visible_column) -> int:
    """Return how many runs of False a column has."""
    return sum(1 for value, _ in itertools.groupby(visible_column.tolist()) if not value)


def is_expressible(visible: np.ndarray) -> bool:
    """Tell whether no column of [B, Hm, Sq, Sk] has more than two runs of masked rows."""
    batch, heads, _, seqlen_k = visible.shape
    return all(
        runs_by_loops(visible[sample, head, :, column]) <= 2
        for sample, head, column in np.ndindex(batch, heads, seqlen_k)
    )


def every_dense_of_form(causal, width, seqlen_q, seqlen_k) -> set[bytes]:
    """Return the dense masks [Sq, Sk] that a form can say, as bytes."""
    per_column = []
    for column in range(seqlen_k):
        choices = itertools.product(range(seqlen_q + 1), repeat=width)
        per_column.append(
            {
                tuple(
                    not masked_by_loops(
                        numbers,
                        row,
                        column,
                        causal=causal,
                        seqlen_q=seqlen_q,
                        seqlen_k=seqlen_k,
                    )
                    for row in range(seqlen_q)
                )
                for numbers in choices
            }
        )
    return {
        np.array(columns, bool).reshape(seqlen_k, seqlen_q).T.tobytes()
        for columns in itertools.product(*per_column)
    }


def every_dense(seqlen_q, seqlen_k) -> Iterator[np.ndarray]:
    """Yield every bool matrix [Sq, Sk]."""
    for cells in itertools.product([False, True], repeat=seqlen_q * seqlen_k):
        yield np.array(cells, bool).reshape(seqlen_q, seqlen_k)


@st.composite
def masks(draw, *, seqlen_q, batch=None, heads=None, seqlen_k=None, form=None) -> ColumnMask:
    """Draw a mask with numbers from -3 to Sq + 3, in any order."""
    batch = draw(st.integers(0, 2)) if batch is None else batch
    heads = draw(st.integers(1, 2)) if heads is None else heads
    seqlen_k = draw(st.integers(0, 7)) if seqlen_k is None else seqlen_k
    causal, width = draw(st.sampled_from(FORMS)) if form is None else form
    size = batch * heads * seqlen_k * width
    numbers = draw(st.lists(st.integers(-3, seqlen_q + 3), min_size=size, max_size=size))
    array = np.array(numbers, np.int32).reshape(batch, heads, seqlen_k, width)
    return ColumnMask(array, causal)


@st.composite
def masks_with_rows(draw, **options) -> tuple[ColumnMask, int]:
    """Draw a mask and its number of query rows."""
    seqlen_q = draw(st.integers(0, 7))
    return draw(masks(seqlen_q=seqlen_q, **options)), seqlen_q


@st.composite
def square_masks(draw, *, heads=1, batch=1) -> ColumnMask:
    """Draw a mask with as many rows as columns."""
    size = draw(st.integers(0, 5))
    return draw(masks(seqlen_q=size, batch=batch, heads=heads, seqlen_k=size))


def filled(causal: bool, *columns) -> ColumnMask:
    """Return the mask [1, 1, Sk, C] of columns written out."""
    return ColumnMask(np.array([[columns]], np.int32), causal)
