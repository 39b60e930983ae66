import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_flashmask.packing import document_lengths


@given(st.lists(st.integers(1, 9), min_size=1))
def test_lengths_are_read_back(lengths):
    assert document_lengths([at for n in lengths for at in range(n)]) == [lengths]


@pytest.mark.parametrize(
    ("positions", "lengths"),
    [
        ([0, 0, 1, 0], [[1, 2, 1]]),
        ([5, 6, 7], [[3]]),
        ([[0, 1, 2, 3], [0, 1, 0, 1]], [[4], [2, 2]]),
        ([3, 4, 0, 1], [[2, 2]]),
    ],
)
def test_each_row_is_read_alone(positions, lengths):
    assert document_lengths(positions) == lengths


@pytest.mark.parametrize(
    ("positions", "error", "text"),
    [
        ([0.0, 1.0], TypeError, "position_ids must hold ints; got an array of float64"),
        (
            [[[0, 1]], [[0, 1]], [[0, 1]]],
            ValueError,
            "position_ids must have axes [batch, seqlen] or [seqlen]; positions on three axes are "
            "not supported, they do not tell documents apart: got shape [3, 1, 2]",
        ),
        (
            [-1, 0],
            ValueError,
            "position_ids must go up by 1 or start again at 0; got -1 at sample 0 position 0",
        ),
        (
            [[0, 1, 2, 3], [0, 1, 1, 2]],
            ValueError,
            "position_ids must go up by 1 or start again at 0; "
            "got 1 after 1 at sample 1 position 2",
        ),
    ],
)
def test_positions_that_name_no_documents_are_refused(positions, error, text):
    with pytest.raises(error) as caught:
        document_lengths(positions)
    assert str(caught.value) == text
