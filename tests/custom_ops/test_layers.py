"""Each rule of `tools/check_layers.py` is breached once; the real tree keeps them all."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CPP_BREACHES = [
    ("core/params.h", '#include "ops/tensor_checks.h"', "core must not include ops"),
    ("core/params.h", '#include "kernels/cpu/forward.h"', "core must not include kernels/cpu"),
    (
        "core/params.h",
        '#include "../capi/flashmask_c.h"',
        'write the include from custom_ops: "capi/flashmask_c.h"',
    ),
    ("core/params.h", "#include <paddle/extension.h>", "core must not include paddle headers"),
    ("core/params.h", "#include <cuda_runtime.h>", "core must not include cuda headers"),
    ("core/params.h", "#include <immintrin.h>", "core must not include other headers"),
    ("core/params.h", "#include FLASHMASK_HEADER", "an include through a macro"),
    ("core/status.cc", '#include "status.h"', 'write the include from custom_ops: "core/status.h"'),
    ("ops/attention.cc", '#include "kernels/cpu/forward.h"', "ops must not include kernels/cpu"),
    ("ops/attention.cc", '  # include "capi/flashmask_c.h"', "ops must not include capi"),
    ("capi/flashmask_c.cc", '#include "ops/tensor_checks.h"', "capi must not include ops"),
    ("capi/flashmask_c.cc", '#include "paddle/extension.h"', "capi must not include paddle"),
    (
        "kernels/cpu/forward.cc",
        '#include "paddle/extension.h"',
        "kernels/cpu must not include padd",
    ),
    (
        "kernels/cpu/forward.cc",
        '#include "ops/tensor_checks.h"',
        "kernels/cpu must not include ops",
    ),
    ("kernels/sm80/instantiations/hdim64.cu", '#include "kernels/sm90a/launch.h"', "must not inc"),
    (
        "kernels/sm90a/forward.cuh",
        '#include "kernels/sm80/forward.cuh"',
        "must not include kernels",
    ),
    (
        "kernels/common/tile_mask.cuh",
        '#include "kernels/sm80/forward.cuh"',
        "must not include kern",
    ),
    ("kernels/ptx/mma.cuh", '#include "core/params.h"', "kernels/ptx must not include core"),
    ("kernels/cpu/forward.cc", "#include <cuda_runtime.h>", "kernels/cpu must not include cuda"),
    (
        "kernels/cpu/forward.cc",
        '#include "kernels/common/mask_plan.h"',
        "kernels/cpu must not include kernels/common",
    ),
    ("kernels/common/plan.cu", '#include "paddle/extension.h"', "common must not include paddle"),
    (
        "kernels/sm80/forward.cuh",
        '  asm volatile("nanosleep.u32 9;");',
        "asm belongs in kernels/ptx",
    ),
    ("kernels/sm80/forward.cuh", "#include <torch/extension.h>", "sm80 must not include other"),
    ("kernels/sm80/forward.cuh", '#include "kernels/cpu/forward.h"', "sm80 must not include kern"),
    ("kernels/sm80/launch.cuh", '#include "capi/flashmask_c.h"', "sm80 must not include capi"),
    ("kernels/extras/new.h", "#include <vector>", "folder 'kernels/extras' has no rule"),
    ("extras/new.h", "#include <vector>", "folder 'extras' has no rule"),
]
CPP_ALLOWED = [
    ("core/status.cc", '#include "core/status.h"\n#include <string>'),
    ("ops/attention.cc", '#include "ops/checks.h"\n#include "core/params.h"'),
    ("ops/attention.cc", '#include "paddle/extension.h"\n#include <vector>'),
    ("capi/flashmask_c.cc", '#include "capi/flashmask_c.h"\n#include "core/params.h"'),
    ("kernels/cpu/forward.cc", '#include "core/params.h"\n#include <immintrin.h>'),
    ("kernels/sm90a/instantiations/hdim64.cu", '#include "kernels/sm90a/forward.cuh"'),
    ("kernels/sm80/forward.cuh", '#include "kernels/ptx/mma.cuh"\n#include <cuda_runtime.h>'),
    ("kernels/sm80/launch.h", '#include "kernels/common/tile_mask.cuh"\n#include "core/params.h"'),
]
PYTHON_BREACHES = [
    ("recipes/sft.py", "import paddle", "recipes must not import paddle"),
    (
        "recipes/sft.py",
        "def f():\n    from paddle.nn import Layer",
        "recipes must not import paddle",
    ),
    (
        "recipes/sft.py",
        "import importlib\nimportlib.import_module('paddle')",
        "must not import padd",
    ),
    (
        "recipes/sft.py",
        "from ..attention import f",
        "recipes must not import paddle_flashmask.atte",
    ),
    ("packing/bins.py", "import paddle", "packing must not import paddle"),
    ("packing/bins.py", "import scipy", "packing must not import scipy"),
    ("indices.py", "import paddle", "indices must not import paddle"),
    ("indices.py", "from paddle_flashmask import recipes", "indices must not import paddle_flash"),
    ("viewer/png.py", "import matplotlib", "viewer must not import matplotlib"),
    ("viewer/png.py", "def f():\n    import paddle", "viewer must not import paddle"),
    ("viewer/png.py", "from paddle_flashmask import _ops", "viewer must not import paddle_flash"),
    ("doctor/facts.py", "import numpy", "doctor must not import numpy"),
    ("doctor/facts.py", "from paddle_flashmask import _ops", "doctor must not import paddle_fl"),
    ("__main__.py", "from paddle_flashmask import doctor", "__main__ must not import paddle_f"),
    ("version.py", "import numpy", "version must not import numpy"),
    ("_gpu_code.py", "import paddle", "_gpu_code must not import paddle"),
    (
        "_ops.py",
        "from paddle_flashmask.attention import f",
        "_ops must not import paddle_flashmask",
    ),
    ("attention.py", "import paddlenlp", "attention must not import paddlenlp"),
    ("attention.py", "from . import reference", "attention must not import paddle_flashmask.refer"),
    (
        "reference.py",
        "from paddle_flashmask import _ops",
        "reference must not import paddle_flashm",
    ),
    ("losses.py", "from paddle_flashmask import _ops", "losses must not import paddle_flashmask._"),
    (
        "losses.py",
        "from paddle_flashmask.attention import f",
        "losses must not import paddle_flash",
    ),
    (
        "packing/rows.py",
        "from paddle_flashmask import losses",
        "packing must not import paddle_fla",
    ),
    (
        "nn/rotary.py",
        "from paddle_flashmask import _ops",
        "nn must not import paddle_flashmask._ops",
    ),
    ("nn/rotary.py", "import paddlenlp", "nn must not import paddlenlp"),
    ("backends.py", "from paddle_flashmask import integrations", "backends must not import pad"),
    ("integrations/paddlenlp.py", "import paddlenlp", "paddlenlp inside functions only"),
    ("integrations/paddlenlp.py", "from paddle_flashmask import _ops", "must not import paddle_fl"),
    (
        "__init__.py",
        "from paddle_flashmask.attention import f",
        "__init__ must not import paddle_fl",
    ),
    ("__init__.py", "import paddle", "__init__ must not import paddle"),
    ("extras.py", "", "module 'extras' has no rule"),
]
PYTHON_ALLOWED = [
    (
        "recipes/sft.py",
        "import numpy\nfrom ..indices import x\nfrom paddle_flashmask import recipes",
    ),
    ("packing/bins.py", "import heapq\nfrom paddle_flashmask.recipes.sft import f"),
    ("viewer/png.py", "import numpy\ndef f():\n    from matplotlib.figure import Figure"),
    ("doctor/probes.py", "def f():\n    import paddle\n    from paddle_flashmask import _ops"),
    ("attention.py", "import paddle\nfrom paddle_flashmask import _ops, indices"),
    ("losses.py", "import paddle\nfrom paddle_flashmask.packing import IGNORE_INDEX"),
    ("integrations/paddlenlp.py", "import paddle\ndef f():\n    import paddlenlp"),
    ("integrations/paddlenlp.py", "from paddle_flashmask import flashmask_attention"),
    ("nn/rotary.py", "import paddle\nfrom paddle_flashmask.attention import f"),
    ("integrations/paddleformers/x.py", "from paddle_flashmask import indices"),
    ("backends.py", "import paddle\nfrom paddle_flashmask import _ops"),
    ("__init__.py", "if TYPE_CHECKING:\n    from paddle_flashmask.attention import f"),
]


def check(root: Path) -> tuple[int, str]:
    """Run the check over `root`; return its exit status and what it printed."""
    command = [sys.executable, str(ROOT / "tools" / "check_layers.py"), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def write(root: Path, top: str, file: str, text: str) -> None:
    """Write a file of a small tree that has what the cases name."""
    for module in ("indices", "attention", "reference", "_ops"):
        stub = root / "paddle_flashmask" / f"{module}.py"
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.touch()
    (root / "custom_ops" / "core").mkdir(parents=True)
    (root / "custom_ops" / "core" / "status.h").touch()
    path = root / top / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"\n{text}\n")


def test_real_tree_keeps_every_rule():
    status, printed = check(ROOT)
    assert status == 0, printed


@pytest.mark.parametrize(("file", "line", "message"), CPP_BREACHES)
def test_include_breach_is_reported(tmp_path, file, line, message):
    write(tmp_path, "custom_ops", file, line)
    status, printed = check(tmp_path)
    assert status == 1
    assert f"custom_ops/{file}:2: " in printed
    assert message in printed


@pytest.mark.parametrize(("file", "text"), CPP_ALLOWED)
def test_allowed_include_is_not_reported(tmp_path, file, text):
    write(tmp_path, "custom_ops", file, text)
    assert check(tmp_path) == (0, "check_layers: 0 breaches\n")


@pytest.mark.parametrize(("file", "text", "message"), PYTHON_BREACHES)
def test_import_breach_is_reported(tmp_path, file, text, message):
    write(tmp_path, "paddle_flashmask", file, text)
    status, printed = check(tmp_path)
    assert status == 1
    assert f"paddle_flashmask/{file}:" in printed
    assert message in printed


@pytest.mark.parametrize(("file", "text"), PYTHON_ALLOWED)
def test_allowed_import_is_not_reported(tmp_path, file, text):
    write(tmp_path, "paddle_flashmask", file, text)
    assert check(tmp_path) == (0, "check_layers: 0 breaches\n")


def test_every_rule_has_a_breach_case():
    rules = runpy.run_path(str(ROOT / "tools" / "check_layers.py"))
    breached = {rules["cpp_folder"](file) for file, *_ in CPP_BREACHES}
    assert breached >= set(rules["CPP_RULES"])
    breached = {file.removesuffix(".py").split("/")[0] for file, *_ in PYTHON_BREACHES}
    assert breached >= {layer or "__init__" for layer in rules["PYTHON_RULES"]}


def test_mask_modules_leave_paddle_unloaded():
    package = ROOT / "paddle_flashmask"
    modules = [name for name in ("indices", "packing", "recipes") if list(package.glob(f"{name}*"))]
    code = f"import sys; from paddle_flashmask import {', '.join(modules)}\n"
    command = [sys.executable, "-c", code + "sys.exit('paddle' in sys.modules)"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
