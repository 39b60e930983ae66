"""Markdown from a GPU's rows: our times and rates, the rates of all, ratios to FlexAttention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from harness import targets
from harness.cells import BACKWARD, BACKWARD_TIMES_FORWARD, DIRECTIONS, FORWARD
from harness.readme import length
from harness.readme import markdown as table
from harness.results import NOT_APPLICABLE, OK, OURS
from harness.suite import GPU_MASKS

Rows = Sequence[dict[str, str]]
SHAPE = ("device", "seqlen", "batch", "num_heads", "num_heads_k", "head_dim", "dtype")
NUMBERS = ("seqlen", "batch", "num_heads", "num_heads_k", "head_dim")
DETERMINISTIC, FLEX = "ours_deterministic", "torch_flex"
BOTH = "both"
COLUMNS = (*DIRECTIONS, BOTH)
NOTHING = "-"
KINDS = {
    "ms": "wall_ms",
    "TFLOP/s": "tflops_visible",
    "TFLOP/s of live tiles": "tflops_live",
}


class Figures:
    """The rows of one shape by mask, provider and direction."""

    def __init__(self, rows: Iterable[dict[str, str]]) -> None:
        self.rows = {(row["mask"], row["provider"], row["direction"]): row for row in rows}
        known = [*GPU_MASKS, *(mask for mask, _, _ in self.rows)]
        self.masks = [mask for mask in dict.fromkeys(known) if self._some(mask)]
        names = dict.fromkeys(provider for _, provider, _ in self.rows)
        self.providers = [name for name in names if any(self._able(name))]

    def density(self, mask: str) -> str:
        """Return the share of visible cells."""
        return f"{float(self._some(mask)[0]['density']):.3f}"

    def value(self, column: str, mask: str, provider: str, direction: str) -> float | None:
        """Return a time or rate of a direction or of both, if it was measured and right.

        Times of both directions are added; their rate is that of all operations.
        """
        if direction != BOTH:
            row = self.rows.get((mask, provider, direction))
            return float(row[column]) if row is not None and row["status"] == OK else None
        found = [self.value(column, mask, provider, way) for way in DIRECTIONS]
        times = [self.value("wall_ms", mask, provider, way) for way in DIRECTIONS]
        if None in found or None in times:
            return None
        if column == "wall_ms":
            return sum(times)
        # Operations go as 1 to BACKWARD_TIMES_FORWARD.
        return found[0] * times[0] * (1 + BACKWARD_TIMES_FORWARD) / sum(times)

    def date(self, mask: str, provider: str, direction: str) -> str | None:
        """Return when the run began that measured a row, if there is one."""
        row = self.rows.get((mask, provider, direction))
        return None if row is None else row["date"]

    def ratio(self, mask: str, slower: str, faster: str, direction: str) -> float | None:
        """Return how many times longer one provider takes than another."""
        times = [self.value("wall_ms", mask, name, direction) for name in (slower, faster)]
        return None if None in times else times[0] / times[1]

    def status(self, mask: str, provider: str, direction: str) -> str:
        """Return what to show where there is no number."""
        row = self.rows.get((mask, provider, direction))
        status = OK if row is None else row["status"]
        return NOTHING if status in (OK, NOT_APPLICABLE) else f"**{status}**"

    def _some(self, mask: str) -> list[dict[str, str]]:
        return [row for (name, _, _), row in self.rows.items() if name == mask]

    def _able(self, provider: str) -> list[dict[str, str]]:
        return [
            row for (_, name, _), row in self.rows.items() if name == provider and row["wall_ms"]
        ]


def by_shape(rows: Rows) -> dict[tuple[str, ...], Figures]:
    """Return the rows of each shape; a key holds the texts of `SHAPE`."""
    ordered = groupby(sorted(rows, key=_order), key=_shape)
    return {shape: Figures(members) for shape, members in ordered}


def words(fields: Mapping[str, str]) -> str:
    """Return a shape in a few words: "32K x 4, 32:4 heads of 128"."""
    rows = f"{length(int(fields['seqlen']))} x {fields['batch']}"
    return f"{rows}, {_heads(fields)} heads of {fields['head_dim']}"


def markdown(rows: Rows) -> str:
    """Return tables for each shape; `rows` are those of a GPU."""
    shapes = by_shape(rows)
    parts = []
    for shape, figures in shapes.items():
        if not figures.providers:
            continue
        parts.append(f"### {_caption(shape)}")
        if OURS in figures.providers:
            parts.append(_ours(figures, _ungrouped(shape, shapes)))
        parts.append(_rates(figures))
        if FLEX in figures.providers and OURS in figures.providers:
            parts.append(_over_flex(figures, dict(zip(SHAPE, shape, strict=True))))
    return "\n\n".join(parts)


def _order(row: dict[str, str]) -> tuple[object, ...]:
    numbers = {name: int(row[name]) for name in NUMBERS}
    return tuple(numbers.get(name, row[name]) for name in SHAPE)


def _shape(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in SHAPE)


def _ungrouped(shape: tuple[str, ...], shapes: dict[tuple[str, ...], Figures]) -> Figures | None:
    """Return the same shape with as many key heads as query heads, if this one has fewer."""
    fields = dict(zip(SHAPE, shape, strict=True))
    fields["num_heads_k"] = fields["num_heads"]
    other = tuple(fields.values())
    return None if other == shape else shapes.get(other)


def _caption(shape: tuple[str, ...]) -> str:
    fields = dict(zip(SHAPE, shape, strict=True))
    return (
        f"{fields['device']}, {fields['dtype']}, {fields['seqlen']} x {fields['batch']}, "
        f"{_heads(fields)} heads, head_dim {fields['head_dim']}"
    )


def _heads(fields: Mapping[str, str]) -> str:
    heads, heads_k = fields["num_heads"], fields["num_heads_k"]
    return heads if heads == heads_k else f"{heads}:{heads_k}"


def _ours(figures: Figures, ungrouped: Figures | None) -> str:
    titles = ["ours", "density", *(f"{kind}, f / b / both" for kind in KINDS)]
    titles.append("deterministic backward, times as long")
    titles += ["with all key heads, times as long, f / b"] * (ungrouped is not None)
    lines = [titles]
    for mask in figures.masks:
        line = [mask, figures.density(mask)]
        for column in KINDS.values():
            found = [_number(figures, column, mask, OURS, way) for way in COLUMNS]
            line.append(" / ".join(found))
        line.append(_times(figures.ratio(mask, DETERMINISTIC, OURS, BACKWARD)))
        if ungrouped is not None:
            pairs = (
                (
                    ungrouped.value("wall_ms", mask, OURS, way),
                    figures.value("wall_ms", mask, OURS, way),
                )
                for way in DIRECTIONS
            )
            line.append(" / ".join(_times(a / b if a and b else None) for a, b in pairs))
        lines.append(line)
    return table(lines)


def _rates(figures: Figures) -> str:
    lines = [["TFLOP/s, f / b / both", *figures.providers]]
    for mask in figures.masks:
        line = [mask]
        for name in figures.providers:
            found = [_number(figures, "tflops_visible", mask, name, way) for way in COLUMNS]
            line.append(NOTHING if set(found) == {NOTHING} else " / ".join(found))
        lines.append(line)
    return table(lines)


def _over_flex(figures: Figures, fields: dict[str, str]) -> str:
    plain = fields["num_heads_k"] == fields["num_heads"]
    others = [name for name in figures.providers if name not in (OURS, FLEX, DETERMINISTIC)]
    titles = ["times as fast as FlexAttention"]
    for way in (FORWARD, BACKWARD):
        titles += [f"ours, {way}", "must", "aim"]
    lines = [[*titles, "ours, both", *(f"{name}, f / b" for name in others)]]
    found: dict[str, list[float]] = {way: [] for way in COLUMNS}
    for mask in figures.masks:
        ratios = {way: figures.ratio(mask, FLEX, OURS, way) for way in COLUMNS}
        for way, ratio in ratios.items():
            found[way] += [] if ratio is None else [ratio]
        line = _target_line(fields if plain else None, mask, ratios)
        for name in others:
            pair = [_times(figures.ratio(mask, FLEX, name, way)) for way in DIRECTIONS]
            line.append(NOTHING if set(pair) == {NOTHING} else " / ".join(pair))
        lines.append(line)
    means = {way: _mean(ratios) for way, ratios in found.items()}
    is_whole = len(figures.masks) == len(GPU_MASKS)
    line = _target_line(fields if plain and is_whole else None, targets.MEAN_OF_ALL, means)
    lines.append([*line, *[NOTHING] * len(others)])
    return table(lines)


def _target_line(
    fields: dict[str, str] | None, mask: str, ratios: dict[str, float | None]
) -> list[str]:
    target = None
    if fields is not None:
        target = targets.find(int(fields["seqlen"]), int(fields["head_dim"]), mask)
    line = [mask]
    for place, way in enumerate(DIRECTIONS):
        ratio = ratios[way]
        wanted = [None, None] if target is None else [target.must[place], target.aim[place]]
        falls_short = ratio is not None and wanted[0] is not None and ratio < wanted[0]
        line.append(f"**{_times(ratio)}**" if falls_short else _times(ratio))
        line += [_times(one) for one in wanted]
    return [*line, _times(ratios[BOTH])]


def _mean(ratios: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _number(figures: Figures, column: str, mask: str, provider: str, direction: str) -> str:
    value = figures.value(column, mask, provider, direction)
    return figures.status(mask, provider, direction) if value is None else _short(value)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f}"
