"""Report every include and import that crosses a layer the wrong way; exit 1 if there is one.

    python tools/check_layers.py [ROOT]

The tables below are the rules. A folder or module without a row is a breach too: a new layer
says first whom it may know.
"""

from __future__ import annotations

import argparse
import ast
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "paddle_flashmask"
CPP_SUFFIXES = {".cc", ".cu", ".cuh", ".h"}
CPP_LAYERS = ("ops", "core", "capi", "kernels")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>|(\S.*))', re.MULTILINE)
INSTRUCTION = re.compile(r"^[^/\n]*\basm\b", re.MULTILINE)
INSTRUCTIONS = "kernels/ptx"  # the only folder with any: tests/emulator puts others in its place
STANDARD_HEADER = re.compile(r"[a-z][a-z0-9_]*")
CUDA_HEADER = re.compile(r"(cuda|cooperative_groups|cutlass|cute|cub|nv)([/_.]|$)|.*\.cuh$|mma\.h$")


@dataclass(frozen=True)
class CppRule:
    """What a folder may include: our folders, and kinds of headers of others."""

    folders: frozenset[str]
    kinds: frozenset[str]


CPP_RULES = {
    "core": CppRule(frozenset({"core"}), frozenset({"standard"})),
    "ops": CppRule(frozenset({"ops", "core"}), frozenset({"standard", "paddle"})),
    "capi": CppRule(frozenset({"capi", "core"}), frozenset({"standard"})),
    "kernels/cpu": CppRule(frozenset({"core", "kernels/cpu"}), frozenset({"standard", "other"})),
    "kernels/ptx": CppRule(frozenset({"kernels/ptx"}), frozenset({"standard", "cuda"})),
    "kernels/common": CppRule(
        frozenset({"core", "kernels/ptx", "kernels/common"}), frozenset({"standard", "cuda"})
    ),
}
ARCHITECTURE = re.compile(r"kernels/sm\d+[a-z]?")
ARCHITECTURE_FOLDERS = frozenset({"core", "kernels/common", "kernels/ptx"})


@dataclass(frozen=True)
class PythonRule:
    """What a module of the package may import, and what it may import in functions only."""

    modules: frozenset[str] = frozenset()
    modules_in_functions: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    others_in_functions: frozenset[str] = frozenset()
    anything_in_functions: bool = False


NUMPY = frozenset({"numpy"})
PADDLE = frozenset({"numpy", "paddle"})
# The row "" is the package's own __init__.py, which loads what needs Paddle at first use.
PYTHON_RULES = {
    "": PythonRule(frozenset({"version"}), frozenset({"attention", "_ops"})),
    "version": PythonRule(),
    "_gpu_code": PythonRule(),
    "indices": PythonRule(others=NUMPY),
    "recipes": PythonRule(frozenset({"recipes", "indices"}), others=NUMPY),
    "packing": PythonRule(frozenset({"packing", "recipes", "indices"}), others=NUMPY),
    "viewer": PythonRule(
        frozenset({"recipes", "indices"}),
        others=NUMPY,
        others_in_functions=frozenset({"matplotlib"}),
    ),
    # It must start where Paddle and numpy do not; what needs them runs in a process of its own.
    "doctor": PythonRule(
        frozenset({"version", "_gpu_code"}),
        frozenset({"_ops", "attention", "indices", "recipes"}),
        others_in_functions=PADDLE,
    ),
    "__main__": PythonRule(modules_in_functions=frozenset({"viewer", "doctor"})),
    "attention": PythonRule(frozenset({"indices", "_ops"}), others=PADDLE),
    "_ops": PythonRule(frozenset({"version"}), others=PADDLE),
    "backends": PythonRule(frozenset({"_ops", "_gpu_code"}), others=PADDLE),
    "reference": PythonRule(frozenset({"indices"}), others=PADDLE),
    "losses": PythonRule(frozenset({"packing"}), others=PADDLE),
    "nn": PythonRule(frozenset({"nn", "attention"}), others=PADDLE),
    "integrations": PythonRule(
        frozenset({"", "integrations", "attention", "backends", "indices", "losses", "packing"}),
        others=PADDLE,
        anything_in_functions=True,
    ),
}


def cpp_folder(path: str) -> str:
    """Return the layer of a path below custom_ops: its first folder, for kernels the first two."""
    parts = path.split("/")[:-1]
    return "/".join(parts[:2] if parts[:1] == ["kernels"] else parts[:1])


def cpp_rule(folder: str) -> CppRule | None:
    """Return the rule of a folder; all architectures have the same one, and no row."""
    if ARCHITECTURE.fullmatch(folder):
        return CppRule(ARCHITECTURE_FOLDERS | {folder}, frozenset({"standard", "cuda"}))
    return CPP_RULES.get(folder)


def header_kind(name: str) -> str:
    """Return what kind of header of others `name` is: paddle, standard, cuda or other."""
    if name.startswith("paddle/"):
        return "paddle"
    if CUDA_HEADER.match(name):
        return "cuda"
    return "standard" if STANDARD_HEADER.fullmatch(name) else "other"


