"""What of the PaddleNLP integration needs no PaddleNLP: inputs, data, redirection, messages."""

from __future__ import annotations

import dataclasses
import types
from functools import partial

import numpy as np
import paddle
import pytest
from support.processes import run_python

from paddle_flashmask import flashmask_attention
from paddle_flashmask.indices import to_dense
from paddle_flashmask.integrations import paddlenlp as integration
from paddle_flashmask.integrations.paddlenlp.arguments import flag_of
from paddle_flashmask.packing import pack_dpo, pack_rm, pack_sft

FIELD = "attn_mask_startend_row_indices"
SAMPLES = [([1, 2, 3], [1, 2, 3]), ([4, 5], [4, 5]), ([6, 7, 8], [6, 7, 8])]


def batch_of(**changes):
    batch = pack_sft(SAMPLES, seq_len=9, strategy="sequential").build([0])
    tensors = {name: paddle.to_tensor(values) for name, values in batch.items()}
    return {**tensors, **changes}


# Batches to inputs.


def test_on_hands_over_the_indices_as_the_mask():
    batch = batch_of()
    inputs = integration.model_inputs(batch, flash_mask=True)
    assert set(inputs) == (set(batch) - {FIELD}) | {"attention_mask"}
    assert inputs["attention_mask"].flatten().tolist() == [3, 3, 3, 5, 5, 8, 8, 8, 8]
    assert inputs["attention_mask"].dtype == paddle.int32
    assert FIELD in batch  # the caller's dict is as it was


def test_on_twice_is_on_once():
    inputs = integration.model_inputs(batch_of(), flash_mask=True)
    assert integration.model_inputs(inputs, flash_mask=True) == inputs


def test_off_refuses_indices_in_place_of_the_mask():
    inputs = integration.model_inputs(batch_of(), flash_mask=True)
    with pytest.raises(ValueError, match="must not be int32 of four axes with flash_mask=False"):
        integration.model_inputs(inputs, flash_mask=False)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_off_hands_over_the_dense_mask_of_the_same_meaning(width):
    numbers = np.tile(np.array([5, 7, 0, 2][:width], np.int32), (1, 1, 9, 1))
    batch = batch_of(**{FIELD: paddle.to_tensor(numbers)})
    mask = integration.model_inputs(batch, flash_mask=False)["attention_mask"]
    assert mask.dtype == paddle.bool
    assert (mask.numpy() == to_dense(numbers, causal=width != 4, seqlen_q=9)).all()


def test_off_leaves_a_batch_without_indices():
    batch = {"input_ids": paddle.ones([1, 3], "int64"), "attention_mask": paddle.ones([1, 3])}
    assert integration.model_inputs(batch, flash_mask=False) == batch


@pytest.mark.parametrize("flash_mask", [True, False])
@pytest.mark.parametrize("mask", [paddle.ones([1, 9], "int64"), paddle.to_tensor([[1] * 8 + [0]])])
def test_two_masks_are_refused(mask, flash_mask):
    with pytest.raises(ValueError, match=f"must have {FIELD} or attention_mask, not both"):
        integration.model_inputs(batch_of(attention_mask=mask), flash_mask=flash_mask)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({FIELD: None}, ValueError, f"flash_mask=True needs {FIELD} in the batch; got .*labels"),
        ({"position_ids": None}, ValueError, "flash_mask=True needs position_ids in the batch"),
        ({FIELD: np.zeros((1, 1, 9, 1), np.int32)}, TypeError, f"{FIELD} must be a paddle.Tensor"),
        ({FIELD: paddle.zeros([1, 1, 9, 1])}, TypeError, "must be int32 or int64; got paddle.flo"),
        ({FIELD: paddle.zeros([9], "int32")}, ValueError, r"must be \[B, S\].*got \[9\]"),
        ({FIELD: paddle.zeros([1, 1, 8, 1], "int32")}, ValueError, r"length of input_ids \[1, 9\]"),
        ({FIELD: paddle.zeros([2, 9], "int32")}, ValueError, r"batch and length of input_ids"),
    ],
)
def test_wrong_batches_are_named(changes, error, words):
    with pytest.raises(error, match=words):
        integration.model_inputs(batch_of(**changes), flash_mask=True)


