"""The operator inside Paddle: graphs, saved models, gradients, amp; and the kernel's counters."""

from __future__ import annotations

import json

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle.distributed.fleet.utils import recompute
from paddle.static import InputSpec
from support import calls, cases, tolerance
from support.cases import TILE, AttentionCase, Mask
from support.processes import run_python

import paddle_flashmask
from paddle_flashmask import _ops, attention, flashmask_attention, indices

HEAD_DIM = 16
ISAS = ("portable", "avx2", "avx512", "avx512_bf16")
ISA_RULE = "must be auto, portable, avx2, avx512 or avx512_bf16"

# Paddle's own backward of a graph asks for it.
pytestmark = pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface:UserWarning")


@pytest.fixture
def switches():
    """Put the switches of the kernel back after a test."""
    yield
    _ops.set_tile_skipping(True)
    _ops.set_cpu_isa("auto")


def make_sources(length: int = 70, *, grad: bool = False, dtype: str = "float32"):
    sources = [paddle.rand([2, length, heads, HEAD_DIM]) - 0.5 for heads in (4, 2, 2)]
    sources = [source.astype(dtype) for source in sources]
    for source in sources:
        source.stop_gradient = not grad
    return sources


def make_rows(length: int = 70) -> paddle.Tensor:
    ends = np.where(np.arange(length) < length // 2, length // 2, length)
    return paddle.to_tensor(np.tile(ends.astype(np.int32)[:, None], (2, 1, 1, 1)))


def same_bits(ours, others) -> bool:
    pairs = zip(ours, others, strict=True)
    return all(calls.to_numpy(a).tobytes() == calls.to_numpy(b).tobytes() for a, b in pairs)


# What a call returns.


def test_returns_a_bare_tensor_by_default():
    query, key, value = make_sources()
    out = flashmask_attention(query, key, value, causal=True)
    assert isinstance(out, paddle.Tensor)
    assert out.shape == query.shape


def test_returns_a_list_of_out_and_lse_when_asked():
    query, key, value = make_sources()
    results = flashmask_attention(query, key, value, causal=True, return_softmax_lse=True)
    assert isinstance(results, list)
    assert [result.shape for result in results] == [[2, 70, 4, HEAD_DIM], [2, 4, 70]]


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_lse_is_float32_for_every_dtype(dtype):
    _, lse = flashmask_attention(*make_sources(dtype=dtype), return_softmax_lse=True)
    assert lse.dtype == paddle.float32


def test_asking_for_lse_does_not_change_out():
    sources = make_sources()
    out, _ = flashmask_attention(*sources, causal=True, return_softmax_lse=True)
    assert same_bits([out], [flashmask_attention(*sources, causal=True)])


def test_takes_a_mask_unpacked_as_two_arguments():
    sources, rows = make_sources(), make_rows()
    mask = indices.ColumnMask(rows.numpy(), causal=True)
    by_name = flashmask_attention(*sources, startend_row_indices=rows, causal=True)
    assert same_bits([flashmask_attention(*sources, *mask)], [by_name])


def test_takes_a_mask_that_was_narrowed_or_lowered():
    sources, rows = make_sources(), make_rows().numpy()
    plain = flashmask_attention(*sources, rows, causal=True)
    lowered = indices.lower_causal(rows, seqlen_q=70)
    narrowed = indices.narrow(*lowered[:1], causal=lowered.causal, seqlen_q=70)
    assert same_bits([flashmask_attention(*sources, *lowered)], [plain])
    assert same_bits([flashmask_attention(*sources, *narrowed)], [plain])


def test_takes_numpy_booleans_and_numbers():
    sources = make_sources()
    plain = flashmask_attention(*sources, causal=True, window_size=3, softmax_scale=0.5)
    numpy = flashmask_attention(
        *sources, causal=np.bool_(True), window_size=np.int64(3), softmax_scale=np.float32(0.5)
    )
    assert same_bits([numpy], [plain])


@pytest.mark.parametrize("dropout", [0.0, 0, 0.5, 1.0])
def test_dropout_does_nothing_outside_training(dropout):
    sources = make_sources()
    plain = flashmask_attention(*sources, causal=True)
    assert same_bits(
        [flashmask_attention(*sources, causal=True, dropout=dropout, training=False)], [plain]
    )


def test_inputs_are_left_unchanged():
    sources, rows = make_sources(grad=True), make_rows()
    before = [source.numpy().copy() for source in (*sources, rows)]
    flashmask_attention(*sources, rows, causal=True).sum().backward()
    for source, old in zip((*sources, rows), before, strict=True):
        np.testing.assert_array_equal(source.numpy(), old)


# Gradients: who gets one, and what is kept for it.


@pytest.mark.parametrize("wanted", range(1, 8))
def test_only_inputs_that_want_a_gradient_get_one(wanted):
    everyone = make_sources(grad=True)
    flashmask_attention(*everyone, make_rows(), causal=True).square().sum().backward()
    some = [source.detach() for source in everyone]
    for i, source in enumerate(some):
        source.stop_gradient = not wanted >> i & 1
    flashmask_attention(*some, make_rows(), causal=True).square().sum().backward()
    for i, (source, full) in enumerate(zip(some, everyone, strict=True)):
        if wanted >> i & 1:
            assert same_bits([source.grad], [full.grad])
        else:
            assert source.grad is None


def test_output_wants_no_gradient_when_no_input_does():
    assert flashmask_attention(*make_sources(), causal=True).stop_gradient


def test_output_wants_no_gradient_under_no_grad():
    sources = make_sources(grad=True)
    with paddle.no_grad():
        out, lse = flashmask_attention(*sources, causal=True, return_softmax_lse=True)
    assert out.stop_gradient
    assert lse.stop_gradient


def allocated_bytes() -> int:
    return paddle.base.core.host_memory_stat_current_value("Allocated", 0)


def kept_bytes(grad_enabled: bool) -> int:
    """Bytes that stay allocated for the inputs after they are gone but the output is not."""
    sources = make_sources(512, grad=True)
    size = sum(source.size * 4 for source in sources)
    with paddle.set_grad_enabled(grad_enabled):
        out = flashmask_attention(*sources, causal=True)
    before = allocated_bytes()
    del sources
    freed = before - allocated_bytes()
    del out
    return size - freed


def test_nothing_is_kept_under_no_grad():
    assert kept_bytes(grad_enabled=False) <= 0


def test_inputs_are_kept_for_the_backward():
    assert kept_bytes(grad_enabled=True) > 0


def test_gradient_of_the_gradient_fails_in_words():
    sources = make_sources(grad=True)
    out = flashmask_attention(*sources, causal=True)
    gradient = paddle.grad([out.square().sum()], sources[:1], create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="a gradient of its gradient is not supported"):
        gradient.square().sum().backward()


def test_backward_twice_needs_the_graph_kept():
    sources = make_sources(grad=True)
    out = flashmask_attention(*sources, causal=True)
    first = paddle.grad([out.sum()], sources, retain_graph=True)
    assert same_bits(first, paddle.grad([out.sum()], sources))


def test_gradients_add_up_over_two_calls():
    sources = make_sources(grad=True)
    for _ in range(2):
        flashmask_attention(*sources, causal=True).sum().backward()
    twice = [source.grad.numpy() for source in sources]
    once = paddle.grad([flashmask_attention(*sources, causal=True).sum()], sources)
    for mine, gradient in zip(twice, once, strict=True):
        np.testing.assert_array_equal(mine, 2 * gradient.numpy())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recompute_gives_the_same_gradients(use_reentrant):
    sources, rows = make_sources(grad=True), make_rows()

    def block(query, key, value):
        return flashmask_attention(query * 2, key, value, rows, causal=True).square()

    plain = paddle.grad([block(*sources).sum()], sources)
    recompute(block, *sources, use_reentrant=use_reentrant).sum().backward()
    assert same_bits([source.grad for source in sources], plain)


# Graphs.


class AttentionLayer(paddle.nn.Layer):
    def __init__(self, causal: bool = True, **options):
        super().__init__()
        self.project = paddle.nn.Linear(HEAD_DIM, HEAD_DIM)
        self.causal = causal
        self.options = options

    def forward(self, query, key, value, rows=None):
        return flashmask_attention(
            self.project(query),
            key,
            value,
            rows,
            self.causal,
            return_softmax_lse=True,
            **self.options,
        )


def results_and_gradients(layer, sources, rows):
    out, lse = layer(*sources, rows)
    gradients = paddle.grad([out.square().sum() + lse.sum()], sources)
    return [out, lse, *gradients]


@pytest.mark.parametrize("full_graph", [True, False], ids=["full_graph", "sot"])
@pytest.mark.parametrize("options", [{}, {"softmax_scale": 0.1}], ids=["default", "scale"])
def test_static_graph_equals_eager_bit_for_bit(options, full_graph):
    layer = AttentionLayer(**options)
    eager = results_and_gradients(layer, make := make_sources(grad=True), make_rows())
    graph = paddle.jit.to_static(layer, full_graph=full_graph)
    for _ in range(2):
        assert same_bits(results_and_gradients(graph, make, make_rows()), eager)


@pytest.mark.parametrize("full_graph", [True, False], ids=["full_graph", "sot"])
def test_static_graph_with_a_window_equals_eager_bit_for_bit(full_graph):
    def attend(query, key, value):
        return flashmask_attention(query, key, value, causal=True, window_size=(5, 0))

    sources = make_sources()
    graph = paddle.jit.to_static(attend, full_graph=full_graph)
    assert same_bits([graph(*sources)], [attend(*sources)])


@pytest.mark.parametrize("full_graph", [True, False], ids=["full_graph", "sot"])
def test_static_graph_with_numpy_indices_equals_eager_bit_for_bit(full_graph):
    rows = make_rows().numpy()

    def attend(query, key, value):
        return flashmask_attention(query, key, value, rows, causal=True)

    sources = make_sources()
    graph = paddle.jit.to_static(attend, full_graph=full_graph)
    assert same_bits([graph(*sources)], [attend(*sources)])


def test_static_graph_passes_the_gradient_of_lse_alone():
    def attend(query, key, value):
        return flashmask_attention(query, key, value, causal=True, return_softmax_lse=True)[1]

    sources = make_sources(grad=True)
    graph = paddle.jit.to_static(attend, full_graph=True)
    ours = paddle.grad([graph(*sources).square().sum()], sources[:2])
    assert same_bits(ours, paddle.grad([attend(*sources).square().sum()], sources[:2]))


def test_static_graph_gives_a_gradient_to_value_alone():
    def attend(query, key, value):
        return flashmask_attention(query, key, value, causal=True)

    query, key, value = make_sources()
    value.stop_gradient = False
    graph = paddle.jit.to_static(attend, full_graph=True)
    ours = paddle.grad([graph(query, key, value).square().sum()], [value])
    assert same_bits(ours, paddle.grad([attend(query, key, value).square().sum()], [value]))


def specs(batch=None, length=None) -> list[InputSpec]:
    floats = [InputSpec([batch, length, heads, HEAD_DIM], "float32") for heads in (4, 2, 2)]
    return [*floats, InputSpec([batch, 1, length, 1], "int32")]


def test_static_graph_knows_shapes_and_dtypes():
    graph = paddle.jit.to_static(AttentionLayer(), input_spec=specs(), full_graph=True)
    out, lse = graph.forward.concrete_program.outputs
    assert list(out.shape) == [-1, -1, 4, HEAD_DIM]
    assert list(lse.shape) == [-1, 4, -1]
    assert "FLOAT32" in str(lse.dtype).upper()


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ([[None, None, None, 16]] * 3, "numbers of heads must be known"),
        ([[None, None, 2, None]] * 3, "head_dim must be known"),
        ([[None, 5, 4, 16], [None, 5, 3, 16], [None, 5, 3, 16]], "multiple of those of key"),
        ([[2, 5, 4, 16], [3, 5, 2, 16], [3, 5, 2, 16]], "one batch size"),
    ],
)
def test_static_graph_refuses_shapes_while_it_is_built(shapes, text):
    def attend(query, key, value):
        return flashmask_attention(query, key, value, causal=True)

    spec = [InputSpec(shape, "float32") for shape in shapes]
    graph = paddle.jit.to_static(attend, input_spec=spec, full_graph=True)
    with pytest.raises(Exception, match=text):
        _ = graph.concrete_program


