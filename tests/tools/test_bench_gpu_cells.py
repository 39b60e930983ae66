"""Cells of a GPU: groups, what each is measured for, the budget, compiling ahead."""

import threading

import attention
import providers
import pytest
from harness import masks, options, suite, targets, warming
from harness.cells import BACKWARD, FORWARD
from harness.session import Session
from harness.workers import WorkerError
from support.fake_provider import FakeProvider, cell


def test_groups_are_the_shapes_that_have_targets():
    for group, seqlen, head_dim in [
        ("32k", 32768, 128),
        ("8k", 8192, 128),
        ("128k", 131072, 128),
        ("hdim64", 32768, 64),
        ("hdim256", 32768, 256),
    ]:
        cells = suite.GPU_GROUPS[group]
        assert {(c.seqlen, c.head_dim) for c in cells} == {(seqlen, head_dim)}
        wanted = set(targets.TARGETS[seqlen, head_dim]) - {targets.MEAN_OF_ALL}
        assert {c.mask for c in cells} == wanted
        assert {c.batch * c.seqlen * c.num_heads * c.head_dim for c in cells} == {2**29}
    assert set(suite.GPU_MASKS) == set(masks.PRESETS)
    assert {(c.num_heads, c.num_heads_k) for c in suite.GPU_GROUPS["gqa"]} == {(32, 4)}
    assert suite.gpu_cells()[0].mask == "causal"
    assert len(set(suite.gpu_cells())) == len(suite.gpu_cells()) == 40


def test_with_the_matrix_every_head_dim_dtype_and_grouping_is_measured_once():
    cells = [*suite.GPU_GROUPS["matrix"], *suite.gpu_cells()]
    shapes = [
        (c.mask, c.head_dim, c.num_heads // c.num_heads_k, c.dtype)
        for c in cells
        if c.seqlen == 32768 and c.mask in ("causal", "causal_document")
    ]
    assert len(shapes) == len(set(shapes)) == 2 * 5 * 2 * 2


def test_small_calls_are_one_row_of_few_key_heads():
    cells = suite.GPU_GROUPS["small"]
    assert len(set(cells)) == len(cells) == 12
    assert {(c.batch, c.seqlen) for c in cells} == {(1, 2048), (1, 8192)}
    assert max(c.num_heads_k * c.seqlen for c in cells) == 8 * 8192
    assert not set(cells) & set(suite.gpu_cells())


def test_a_group_is_chosen_on_the_command_line(capsys):
    given = ["--device", "gpu", "--group", "gqa", "128k", "--exclude", "torch_flex_flash"]
    chosen = options.cells(options.parse(given, ""))
    assert [(c.seqlen, c.num_heads_k) for c in chosen] == [(32768, 4)] * 2 + [(131072, 32)] * 5
    assert all("torch_flex_flash" not in c.providers for c in chosen)
    for wrong in (["--group", "8k"], ["--device", "gpu", "--group", "8k", "--seqlens", "64"]):
        with pytest.raises(SystemExit):
            options.parse(wrong, "")
        assert "--group must come with --device gpu and without a shape" in capsys.readouterr().err


def test_the_deterministic_backward_has_a_row_of_its_own_and_no_forward():
    shape = suite.gpu_cells()[0]
    mask = masks.build(shape.mask, shape.seqlen)
    provider = providers.find("ours_deterministic", "gpu")
    assert provider.impossible(shape, mask, BACKWARD) is None
    assert "deterministic" in provider.impossible(shape, mask, FORWARD)
    assert provider.deterministic
    assert not providers.find("ours", "gpu").deterministic
    assert providers.find("ours_sm80", "gpu").kernels == "sm80"


@pytest.mark.parametrize(("budget", "cells"), [(None, 3), ("0", 1), ("3600", 3)])
def test_a_budget_ends_the_run_after_a_cell_whose_rows_are_kept(
    budget, cells, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(providers, "find", lambda name, device: FakeProvider)
    monkeypatch.setattr(attention, "start_worker", lambda kept, name, cell: InProcess(name, cell))
    path = tmp_path / "rows.csv"
    arguments = ["--providers", "ours", "--masks", "causal", "full", "document", "--heads", "2"]
    arguments += ["--seqlens", "64", "--threads", "1", "--turns", "1", "--csv", str(path)]
    assert attention.main([*arguments, *(["--budget", budget] if budget else [])]) == 0
    assert len(path.read_text().splitlines()) == 1 + 2 * cells
    assert ("the budget is spent: 2 cells are left out" in capsys.readouterr().out) == (cells == 1)


class Compiled(FakeProvider):
    compiles = True


class InProcess:
    """A worker without a process; `asked` and `closed` count over all."""

    asked: list = []  # noqa: RUF012
    closed = 0

    def __init__(self, name, cell):
        self._session = Session(FakeProvider)

    def ask(self, **request):
        type(self).asked.append((threading.get_ident(), request))
        return self._session.handle(request)

    def close(self):
        type(self).closed += 1


@pytest.fixture
def one_compiles(monkeypatch):
    found = {"torch_flex": Compiled, "ours": FakeProvider}
    monkeypatch.setattr(providers, "find", lambda name, device: found[name])
    monkeypatch.setattr(InProcess, "asked", [])
    monkeypatch.setattr(InProcess, "closed", 0)
    return found


def test_each_cell_of_what_compiles_is_run_once_in_so_many_processes(one_compiles):
    names = ("ours", "torch_flex")
    shapes = [cell(mask=mask, providers=names) for mask in ("causal", "full", "causal")]
    assert warming.warm(shapes, 2, InProcess) == []
    requests = [request for _, request in InProcess.asked]
    assert [request["do"] for request in requests] == ["warm", "warm"]
    assert {request["cell"]["mask"] for request in requests} == {"causal", "full"}
    assert {request["cell"]["providers"] for request in requests} == {("torch_flex",)}
    assert InProcess.closed in (1, 2)


def test_what_fails_to_compile_is_named_and_the_rest_goes_on(one_compiles):
    class Failing(InProcess):
        def ask(self, **request):
            if request["cell"]["mask"] == "full":
                raise WorkerError("out of memory (exit code 1)")
            return super().ask(**request)

    shapes = [cell(mask=mask, providers=("torch_flex",)) for mask in ("full", "causal", "document")]
    (line,) = warming.warm(shapes, 1, Failing)
    assert line.startswith("  torch_flex full S=300")
    assert line.endswith("out of memory (exit code 1)")
    assert len(InProcess.asked) == 2
    assert Failing.closed == 2


def test_no_cell_is_compiled_ahead_once_the_time_for_it_is_over(one_compiles):
    assert warming.warm([cell(providers=("torch_flex",))], 1, InProcess, seconds=0) == []
    assert InProcess.asked == []


def test_nothing_is_compiled_where_nobody_compiles(one_compiles, capsys):
    warming.report([cell(providers=("ours",))], 4)
    warming.report([cell(providers=("torch_flex",))], 0)
    assert capsys.readouterr().out == ""
