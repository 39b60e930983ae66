"""Print a mask recipe as a text picture: a row per query, a column per key, `#` where it sees.

python tools/draw_mask.py dpo
python tools/draw_mask.py sft "lengths=[3, 2]" seq_len=6
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from typing import Any

if importlib.util.find_spec("paddle_flashmask") is None:  # recipes need numpy alone, no build
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paddle_flashmask.recipes
from paddle_flashmask.indices import ColumnMask, to_dense

LARGEST_DRAWN = 100  # tokens; a wider picture does not fit a screen


def recipe_names() -> list[str]:
    """Return the names of all recipes, from the files of their folder."""
    modules = pkgutil.iter_modules(paddle_flashmask.recipes.__path__)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def parse_argument(text: str) -> tuple[str, Any]:
    """Return name and value of "name=value", the value a Python literal."""
    name, equals, literal = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be name=value; got {text!r}")
    try:
        return name, ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        raise argparse.ArgumentTypeError(
            f"value of {name} must be a Python literal; got {literal!r}"
        ) from None


def draw(mask: ColumnMask) -> str:
    """Return the picture of a mask, one block of lines per mask head."""
    seq_len = mask.startend_row_indices.shape[2]
    if seq_len > LARGEST_DRAWN:
        raise ValueError(f"seq_len must be at most {LARGEST_DRAWN} to be drawn; got {seq_len}")
    dense = to_dense(mask.startend_row_indices, causal=mask.causal, seqlen_q=seq_len)
    heads = [[" ".join(".#"[int(seen)] for seen in row) for row in head] for head in dense[0]]
    return "\n\n".join("\n".join(lines) for lines in heads)


def main() -> None:
    """Draw the recipe that the command line names: its examples, or one with given arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "recipe",
        choices=recipe_names(),
        metavar="recipe",
        help=f"one of {', '.join(recipe_names())}",
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        type=parse_argument,
        default=[],  # with a default argparse does not call them required
        metavar="name=value",
        help="arguments of the recipe as Python literals; none draws its examples",
    )
    options = parser.parse_args()
    module = importlib.import_module(f"paddle_flashmask.recipes.{options.recipe}")
    drawings = {"": dict(options.arguments)} if options.arguments else module.EXAMPLES
    for title, arguments in drawings.items():
        call = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        try:
            mask = getattr(module, options.recipe)(**arguments)
            picture = draw(mask)
        except (TypeError, ValueError) as error:
            parser.error(str(error))
        width = mask.startend_row_indices.shape[3]
        comment = f"  # {title}" if title else ""
        print(
            f"{options.recipe}({call}){comment}\ncausal={mask.causal}, width {width}\n{picture}\n"
        )


if __name__ == "__main__":
    main()
