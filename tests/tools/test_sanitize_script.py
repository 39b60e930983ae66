"""tools/sanitize.sh with a stand-in for compute-sanitizer: what each tool is given."""

import os
import subprocess
from pathlib import Path

import cuda_build
import pytest

SCRIPT = Path(cuda_build.__file__).with_name("sanitize.sh")
STAND_IN = '#!/bin/sh\necho "$2 $FLASHMASK_CAPI"\ncase "$*" in *{failing}*) exit 9 ;; esac\n'


def run(folder, *tools, failing="nothing"):
    program = folder / "compute-sanitizer"
    program.write_text(STAND_IN.format(failing=failing))
    program.chmod(0o755)
    libraries = {"FLASHMASK_CAPI": "plain.so", "FLASHMASK_RACECHECK_CAPI": "every_lane.so"}
    return subprocess.run(
        ["bash", str(SCRIPT), *tools],
        env={**os.environ, **libraries, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_racecheck_alone_gets_the_library_in_which_each_lane_arrives(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if not line.startswith("==")]
    assert lines == [
        "memcheck plain.so",
        "racecheck every_lane.so",
        "initcheck plain.so",
        "synccheck plain.so",
    ]


@pytest.mark.parametrize("failing", ["memcheck", "synccheck"])
def test_a_report_of_one_tool_fails_the_run_and_the_others_go_on(failing, tmp_path):
    done = run(tmp_path, "memcheck", "synccheck", failing=failing)
    assert done.returncode == 1
    assert done.stdout.count("plain.so") == 2
