"""The stages end to end on a few steps: start, equality, exit code, what is written."""

import json
import re

import paddle
import pytest
import train
import training
from comparison import Contestant

ARGUMENTS = ["--steps", "2", "--seq-len", "256", "--batch-size", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("builtins.print", lambda *texts, **_: lines.extend(map(str, texts)))
        code = train.main([*ARGUMENTS, "--output", str(output)])
    return code, "\n".join(lines), output


def test_all_stages_run_and_their_losses_are_equal(run):
    code, text, _ = run
    assert code == 0
    assert re.findall(r"^== (\w+):", text, re.MULTILINE) == ["sft", "dpo", "rm"]
    assert text.count("equal at every step within 1e-05") == 3


def test_dpo_starts_at_ln_2_with_margin_0(run):
    _, text, _ = run
    assert "loss at step 1: 0.693147 (ln 2 = 0.693147)" in text
    assert "margin 0.000000 to " in text


def test_rm_prints_pair_accuracy(run):
    _, text, _ = run
    assert re.search(r"^pair accuracy \d+\.\d% to \d+\.\d% \(the first and ", text, re.MULTILINE)


def test_each_stage_writes_a_table_and_two_pictures(run):
    _, text, output = run
    assert sorted(path.name for path in output.iterdir()) == sorted(
        f"{stage}_{name}"
        for stage in ("sft", "dpo", "rm")
        for name in ("losses.csv", "loss_curves.png", "packed_mask.png")
    )
    assert "written to " in text
    assert "sft_losses.csv, sft_loss_curves.png, " in text
    assert len((output / "dpo_losses.csv").read_text().splitlines()) == 3


def test_a_mask_that_leaks_is_found_in_every_stage(tmp_path, monkeypatch, capsys):
    original = Contestant.tensors

    def leaking(self, batch):
        tensors = original(self, batch)
        if tensors["mask"].dtype == paddle.int32:  # the indices, not the dense mask
            tensors["mask"] = paddle.full_like(tensors["mask"], 256)
        return tensors

    monkeypatch.setattr(Contestant, "tensors", leaking)
    assert train.main([*ARGUMENTS, "--output", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert re.findall(r"the losses of (\w+), step 1 are not equal", errors) == ["sft", "dpo", "rm"]


def test_rows_too_short_for_any_answer_give_code_2(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text('[{"prompt": "' + "long " * 400 + '", "chosen": "a", "rejected": "b"}]')
    assert train.main(["--seq-len", "16", "--output", str(tmp_path), str(path)]) == 2
    assert "dpo: no answer starts within --seq-len 16 tokens; raise it" in capsys.readouterr().err


def test_a_stage_ends_once_its_pairs_are_learnt_by_heart(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(training.LEARNT, "rm", 10.0)
    (tmp_path / "sft_losses.csv").touch()
    assert train.main([*ARGUMENTS, "--stages", "rm", "--output", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "(the first and the last of 1 step), learnt by heart; equal at every step" in text
    assert not (tmp_path / "sft_losses.csv").exists()  # of an earlier run


def test_records_left_out_come_with_the_remedy(tmp_path, capsys):
    path = tmp_path / "x.json"
    question = "long " * 400
    records = [{"instruction": "q", "output": "a"}, {"instruction": question, "output": "a"}]
    path.write_text(json.dumps(records))
    arguments = ["--steps", "1", "--seq-len", "16", "--output", str(tmp_path / "out"), str(path)]
    assert train.main(arguments) == 0
    text = capsys.readouterr().out
    assert "packed 1 sample (" in text
    assert " into 1 row of 16: " in text
    assert (
        "1 left out for lack of an answer within 16 tokens (a --seq-len above 16 keeps more)"
    ) in text