WRONG_SIZES = """
import paddle
from paddle.static import InputSpec
from paddle_flashmask import flashmask_attention

def attend(query, rows):
    return flashmask_attention(query, query, query, rows, causal=True)

spec = [InputSpec([None, None, 1, 16]), InputSpec([None, 1, None, 1], "int32")]
graph = paddle.jit.to_static(attend, input_spec=spec, full_graph=True)
graph(paddle.ones([1, 4, 1, 16]), paddle.full([1, 1, 4, 1], 4, "int32"))
try:
    graph(paddle.ones([1, 4, 1, 16]), paddle.full([1, 1, 3, 1], 4, "int32"))
except Exception as error:
    print("refused:", error)
"""


def test_static_graph_refuses_wrong_sizes_when_it_runs(tmp_path):
    process = run_python(WRONG_SIZES, tmp_path)
    assert process.returncode == 0, process.stderr[-2000:]
    assert "startend_row_indices must" in process.stdout


LOAD_AND_RUN = """
import sys
import numpy as np
import paddle
import paddle_flashmask

folder, lengths = sys.argv[1], sys.argv[2:]
paddle_flashmask.load_ops()
model = paddle.jit.load(folder + "/model")
for length in lengths:
    given = np.load(f"{folder}/{length}.npz")
    results = model(*(paddle.to_tensor(given[f"arr_{i}"]) for i in range(4)))
    np.savez(f"{folder}/{length}.out.npz", *(result.numpy() for result in results))
"""


