"""README's tables of a GPU: ours on each mask at one shape, and over the masks of each shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from harness import readme
from harness.cells import DIRECTIONS
from harness.gpu_tables import FLEX, NOTHING, SHAPE, Figures, Rows, words
from harness.masks import PRESETS
from harness.results import OURS
from harness.suite import GPU_GROUPS

CARD = "NVIDIA H200"  # README has the rows of this one
GROUPS = ("32k", "8k", "128k", "hdim64", "hdim256", "gqa")
WHOLE = GROUPS[0]  # with every mask, in a table of its own
SHAPES = "shape (masks)"  # how the table of shapes begins
DENSE = ("full", "causal")  # all that PyTorch's backends know
RIVALS = {
    FLEX: ("FlexAttention", tuple(PRESETS)),
    "torch_flex_flash": ("FlexAttention with FA4", tuple(PRESETS)),
    "torch_cudnn": ("cuDNN", DENSE),
    "torch_flash": ("FA2", DENSE),
}


class Group:
    """The rows of a group of cells; one that is missing, wrong or failed is a ValueError."""

    def __init__(self, rows: Rows, name: str) -> None:
        cells = GPU_GROUPS[name]
        self.fields = {field: str(getattr(cells[0], field)) for field in SHAPE}
        self.fields["device"] = CARD
        self.words = words(self.fields)
        self._figures = Figures(
            row for row in rows if all(row[field] == text for field, text in self.fields.items())
        )
        measured = [cell.mask for cell in cells if cell.mask in self._figures.masks]
        self.masks = measured or [cells[0].mask]

    def rates(self, mask: str) -> list[float]:
        """Return our TFLOP/s on visible cells, forward and backward."""
        return [self._get("tflops_visible", mask, OURS, way) for way in DIRECTIONS]

    def ratios(self, mask: str, rival: str) -> list[float]:
        """Return how many times longer a rival takes, forward and backward, in turns with ours."""
        for way in DIRECTIONS:
            found = {self._figures.date(mask, name, way) for name in (rival, OURS)} - {None}
            if len(found) > 1:
                what = f"{rival} and {OURS}, {way}, {mask}, {self.words}"
                raise ValueError(f"README needs rows of one run: {what}; measure them together")
        theirs, mine = (
            [self._get("wall_ms", mask, provider, way) for way in DIRECTIONS]
            for provider in (rival, OURS)
        )
        return [their / my for their, my in zip(theirs, mine, strict=True)]

    def _get(self, column: str, mask: str, provider: str, direction: str) -> float:
        found = self._figures.value(column, mask, provider, direction)
        if found is None:
            what = f"{provider}, {direction}, {mask}, {self.words}"
            raise ValueError(f"README needs a row that the CSV lacks: {what}; measure it first")
        return found


def tables(rows: Rows) -> dict[str, str]:
    """Return README's tables by how they begin; a row that is missing is a ValueError."""
    groups = {name: Group(rows, name) for name in GROUPS}
    whole = groups[WHOLE]
    return {
        f"| mask, {whole.words} |": _by_mask(whole),
        f"| {SHAPES} |": _by_shape(list(groups.values())),
    }


def write(path: Path, rows: Rows) -> bool:
    """Put the tables into a file in place of those that begin alike; tell if it changed."""
    return readme.put(path, tables(rows))


def _by_mask(group: Group) -> str:
    titles = [f"mask, {group.words}", "ours, TFLOP/s"]
    titles += [f"over {title}" for title, _ in RIVALS.values()]
    body = [
        [
            mask,
            _pair(_rate, group.rates(mask)),
            *(
                _pair(_times, group.ratios(mask, rival)) if mask in masks else NOTHING
                for rival, (_, masks) in RIVALS.items()
            ),
        ]
        for mask in PRESETS
    ]
    return readme.markdown([titles, *body])


def _by_shape(groups: list[Group]) -> str:
    columns = [[SHAPES, "ours, TFLOP/s", *(f"over FlexAttention, {way}" for way in DIRECTIONS)]]
    for group in groups:
        rates = zip(*map(group.rates, group.masks), strict=True)
        ratios = zip(*(group.ratios(mask, FLEX) for mask in group.masks), strict=True)
        title = f"{group.words} ({len(group.masks)})"
        columns.append([title, _pair(_rate, list(map(median, rates))), *map(_range, ratios)])
    return readme.markdown(list(zip(*columns, strict=True)))


def _range(ratios: tuple[float, ...]) -> str:
    return f"{_times(median(ratios))} ({min(ratios):.2f} to {max(ratios):.2f})"


def _pair(text: Callable[[float], str], numbers: list[float]) -> str:
    return " / ".join(map(text, numbers))


def _rate(tflops: float) -> str:
    return f"{tflops:.0f}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"