def check_include(file: str, quoted: str | None, angled: str | None, top: Path) -> str | None:
    """Return why the include of `file` (path below custom_ops) is a breach, or None."""
    folder = cpp_folder(file)
    rule = cpp_rule(folder)
    if rule is None:
        return f"folder {folder or '.'!r} has no rule in tools/check_layers.py"
    name = quoted or angled
    if name is None:
        return "an include through a macro cannot be checked"
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(file), name))
    relative = quoted and not (top / name).is_file() and (top / beside).is_file()
    if relative or name.startswith("."):
        return f'write the include from custom_ops: "{beside}"'
    if name.split("/")[0] in CPP_LAYERS:
        target = cpp_folder(posixpath.normpath(name))
        if target not in rule.folders:
            return f"{folder} must not include {target} ({name}); it may: {listed(rule.folders)}"
        return None
    kind = header_kind(name)
    if kind not in rule.kinds:
        return f"{folder} must not include {kind} headers ({name}); it may: {listed(rule.kinds)}"
    return None


def check_cpp(root: Path) -> Iterator[str]:
    """Yield one line per breach in the C++ and CUDA sources."""
    top = root / "custom_ops"
    for path in sorted(top.rglob("*")):
        if path.suffix not in CPP_SUFFIXES:
            continue
        file = path.relative_to(top).as_posix()
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            reason = check_include(file, match[1], match[2], top)
            if reason is not None:
                yield f"custom_ops/{file}:{line_of(text, match)}: {reason}"
        if cpp_folder(file) != INSTRUCTIONS:
            for match in INSTRUCTION.finditer(text):
                yield f"custom_ops/{file}:{line_of(text, match)}: asm belongs in {INSTRUCTIONS}"


def line_of(text: str, match: re.Match[str]) -> int:
    """Return the number of the line where a match begins."""
    return text.count("\n", 0, match.start()) + 1


def is_deferred(node: ast.AST) -> bool:
    """Return whether the inside of `node` does not run when its module is imported."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def python_imports(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield line, dotted name and "in a function" of each import, `import_module` included.

    What stands under `if TYPE_CHECKING` never runs and counts as in a function.
    """
    inside = {
        id(node) for block in ast.walk(tree) if is_deferred(block) for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        in_function = id(node) in inside
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, in_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = [*base, *([node.module] if node.module else [])]
            for alias in node.names:
                yield node.lineno, ".".join([*start, alias.name]), in_function
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value, in_function


def check_import(layer: str, name: str, in_function: bool, root: Path) -> str | None:
    """Return why importing `name` in `layer` is a breach, or None."""
    rule = PYTHON_RULES[layer]
    shown = layer or "__init__"
    first, *rest = name.split(".")
    if first == PACKAGE:
        folder = root / PACKAGE
        known = rest and ((folder / f"{rest[0]}.py").is_file() or (folder / rest[0]).is_dir())
        target = rest[0] if known or (rest and rest[0] in PYTHON_RULES) else ""
        allowed = rule.modules | {layer} if layer else rule.modules
        if target in allowed or (in_function and target in rule.modules_in_functions):
            return None
        may = listed(allowed | rule.modules_in_functions)
        return f"{shown} must not import {PACKAGE}.{target or '__init__'} here; it may: {may}"
    if first in sys.stdlib_module_names or first in rule.others:
        return None
    if in_function and first in rule.others_in_functions:
        return None
    if rule.anything_in_functions:
        return None if in_function else f"{shown} may import {first} inside functions only"
    return f"{shown} must not import {first}; besides the standard library: {listed(rule.others)}"


def check_python(root: Path) -> Iterator[str]:
    """Yield one line per breach in the package."""
    top = root / PACKAGE
    for path in sorted(top.rglob("*.py")):
        if path.name.startswith("_custom_ops"):
            continue
        parts = path.relative_to(top).with_suffix("").parts
        layer = "" if parts == ("__init__",) else parts[0]
        where = path.relative_to(root).as_posix()
        if layer not in PYTHON_RULES:
            yield f"{where}:1: module {layer!r} has no rule in tools/check_layers.py"
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=where)
        found = {  # once per line: `from x import a, b` is one breach
            (line, check_import(layer, name, in_function, root))
            for line, name, in_function in python_imports(tree, [PACKAGE, *parts[:-1]])
        }
        reported = sorted((line, reason) for line, reason in found if reason is not None)
        yield from (f"{where}:{line}: {reason}" for line, reason in reported)


def listed(names: frozenset[str]) -> str:
    """Return names as text."""
    return ", ".join(sorted(name or "__init__" for name in names)) or "nothing"


def main() -> int:
    """Check the tree given, or the one this file is in."""
    parser = argparse.ArgumentParser(description="Check include and import rules.")
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent
    )
    root = parser.parse_args().root
    breaches = [*check_cpp(root), *check_python(root)]
    for breach in breaches:
        print(breach)
    print(f"check_layers: {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
