"""Checked mode: look at a mask before a training run does, and say in words what looks wrong."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from reprlib import repr as short

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask.indices._arguments import Integers, check_count, check_integers
from paddle_flashmask.indices._number_rules import (
    find_inverted_intervals,
    find_numbers_out_of_range,
    find_starts_above_diagonal,
    find_wrong_flag,
)
from paddle_flashmask.indices._visibility_rules import (
    find_keys_nobody_sees,
    find_padding_that_is_seen,
    find_rows_that_see_nothing,
)
from paddle_flashmask.indices._window_rules import find_windows
from paddle_flashmask.indices.findings import Finding, Inspected, Report
from paddle_flashmask.indices.form import (
    Int64Array,
    check_form,
    check_seqlen_q,
)

INT64_LIMIT = 2.0**63
SEVERITIES = ("error", "warning", "note")
RULES = (
    find_numbers_out_of_range,
    find_inverted_intervals,
    find_wrong_flag,
    find_starts_above_diagonal,
    find_rows_that_see_nothing,
    find_keys_nobody_sees,
    find_padding_that_is_seen,
    find_windows,
)


def inspect(
    startend_row_indices: NDArray[np.generic],
    *,
    causal: bool,
    seqlen_q: int,
    num_tokens: Integers | None = None,
    window: int | None = None,
) -> Report:
    """Return what is wrong, doubtful or worth knowing about a mask. O(B * Hm * (Sq + Sk)).

    Errors: `dtype` (not int32; integral numbers are looked at all the same), `form` (rank, width),
    `negative`, `beyond_int32`, `padding_seen` (real rows see padding keys), `window_too_wide`,
    `window_too_narrow` (than asked for). Warnings: `above_seqlen_q`, `inverted` (start behind
    end), `upper_end_in_causal`, `lower_end_in_noncausal`, `start_above_diagonal` (numbers that fit
    the other value of causal), `blind_row` (sees nothing and is not of padding). Notes:
    `padding_row` (a row of padding that sees nothing; without num_tokens, one whose own key nobody
    sees either), `hidden_key` (nobody sees it), `padding_seen_by_padding`, `window` (its width in
    tokens; lower_start runs at one distance from the diagonal).

    Args:
        startend_row_indices: [B, Hm, Sk, C]; int32, but other dtypes are reported, not raised.
        causal: the flag the indices are to be read with.
        seqlen_q: number of query rows, Sq.
        num_tokens: [B], integers, real keys of each sample, the rest is padding; None: unknown.
        window: tokens that a row should see at most, itself included; None: unknown.

    Returns:
        A `Report`.

    Raises:
        TypeError: it is not a numpy array, causal not a bool, or a number not an int.
        ValueError: seqlen_q, num_tokens or window is out of range.

    Example:
        >>> import numpy as np
        >>> print(inspect(np.array([[[[2], [3], [-1]]]], np.int32), causal=True, seqlen_q=3))
        error (negative): 1 number below 0, read as 0 here and otherwise by other kernels: \
sample 0 head 0 column 2 number 0 (-1)
        warning (start_above_diagonal): 1 column with lower_start above the diagonal, where \
