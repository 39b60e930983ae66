"""Markdown from the CSVs: README's table, and a long one with every length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from harness.readme import length, lengths, markdown

from train_steps.cells import DENSE, FLEX, KIB, OURS, ROLES
from train_steps.layouts import LAYOUTS
from train_steps.rows import DOES_NOT_FIT, OK
from train_steps.sizes import ON_DEVICE

Rows = Sequence[dict[str, str]]

WORDS = {"sft": "SFT", "lora": "LoRA", "dpo": "DPO", "rm": "RM"}
ROLE_WORDS = {OURS: "ours", DENSE: "dense mask", FLEX: "FlexAttention"}
README_LENGTHS = (32 * KIB, 64 * KIB, 128 * KIB)  # on a GPU
ON_CPU = 4 * KIB
NOT_MEASURED = "-"
HEADER = "| training |"  # how README's begins: lengths that were measured are in its titles


class Figures:
    """Rows of one device and its stack, by layout, length and role."""

    def __init__(self, rows: Rows, device: str) -> None:
        sizes = ON_DEVICE[device]
        own = {name: str(getattr(sizes, name)) for name in ("hidden", "blocks", "heads_k")}
        self.rows = {
            (row["layout"], int(row["seqlen"]), ROLES[device][row["provider"]]): row
            for row in rows
            if row["provider"] in ROLES[device]
            and all(row[name] == text for name, text in own.items())
        }
        self.clock = "cpu_ms" if device == "cpu" else "step_ms"

    def get(self, layout: str, seqlen: int, role: str) -> dict[str, str]:
        """Return a row of a step that was timed and right; else ValueError."""
        row = self.rows.get((layout, seqlen, role))
        if row is None or row["status"] != OK:
            what = f"{ROLE_WORDS[role]}, {layout}, S={seqlen}"
            raise ValueError(f"README needs a row that the CSV lacks: {what}; measure it first")
        return row

    def lengths(self, layout: str, role: str) -> list[int]:
        """Return the lengths at which it ran."""
        return sorted(
            seqlen
            for (name, seqlen, own), row in self.rows.items()
            if (name, own) == (layout, role) and row["status"] == OK
        )

    def shared(self, *roles: str) -> list[int]:
        """Return README's lengths at which these ran in every layout; none is a ValueError."""
        found = [
            seqlen
            for seqlen in README_LENGTHS
            if all(seqlen in self.lengths(name, role) for name in LAYOUTS for role in roles)
        ]
        if not found:
            for name, role in product(LAYOUTS, roles):
                self.get(name, README_LENGTHS[0], role)
        return found

    def longest(self, layout: str, role: str) -> str:
        """Return the longest length that ran, with "+" unless a longer one did not fit."""
        last = max(self.lengths(layout, role), default=0)
        is_known = any(
            row["status"] == DOES_NOT_FIT
            for (name, seqlen, own), row in self.rows.items()
            if (name, own) == (layout, role) and seqlen > last
        )
        return length(last) + ("" if is_known else "+")

    def speedup(self, layout: str, seqlen: int, role: str) -> float:
        """Return how many times longer a step of another takes than one of ours."""
        times = [float(self.get(layout, seqlen, own)[self.clock]) for own in (role, OURS)]
        return times[0] / times[1]

    def tokens(self, layout: str, seqlen: int) -> str:
        """Return our tokens/s."""
        return f"{float(self.get(layout, seqlen, OURS)['tokens_per_s']):.0f}"

    def peak(self, layout: str, seqlen: int, role: str) -> str:
        """Return the peak of memory in GiB."""
        return f"{float(self.get(layout, seqlen, role)['peak_gib']):.1f}"


def readme_table(gpu: Rows, cpu: Rows) -> str:
    """Return README's table; a row that is missing is a ValueError."""
    figures, small = Figures(gpu, "gpu"), Figures(cpu, "cpu")
    roles = (OURS, DENSE, FLEX)
    ours, dense, flex = (figures.shared(*{OURS, role}) for role in roles)
    last = figures.shared(*roles)[-1]

    def over(layout: str, role: str, seqlens: Sequence[int]) -> str:
        return " / ".join(f"{figures.speedup(layout, at, role):.2f}x" for at in seqlens)

    titles = [
        "training",
        f"tokens/s of ours, {lengths(ours)}",
        f"over the dense mask, {lengths(dense)}",
        f"over FlexAttention, {lengths(flex)}",
        f"peak GiB at {length(last)}, ours / dense / Flex",
        "longest run, ours / dense / Flex",
        f"CPU, {length(ON_CPU)}: over Paddle's dense mask",
    ]
    body = [
        [
            WORDS[name],
            " / ".join(figures.tokens(name, at) for at in ours),
            over(name, DENSE, dense),
            over(name, FLEX, flex),
            " / ".join(figures.peak(name, last, role) for role in roles),
            " / ".join(figures.longest(name, role) for role in roles),
            f"{small.speedup(name, ON_CPU, DENSE):.1f}x",
        ]
        for name in LAYOUTS
    ]
    return markdown([titles, *body])


def long_table(rows: Rows, device: str) -> str:
    """Return a line per layout and length: tokens/s and peak of each, and what ours gains."""
    figures = Figures(rows, device)
    roles = list(ROLES[device].values())
    others = [role for role in roles if role != OURS]
    titles = ["layout", "S", "density"]
    titles += [f"{ROLE_WORDS[role]}: tokens/s, GiB" for role in roles]
    titles += [f"over {ROLE_WORDS[role]}" for role in others]
    lines = [titles]
    for layout in LAYOUTS:
        seqlens = sorted({seqlen for name, seqlen, _ in figures.rows if name == layout})
        for seqlen in seqlens:
            found = {role: figures.rows.get((layout, seqlen, role)) for role in roles}
            some = next(row for row in found.values() if row is not None)
            cells = [WORDS[layout], length(seqlen), f"{float(some['density']):.3f}"]
            cells += [_speed(found[role]) for role in roles]
            for role in others:
                both = [found[OURS], found[role]]
                ran = all(row is not None and row["status"] == OK for row in both)
                cells.append(
                    f"{figures.speedup(layout, seqlen, role):.2f}x" if ran else NOT_MEASURED
                )
            lines.append(cells)
    return markdown(lines)


def _speed(row: dict[str, str] | None) -> str:
    if row is None:
        return NOT_MEASURED
    if row["status"] != OK:
        return row["status"]
    return f"{float(row['tokens_per_s']):.0f}, {float(row['peak_gib']):.1f}"
