"""What is kept while a model is called."""

from __future__ import annotations

import pytest

from paddle_flashmask.integrations.paddleformers import calls


def test_a_thing_is_made_once_per_call_and_source():
    made = []

    def make(name):
        made.append(name)
        return name

    first, second = object(), object()
    with calls.watch():
        kept = [calls.once_per_call(one, lambda: make("a")) for one in (first, first)]
        kept.append(calls.once_per_call(second, lambda: make("b")))
        kept.append(calls.once_per_call(second, lambda: make("c"), True))
    assert kept == ["a", "a", "b", "c"]
    assert made == ["a", "b", "c"]
    assert calls.once_per_call(first, lambda: make("d")) == "d"  # outside of a call nothing is kept


def test_watching_ends_with_an_error_too():
    made = object()

    def fail():
        with calls.watch() as seen:
            calls.record(made, 4, has_mask=True)
            kept.append(seen)
            raise RuntimeError("inside")

    kept = []
    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert kept[0].masked == {id(made)}
    assert not calls.running()
    calls.record(object(), 4, has_mask=False)
    assert kept[0].unmasked == {}
