"""The check of sampled rows and keys: passes what is right, catches what is not."""

import numpy as np
import pytest
from harness import check, exact, masks
from harness.cells import BACKWARD, FORWARD
from providers.interface import gaussian_inputs
from support import dense, tolerance
from support.fake_provider import FakeProvider, cell


def arrays_of(provider_class, shape, sample, tmp_path):
    from harness.session import Session

    session = Session(provider_class)
    fields = {**vars(shape)}
    session.handle({"do": "prepare", "cell": fields})
    path = tmp_path / "sample.npz"
    places = {"rows": sample.rows.tolist(), "columns": sample.columns.tolist()}
    session.handle({"do": "sample", "heads": sample.heads, "path": str(path), **places})
    with np.load(path) as file:
        return dict(file)


def judged(provider_class, shape, tmp_path):
    mask = masks.build(shape.mask, shape.seqlen)
    sample = check.choose(shape, mask)
    arrays = arrays_of(provider_class, shape, sample, tmp_path)
    reference = check.Reference(shape, mask, sample, arrays)
    return {name: reference.judge(arrays, name) for name in (FORWARD, BACKWARD)}, sample


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("seqlen", [65, 300])
@pytest.mark.parametrize("mask", ["causal", "random_eviction", "sft:lengths=[30,20]"])
def test_a_right_provider_passes(dtype, seqlen, mask, tmp_path):
    verdicts, _ = judged(FakeProvider, cell(dtype=dtype, seqlen=seqlen, mask=mask), tmp_path)
    assert all(verdict.is_right for verdict in verdicts.values()), verdicts


@pytest.mark.parametrize("wrong", ["out", "grad_query", "grad_key", "grad_value"])
@pytest.mark.parametrize("seqlen", [65, 300])
def test_one_wrong_row_of_the_sample_is_caught(wrong, seqlen, tmp_path):
    class Wrong(FakeProvider):
        pass

    Wrong.wrong = wrong
    verdicts, sample = judged(Wrong, cell(seqlen=seqlen), tmp_path)
    assert seqlen - 1 in sample.rows
    assert seqlen - 1 in sample.columns
    direction = FORWARD if wrong == "out" else BACKWARD
    assert not verdicts[direction].is_right
    assert verdicts[direction].array == wrong


def test_a_mask_off_by_one_column_is_caught_in_bfloat16(tmp_path):
    class Wrong(FakeProvider):
        def build_mask(self, mask):
            super().build_mask(mask)
            self.seen = self.seen & (np.arange(mask.seqlen) != 0)

    verdicts, _ = judged(Wrong, cell(dtype="bfloat16", mask="causal"), tmp_path)
    assert not any(verdict.is_right for verdict in verdicts.values())


@pytest.mark.parametrize("name", ["out", "grad_query", "grad_key", "grad_value"])
def test_nan_is_wrong_and_hides_behind_no_other_array(name, tmp_path):
    class Wrong(FakeProvider):
        wrong, factor = name, np.nan

    verdicts, _ = judged(Wrong, cell(), tmp_path)
    direction = FORWARD if name == "out" else BACKWARD
    assert verdicts.pop(direction).array == name
    assert all(verdict.is_right for verdict in verdicts.values())


@pytest.mark.parametrize("dtype", sorted(exact.ROUNDINGS))
def test_the_error_allowed_is_that_of_the_tests_of_the_package(dtype, tmp_path):
    shape = cell(dtype=dtype, seqlen=65, num_heads_k=4)
    query, key, value, _ = gaussian_inputs(shape).values()
    seen = masks.build(shape.mask, shape.seqlen).seen(np.arange(shape.seqlen))[None, None]
    right = dense.attention(query, key, value, seen)
    coarse = dense.attention(query, key, value, seen, rounded=dense.ROUNDINGS[dtype])
    verdicts, _ = judged(FakeProvider, shape, tmp_path)
    allowed = tolerance.allowed_error(right.out, coarse.out, dtype)
    times_dense = 2 * np.abs(coarse.out - right.out).max() if dtype == "float32" else 0.0
    assert verdicts[FORWARD].allowed == pytest.approx(allowed + times_dense, rel=1e-9)


@pytest.mark.parametrize("name", sorted(exact.ROUNDINGS))
def test_exact_rows_and_keys_are_those_of_the_dense_definition(name, rng):
    shape = cell(batch=1, num_heads=1, num_heads_k=1, dtype=name, mask="qk_sparse", seqlen=130)
    mask = masks.build(shape.mask, shape.seqlen)
    head = exact.Head(*rng.standard_normal((4, shape.seqlen, shape.head_dim)))
    query, key, value, grad_out = (array[None, :, None] for array in head)
    seen = mask.seen(np.arange(shape.seqlen))[None, None]
    right = dense.attention(query, key, value, seen, grad_out=grad_out)
    places = np.array([0, 1, 64, 129])
    rows = exact.of_rows(head, mask, places)
    columns = exact.of_columns(head, mask, places, exact.row_statistics(head, mask))
    for mine, theirs in [
        (rows.out, right.out),
        (rows.grad_query, right.grad_query),
        (columns[0], right.grad_key),
        (columns[1], right.grad_value),
    ]:
        np.testing.assert_allclose(mine, theirs[0, places, 0], rtol=1e-10, atol=1e-12)
    halves = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11])
    numbers = np.concatenate([rng.standard_normal(1000), halves])
    assert np.array_equal(exact.ROUNDINGS[name](numbers), dense.ROUNDINGS[name](numbers))
