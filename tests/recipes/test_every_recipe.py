"""Every module of the recipes folder: builder, rule, examples and picture say the same."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recipe_modules import (
    assert_mask_equals_rule,
    build,
    builder_to_dense,
    recipe_module,
    recipe_names,
)

import paddle_flashmask.recipes
from paddle_flashmask import indices

EXAMPLES = [
    pytest.param(name, arguments, id=f"{name}-{example}")
    for name in recipe_names()
    for example, arguments in recipe_module(name).EXAMPLES.items()
]

LARGEST_PADDING = 4
counts = st.integers(0, 5)
row_lengths = st.integers(0, 12)
widths = st.integers(0, 14)


def with_padding(arguments, tokens):
    padded = st.none() | st.integers(tokens, tokens + LARGEST_PADDING)
    return padded.map(lambda seq_len: {**arguments, "seq_len": seq_len})


def of_lengths():
    return st.lists(counts, max_size=5).flatmap(
        lambda lengths: with_padding({"lengths": lengths}, sum(lengths))
    )


def of_groups():
    pieces = st.integers(1, 3)
    groups = st.lists(st.tuples(pieces, st.lists(pieces, min_size=1, max_size=3)), max_size=3)
    return groups.flatmap(
        lambda drawn: with_padding({"groups": drawn}, sum(q + sum(a) for q, a in drawn))
    )


@st.composite
def of_prefixed_lengths(draw):
    documents = draw(st.lists(counts, max_size=4))
    prefixes = [draw(st.integers(0, length)) for length in documents]
    arguments = {"lengths": documents, "prefix_lengths": prefixes}
    return draw(with_padding(arguments, sum(documents)))


@st.composite
def of_spans(draw):
    seq_len = draw(row_lengths)
    cuts = sorted(draw(st.lists(st.integers(0, seq_len), max_size=6)))
    spans = list(zip(cuts[0::2], cuts[1::2], strict=False))
    return {"seq_len": seq_len, "spans": draw(st.permutations(spans))}


@st.composite
def of_eviction_rows(draw):
    seq_len = draw(row_lengths)
    heads = draw(st.integers(1, 3))
    rows = [[draw(st.integers(j + 1, seq_len)) for j in range(seq_len)] for _ in range(heads)]
    return {"seq_len": seq_len, "eviction_rows": rows, "num_heads_mask": heads}


of_seed = st.fixed_dictionaries(
    {"seq_len": row_lengths, "seed": st.integers(0, 99), "num_heads_mask": st.integers(1, 3)}
)
of_window = st.fixed_dictionaries({"seq_len": row_lengths, "window": st.integers(1, 14)})
of_widths = st.fixed_dictionaries({"seq_len": row_lengths, "left": widths, "right": widths})
of_part = row_lengths.flatmap(
    lambda seq_len: st.tuples(st.just(seq_len), st.integers(0, seq_len), widths, widths)
)

DRAWN_ARGUMENTS = {
    "causal": st.fixed_dictionaries({"seq_len": row_lengths}),
    "causal_blockwise": of_lengths(),
    "causal_document": of_lengths(),
    "document": of_lengths(),
    "dpo": of_groups(),
    "full": st.fixed_dictionaries({"seq_len": row_lengths}),
    "global_sliding_window": of_part.map(
        lambda part: dict(zip(("seq_len", "num_global", "left", "right"), part, strict=True))
    ),
    "prefix_lm_causal": of_part.map(lambda part: {"seq_len": part[0], "prefix_length": part[1]}),
    "prefix_lm_document": of_prefixed_lengths(),
    "qk_sparse": of_spans(),
    "random_eviction": of_eviction_rows() | of_seed,
    "rm": of_groups(),
    "sft": of_lengths(),
    "share_question": of_groups(),
    "sliding_window": of_window | of_widths,
}


@pytest.mark.parametrize("name", recipe_names())
def test_module_holds_builder_rule_and_examples(name):
    module = recipe_module(name)
    assert inspect.isfunction(getattr(module, name))
    assert list(inspect.signature(module.is_visible).parameters)[:2] == ["row", "column"]
    assert module.EXAMPLES
    assert sorted(module.__all__) == sorted(["EXAMPLES", "is_visible", name])


@pytest.mark.parametrize("name", recipe_names())
def test_package_exports_builder_and_not_module(name):
    module = recipe_module(name)
    assert getattr(paddle_flashmask.recipes, name) is getattr(module, name)
    assert name in paddle_flashmask.recipes.__all__


def test_all_fifteen_recipes_are_there():
    assert set(DRAWN_ARGUMENTS) <= set(recipe_names())


@pytest.mark.parametrize(("name", "arguments"), EXAMPLES)
def test_builder_equals_rule_on_example(name, arguments):
    assert_mask_equals_rule(name, build(name, arguments), arguments)


@pytest.mark.parametrize("name", sorted(DRAWN_ARGUMENTS))
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_builder_equals_rule_on_drawn_arguments(name, data):
    arguments = data.draw(DRAWN_ARGUMENTS[name])
    assert_mask_equals_rule(name, build(name, arguments), arguments)


@pytest.mark.parametrize(("name", "arguments"), EXAMPLES)
def test_indices_have_the_form_the_op_takes(name, arguments):
    mask = build(name, arguments)
    indices.check(mask.startend_row_indices, causal=mask.causal, batch=1)
    assert isinstance(mask, indices.ColumnMask)
    assert isinstance(mask.causal, bool)
    assert mask.startend_row_indices.flags.c_contiguous
    seq_len = mask.startend_row_indices.shape[2]
    assert mask.startend_row_indices.min(initial=0) >= 0
    assert mask.startend_row_indices.max(initial=0) <= seq_len


@pytest.mark.parametrize("name", recipe_names())
def test_width_is_the_same_for_all_examples_of_one_flag(name):
    masks = [build(name, arguments) for arguments in recipe_module(name).EXAMPLES.values()]
    forms = {(mask.causal, mask.startend_row_indices.shape[3]) for mask in masks}
    assert len({causal for causal, _ in forms}) == len(forms)


@pytest.mark.parametrize("name", recipe_names())
def test_no_narrower_form_says_the_first_example(name):
    mask = build(name, next(iter(recipe_module(name).EXAMPLES.values())))
    seq_len = mask.startend_row_indices.shape[2]
    narrow = indices.narrow(mask.startend_row_indices, causal=mask.causal, seqlen_q=seq_len)
    assert narrow.startend_row_indices.shape == mask.startend_row_indices.shape
    assert narrow.causal == mask.causal


@pytest.mark.parametrize("name", recipe_names())
def test_comparison_catches_each_number_shifted_by_one(name):
    arguments = next(iter(recipe_module(name).EXAMPLES.values()))
    mask = build(name, arguments)
    numbers_caught = set()
    for number, column in np.ndindex(*mask.startend_row_indices.shape[:1:-1]):
        for shift in (-1, 1):
            shifted = mask.startend_row_indices.copy()
            shifted[0, 0, column, number] += shift
            mutant = indices.ColumnMask(shifted, causal=mask.causal)
            if (builder_to_dense(mutant) == builder_to_dense(mask)).all():
                continue
            with pytest.raises(AssertionError):
                assert_mask_equals_rule(name, mutant, arguments)
            numbers_caught.add(number)
    assert numbers_caught == set(range(mask.startend_row_indices.shape[3]))


@pytest.mark.parametrize("name", recipe_names())
def test_picture_in_docstring_shows_first_example(name):
    picture = re.findall(r"^    ([#.](?: [#.])*)$", recipe_module(name).__doc__, re.MULTILINE)
    mask = build(name, next(iter(recipe_module(name).EXAMPLES.values())))
    drawn = [" ".join("#" if seen else "." for seen in row) for row in builder_to_dense(mask)[0]]
    assert picture == drawn


def to_numpy(key, value, dtype):
    if key in {"lengths", "prefix_lengths", "eviction_rows"}:
        return np.array(value, dtype)
    if key == "spans":
        return np.array(value, dtype).reshape(-1, 2)
    if key == "groups":
        return [(dtype(question), np.array(answers, dtype)) for question, answers in value]
    return None if value is None else dtype(value)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
@pytest.mark.parametrize(("name", "arguments"), EXAMPLES)
def test_numpy_arguments_give_the_same_as_python_ones(name, arguments, dtype):
    converted = {key: to_numpy(key, value, dtype) for key, value in arguments.items()}
    np.testing.assert_array_equal(
        build(name, converted).startend_row_indices, build(name, arguments).startend_row_indices
    )