def test_indices_in_place_of_the_mask_need_positions_too():
    batch = batch_of(attention_mask=paddle.full([1, 1, 9, 1], 9, "int32"))
    del batch[FIELD]
    assert integration.model_inputs(batch, flash_mask=True).keys() == batch.keys()
    del batch["position_ids"]
    with pytest.raises(ValueError, match="flash_mask=True needs position_ids in the batch"):
        integration.model_inputs(batch, flash_mask=True)


def test_several_mask_heads_have_no_dense_mask():
    batch = batch_of(**{FIELD: paddle.full([1, 2, 9, 1], 9, "int32")})
    assert integration.model_inputs(batch, flash_mask=True)["attention_mask"].shape[1] == 2
    with pytest.raises(ValueError, match="must have one mask head with flash_mask=False"):
        integration.model_inputs(batch, flash_mask=False)


# The flag.


def test_flag_is_off_by_default():
    assert not integration.FlashMaskArguments().flash_mask
    assert [field.name for field in dataclasses.fields(integration.FlashMaskArguments)] == [
        "flash_mask"
    ]


def test_arguments_of_their_own_win_over_the_training_arguments():
    training = types.SimpleNamespace(flash_mask=False)
    assert flag_of(integration.FlashMaskArguments(flash_mask=True), training)
    assert not flag_of(None, training)


# Data.


def test_rows_know_their_data_set():
    """A trainer has one collator for training and evaluation."""
    rows, others = (
        integration.RowDataset(pack_sft(SAMPLES, seq_len=size, strategy="sequential"))
        for size in (5, 8)
    )
    assert (len(rows), len(others)) == (2, 1)
    assert integration.collate_rows([rows[1], rows[0]])["input_ids"][:, 0].tolist() == [6, 1]
    assert integration.collate_rows([others[0]])["input_ids"].shape == (1, 8)
    with pytest.raises(ValueError, match="must come from one RowDataset"):
        integration.collate_rows([rows[0], others[0]])
    with pytest.raises(TypeError, match="takes rows of a RowDataset; got int"):
        integration.collate_rows([0])
    with pytest.raises(IndexError, match=r"row must be in \[0, 2\); got 2"):
        rows[2]


def test_rows_go_through_paddles_data_loader():
    rows = integration.RowDataset(pack_sft(SAMPLES, seq_len=5, strategy="sequential"))
    loader = paddle.io.DataLoader(rows, batch_size=2, collate_fn=integration.collate_rows)
    (batch,) = list(loader)
    assert batch[FIELD].dtype == paddle.int32
    assert batch[FIELD].shape == [2, 1, 5, 1]


@pytest.mark.parametrize("as_dict", [True, False])
def test_collator_packs_what_a_batch_has(as_dict):
    collate = integration.PackingCollator(partial(pack_sft, seq_len=8))
    samples = [
        {"input_ids": ids, "labels": labels, "other": 1} if as_dict else (ids, labels)
        for ids, labels in SAMPLES
    ]
    assert (collate(samples)["input_ids"] > 0).sum() == 8


def test_collator_takes_ranked_answers():
    sample = {"prompt_ids": [1, 2], "answers": [[3], [4, 5], [6]], "ranks": [2, 1, 2]}
    batch = integration.PackingCollator(partial(pack_dpo, seq_len=8))([sample])
    assert batch["pairs"].tolist() == [[1, 0], [1, 2]]
    del sample["ranks"]
    batch = integration.PackingCollator(partial(pack_rm, seq_len=8))([sample])
    assert batch["pairs"].tolist() == [[0, 1], [0, 2], [1, 2]]


