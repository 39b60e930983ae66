"""What the comparison of builds says of arguments that it cannot use; no GPU is needed."""

from __future__ import annotations

import compare_builds
import pytest


def test_builds_of_one_name_are_refused(capsys):
    with pytest.raises(SystemExit):
        compare_builds.parse(["before/libflashmask_c.so", "after/libflashmask_c.so"])
    wanted = "builds must have different file names; got libflashmask_c, libflashmask_c"
    assert wanted in capsys.readouterr().err
    assert len(compare_builds.parse(["build/before.so", "build/after.so"]).builds) == 2
