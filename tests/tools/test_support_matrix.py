"""README's table of what the kernels serve is that of their registrations."""

from __future__ import annotations

import dataclasses

import pytest
import support_matrix

from paddle_flashmask import _ops

TEXT = support_matrix.README.read_text(encoding="utf-8")
REGISTRATION = """
constexpr int kHeadDim = 512;

const KernelRegistration kRegistration({"sm999", Device::kCuda, 120, kNewestCapability,
    {DataType::kBFloat16}, 8, kHeadDim, Forward<kHeadDim>, nullptr, nullptr, nullptr});
"""


@pytest.fixture
def copy(tmp_path, monkeypatch):
    path = tmp_path / "README.md"
    path.write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(support_matrix, "README", path)
    return path


def test_readme_has_the_table_of_the_registrations():
    assert support_matrix.table() in TEXT
    assert support_matrix.main(["--check"]) == 0


def test_an_old_table_is_told_and_written_anew(copy, capsys):
    copy.write_text(TEXT.replace("| `sm80` |", "| `sm75` |"), encoding="utf-8")
    assert support_matrix.main(["--check"]) == 1
    assert "README's table is old" in capsys.readouterr().out
    assert support_matrix.main([]) == 0
    assert copy.read_text(encoding="utf-8") == TEXT


def test_a_readme_without_the_table_is_refused(copy):
    copy.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(ValueError, match="README must have one table"):
        support_matrix.main(["--check"])


def test_a_new_kernel_gets_a_row(tmp_path, monkeypatch):
    folder = tmp_path / "kernels" / "sm999" / "instantiations"
    folder.mkdir(parents=True)
    (folder / "hdim512.cu").write_text(REGISTRATION)
    monkeypatch.setattr(support_matrix, "ROOT", tmp_path)
    monkeypatch.setattr(support_matrix, "KERNELS", tmp_path / "kernels")
    (row,) = support_matrix.rows()
    assert row == (
        "GPU 12.0 and newer",
        "`sm999`",
        "bfloat16",
        "512",
        "yes",
        "no",
        "forward",
        "-",
        "never",
    )


def test_head_dims_without_a_pass_are_told():
    kernels = support_matrix.registered_kernels()
    one = next(kernel for kernel in kernels if kernel.name == "sm80" and kernel.has_backward)
    small, large = (dataclasses.replace(one, most_head_dim=size) for size in (64, 128))
    assert support_matrix.pass_text([small, large], "64, 128") == "yes"
    assert support_matrix.pass_text([small], "64, 128") == "up to 64"
    assert support_matrix.pass_text([], "64, 128") == "no"


def test_the_library_here_describes_its_kernels_as_the_sources_do():
    ours = [kernel.describe() for kernel in support_matrix.registered_kernels()]
    assert set(support_matrix.described_lines(_ops.kernels())) <= set(ours)


def test_what_was_compiled_is_no_part_of_the_lines_compared():
    text = (
        "cpu: float32\nsm80 (compute capability 8.0 or newer, compiled for sm_80+sm_90a): float16"
    )
    lines = ["cpu: float32", "sm80 (compute capability 8.0 or newer): float16"]
    assert support_matrix.described_lines(text) == lines