@pytest.mark.parametrize("causal", [True, False])
def test_saved_model_gives_the_same_bits_in_a_new_process(causal, tmp_path):
    layer = AttentionLayer(causal, softmax_scale=0.1)
    layer.eval()
    width = 1 if causal else 2
    spec = [*specs()[:3], InputSpec([None, 1, None, width], "int32")]
    paddle.jit.save(layer, str(tmp_path / "model"), input_spec=spec)
    expected = {}
    for batch, length in ((1, 5), (3, 9), (2, 70)):
        sources = [paddle.rand([batch, length, heads, HEAD_DIM]) for heads in (4, 2, 2)]
        rows = np.random.default_rng(length).integers(0, length, (batch, 1, length, width))
        given = [*sources, paddle.to_tensor(rows.astype(np.int32))]
        np.savez(tmp_path / f"{length}.npz", *(source.numpy() for source in given))
        expected[length] = [result.numpy().tobytes() for result in layer(*given)]
    process = run_python(LOAD_AND_RUN, tmp_path, str(tmp_path), *map(str, expected))
    assert process.returncode == 0, process.stderr[-2000:]
    for length, right in expected.items():
        found = np.load(tmp_path / f"{length}.out.npz")
        assert [found[f"arr_{i}"].tobytes() for i in range(2)] == right


