"""What is to be drawn: a recipe with its arguments, or a file of index tensors."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paddle_flashmask import recipes
from paddle_flashmask.indices import CAUSAL_WIDTHS, NON_CAUSAL_WIDTHS, ColumnMask, check

FILE_SUFFIXES = (".npy", ".npz")
# Fields of batches, in packing and in other trainers; one number per column, causal.
BATCH_FIELDS = ("attn_mask_startend_row_indices", "attn_mask_start_row_indices")
SHORT_RANK = 3  # [B, Hm, S], of batches that leave the last axis out
INDICES_FIELD, CAUSAL_FIELD = "startend_row_indices", "causal"


class Source(NamedTuple):
    """A mask and what to call it.

    Attributes:
        title: the call or the file that it comes from.
        mask: the mask, int32 indices [B, Hm, Sk, C].
    """

    title: str
    mask: ColumnMask


def recipe_names() -> list[str]:
    """Return the names of all recipes, from the files of their folder."""
    modules = pkgutil.iter_modules(recipes.__path__)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def from_recipe(name: str, texts: list[str]) -> list[Source]:
    """Return the mask of a recipe, or those of its examples if no argument is given.

    Args:
        name: of the recipe.
        texts: its arguments as "name=value", values as Python literals.

    Raises:
        TypeError, ValueError: there is no such recipe, or an argument does not fit.
    """
    if name not in recipe_names():
        raise ValueError(
            f"mask must be a recipe ({', '.join(recipe_names())}) or a file that ends in "
            f"{' or '.join(FILE_SUFFIXES)}; got {name!r}"
        )
    module = importlib.import_module(f"paddle_flashmask.recipes.{name}")
    pairs = [_argument(text) for text in texts]
    given = dict(pairs)
    for key in given:
        times = sum(key == other for other, _ in pairs)
        if times > 1:
            raise ValueError(f"{key} must be given once; got it {times} times")
    calls: dict[str, dict[str, Any]] = {"": given} if given else module.EXAMPLES
    found = []
    for example, arguments in calls.items():
        call = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        title = f"{name}({call})" + (f"  # {example}" if example else "")
        found.append(Source(title, getattr(module, name)(**arguments)))
    return found


def from_file(path: Path, *, causal: bool | None) -> Source:
    """Return the mask of a saved index tensor or of a saved batch.

    A .npy file holds the index tensor. A .npz file holds a batch of `packing` (its field
    attn_mask_startend_row_indices is causal), or startend_row_indices and perhaps causal, or one
    array of any name.

    Args:
        path: the file.
        causal: the flag that the indices are read with; None: what the file or the width says.

    Raises:
        TypeError: the array is not int32.
        ValueError: there is no such file, it cannot be read, it has no index tensor, its form
            breaks a rule, or it leaves open what causal is.
    """
    array, flag = _read(path)
    if causal is not None and flag is not None and causal != flag:
        raise ValueError(
            f"causal must be {flag}, as {path.name} says; got {_option(causal)} on the command line"
        )
    known = flag if causal is None else causal
    if known is None:
        known = _flag_of_width(array.shape[-1] if array.ndim else 0, path)
    check(array, causal=known)
    return Source(f"{path.name}", ColumnMask(array, causal=known))


def _argument(text: str) -> tuple[str, Any]:
    name, equals, literal = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"an argument of a recipe must be name=value; got {text!r}")
    try:
        return name, ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        raise ValueError(f"{name} must be a Python literal; got {literal!r}") from None


def _read(path: Path) -> tuple[NDArray[Any], bool | None]:
    """Return the index tensor of a file, and causal if the file says it."""
    if not path.is_file():
        raise ValueError(f"mask must be a recipe or a file; there is no file {path}")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded, None
        with loaded:
            return _choose(dict(loaded.items()), path)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error


def _choose(arrays: Mapping[str, NDArray[Any]], path: Path) -> tuple[NDArray[Any], bool | None]:
    named = [name for name in (*BATCH_FIELDS, INDICES_FIELD) if name in arrays]
    if len(named) > 1:
        raise ValueError(f"it must hold one index tensor; got {' and '.join(named)}")
    for name in BATCH_FIELDS:
        if name in arrays:
            array = arrays[name]
            return (array[..., None] if array.ndim == SHORT_RANK else array), True
    flag = None
    if CAUSAL_FIELD in arrays:
        found = arrays[CAUSAL_FIELD]
        if found.dtype != np.bool_ or found.size != 1:
            raise ValueError(f"causal must be one bool; got {found.dtype} {list(found.shape)}")
        flag = bool(found.item())
    if INDICES_FIELD in arrays:
        return arrays[INDICES_FIELD], flag
    rest = [array for name, array in arrays.items() if name != CAUSAL_FIELD]
    if len(rest) != 1:
        raise ValueError(
            f"it must hold {BATCH_FIELDS[0]}, {INDICES_FIELD} or one array; "
            f"got {', '.join(sorted(arrays)) or 'nothing'}"
        )
    return rest[0], flag


def _flag_of_width(width: int, path: Path) -> bool:
    can_be = [width in CAUSAL_WIDTHS, width in NON_CAUSAL_WIDTHS]
    if can_be == [True, True]:
        raise ValueError(
            f"{path.name} has {width} numbers per column, which mean different things with and "
            "without causal: say --causal or --no-causal"
        )
    return can_be[0]


def _option(causal: bool) -> str:
    return "--causal" if causal else "--no-causal"
