"""PaddleFormers' own DPO data set: packed logits equal those of single answers."""

from __future__ import annotations

import types
import warnings

import numpy as np
import paddle
import pytest
import tiny_model
from paddleformers.datasets.collate import dpo_collate_fn
from paddleformers.datasets.loader import create_dataset
from paddleformers.transformers import AutoTokenizer, LlamaForCausalLM
from samples import write_jsonl
from support.formers import logits_of
from support.tolerance import LOGITS

from paddle_flashmask.integrations import paddleformers
from paddle_flashmask.integrations.paddleformers import dpo

SEQ_LEN = 128
FIELD = "attn_mask_startend_row_indices"
ANSWERS = [
    ("What is two and two?", "Four.", "It may be five."),
    ("Name a colour.", "Blue, as the sky is.", "No."),
    ("One token?", "y", "n"),
    ("Who?", "Nobody knows it yet.", "x"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("preferences")
    records = [
        {"src": [asked], "tgt": [], "response": [[better], [worse]], "sort": [1, 0]}
        for asked, better, worse in ANSWERS
    ]
    write_jsonl(made / "train.jsonl", records)
    texts = [text for texts in ANSWERS for text in texts]
    tiny_model.save_model(made / "model", texts, max_seq_len=SEQ_LEN, seed=0)
    return made


def data_set(folder, **changes):
    config = {
        "task_group": str(folder / "train.jsonl"),
        "task_group_prob": "1.0",
        "sub_dataset_type": "erniekit",
        "stage": "DPO",
        "tokenizer": AutoTokenizer.from_pretrained(str(folder / "model")),
        "max_seq_len": SEQ_LEN,
        "random_seed": 0,
        "num_replicas": 1,
        "rank": 0,
        "num_samples_each_epoch": 100,
        "random_shuffle": False,
        "greedy_intokens": False,
        "packing": True,
        "mix_strategy": "concat",
        "encode_one_turn": True,
        "template_backend": "jinja",
        "dataset_type": "iterable",
        "use_filtered_label_loss": False,
        "is_valid": True,
        "split_multi_turn": False,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = create_dataset(**config | changes)
    return made, [str(one.message) for one in caught if "last prompt token" in str(one.message)]


def largest_difference_to_single_answers(folder, sequences):
    model = LlamaForCausalLM.from_pretrained(
        str(folder / "model"), _attn_implementation=paddleformers.NAME
    )
    arguments = types.SimpleNamespace(
        context_parallel_size=1, sequence_parallel=False, tensor_model_parallel_size=1, fp8=None
    )
    batch = dpo_collate_fn([sequences], None, arguments, max_seq_len=SEQ_LEN)
    packed = logits_of(
        model,
        **{name: paddle.to_tensor(batch[name]) for name in ("input_ids", "position_ids", FIELD)},
    )[0]
    worst, start = 0.0, 0
    for sequence in sequences:
        positions, ids = np.array(sequence.position_ids), np.array(sequence.token_ids)
        branch = int(np.flatnonzero(np.diff(positions) <= 0)[0]) + 1
        first = positions[branch]
        for rows, tokens in (
            (np.arange(branch), ids[:branch]),
            (np.arange(branch, len(ids)), np.r_[ids[:first], ids[branch:]]),
        ):
            alone = logits_of(model, input_ids=paddle.to_tensor(tokens[None]))[0][-len(rows) :]
            worst = max(worst, np.abs(packed[start + rows] - alone).max())
        start += len(ids)
    return worst


def packs(folder):
    return [sequences for sequences in data_set(folder)[0] if len(sequences) > 1]


def test_packed_logits_equal_those_of_single_answers(folder):
    found = packs(folder)
    assert sum(map(len, found)) >= 3
    for sequences in found:
        assert largest_difference_to_single_answers(folder, sequences) <= LOGITS


def test_built_in_indices_let_the_rejected_answer_see_a_token_twice(folder):
    paddleformers.register(dpo_indices="built-in")
    worst = max(largest_difference_to_single_answers(folder, pack) for pack in packs(folder))
    assert worst > 100 * LOGITS


def test_corrected_indices_mean_its_own_dense_mask(folder):
    from paddle_flashmask import indices

    given = [one for pack in data_set(folder)[0] for one in pack]
    dense, _ = data_set(folder, use_attn_mask_startend_row_indices=False)
    for ours, theirs in zip(given, (one for pack in dense for one in pack), strict=True):
        field = np.array(getattr(ours, FIELD), np.int32)[None, None, :, None]
        visible = indices.to_dense(field, causal=True, seqlen_q=field.shape[2])[0, 0]
        assert np.array_equal(visible, theirs.attention_mask)


@pytest.mark.parametrize("kind", ["iterable", "map"])
def test_the_fault_is_named_once(folder, kind, monkeypatch):
    monkeypatch.setattr(dpo, "_has_warned", False)
    changes = {"dataset_type": kind}
    assert [len(data_set(folder, **changes)[1]) for _ in range(3)] == [1, 0, 0]
    monkeypatch.setattr(dpo, "_has_warned", False)
    paddleformers.register(dpo_indices="built-in")
    assert data_set(folder, **changes)[1] == []


def test_indices_of_another_kind_are_an_error_and_not_tried_again(folder, monkeypatch):
    """PaddleFormers swallows what is raised while a sample is made, and takes it again."""

    def other(index_list, position_ids):
        raise ValueError("of another kind")

    monkeypatch.setattr(dpo, "corrected_index_list", other)
    with pytest.raises(ValueError, match="of another kind"):
        list(data_set(folder)[0])