def test_symbolic_gradient_reaches_parameters_of_a_trained_layer():
    layer = paddle.jit.to_static(AttentionLayer(), full_graph=True)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    losses = []
    sources, rows = make_sources(), make_rows()
    for _ in range(5):
        loss = layer(*sources, rows)[1].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0]


# Mixed precision. Paddle's auto_cast is off in eager mode on the CPU; in a static graph it is on.


def amp_graph(**options):
    def attend(query, key, value):
        with paddle.amp.auto_cast(**options):
            return flashmask_attention(query, key, value, causal=True, return_softmax_lse=True)

    return paddle.jit.to_static(attend, full_graph=True)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_auto_cast_in_a_graph_computes_in_the_amp_dtype(dtype, level):
    sources = make_sources()
    out, lse = amp_graph(dtype=dtype, level=level)(*sources)
    assert str(out.dtype).endswith(dtype)
    assert lse.dtype == paddle.float32
    cast = [source.astype(dtype) for source in sources]
    expected = flashmask_attention(*cast, causal=True, return_softmax_lse=True)
    assert same_bits([out, lse], expected)


def test_auto_cast_in_a_graph_returns_gradients_in_the_dtype_of_the_inputs():
    sources = make_sources(grad=True)
    out, _ = amp_graph(dtype="bfloat16")(*sources)
    gradients = paddle.grad([out.astype("float32").sum()], sources)
    assert {gradient.dtype for gradient in gradients} == {paddle.float32}


