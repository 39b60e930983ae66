"""One cell for all its providers: prepare, check, then time in turns.

The power that a GPU may draw sets its clock, and what ran a moment ago still counts. So there the
order of every turn is drawn anew, and a turn begins with calls that are not timed.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import providers

from harness import check, masks, results
from harness.cells import BACKWARD, FORWARD, Cell
from harness.meters import Timing
from harness.workers import WorkerError

# Turns at least: a GPU's clock is steady, and its slowest calls take seconds.
LEAST_TURNS = {"cpu": 3, "gpu": 2}
SHORTEST_TURN = 0.02  # seconds: shorter calls are run in a row
MOST_IN_A_ROW = 50
IN_A_ROW = {"cpu": 1, "gpu": 3}  # 7 turns then make the 20 runs that a GPU takes
SECONDS = {"cpu": 5.0, "gpu": 1.0}
ORDER_SEED = 0


class Asked(Protocol):
    """A provider that can be asked: `harness.workers.Worker`."""

    def ask(self, **request: Any) -> dict[str, Any]: ...

    def close(self) -> None: ...


StartWorker = Callable[[str, Cell], Asked]


@dataclass(frozen=True)
class Effort:
    """Turns of every provider and direction, fewer (see LEAST_TURNS) if they exceed the seconds.

    A pause, in seconds, comes before each turn.
    """

    turns: int = 7
    seconds: float = SECONDS["cpu"]
    pause: float = 0.0


@dataclass
class Contestant:
    """A provider in a cell, with what is known of it so far."""

    name: str
    worker: Asked
    directions: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    timings: dict[str, list[Timing]] = field(default_factory=dict)
    failure: str | None = None
    failures: dict[str, str] = field(default_factory=dict)  # of one direction

    def ask(self, **request: Any) -> dict[str, Any] | None:
        """Return the answer, or None if it failed now or before."""
        if self.failure is None:
            try:
                return self.worker.ask(**request)
            except WorkerError as error:
                self.failure = str(error)
        return None


def run_cell(
    cell: Cell, start: StartWorker, effort: Effort, origin: results.Source
) -> list[results.Row]:
    """Return the rows of a cell, one for each provider and direction."""
    mask = masks.build(cell.mask, cell.seqlen)
    contestants = []
    unable: list[tuple[str, str, str]] = []
    for name in cell.providers:
        able = []
        for direction in cell.directions:
            reason = providers.find(name, cell.device).impossible(cell, mask, direction)
            if reason is None:
                able.append(direction)
            else:
                unable.append((name, direction, reason))
        if able:
            contestants.append(Contestant(name, start(name, cell), tuple(able)))
    try:
        for one in contestants:
            _prepare(one, cell)
        _check(contestants, cell, mask)
        for direction in cell.directions:
            able = [one for one in contestants if direction in one.seconds]
            _time_in_turns(able, direction, effort, cell.device)
    finally:
        for one in contestants:
            one.worker.close()
    # On a GPU only who runs there knows its name.
    shared = [columns for one in contestants for columns in one.columns.values()]
    device = next((found["device"] for found in shared if "device" in found), origin.device)
    rows = [row for one in contestants for row in _rows(one, cell, mask, origin, device)]
    for name, direction, reason in unable:
        columns = {"status": results.NOT_APPLICABLE, "reason": reason, "device": device}
        rows.append(results.row(origin, cell, mask, name, direction, **columns))
    order = {name: place for place, name in enumerate(cell.providers)}
    return sorted(rows, key=lambda found: (found.direction != FORWARD, order[found.provider]))


def _prepare(one: Contestant, cell: Cell) -> None:
    fields = asdict(cell) | {"directions": one.directions}
    answer = one.ask(do="prepare", cell=fields)
    if answer is None:
        return
    one.seconds, one.failures = answer["seconds"], answer["failures"]
    shared: dict[str, Any] = {
        "versions": answer["versions"],
        "mask_ms": round(results.MILLI * answer["mask_seconds"], 3),
    }
    if answer["device_name"] is not None:
        shared["device"] = answer["device_name"]
    if answer["peak_bytes"] is not None:
        shared["peak_mib"] = round(answer["peak_bytes"] / results.MIB, 1)
    one.columns = {direction: dict(shared) for direction in one.directions}


def _check(contestants: list[Contestant], cell: Cell, mask: masks.BenchMask) -> None:
    sample = check.choose(cell, mask)
    places = {"rows": sample.rows.tolist(), "columns": sample.columns.tolist()}
    reference, digests = None, {}
    # The one that has all directions comes first: its inputs make the reference.
    for one in sorted(contestants, key=lambda c: BACKWARD not in c.directions):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "sample.npz")
            wanted = {"path": path, "with_inputs": reference is None, **places}
            answer = one.ask(do="sample", heads=sample.heads, **wanted)
            if answer is None:
                continue
            with np.load(path) as file:
                arrays = dict(file)
        if reference is None:
            reference, digests = check.Reference(cell, mask, sample, arrays), answer["digests"]
        other = [name for name in digests if answer["digests"][name] != digests[name]]
        if other:
            one.failure = f"{', '.join(other)} is not that of the other providers"
            continue
        for direction in one.seconds:
            verdict = reference.judge(arrays, direction)
            one.columns[direction] |= results.verdict_columns(verdict)


def _time_in_turns(
    contestants: list[Contestant], direction: str, effort: Effort, device: str = "cpu"
) -> None:
    """Time one turn of each provider after another; slow ones sit some turns out."""
    plans = {one.name: plan(one.seconds[direction], effort, device) for one in contestants}
    most = max((turns for turns, _ in plans.values()), default=0)
    draw = np.random.default_rng(ORDER_SEED)
    for turn in range(most):
        places = draw.permutation(len(contestants)) if device == "gpu" else range(len(contestants))
        for one in (contestants[place] for place in places):
            share, count = plans[one.name]
            if (turn + 1) * share // most == turn * share // most:
                continue
            untimed = calls_in_a_row(one.seconds[direction]) if device == "gpu" else 0
            if one.failure is None:
                time.sleep(effort.pause)
            answer = one.ask(do="time", direction=direction, count=count, untimed=untimed)
            if answer is not None:
                found = [Timing(*timing) for timing in answer["timings"]]
                one.timings.setdefault(direction, []).extend(found)


def plan(seconds: float, effort: Effort, device: str) -> tuple[int, int]:
    """Return how many turns a provider takes, and how many calls in each.

    Args:
        seconds: of one call.
        effort: what may be spent.
        device: of the cell.
    """
    least, affordable = LEAST_TURNS[device], effort.seconds / max(seconds, 1e-9)
    count = calls_in_a_row(seconds)
    # Calls of a GPU are timed one by one, so more of them in a turn are more runs.
    count = max(count, min(IN_A_ROW[device], int(affordable / least)))
    return min(effort.turns, max(least, int(affordable / count))), count


def calls_in_a_row(seconds: float) -> int:
    """Return how many calls make one turn."""
    return min(MOST_IN_A_ROW, max(1, math.ceil(SHORTEST_TURN / max(seconds, 1e-9))))


def _rows(
    one: Contestant, cell: Cell, mask: masks.BenchMask, origin: results.Source, device: str
) -> list[results.Row]:
    rows = []
    for direction in one.directions:
        columns = {"device": device, **one.columns.get(direction, {})}
        failure = one.failure or one.failures.get(direction)
        if failure is None:
            columns |= results.figures(cell, mask, direction, one.timings[direction])
        else:
            columns |= {"status": results.ERROR, "reason": failure}
        rows.append(results.row(origin, cell, mask, one.name, direction, **columns))
    return rows