@pytest.mark.parametrize("sample", [{"input_ids": [1]}, {"labels": [1]}, {}, {"prompt_ids": [1]}])
def test_collator_names_missing_fields(sample):
    collate = integration.PackingCollator(partial(pack_sft, seq_len=8))
    with pytest.raises(ValueError, match="a sample must have input_ids and labels or prompt_ids"):
        collate([sample])


def test_collator_says_when_nothing_is_left():
    collate = integration.PackingCollator(partial(pack_sft, seq_len=2, overlong="drop"))
    with pytest.raises(ValueError, match="no row is left: all 2 samples were dropped"):
        collate([SAMPLES[0], SAMPLES[2]])


# PaddleNLP 3: a stand-in with its call.


def stand_in(query, key, value, indices):
    """Attention as PaddleNLP 3 calls it, with its index form [B, 1, S]."""
    return paddle.nn.functional.flashmask_attention(
        query, key, value, startend_row_indices=indices.unsqueeze(-1), causal=True
    )


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_redirected_calls_run_our_operator(dtype, rng):
    query = paddle.to_tensor(rng.standard_normal((1, 9, 2, 8)), "float32")
    indices = batch_of()[FIELD]
    expected = flashmask_attention(query, query, query, indices, causal=True)
    original = paddle.nn.functional.flashmask_attention
    with integration.redirect_functional() as redirection:
        found = stand_in(query, query, query, indices[..., 0].astype(dtype))
        assert isinstance(redirection, integration.Redirection)
    assert found.numpy().tobytes() == expected.numpy().tobytes()
    assert paddle.nn.functional.flashmask_attention is original


def test_redirected_calls_keep_their_options_and_checks():
    query = paddle.ones([1, 3, 1, 8])
    with integration.redirect_functional():
        call = paddle.nn.functional.flashmask_attention
        _, lse = call(query, query, query, causal=True, return_softmax_lse=True)
        assert lse.shape == [1, 1, 3]
        with pytest.raises(NotImplementedError, match="dropout while training"):
            call(query, query, query, causal=True, dropout=0.1)
        with pytest.raises(TypeError, match=r"must be int32 or int64; got paddle\.float32"):
            call(query, query, query, paddle.ones([1, 1, 3, 1]))


def test_redirecting_twice_is_refused():
    with (
        integration.redirect_functional(),
        pytest.raises(RuntimeError, match="is redirected already"),
    ):
        integration.redirect_functional()
    integration.redirect_functional().undo()


def test_a_paddle_without_the_function_gets_it_and_loses_it_again(monkeypatch):
    monkeypatch.delattr(paddle.nn.functional, "flashmask_attention")
    with integration.redirect_functional():
        assert hasattr(paddle.nn.functional, "flashmask_attention")
    assert not hasattr(paddle.nn.functional, "flashmask_attention")


# Without PaddleNLP.

WITHOUT = """
import sys
sys.modules["paddlenlp"] = sys.modules["paddlenlp.trainer"] = None
import paddle_flashmask
assert "paddle" not in sys.modules
import paddle
from paddle_flashmask.integrations import paddlenlp
try:
    paddlenlp.enable(paddle.nn.Linear(2, 2))
except NotImplementedError as error:
    print(error)
try:
    from paddle_flashmask.integrations.paddlenlp import SftTrainer
except ImportError as error:
    print(error)
try:
    paddlenlp.Nothing
except AttributeError as error:
    print(error)
"""


def test_without_paddlenlp_the_error_says_what_to_install(tmp_path):
    done = run_python(WITHOUT, tmp_path)
    assert done.returncode == 0, done.stderr
    no_seam, missing, unknown = done.stdout.splitlines()
    assert no_seam.startswith("flash_mask has no seam for Linear; it has for Llama, Mixtral")
    assert missing.startswith("paddle_flashmask.integrations.paddlenlp needs PaddleNLP 2.8.1")
    assert 'pip install --no-build-isolation ".[paddlenlp]"' in missing
    assert unknown.endswith("has no attribute 'Nothing'")
