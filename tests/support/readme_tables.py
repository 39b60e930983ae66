"""Tables of README as tests read them, and copies of README with one number changed."""

from __future__ import annotations

import re


def table_lines(section: str, header: str) -> list[list[str]]:
    """Return the cells of the table whose header begins so, header first, without the rule."""
    lines = "".join(section.partition(f"| {header}")[1:]).split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def edited(text: str, section: str, lines: str) -> list[str]:
    """Return a text once for each number of the section's lines that match, with it changed."""
    copies = []
    start = text.index(section)
    for line in re.finditer(lines, section, re.MULTILINE):
        for number in re.finditer(r"\d+", line[0]):
            place = start + line.start() + number.start()
            copies.append(f"{text[:place]}9{text[place:]}")
    return copies
