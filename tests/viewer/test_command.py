"""The command as a user runs it: recipes, files, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from support.processes import run_python
from support.recipe_modules import recipe_module, recipe_names

from paddle_flashmask import __main__ as package_command
from paddle_flashmask import packing, recipes
from paddle_flashmask.viewer.command import main

SFT = recipes.sft([3, 2, 3]).startend_row_indices
PAIRS = recipes.document([3, 2, 3]).startend_row_indices


def refused(capsys, *arguments: str) -> str:
    """Return what a refused command line says."""
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, arguments)])
    assert exit_.value.code == 2
    return capsys.readouterr().err.split("error: ")[1]


@pytest.mark.parametrize("name", recipe_names())
def test_examples_are_drawn_under_their_names(name, capsys):
    assert main([name]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.partition("  # ")[2] for line in lines if "  # " in line]
    assert titles == list(recipe_module(name).EXAMPLES)


LIMITED = """
import resource
from paddle_flashmask.viewer import memory
from paddle_flashmask.viewer.command import main
before = resource.getrlimit(resource.RLIMIT_DATA)
fits = memory.bytes_that_fit()
memory.bytes_that_fit = lambda: min(fits, 1 << 29)
try:
    main(["sft", "lengths=[1600000]"])
finally:
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
"""


def test_what_does_not_fit_into_memory_is_told(tmp_path):
    result = run_python(LIMITED, tmp_path)
    assert result.returncode == 2, result.stderr
    assert "error: the mask or its picture does not fit into memory; take fewer" in result.stderr


def test_heads_are_chosen(capsys):
    call = ["random_eviction", "seq_len=2", "eviction_rows=[[1, 2], [2, 2]]"]
    assert main([*call, "--head", "1"]) == 0
    told = capsys.readouterr().out
    assert "drawn, sample 0 of 1, head 1 of 2: --sample and --head choose" in told
    assert told.endswith("# .\n# #\n")
    assert main(call) == 0
    assert capsys.readouterr().out.endswith("# .\n. #\n")


def test_a_packed_batch_is_read_as_causal(tmp_path, capsys):
    samples = [([1, 2, 3], [1, 2, 3]), ([4, 5], [4, 5]), ([6], [6])]
    batch = packing.pack_sft(samples, seq_len=4, strategy="sequential").build([0, 1])
    np.savez(tmp_path / "batch.npz", **batch)
    assert main([str(tmp_path / "batch.npz"), "--sample", "1"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("batch.npz\nstartend_row_indices int32 [2, 1, 4, 1], causal=True")
    assert told.endswith("# . . .\n# # . .\n. . # .\n. . . .\n")


def test_a_batch_of_other_trainers_lacks_the_last_axis(tmp_path, capsys):
    np.savez(tmp_path / "batch.npz", attn_mask_start_row_indices=SFT[..., 0])
    assert main([str(tmp_path / "batch.npz")]) == 0
    assert "int32 [1, 1, 8, 1], causal=True" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("array", "options", "flag"),
    [
        (SFT, [], True),
        (PAIRS, ["--no-causal"], False),
        (PAIRS, ["--causal"], True),
        (np.zeros((1, 1, 3, 4), np.int32), [], False),
    ],
)
def test_an_index_tensor_is_read_with_the_flag(array, options, flag, tmp_path, capsys):
    np.save(tmp_path / "rows.npy", array)
    np.savez(tmp_path / "rows.npz", anything=array)
    np.savez(tmp_path / "named.npz", startend_row_indices=array, causal=flag)
    for file, given in (("rows.npy", options), ("rows.npz", options), ("named.npz", [])):
        assert main([str(tmp_path / file), *given]) == 0
        assert f"{list(array.shape)}, causal={flag}" in capsys.readouterr().out


def test_doubtful_numbers_are_reported(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", np.full((1, 1, 3, 1), -1, np.int32))
    assert main([str(tmp_path / "rows.npy")]) == 0
    assert "error: 3 numbers below 0" in capsys.readouterr().out


def test_a_cell_is_explained(capsys):
    assert main(["sft", "lengths=[16, 16]", "--explain", "17", "3"]) == 0
    assert capsys.readouterr().out == (
        "sft(lengths=[16, 16])\n"
        "row 17 does not see column 3: the lower interval of column 3 masks rows [16, 32)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sft", "lengths=[3]", "seq_len=2"], "seq_len must be at least the sum of lengths, 3"),
        (["sft", "lengths"], "an argument of a recipe must be name=value; got 'lengths'"),
        (["sft", "lengths=[3"], "lengths must be a Python literal; got '[3'"),
        (["sft", "length=[3]"], "got an unexpected keyword argument 'length'"),
        (["swa"], "mask must be a recipe (causal, "),
        (["none.npy"], "mask must be a recipe or a file; there is no file none.npy"),
        (["none.npy", "a=1"], "a file takes no arguments; got 'a=1'"),
        (["sft", "--causal"], "--causal is for files; a recipe says it itself"),
        (["causal", "seq_len=4", "--tile", "48"], "--tile must be a power of 2; got 48"),
        (["causal", "seq_len=4", "--sample", "1"], "--sample must be in [0, 1); got 1"),
        (["causal", "seq_len=4", "--explain", "4", "0"], "row must be in [0, 4); got 4"),
        (["causal", "--explain", "0", "0"], "--output and --explain need one mask; give causal"),
        (["causal", "--output", "a.pdf"], "--output must end in .svg or .png; got a.pdf"),
        (["causal", "seq_len=4", "--output", "no/a.svg"], "No such file or directory: 'no/a.svg'"),
        ([], "the following arguments are required: mask, name=value\n"),
    ],
)
def test_bad_command_line_is_refused_in_one_sentence(arguments, message, capsys):
    assert message.replace(", name=value", "") in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("name", "arrays", "options", "message"),
    [
        ("a.npy", PAIRS, [], "a.npy has 2 numbers per column, which mean different things"),
        ("a.npy", SFT.astype(np.int64), [], "startend_row_indices must be int32; got int64"),
        ("a.npy", SFT[0], [], "startend_row_indices must have 4 axes"),
        ("a.npy", SFT, ["--no-causal"], "must have last axis 2 or 4 with causal=False"),
        ("a.npz", {"attn_mask_startend_row_indices": SFT}, ["--no-causal"], "causal must be True"),
        ("a.npz", {"a": SFT, "b": SFT}, [], "startend_row_indices or one array; got a, b"),
        ("a.npz", {}, [], "or one array; got nothing"),
        (
            "a.npz",
            {"startend_row_indices": SFT, "attn_mask_startend_row_indices": SFT},
            [],
            "one index tensor; got attn_mask_startend_row_indices and startend_row_indices",
        ),
        ("a.npz", b"no zip", [], "a.npz cannot be read: "),
        ("a.npy", np.array([None]), [], "a.npy cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_bad_file_is_refused_in_one_sentence(name, arrays, options, message, tmp_path, capsys):
    path = tmp_path / name
    if isinstance(arrays, bytes):
        path.write_bytes(arrays)
    elif isinstance(arrays, dict):
        np.savez(path, **arrays)
    else:
        np.save(path, arrays, allow_pickle=True)
    assert message in refused(capsys, path, *options)


def test_the_viewer_needs_no_paddle(tmp_path):
    program = (
        "import runpy, sys\n"
        "sys.modules['paddle'] = None\n"
        "sys.argv[1:] = ['mask', 'causal', 'seq_len=1']\n"
        "runpy.run_module('paddle_flashmask', run_name='__main__')\n"
    )
    done = run_python(program, tmp_path)
    assert done.stderr == ""
    assert done.stdout.endswith("\n#\n")


def test_commands_are_listed(capsys):
    assert package_command.main([]) == 2
    assert "mask    draw a mask" in capsys.readouterr().err
    assert package_command.main(["--help"]) == 0
    assert "doctor  check this installation" in capsys.readouterr().out
