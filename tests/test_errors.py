"""Bad arguments: each is refused with the right exception, its name, the rule and what came."""

from __future__ import annotations

import decimal
import math

import numpy as np
import paddle
import pytest
from support.processes import run_python

from paddle_flashmask import _ops, flashmask_attention, indices

BATCH, LENGTH, HEADS, HEADS_K, HEAD_DIM = 2, 5, 4, 2, 16


def query(**changes) -> paddle.Tensor:
    return made(HEADS, **changes)


def key(**changes) -> paddle.Tensor:
    return made(HEADS_K, **changes)


def made(heads, *, batch=BATCH, length=LENGTH, head_dim=HEAD_DIM, dtype="float32"):
    return paddle.ones([batch, length, heads, head_dim]).astype(dtype)


def rows(batch=BATCH, heads=1, length=LENGTH, width=1, dtype=np.int32) -> np.ndarray:
    return np.full((batch, heads, length, width), LENGTH).astype(dtype)


def good() -> dict:
    return {
        "query": query(),
        "key": key(),
        "value": key(),
        "startend_row_indices": paddle.to_tensor(rows()),
        "causal": True,
    }


def all_made(**changes) -> dict:
    return {"query": query(**changes), "key": key(**changes), "value": key(**changes)}


def all_of(shape: list[int]) -> dict:
    return dict.fromkeys(("query", "key", "value"), paddle.empty(shape))


NO_ROWS = {"startend_row_indices": None}
NOT_A_TENSOR = [
    ("numpy", lambda: query().numpy(), "numpy.ndarray"),
    ("none", lambda: None, "NoneType"),
    ("list", lambda: [[1.0]], "list"),
    ("float", lambda: 1.0, "float"),
    ("place", lambda: paddle.CPUPlace(), "CPUPlace"),
]

# (id, changed arguments made on demand, exception, texts that must all stand in the message)
BAD_TENSORS = [
    *(
        (f"{name} {kind}", lambda n=name, m=make: {n: m()}, TypeError, [name, "paddle.Tensor", got])
        for name in ("query", "key", "value")
        for kind, make, got in NOT_A_TENSOR
    ),
    *(
        (f"all {d}", lambda d=d: all_made(dtype=d), TypeError, ["float32, float16, bfloat16", d])
        for d in ("float64", "int32", "int64", "bool", "uint8", "complex64")
    ),
    (
        "query of other dtype",
        lambda: {"query": query(dtype="float16")},
        TypeError,
        ["query, key and value must have one dtype", "got float16, float32 and float32"],
    ),
    (
        "key of other dtype",
        lambda: {"key": key(dtype="bfloat16")},
        TypeError,
        ["one dtype", "float32, bfloat16 and float32"],
    ),
    (
        "value of other dtype",
        lambda: {"value": key(dtype="float64")},
        TypeError,
        ["one dtype", "float32, float32 and float64"],
    ),
    (
        "query rank 3",
        lambda: {"query": query()[0]},
        ValueError,
        ["query must have 4", "[5, 4, 16]"],
    ),
    ("key rank 3", lambda: {"key": key()[0]}, ValueError, ["key must have 4 axes", "[5, 2, 16]"]),
    ("value rank 3", lambda: {"value": key()[0]}, ValueError, ["value must have 4", "[5, 2, 16]"]),
    ("query rank 5", lambda: {"query": query()[None]}, ValueError, ["4 axes", "[1, 2, 5, 4, 16]"]),
    ("query rank 0", lambda: {"query": paddle.to_tensor(1.0)}, ValueError, ["4 axes", "shape []"]),
    ("query unset", lambda: {"query": paddle.Tensor()}, ValueError, ["query must have 4 axes"]),
    (
        "all rank 3",
        lambda: {"query": query()[0], "key": key()[0], "value": key()[0]},
        ValueError,
        ["query must have 4 axes"],
    ),
    (
        "query batch",
        lambda: {"query": query(batch=1)},
        ValueError,
        ["batch", "query [1, 5, 4, 16]"],
    ),
    ("key batch", lambda: {"key": key(batch=3)}, ValueError, ["batch", "key [3, 5, 2, 16]"]),
    ("value batch", lambda: {"value": key(batch=3)}, ValueError, ["batch", "value [3, 5, 2, 16]"]),
    (
        "value length",
        lambda: {"value": key(length=6)},
        ValueError,
        ["key and value must have one length", "key [2, 5, 2, 16]", "value [2, 6, 2, 16]"],
    ),
    (
        "value heads",
        lambda: {"value": made(4)},
        ValueError,
        ["key and value must have as many heads", "value [2, 5, 4, 16]"],
    ),
    (
        "heads 3 of 4",
        lambda: {"key": made(3), "value": made(3)},
        ValueError,
        ["heads of query must be a multiple of those of key", "query [2, 5, 4, 16]"],
    ),
    (
        "more key heads",
        lambda: {"key": made(8), "value": made(8)},
        ValueError,
        ["multiple of those of key"],
    ),
    (
        "no key heads",
        lambda: {"key": made(0), "value": made(0), **NO_ROWS},
        ValueError,
        ["at least 1"],
    ),
    ("no heads", lambda: {"query": made(0), **NO_ROWS}, ValueError, ["at least 1"]),
    (
        "key head_dim",
        lambda: {"key": key(head_dim=8)},
        ValueError,
        ["query and key must have one head_dim", "key [2, 5, 2, 8]"],
    ),
    (
        "value head_dim",
        lambda: {"value": key(head_dim=8)},
        NotImplementedError,
        ["value head_dim", "not supported", "value [2, 5, 2, 8]"],
    ),
    *(
        (
            f"head_dim {d}",
            lambda d=d: all_made(head_dim=d),
            ValueError,
            ["head_dim must be a multiple of 8 from 8 to 256", f"query [2, 5, 4, {d}]"],
        )
        for d in (0, 1, 4, 12, 255, 264, 512)
    ),
]

