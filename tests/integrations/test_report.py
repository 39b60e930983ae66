"""The report of an integration, and its strict form."""

from __future__ import annotations

import paddle
import pytest

from paddle_flashmask.integrations._report import (
    AttentionReport,
    LayerReport,
    NotOursError,
    own_layer,
)

OURS = LayerReport("layers.0", "ours, CPU")
OTHER = LayerReport("layers.1", "built-in (eager)", "it was not asked for")


def test_report_is_ours_if_every_layer_is():
    assert AttentionReport.of([OURS], strict=True).is_ours
    assert not AttentionReport.of([OURS, OTHER]).is_ours
    assert not AttentionReport.of([]).is_ours


def test_text_has_a_line_per_layer_with_the_reason():
    text = str(AttentionReport.of([OURS, OTHER]))
    assert text == "layers.0: ours, CPU\nlayers.1: built-in (eager) (it was not asked for)"


def test_strict_report_names_the_layers_that_are_not_ours():
    with pytest.raises(NotOursError) as caught:
        AttentionReport.of([OURS, OTHER], strict=True)
    assert str(caught.value) == (
        "1 of 2 layers do not run paddle_flashmask:\n"
        "layers.1: built-in (eager) (it was not asked for)"
    )
    with pytest.raises(NotOursError, match="no layer with attention"):
        AttentionReport.of([], strict=True)


def test_a_layer_without_a_kernel_is_none_and_says_why():
    weight = paddle.zeros([4, 4])
    assert own_layer("a", weight, 64) == LayerReport("a", "ours, CPU")
    refused = own_layer("a", weight, 12)
    assert refused.backend == "none"
    assert "head_dim 12" in refused.reason
    assert own_layer("a", weight, 64, "float64").backend == "none"