def test_auto_cast_in_a_graph_makes_mixed_inputs_one_dtype():
    query, key, value = make_sources()
    out, _ = amp_graph(dtype="bfloat16")(query.astype("bfloat16"), key, value)
    assert out.dtype == paddle.bfloat16


@pytest.mark.parametrize("name", sorted(attention.AMP_NAMES))
def test_custom_black_list_keeps_float32_in_a_graph(name):
    sources = make_sources()
    out, _ = amp_graph(dtype="bfloat16", custom_black_list={name})(*sources)
    assert same_bits([out], [flashmask_attention(*sources, causal=True)])


@pytest.fixture
def eager_amp(monkeypatch):
    """Eager auto_cast as on a device where Paddle lets it work."""

    def switch_on(dtype: str, black_list: frozenset[str] = frozenset()) -> None:
        monkeypatch.setattr(paddle, "is_autocast_enabled", lambda: True)
        monkeypatch.setattr(paddle, "get_autocast_dtype", lambda: dtype)
        monkeypatch.setattr(attention, "_amp_black_list", lambda: black_list)

    return switch_on


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_eager_auto_cast_computes_in_the_amp_dtype(dtype, eager_amp):
    sources = make_sources(grad=True)
    cast = [source.detach().astype(dtype) for source in sources]
    expected = flashmask_attention(*cast, causal=True)
    eager_amp(dtype)
    out = flashmask_attention(*sources, causal=True)
    assert same_bits([out], [expected])
    gradients = paddle.grad([out.astype("float32").sum()], sources)
    assert {gradient.dtype for gradient in gradients} == {paddle.float32}


def test_eager_auto_cast_makes_mixed_inputs_one_dtype(eager_amp):
    query, key, value = make_sources()
    eager_amp("bfloat16")
    assert flashmask_attention(query.astype("bfloat16"), key, value).dtype == paddle.bfloat16


def test_eager_black_list_casts_to_float32(eager_amp):
    sources = make_sources(dtype="bfloat16")
    eager_amp("bfloat16", frozenset({"flashmask_attention"}))
    assert flashmask_attention(*sources).dtype == paddle.float32


def test_eager_auto_cast_leaves_wrong_dtypes_to_the_check(eager_amp):
    sources = [source.astype("float64") for source in make_sources()]
    eager_amp("bfloat16")
    with pytest.raises(TypeError, match="got float64"):
        flashmask_attention(*sources)


# What the kernel did with its tiles.