NAME = "startend_row_indices"
BAD_ROWS = [
    *(
        (f"rows {d.__name__}", lambda d=d: {NAME: rows(dtype=d)}, TypeError, ["int32", d.__name__])
        for d in (np.int64, np.float32, np.int16, np.uint32, np.uint8)
    ),
    *(
        (
            f"rows tensor {d}",
            lambda d=d: {NAME: paddle.to_tensor(rows()).astype(d)},
            TypeError,
            [f"{NAME} must be int32", f"got {d}", "Cast it"],
        )
        for d in ("int64", "float32", "bool")
    ),
    ("rows list", lambda: {NAME: rows().tolist()}, TypeError, [NAME, "paddle.Tensor", "got list"]),
    ("rows int", lambda: {NAME: 5}, TypeError, [NAME, "got int 5"]),
    ("rows False", lambda: {NAME: False}, TypeError, [NAME, "got bool False"]),
    (
        "whole mask",
        lambda: {NAME: indices.ColumnMask(rows(), True)},
        TypeError,
        ["ColumnMask", "flashmask_attention(query, key, value, *mask)"],
    ),
    ("width 1 not causal", lambda: {"causal": False}, ValueError, ["last axis 2 or 4", "got 1"]),
    ("width 3", lambda: {NAME: rows(width=3)}, ValueError, ["1 or 2 with causal=True", "got 3"]),
    ("width 4", lambda: {NAME: rows(width=4)}, ValueError, ["1 or 2 with causal=True", "got 4"]),
    (
        "width 3 not causal",
        lambda: {NAME: rows(width=3), "causal": False},
        ValueError,
        ["2 or 4 with causal=False", "got 3 in shape [2, 1, 5, 3]"],
    ),
    ("width 0", lambda: {NAME: rows(width=0)}, ValueError, ["last axis", "got 0"]),
    ("rows rank 3", lambda: {NAME: rows()[0]}, ValueError, [NAME, "4 axes", "[1, 5, 1]"]),
    ("rows rank 2", lambda: {NAME: rows()[0, 0]}, ValueError, [NAME, "4 axes", "[5, 1]"]),
    (
        "rows batch 1",
        lambda: {NAME: rows(batch=1)},
        ValueError,
        ["batch of query and key, 2", "got 1", "not broadcast"],
    ),
    ("rows batch 3", lambda: {NAME: rows(batch=3)}, ValueError, ["2", "got 3"]),
    (
        "rows heads 3",
        lambda: {NAME: rows(heads=3)},
        ValueError,
        ["1, 2 (key heads) or 4 (query heads)", "got 3"],
    ),
    ("rows heads 0", lambda: {NAME: rows(heads=0)}, ValueError, ["mask heads", "got 0"]),
    ("rows length", lambda: {NAME: rows(length=4)}, ValueError, ["one column per key, 5", "got 4"]),
    ("rows empty", lambda: {NAME: rows(length=0)}, ValueError, ["one column per key, 5", "got 0"]),
]

