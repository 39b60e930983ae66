import numpy as np
import paddle
import pytest
from decoder import Decoder, DecoderConfig, RewardModel

from paddle_flashmask import losses
from paddle_flashmask.indices import to_dense
from paddle_flashmask.packing import pack_sft
from paddle_flashmask.reference import dense_attention

CONFIG = DecoderConfig(vocab_size=23, hidden_size=16, ffn_size=24)


@pytest.fixture(scope="module")
def model():
    paddle.seed(0)
    return Decoder(CONFIG, dense_attention)


def logits_of(model, batch):
    indices = batch["attn_mask_startend_row_indices"]
    mask = to_dense(indices, causal=True, seqlen_q=indices.shape[2])
    return model(
        paddle.to_tensor(batch["input_ids"]),
        paddle.to_tensor(batch["position_ids"]),
        paddle.to_tensor(mask),
    )


def samples_of(*lengths):
    random = np.random.default_rng(1)
    ids = [random.integers(1, 23, length) for length in lengths]
    return [(tokens, tokens) for tokens in ids]


def test_packed_logits_equal_solo_runs(model):
    samples = samples_of(5, 3, 1, 7)
    packed = pack_sft(samples, seq_len=18)
    found = packed.unpack(logits_of(model, packed.build([0])).numpy(), rows=[0])
    for number, sample in enumerate(samples):
        alone = pack_sft([sample], seq_len=len(sample[0]))
        logits = logits_of(model, alone.build([0])).numpy()[0]
        assert np.abs(logits).max() > 0.01
        np.testing.assert_allclose(found[number], logits, rtol=0, atol=1e-6)


def test_packed_loss_equals_the_sum_of_solo_runs(model):
    samples = samples_of(5, 3, 7)
    packed = pack_sft(samples, seq_len=18)
    rows = [packed, *(pack_sft([sample], seq_len=len(sample[0])) for sample in samples)]
    sums = []
    for row in rows:
        batch = row.build([0])
        loss = losses.sft_loss(logits_of(model, batch), paddle.to_tensor(batch["labels"]))
        sums.append(float(loss) * row.statistics.trained_tokens)
    assert sums[0] == pytest.approx(sum(sums[1:]), rel=1e-6)


def test_logits_follow_position_ids(model):
    batch = pack_sft(samples_of(6), seq_len=6).build([0])
    stretched = {**batch, "position_ids": 3 * batch["position_ids"]}
    shifted = {**batch, "position_ids": 3 + batch["position_ids"]}
    logits = logits_of(model, batch).numpy()
    assert np.abs(logits_of(model, stretched).numpy() - logits).max() > 1e-4
    assert np.abs(logits_of(model, shifted).numpy() - logits).max() < 1e-6  # rotation is relative


def test_every_weight_gets_a_gradient(model):
    batch = pack_sft(samples_of(6, 4), seq_len=12).build([0])
    losses.sft_loss(logits_of(model, batch), paddle.to_tensor(batch["labels"])).backward()
    silent = [name for name, weight in model.named_parameters() if not weight.grad.abs().sum() > 0]
    model.clear_gradients()
    assert silent == []


def test_reward_model_scores_every_position_and_trains_the_decoder(model):
    batch = pack_sft(samples_of(6, 4), seq_len=12).build([0])
    scores = logits_of(RewardModel(model), batch)
    assert scores.shape == [1, 12]
    scores[0, 3].backward()
    touched = model.embedding.weight.grad.abs().sum(axis=1) > 0
    model.clear_gradients()
    assert set(np.flatnonzero(touched.numpy())) <= set(batch["input_ids"][0, :4].tolist())
    assert touched.any()