def tile_classes(seen: np.ndarray, num_heads: int) -> tuple[int, int, int]:
    """Count dead, mixed and wholly visible tiles over all query heads, from a dense mask."""
    dead = mixed = full = 0
    seen = np.repeat(seen, num_heads // seen.shape[1], axis=1)
    _, _, rows, columns = seen.shape
    for batch, head in np.ndindex(*seen.shape[:2]):
        for row in range(0, rows, TILE):
            for column in range(0, columns, TILE):
                tile = seen[batch, head, row : row + TILE, column : column + TILE]
                if not tile.any():
                    dead += 1
                elif tile.all() and tile.shape[1] == TILE:
                    full += 1
                else:
                    mixed += 1
    return dead, mixed, full


def count_tiles(inputs, mask: Mask) -> _ops.TileCounters:
    _ops.reset_tile_counters()
    calls.run(inputs, mask)
    return _ops.tile_counters()


def tile_case(mask: str, length: int = 300) -> AttentionCase:
    return AttentionCase(
        mask, batch=2, seqlen_q=length, num_heads=4, num_heads_k=2, num_heads_mask=2, head_dim=8
    )


EXACT_FAMILIES = ("none", "causal", "window", "causal_window", "causal_documents", "documents")


@pytest.mark.parametrize("length", [1, 64, 65, 300, 320])
@pytest.mark.parametrize("mask", [*EXACT_FAMILIES, "cut_rows", "prefix"])
def test_skipped_tiles_are_exactly_the_dead_ones(mask, length, rng):
    case = tile_case(mask, length)
    inputs, made = calls.random_inputs(case, rng), case.make_mask(rng)
    seen = np.broadcast_to(s := calls.visible(inputs, made), (2, *s.shape[1:]))
    dead, mixed, full = tile_classes(seen, case.num_heads)
    counted = count_tiles(inputs, made)
    assert counted == _ops.TileCounters(dead, mixed, full, dead, mixed, full)


@pytest.mark.parametrize("mask", cases.RANDOM_FORMS + cases.STRUCTURED)
def test_skipped_tiles_are_dead_and_full_tiles_visible(mask, rng):
    case = tile_case(mask)
    inputs, made = calls.random_inputs(case, rng), case.make_mask(rng)
    dead, mixed, full = tile_classes(calls.visible(inputs, made), case.num_heads)
    counted = count_tiles(inputs, made)
    assert counted.forward_skipped <= dead
    assert counted.forward_full <= full
    total = counted.forward_skipped + counted.forward_partial + counted.forward_full
    assert total == dead + mixed + full


@pytest.mark.parametrize("mask", cases.FAMILIES)
def test_backward_classes_tiles_as_the_forward_does(mask, rng):
    case = tile_case(mask)
    counted = count_tiles(calls.random_inputs(case, rng), case.make_mask(rng))
    forward = counted.forward_skipped, counted.forward_partial, counted.forward_full
    assert forward == (counted.backward_skipped, counted.backward_partial, counted.backward_full)


@pytest.mark.parametrize(("rows", "columns"), [(1, 129), (129, 1), (64, 320), (320, 64), (65, 63)])
@pytest.mark.parametrize("causal", [True, False])
def test_skipped_tiles_are_the_dead_ones_of_unequal_lengths(rows, columns, causal, rng):
    case = AttentionCase(seqlen_q=rows, seqlen_k=columns, head_dim=8)
    mask = Mask(None, causal)
    inputs = calls.random_inputs(case, rng)
    dead, mixed, full = tile_classes(calls.visible(inputs, mask), case.num_heads)
    assert count_tiles(inputs, mask) == _ops.TileCounters(dead, mixed, full, dead, mixed, full)


@pytest.mark.parametrize("documents", [1, 2, 5, 10])
def test_more_documents_skip_more_tiles(documents, rng):
    length = 10 * TILE
    part = length // documents // TILE
    ends = cases.document_bounds([part * TILE] * documents)[1].astype(np.int32)
    inputs = calls.random_inputs(AttentionCase(seqlen_q=length, num_heads=1, num_heads_k=1), rng)
    counted = count_tiles(inputs, Mask(ends[None, None, :, None], causal=True))
    live = documents * part * (part + 1) // 2
    assert counted.forward_skipped == 100 - live
    assert counted.backward_skipped == 100 - live


def test_switched_off_skipping_runs_every_tile(switches, rng):
    case = tile_case("causal_documents")
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    _ops.set_tile_skipping(False)
    counted = count_tiles(inputs, mask)
    assert counted == _ops.TileCounters(0, 200, 0, 0, 200, 0)


def test_reset_sets_counters_to_zero(rng):
    count_tiles(calls.random_inputs(tile_case("none"), rng), Mask(None, False))
    _ops.reset_tile_counters()
    assert _ops.tile_counters() == _ops.TileCounters(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("mask", cases.FAMILIES)
def test_skipping_tiles_changes_no_bit(mask, dtype, switches, rng):
    case = AttentionCase(mask, batch=2, seqlen_q=200, num_heads=4, num_heads_mask=4, dtype=dtype)
    inputs, made = calls.random_inputs(case, rng), case.make_mask(rng)
    skipping = calls.run(inputs, made, dtype=dtype)
    _ops.set_tile_skipping(False)
    tolerance.assert_same_bits(skipping, calls.run(inputs, made, dtype=dtype))


@given(
    st.sampled_from(cases.RANDOM_FORMS),
    st.integers(1, 200),
    st.integers(1, 200),
    st.integers(0, 2**32 - 1),
)
def test_skipping_tiles_changes_no_bit_of_any_mask(form, rows, columns, seed):
    rng = np.random.default_rng(seed)
    case = AttentionCase(form, seqlen_q=rows, seqlen_k=columns, num_heads_mask=2, head_dim=8)
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    # Half of the bounds at multiples of the tile: only those can make whole tiles dead.
    on_tile = rng.random(mask.indices.shape) < rng.choice([0.0, 0.5, 1.0])
    rounded = np.where(on_tile, mask.indices // TILE * TILE, mask.indices).astype(np.int32)
    mask = Mask(rounded, mask.causal)
    try:
        skipping = calls.run(inputs, mask)
        _ops.set_tile_skipping(False)
        tolerance.assert_same_bits(skipping, calls.run(inputs, mask))
    finally:
        _ops.set_tile_skipping(True)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_any_packed_documents_equal_documents_alone(lengths, seed):
    rng = np.random.default_rng(seed)
    inputs = calls.random_inputs(AttentionCase(seqlen_q=sum(lengths), head_dim=8), rng)
    ends = cases.document_bounds(lengths)[1].astype(np.int32)
    packed = calls.run(inputs, Mask(ends[None, None, :, None], causal=True))
    for end in np.unique(ends):
        rows = np.flatnonzero(ends == end)
        part = calls.Inputs(*(array[:, rows] for array in inputs[:4]), inputs.grad_lse[:, :, rows])
        mine = [array[:, :, rows] if array.ndim == 3 else array[:, rows] for array in packed]
        calls.assert_right(calls.Results(*mine), part, Mask(None, causal=True), "float32")


# Instruction sets.


def runs_on_this_machine(isa: str) -> bool:
    try:
        _ops.set_cpu_isa(isa)
    except ValueError:
        return False
    finally:
        _ops.set_cpu_isa("auto")
    return True


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("mask", ["causal_2", "four", "documents"])
def test_every_instruction_set_matches_dense(mask, dtype, isa, switches, rng):
    if not runs_on_this_machine(isa):
        pytest.skip(f"needs a CPU with {isa}")
    _ops.set_cpu_isa(isa)
    assert _ops.cpu_isa() == isa
    case = AttentionCase(
        mask, batch=2, seqlen_q=130, num_heads=4, num_heads_k=2, head_dim=72, dtype=dtype
    )
    calls.check_case(case, rng)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [1, 7, 9, 63, 65])
def test_every_instruction_set_matches_dense_at_odd_lengths(length, isa, switches, rng):
    if not runs_on_this_machine(isa):
        pytest.skip(f"needs a CPU with {isa}")
    _ops.set_cpu_isa(isa)
    calls.check_case(AttentionCase("four", seqlen_q=length, head_dim=40), rng)


def test_automatic_instruction_set_is_a_named_one():
    _ops.set_cpu_isa("auto")
    assert _ops.cpu_isa() in ISAS


@pytest.mark.parametrize("name", ["sse", "", "AVX2", "avx2 ", "auto,avx2"])
def test_unknown_instruction_set_is_refused_in_words(name):
    with pytest.raises(ValueError, match=ISA_RULE) as raised:
        _ops.set_cpu_isa(name)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize("name", [None, 2, b"avx2"])
def test_instruction_set_of_the_wrong_kind_is_refused_in_words(name):
    with pytest.raises(TypeError, match="must be a str"):
        _ops.set_cpu_isa(name)


ISA_BY_ENVIRONMENT = "from paddle_flashmask import _ops; _ops.load_ops(); print(_ops.cpu_isa())"


def test_environment_chooses_the_instruction_set(tmp_path):
    assert (
        run_python(ISA_BY_ENVIRONMENT, tmp_path, FLASHMASK_CPU_ISA="portable").stdout.split()[-1]
        == "portable"
    )


def test_wrong_instruction_set_in_the_environment_fails_in_words(tmp_path):
    process = run_python(ISA_BY_ENVIRONMENT, tmp_path, FLASHMASK_CPU_ISA="avx3")
    assert process.returncode != 0
    assert f"{ISA_RULE}; got 'avx3'" in process.stderr


# GPU kernels by name: a CPU build has none.


def test_gpu_kernels_that_are_not_there_are_refused_in_words():
    _ops.set_gpu_kernels("auto")
    with pytest.raises(ValueError, match="must be auto or the name of one of") as raised:
        _ops.set_gpu_kernels("sm75")
    assert "cpu: float32" in str(raised.value)
    assert "got 'sm75'" in str(raised.value)


def test_wrong_gpu_kernels_in_the_environment_fail_in_words(tmp_path):
    process = run_python(ISA_BY_ENVIRONMENT, tmp_path, FLASHMASK_GPU_KERNELS="cpu")
    assert process.returncode != 0
    assert "FLASHMASK_GPU_KERNELS is wrong" in process.stderr
    assert "got 'cpu'" in process.stderr


# Determinism: on the CPU there is nothing to ask for.

LOAD = "from paddle_flashmask import load_ops; load_ops(); print('loaded')"


def test_deterministic_gradients_on_the_cpu_are_the_usual_ones(rng):
    case = AttentionCase(seqlen_q=100)
    inputs, mask = calls.random_inputs(case, rng), case.make_mask(rng)
    usual = calls.run(inputs, mask)
    _ops.set_deterministic(True)
    try:
        tolerance.assert_same_bits(calls.run(inputs, mask), usual)
    finally:
        _ops.set_deterministic(False)


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_environment_may_ask_for_determinism(value, tmp_path):
    process = run_python(LOAD, tmp_path, FLASHMASK_DETERMINISTIC=value)
    assert process.stdout.split()[-1] == "loaded", process.stderr


def test_wrong_wish_for_determinism_in_the_environment_fails_in_words(tmp_path):
    process = run_python(LOAD, tmp_path, FLASHMASK_DETERMINISTIC="yes")
    assert process.returncode != 0
    assert "FLASHMASK_DETERMINISTIC must be 0, 1 or unset; got 'yes'" in process.stderr


# Finding the library.


def test_loading_again_does_nothing():
    paddle_flashmask.load_ops()
    first = _ops.library()
    paddle_flashmask.load_ops()
    assert _ops.library() is first


def test_kernels_are_described_with_dtypes_and_head_dims():
    text = _ops.kernels()
    assert all(word in text for word in ("cpu", *cases.DTYPES, "multiple of 8", "256"))


@pytest.fixture
def other_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_ops, "FOLDER", tmp_path)
    monkeypatch.setattr(_ops, "_library", None)
    return tmp_path


def test_missing_library_is_named_with_the_way_to_build_it(other_folder):
    with pytest.raises(ImportError, match=r"no operator library in .*build it with: pip install"):
        _ops.load_ops()


def test_two_libraries_are_named(other_folder):
    for name in ("_custom_ops.so", "_custom_ops_pd_.so"):
        (other_folder / name).write_bytes(b"")
    with pytest.raises(ImportError, match=r"more than one .*_custom_ops.so, _custom_ops_pd_.so"):
        _ops.load_ops()


@pytest.mark.parametrize("record", [None, "", "[]", "{}", "not json"])
def test_library_without_a_record_is_refused(record, other_folder):
    (other_folder / "_custom_ops.so").write_bytes(b"")
    if record is not None:
        (other_folder / "_build_info.json").write_text(record)
    with pytest.raises(ImportError, match="does not say what was built"):
        _ops.load_ops()


def test_library_for_another_paddle_is_refused_with_both_versions(other_folder):
    (other_folder / "_custom_ops.so").write_bytes(b"")
    (other_folder / "_build_info.json").write_text(json.dumps({"paddle": "2.0.1"}))
    with pytest.raises(ImportError, match=r"built for Paddle 2\.0\.1, found Paddle .*rebuild"):
        _ops.load_ops()


def test_second_copy_of_the_package_is_refused(other_folder, monkeypatch):
    (other_folder / "_custom_ops.so").write_bytes(b"")
    (other_folder / "_build_info.json").write_text(json.dumps({"paddle": paddle.__version__}))
    with pytest.raises(ImportError, match="registered already by another copy"):
        _ops.load_ops()