BAD_FLAGS = [
    (
        f"{name} {value!r}",
        lambda n=name, v=value: {n: v},
        TypeError,
        [f"{name} must be a bool", got],
    )
    for name in ("causal", "training", "return_softmax_lse", "return_seed_offset")
    for value, got in ((1, "int 1"), (None, "NoneType"), ("yes", "str 'yes'"), (0.0, "float"))
]

WINDOW = "window_size"
BAD_WINDOWS = [
    *(
        (
            f"window {value!r}",
            lambda v=value: {WINDOW: v, **NO_ROWS},
            TypeError,
            ["window_size must be an int or a pair (left, right)", got],
        )
        for value, got in (
            (2.0, "float 2.0"),
            (True, "bool True"),
            ("2", "str '2'"),
            ((1, 2, 3), "tuple (1, 2, 3)"),
            ((1,), "tuple (1,)"),
            ((), "tuple ()"),
            ((1, 2.0), "tuple (1, 2.0)"),
            ((1, None), "tuple (1, None)"),
            ((1, True), "tuple (1, True)"),
            ([1, [2]], "list [1, [2]]"),
            (np.array([1, 2]), "ndarray"),
            ({"left": 1}, "dict"),
        )
    ),
    *(
        (
            f"window {value!r}",
            lambda v=value: {WINDOW: v, **NO_ROWS},
            ValueError,
            ["window_size must not be negative", f"got {value!r}"],
        )
        for value in (-1, (-1, 0), (0, -1), (-1, -1), (-(2**40), 3))
    ),
    (
        "window tensor",
        lambda: {WINDOW: paddle.to_tensor(2), **NO_ROWS},
        TypeError,
        ["window_size must be", "Tensor"],
    ),
    (
        "window with rows",
        lambda: {WINDOW: 2},
        ValueError,
        ["window_size must be None when startend_row_indices is given", "window_size=2"],
    ),
]

SCALE = "softmax_scale"
BAD_SCALES = [
    *(
        (f"scale {value}", lambda v=value: {SCALE: v}, ValueError, ["softmax_scale must be finite"])
        # 1e39 is beyond float32, the type the operator takes it in.
        for value in (math.nan, math.inf, -math.inf, np.float32("nan"), 1e39, -1e300)
    ),
    ("scale 10**400", lambda: {SCALE: 10**400}, ValueError, ["softmax_scale must be finite"]),
    *(
        (
            f"scale {value!r}",
            lambda v=value: {SCALE: v},
            TypeError,
            ["softmax_scale must be a", got],
        )
        for value, got in (
            ("0.1", "str '0.1'"),
            (True, "bool True"),
            ((0.1,), "tuple (0.1,)"),
            ([0.1], "list [0.1]"),
            (0.1 + 0j, "complex"),
            (decimal.Decimal("0.1"), "Decimal"),
            (np.array([0.1]), "ndarray"),
        )
    ),
    (
        "scale tensor",
        lambda: {SCALE: paddle.to_tensor(0.1)},
        TypeError,
        ["softmax_scale must be a float", "Tensor of shape []"],
    ),
]

