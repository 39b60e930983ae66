"""Draw a mask, count what it costs, and say why one row sees one column.

    python -m paddle_flashmask mask sft "lengths=[3, 2, 3]" --tile 4
    python -m paddle_flashmask mask dpo                            draws its examples
    python -m paddle_flashmask mask batch.npz --sample 1           a saved batch of packing
    python -m paddle_flashmask mask rows.npy --causal --output mask.svg
    python -m paddle_flashmask mask sft "lengths=[16, 16]" --explain 17 3

The mask is a recipe with its arguments (Python literals), or a .npy or .npz file of int32 indices.
numpy alone is needed; a .png asks for matplotlib, a .svg does not.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from textwrap import shorten

from paddle_flashmask.indices import ColumnMask
from paddle_flashmask.viewer import colours, png, rates, sources, svg, text
from paddle_flashmask.viewer.blocks import make_blocks
from paddle_flashmask.viewer.explanation import explain
from paddle_flashmask.viewer.memory import within_the_machine
from paddle_flashmask.viewer.sources import Source
from paddle_flashmask.viewer.summary import Shape, density, summarize

DEFAULT_HEADS, DEFAULT_HEAD_DIM = 8, 64
PICTURES = (".svg", ".png")
LONGEST_TITLE = 90  # characters over a picture


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code, 0 or, with a line on stderr, 2.

    Args:
        arguments: of the command line, without the command's own name.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        with within_the_machine():
            for number, source in enumerate(find_sources(options)):
                if number:
                    print()
                show(source, options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except MemoryError as error:
        parser.error(
            f"the mask or its picture does not fit into memory; take fewer tokens: {error}"
        )
    except (TypeError, ValueError, OSError) as error:
        parser.error(str(error))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m paddle_flashmask mask",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("mask", help=f"a recipe ({', '.join(sources.recipe_names())}), or a .npy or .npz file")
    add(
        "arguments",
        nargs="*",
        default=[],
        metavar="name=value",
        help="arguments of the recipe; none draws its examples",
    )
    add(
        "--causal",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="how a file's numbers are read, where it does not say",
    )
    add("--seqlen-q", type=int, metavar="N", help="query rows; default: as many as columns")
    add("--sample", type=int, default=0, metavar="N", help="row of the batch that is drawn")
    add("--head", type=int, default=0, metavar="N", help="mask head that is drawn")
    add("--tile", type=int, default=64, metavar="N", help="rows and columns of a tile: 64, 128")
    add("--output", type=Path, metavar="FILE", help="draw into a .svg or .png file")
    add("--explain", type=int, nargs=2, metavar=("ROW", "COLUMN"), help="why it sees it, or not")
    add("--heads", type=int, metavar="N", help="query heads that FLOPs are counted for")
    add("--head-dim", type=int, default=DEFAULT_HEAD_DIM, metavar="N")
    known = list(dict.fromkeys(dtype for dtype, _ in rates.MEASURED))
    add("--dtype", choices=known, default=known[0], help="that speed is estimated for")
    return parser


def find_sources(options: argparse.Namespace) -> list[Source]:
    """Return the masks that the command line names.

    Raises:
        TypeError, ValueError: it names none, or options do not go together.
    """
    if options.tile < 1 or options.tile & (options.tile - 1):
        raise ValueError(f"--tile must be a power of 2; got {options.tile}")
    if options.output is not None and options.output.suffix not in PICTURES:
        raise ValueError(f"--output must end in {' or '.join(PICTURES)}; got {options.output}")
    if options.output is not None and options.explain:
        raise ValueError("--output and --explain do not go together: a cell is told, not drawn")
    if options.heads is not None and options.heads < 1:
        raise ValueError(f"--heads must be at least 1; got {options.heads}")
    if options.output is not None and options.output.suffix == ".png":
        png.require_matplotlib()
    if options.mask.endswith(sources.FILE_SUFFIXES):
        if options.arguments:
            raise ValueError(f"a file takes no arguments; got {options.arguments[0]!r}")
        return [sources.from_file(Path(options.mask), causal=options.causal)]
    if options.causal is not None:
        raise ValueError("--causal is for files; a recipe says it itself")
    found = sources.from_recipe(options.mask, options.arguments)
    if len(found) > 1 and (options.output or options.explain):
        raise ValueError(f"--output and --explain need one mask; give {options.mask} its arguments")
    return found


def show(source: Source, options: argparse.Namespace) -> None:
    """Print, and write if asked, one mask.

    Raises:
        TypeError, ValueError: the mask or an option is wrong.
        OSError: the picture cannot be written.
    """
    rows, _ = source.mask
    batch, heads, seqlen_k, _ = rows.shape
    seqlen_q = seqlen_k if options.seqlen_q is None else options.seqlen_q
    for name, value, size in (("--sample", options.sample, batch), ("--head", options.head, heads)):
        if not 0 <= value < size:
            raise ValueError(f"{name} must be in [0, {size}); got {value}")
    num_heads = options.heads or heads * -(-DEFAULT_HEADS // heads)
    shape = Shape(num_heads, options.head_dim, options.dtype, options.tile)
    place = {"seqlen_q": seqlen_q, "sample": options.sample, "head": options.head}
    if options.explain:
        told = explain(source.mask, *options.explain, **place).sentence
        print(source.title, told, sep="\n")
        return
    print(source.title)
    lines = summarize(source.mask, seqlen_q=seqlen_q, shape=shape)
    print(*lines, sep="\n")
    which = ""
    if batch * heads > 1:
        which = f", sample {options.sample} of {batch}, head {options.head} of {heads}"
        print(f"drawn{which}: --sample and --head choose")
    most = text.MOST_BLOCKS if options.output is None else colours.MOST_BLOCKS
    blocks = make_blocks(source.mask, **place, tile=options.tile, most=most)
    if options.output is None:
        print(text.draw(blocks))
        return
    title = shorten(source.title, LONGEST_TITLE, placeholder=" ...")
    drawn = ColumnMask(rows[options.sample, options.head][None, None], source.mask.causal)
    words = [f"tiles of {options.tile} x {options.tile}{which}", density(drawn, seqlen_q)]
    if options.output.suffix == ".png":
        png.draw(options.output, blocks, title, words)
    else:
        document = svg.draw(blocks, title, words)
        options.output.write_text(document, encoding="utf-8")
    print(f"{options.output}: {colours.scale_words(blocks)}")
