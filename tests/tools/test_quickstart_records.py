import json

import pytest
from inputs import load_inputs
from records import InputError, read_records


@pytest.fixture
def write(tmp_path):
    def writer(text, name="data.json", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return str(path)

    return writer


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ('[{"a": 1},\n\n {"a":\n 2}, {"a": 3}]', [({"a": 1}, 1), ({"a": 2}, 3), ({"a": 3}, 4)]),
        ('\n[\n{"a": 1}\n,\n{"a": 2}\n]\n', [({"a": 1}, 3), ({"a": 2}, 5)]),
        ("[]", []),
        ('{"a": 1}\n\n  \n{"a": 2}\r\n', [({"a": 1}, 1), ({"a": 2}, 4)]),
        ('\n{\n "a": 1\n}\n', [({"a": 1}, 2)]),
        ('{"a": "x\u2028y"}\n{"a": 2}', [({"a": "x\u2028y"}, 1), ({"a": 2}, 2)]),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_records_carry_their_line(write, text, records, mark):
    found, problems = read_records(write(mark + text))
    assert [tuple(record) for record in found] == records
    assert problems == []


def test_lines_that_are_not_json_are_named_and_skipped(write):
    text = '{"a": 1}\n{"a": \n{"a": 2} x\n' + "[" * 100_000 + '\n{"a": 3}\n'
    records, problems = read_records(write(text, "d.jsonl"))
    assert [record.line for record in records] == [1, 5]
    assert [(problem.line, problem.reason) for problem in problems] == [
        (2, "not JSON: Expecting value at column 7"),
        (3, "not JSON: more text after the value at column 9"),
        (4, "not JSON: nested too deeply"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ": the file is empty"),
        (" \n\t", ": the file is empty"),
        ('[{"a": 1},\n{"a" 2}]', ":2: not JSON: Expecting ':' delimiter at column 6"),
        ('[{"a": 1}\n{"a": 2}]', ":2: not JSON: the array is not closed or lacks a comma here"),
        ('[{"a": 1}', ":1: not JSON: the array is not closed or lacks a comma here"),
        ("[1,\n", ":2: not JSON: Expecting value at column 1"),
        ("[1]\n[2]", ":2: not JSON: more text after the end of the array"),
        ("[" * 100_000, ":1: not JSON: nested too deeply"),
        (b'{"a": 1}\n{"a": "\xe9"}', ":2: is not UTF-8 (byte 0xe9); save it as UTF-8"),
        ('{"a": 1}'.encode("utf-16"), ": is UTF-16; save it as UTF-8"),
    ],
)
def test_unusable_files_give_one_line(write, text, reason):
    path = write(text)
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert str(caught.value) == path + reason


def test_missing_files_and_directories_give_one_line(tmp_path):
    missing = str(tmp_path / "none.json")
    with pytest.raises(InputError) as caught:
        read_records(missing)
    assert str(caught.value) == f"{missing}: no such file"
    with pytest.raises(InputError) as caught:
        read_records(str(tmp_path))
    assert str(caught.value) == f"{tmp_path}: is a directory; name a JSON or JSONL file"


def test_malformed_records_are_counted_and_the_rest_is_used(write):
    good = {"instruction": "a", "output": "b"}
    path = write("\n".join(["[", json.dumps(good) + ",", "7,", json.dumps(good), "]"]))
    inputs = load_inputs([path, path])
    assert len(inputs.conversations) == 4
    assert [str(problem) for problem in inputs.problems] == [
        f"{path}:3: a record must be a JSON object; got a number"
    ] * 2


def test_problems_of_a_file_are_listed_by_line(write):
    path = write('{"src": "a", "tgt": "b"}\n{"src": 1, "tgt": "b"}\nno\n{"src": "a"}\n')
    problems = load_inputs([path]).problems
    assert [problem.line for problem in problems] == [2, 3, 4]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", ": no usable record"),
        (
            '\n{"x": 1}\n{}',
            ": no usable record; first of 2: line 2, a record must have instruction and output, "
            "messages, conversations, or src and tgt; got keys x",
        ),
    ],
)
def test_files_without_a_usable_record_give_one_line(write, text, reason):
    path = write(text)
    with pytest.raises(InputError) as caught:
        load_inputs([path])
    assert str(caught.value) == path + reason
