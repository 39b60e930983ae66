"""The operator in static graphs, saved models and mixed precision."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.static import InputSpec
from support.processes import run_python
from support.sources import HEAD_DIM, make_rows, make_sources, same_bits

from paddle_flashmask import attention, flashmask_attention

# Paddle's own backward of a graph asks for it.
pytestmark = pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface:UserWarning")


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
def test_static_graph_obeys_no_grad(full_graph):
    def frozen(query, key, value, rows):
        with paddle.no_grad():
            out = flashmask_attention(query, key, value, rows, causal=True)
        return out, query.sum() + key.sum() + value.sum()

    query, key, value = make_sources(grad=True)
    graph = paddle.jit.to_static(frozen, full_graph=full_graph)
    for function in (frozen, graph):
        out, others = function(query, key, value, make_rows())
        gradients = paddle.grad([out.sum() + 0 * others], [query, key, value])
        assert not any(gradient.numpy().any() for gradient in gradients)


@pytest.mark.parametrize("full_graph", [True, False], ids=["full_graph", "sot"])
def test_static_graph_takes_tensors_from_around_it(full_graph):
    query, key, value = make_sources(grad=True)
    rows = make_rows()

    class Holder(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", rows)
            self.others = [key, value]

        def forward(self, query):
            inside = flashmask_attention(query, *self.others, self.rows, causal=True)
            return inside + flashmask_attention(query, key, value, rows, causal=True)

    layer = Holder()
    graph = paddle.jit.to_static(layer, full_graph=full_graph)
    assert same_bits([graph(query)], [2 * flashmask_attention(query, key, value, rows, True)])


MIXED = """
import paddle, sys
from paddle_flashmask import flashmask_attention
eager = paddle.rand([1, 6, 2, 16])
rows = paddle.full([1, 1, 6, 1], 6, "int32")
paddle.enable_static()
with paddle.static.program_guard(paddle.static.Program()):
    value = paddle.static.data("q", [1, 6, 2, 16], "float32")
    try:
        {call}
    except TypeError as error:
        print(error)
    paddle.disable_static()
    try:
        flashmask_attention(value, value, value)
    except TypeError as error:
        print(error)
"""
QUERY, INDICES = f"dense paddle.Tensor {attention.AXES}", "dense paddle.Tensor"
EAGER = "got an eager one in a static graph"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("flashmask_attention(eager, eager, eager)", f"query must be a {QUERY}; {EAGER}"),
        ("flashmask_attention(value, value, eager)", f"value must be a {QUERY}; {EAGER}"),
        (
            "flashmask_attention(value, value, value, rows)",
            f"startend_row_indices must be a {INDICES} or a numpy array; {EAGER}",
        ),
    ],
)
def test_tensors_of_another_mode_are_refused(call, text, tmp_path):
    lines = run_python(MIXED.format(call=call), tmp_path).stdout.splitlines()
    assert text in lines
    assert f"query must be a {QUERY}; got a value of a static graph outside of it" in lines


OLD_PROGRAM = """
import paddle
from paddle_flashmask import flashmask_attention
paddle.enable_static()
with paddle.static.program_guard(paddle.static.Program()):
    query = paddle.static.data("q", [1, 6, 2, 16], "float32")
    try:
        flashmask_attention(query, query, query)
    except TypeError as error:
        print(error)
"""


def test_programs_of_the_old_form_are_refused(tmp_path):
    found = run_python(OLD_PROGRAM, tmp_path, FLAGS_enable_pir_api="0").stdout
    assert "got a paddle.static.Variable, of programs as FLAGS_enable_pir_api=0" in found


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


@pytest.mark.parametrize(
    "shape", [[2, 0, 9, 1], [2, 1, 0, 1], [0, 1, 9, 1], [2, 1, 9, 0], [0, 0, 0, 0]], ids=str
)
def test_static_graph_does_not_take_indices_without_elements_for_none(shape):
    def attend(query, key, value, rows):
        return flashmask_attention(query, key, value, rows, causal=True)

    spec = [*specs()[:3], InputSpec([None] * 4, "int32")]
    graph = paddle.jit.to_static(attend, input_spec=spec, full_graph=True)
    query = paddle.ones([2, 9, 4, HEAD_DIM])
    key = paddle.ones([2, 9, 2, HEAD_DIM])
    graph(query, key, key, paddle.full([2, 1, 9, 1], 9, "int32"))
    text = r"startend_row_indices must be \[2, 1\|2\|4, 9, width\]; got a tensor without elements"
    with pytest.raises(ValueError, match=text):
        graph(query, key, key, paddle.zeros(shape, "int32"))


@pytest.mark.parametrize(("batch", "length"), [(0, 9), (2, 0)])
def test_static_graph_takes_indices_without_elements_where_there_are_no_columns(batch, length):
    graph = paddle.jit.to_static(AttentionLayer(), input_spec=specs(), full_graph=True)
    query = paddle.ones([batch, 5, 4, HEAD_DIM])
    key = paddle.ones([batch, length, 2, HEAD_DIM])
    out, lse = graph(query, key, key, paddle.zeros([batch, 1, length, 1], "int32"))
    assert out.shape == [batch, 5, 4, HEAD_DIM]
    assert not out.numpy().any()
    assert (lse.numpy() == -np.inf).all()


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
