"""setuptools' build backend, running `setup_ops.py` where it would look for `setup.py`."""

from __future__ import annotations

from setuptools.build_meta import _BuildMetaBackend


class SetupOpsBackend(_BuildMetaBackend):
    """`setuptools.build_meta` with another script."""

    def run_setup(self, setup_script: str = "setup_ops.py") -> None:
        """Run the script; the base class passes no name of its own."""
        super().run_setup(setup_script)


_backend = SetupOpsBackend()
get_requires_for_build_wheel = _backend.get_requires_for_build_wheel
get_requires_for_build_sdist = _backend.get_requires_for_build_sdist
get_requires_for_build_editable = _backend.get_requires_for_build_editable
prepare_metadata_for_build_wheel = _backend.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _backend.prepare_metadata_for_build_editable
build_wheel = _backend.build_wheel
build_sdist = _backend.build_sdist
build_editable = _backend.build_editable