BAD_EXTRAS = [
    ("dropout", lambda: {"dropout": 0.1}, NotImplementedError, ["dropout while training", "0.1"]),
    ("dropout 1", lambda: {"dropout": 1}, NotImplementedError, ["dropout while training", "got 1"]),
    ("dropout -0.1", lambda: {"dropout": -0.1}, ValueError, ["dropout must be in [0, 1]", "-0.1"]),
    ("dropout 1.5", lambda: {"dropout": 1.5}, ValueError, ["dropout must be in [0, 1]", "1.5"]),
    ("dropout nan", lambda: {"dropout": math.nan}, ValueError, ["dropout must be finite", "nan"]),
    (
        "dropout outside training",
        lambda: {"dropout": 7, "training": False},
        ValueError,
        ["dropout must be in [0, 1]", "got 7"],
    ),
    ("dropout none", lambda: {"dropout": None}, TypeError, ["dropout must be a float", "NoneType"]),
    ("dropout bool", lambda: {"dropout": False}, TypeError, ["dropout must be a float", "False"]),
    ("dropout str", lambda: {"dropout": "0"}, TypeError, ["dropout must be a float", "str '0'"]),
    (
        "return_seed_offset",
        lambda: {"return_seed_offset": True},
        NotImplementedError,
        ["return_seed_offset is not supported, only False"],
    ),
    (
        "fixed_seed_offset",
        lambda: {"fixed_seed_offset": paddle.zeros([2], "int64")},
        NotImplementedError,
        ["fixed_seed_offset is not supported, only None", "Tensor of shape [2]"],
    ),
    (
        "rng_name",
        lambda: {"rng_name": "a"},
        NotImplementedError,
        ["rng_name", "only ''", "str 'a'"],
    ),
    (
        "rng_name none",
        lambda: {"rng_name": None},
        TypeError,
        ["rng_name must be a str", "NoneType"],
    ),
    ("name", lambda: {"name": "a"}, NotImplementedError, ["name is not supported", "str 'a'"]),
    ("name empty", lambda: {"name": ""}, NotImplementedError, ["name is not supported", "str ''"]),
    (
        "block_mask",
        lambda: {"block_mask": paddle.ones([1, 1, 1, 1], "int32")},
        NotImplementedError,
        ["block_mask is not supported, only None", "Tensor of shape [1, 1, 1, 1]"],
    ),
    ("unknown", lambda: {"scale": 0.1}, TypeError, ["unexpected keyword argument 'scale'"]),
]

BAD = [*BAD_TENSORS, *BAD_ROWS, *BAD_FLAGS, *BAD_WINDOWS, *BAD_SCALES, *BAD_EXTRAS]


def test_arguments_of_the_table_are_good_before_they_are_changed():
    assert flashmask_attention(**good()).shape == [BATCH, LENGTH, HEADS, HEAD_DIM]


@pytest.mark.parametrize(
    ("changes", "error", "texts"), [r[1:] for r in BAD], ids=[r[0] for r in BAD]
)
def test_bad_argument_is_refused_in_words(changes, error, texts):
    with pytest.raises(error) as raised:
        flashmask_attention(**{**good(), **changes()})
    assert raised.type is error, f"{raised.type.__name__}: {raised.value}"
    missing = [text for text in texts if text not in str(raised.value)]
    assert not missing, str(raised.value)


def test_a_good_call_works_after_every_refusal():
    before = flashmask_attention(**good()).numpy()
    for _, changes, _, _ in BAD:
        try:
            flashmask_attention(**{**good(), **changes()})
        except Exception:
            continue  # which one is the business of the test above
    np.testing.assert_array_equal(flashmask_attention(**good()).numpy(), before)


def test_only_five_arguments_may_come_by_position():
    with pytest.raises(TypeError, match="positional"):
        flashmask_attention(query(), key(), key(), None, True, 0.0)


def test_missing_tensors_are_refused():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
        flashmask_attention(query(), key())


# The operator itself, called without the checks of Python.