causal=True masks anyway; a start of upper rows belongs to the form with causal=False: \
sample 0 head 0 column 2
        note (hidden_key): 1 key that nobody sees: sample 0 head 0 column 2
    """
    if not isinstance(startend_row_indices, np.ndarray):
        kind = type(startend_row_indices).__name__
        raise TypeError(f"startend_row_indices must be a numpy array; got {kind}")
    seqlen_q = check_seqlen_q(seqlen_q)
    findings: list[Finding] = []
    numbers = _whole_numbers(startend_row_indices, findings)
    findings += _find_wrong_form(startend_row_indices.shape, causal=causal)
    if window is not None:
        window = check_count("window", window, at_least=1)
    if numbers is None or any(finding.kind == "form" for finding in findings):
        return Report(tuple(findings))
    batch, _, seqlen_k, _ = numbers.shape
    mask = Inspected(
        numbers=numbers,
        clipped=np.clip(numbers, 0, seqlen_q).astype(np.int32),
        causal=bool(causal),
        seqlen_q=seqlen_q,
        diagonal=np.arange(seqlen_k, dtype=np.int64) - (seqlen_k - seqlen_q),
        num_tokens=_check_num_tokens(num_tokens, batch, seqlen_k),
        window=window,
    )
    findings += chain.from_iterable(rule(mask) for rule in RULES)
    return Report(tuple(sorted(findings, key=lambda one: SEVERITIES.index(one.severity))))


def check_values(
    startend_row_indices: NDArray[np.generic],
    *,
    causal: bool,
    seqlen_q: int,
    num_tokens: Integers | None = None,
    window: int | None = None,
    allow: Collection[str] = (),
) -> None:
    """Refuse a mask in which `inspect` finds an error or a warning.

    Args:
        startend_row_indices: [B, Hm, Sk, C].
        causal: the flag the indices are to be read with.
        seqlen_q: number of query rows, Sq.
        num_tokens: as for `inspect`.
        window: as for `inspect`.
        allow: kinds of findings that are meant.

    Raises:
        TypeError: see `inspect`; or allow is a string.
        ValueError: there is a finding, the message has a line for each; or see `inspect`.

    Example:
        >>> import numpy as np
        >>> pair = np.array([[[[2, 0], [2, 1]]]], np.int32)
        >>> check_values(pair, causal=False, seqlen_q=2)
    """
    if isinstance(allow, str):
        raise TypeError(f"allow must be a collection of kinds; got str {short(allow)}")
    report = inspect(
        startend_row_indices,
        causal=causal,
        seqlen_q=seqlen_q,
        num_tokens=num_tokens,
        window=window,
    )
    refused = Report(
        tuple(one for one in report.findings if one.severity != "note" and one.kind not in allow)
    )
    if refused.findings:
        raise ValueError(f"startend_row_indices must be sound; got\n{refused}")


def _whole_numbers(array: NDArray[np.generic], findings: list[Finding]) -> Int64Array | None:
    """Return the numbers as int64, or None if they are not whole; report a dtype not int32."""
    if array.dtype == np.int32:
        return array.astype(np.int64)
    kind = array.dtype.kind
    if kind == "u":
        whole = bool((array.astype(np.uint64) <= np.uint64(np.iinfo(np.int64).max)).all())
    elif kind == "f":
        values = array.astype(np.float64)
        finite = values[np.isfinite(values)]
        small = (np.abs(finite) < INT64_LIMIT) & (np.trunc(finite) == finite)
        whole = finite.size == values.size and bool(small.all())
    else:
        whole = kind == "i"
    rest = "its numbers are whole" if whole else "its numbers cannot be read as whole ones"
    findings.append(
        Finding("dtype", "error", f"the dtype must be int32; got {array.dtype}, and {rest}")
    )
    return array.astype(np.int64) if whole else None


def _find_wrong_form(shape: tuple[int, ...], *, causal: bool) -> list[Finding]:
    try:
        check_form(shape, "int32", causal=causal)
    except ValueError as error:
        return [Finding("form", "error", str(error))]
    return []


def _check_num_tokens(num_tokens: Integers | None, batch: int, seqlen_k: int) -> Int64Array | None:
    if num_tokens is None:
        return None
    real = check_integers("num_tokens", num_tokens)
    if real.shape != (batch,):
        raise ValueError(
            f"num_tokens must hold one number per sample, {batch}; got shape {list(real.shape)}"
        )
    for sample in np.flatnonzero((real < 0) | (real > seqlen_k))[:1]:
        raise ValueError(f"num_tokens[{sample}] must be in [0, {seqlen_k}]; got {real[sample]}")
    return real
