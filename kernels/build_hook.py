"""Hatch build hook: compiles the C library for CPU into its package and puts it into the wheel.

A wheel with libraries is tagged for this platform; without a compiler, or elsewhere than on Linux x86-64, the wheel
stays pure and the engine serves through torch. An editable install gets its libraries in place.
"""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("kernels") / "forebay" / "kernels" / "cpu"


class LibraryBuildHook(BuildHookInterface):  # type: ignore[misc] # hatchling lives in the build's own environment
    """Runs before a wheel (standard or editable) is assembled."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what is out of date; then name the files and the tag to hatch."""
        folder = Path(self.root) / PACKAGE
        # By path: the package itself would import torch, which a build does not have.
        build = runpy.run_path(str(folder / "build.py"))
        reason = build["build"](folder)
        if reason is not None:
            self.app.display_warning(f"no C library for CPU in this build: {reason}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"
        if version != "editable":
            names = [build["library_name"](variant) for variant in build["VARIANT_FLAGS"]]
            build_data["force_include"] |= {str(folder / name): f"forebay/kernels/cpu/{name}" for name in names}