RAW = {"softmax_scale": 1.0, "causal": True, "window_left": -1, "window_right": -1}
BAD_RAW = [
    ("query rank 3", lambda: {"query": query()[0]}, "query must have 4 axes"),
    ("query rank 1", lambda: {"query": paddle.ones([16])}, "query must have 4 axes"),
    ("query unset", lambda: {"query": paddle.Tensor()}, "query must have 4 axes"),
    ("key rank 2", lambda: {"key": paddle.ones([5, 16])}, "key must have 4 axes"),
    ("value rank 2", lambda: {"value": paddle.ones([5, 16])}, "value must have shape"),
    ("batch", lambda: {"query": query(batch=3)}, "key must have shape"),
    ("head_dim", lambda: {"query": query(head_dim=8)}, "key must have shape"),
    ("value", lambda: {"value": key(length=4)}, "value must have shape [2, 5, 2, 16]"),
    ("heads", lambda: {"query": made(3)}, "multiple of those of key; got 3 and 2"),
    ("no heads", lambda: {"key": made(0), "value": made(0)}, "multiple of those of key"),
    (
        "too long",
        lambda: all_of([0, 2**31 - 2**13 + 1, 1, 16]),
        "sequences must be at most 2147475456 long; got 2147475457 and 2147475457",
    ),
    (
        "too many heads",
        lambda: all_of([0, 1, 2**31, 16]),
        "batch times heads must be at most 2147483647; got query [0, 1, 2147483648, 16]",
    ),
    (
        "head_dim 12",
        lambda: all_made(head_dim=12),
        "no kernel for the CPU, dtype float32 and head_dim 12",
    ),
    (
        "head_dim 264",
        lambda: all_made(head_dim=264),
        "no kernel for the CPU, dtype float32 and head_dim 264",
    ),
    (
        "head_dim 0",
        lambda: all_made(head_dim=0),
        "no kernel for the CPU, dtype float32 and head_dim 0",
    ),
    ("float64", lambda: all_made(dtype="float64"), "must be float32, float16 or bfloat16"),
    ("mixed", lambda: {"key": key(dtype="float16")}, "one dtype; got float32, float16 and"),
    ("rows int64", lambda: {NAME: rows(dtype=np.int64)}, "must be int32; got int64"),
    ("rows float", lambda: {NAME: rows(dtype=np.float32)}, "must be int32; got float32"),
    ("rows rank", lambda: {NAME: rows()[0]}, "must be [2, 1|2|4, 5, width]"),
    ("rows batch", lambda: {NAME: rows(batch=1)}, "got [1, 1, 5, 1]"),
    ("rows heads", lambda: {NAME: rows(heads=3)}, "got [2, 3, 5, 1]"),
    ("rows length", lambda: {NAME: rows(length=4)}, "got [2, 1, 4, 1]"),
    ("rows width 3", lambda: {NAME: rows(width=3)}, "width 1 or 2 with causal"),
    ("no rows", lambda: {NAME: rows(heads=0)}, "5, width]; got a tensor without elements"),
    ("rows width 1", lambda: {"causal": False}, "width 2 or 4 without causal"),
    ("rows and window", lambda: {"window_left": 3}, "window cannot be combined"),
]


def call_raw(changes: dict):
    arguments = {**good(), **RAW, **changes}
    if isinstance(arguments[NAME], np.ndarray):
        arguments[NAME] = paddle.to_tensor(arguments[NAME])
    names = ("query", "key", "value", NAME)
    tensors = [arguments.pop(name) for name in names]
    return _ops.run(*tensors, **arguments)


def test_raw_arguments_of_the_table_are_good_before_they_are_changed():
    assert [result.shape for result in call_raw({})] == [[2, 5, 4, 16], [2, 4, 5]]


@pytest.mark.parametrize(("changes", "text"), [r[1:] for r in BAD_RAW], ids=[r[0] for r in BAD_RAW])
def test_raw_operator_raises_on_bad_tensors(changes, text):
    kind = NotImplementedError if text.startswith("no kernel") else ValueError
    with pytest.raises(kind, match="flashmask_attention: ") as raised:
        call_raw(changes())
    assert text in str(raised.value)


@pytest.mark.parametrize("width", [0, 2**62, 2**63 - 1])
def test_raw_operator_takes_any_window_width(width):
    out, _ = call_raw({NAME: None, "window_left": width, "window_right": width})
    assert np.isfinite(out.numpy()).all()


SPARSE_QUERY = """
import paddle
from paddle_flashmask import flashmask_attention

dense = paddle.ones([1, 4, 1, 16])
sparse = dense.to_sparse_coo(4)
for position in range(3):
    tensors = [dense, dense, dense]
    tensors[position] = sparse
    try:
        flashmask_attention(*tensors)
    except TypeError as error:
        print("refused:", error)
"""


def test_sparse_tensors_are_refused_in_words(tmp_path):
    process = run_python(SPARSE_QUERY, tmp_path)
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.count("refused:") == 3, process.stdout
