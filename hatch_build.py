"""Compiles the native kernel when heedful is installed or a wheel is built.

Where there is no compiler the wheel is pure Python, and heedful answers through PyTorch.
"""

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/heedful/backends/native"


class NativeKernel(BuildHookInterface):
    """The hook that `[tool.hatch.build.targets.wheel.hooks.custom]` names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put the libraries into the wheel; leave the wheel pure where that cannot be."""
        compiler = _by_path(Path(self.root, NATIVE, "_compile.py"))
        try:
            libraries = _up_to_date(compiler) if version == "editable" else []
            libraries = libraries or compiler.compile_all()
        except compiler.CannotCompile as why:
            self.app.display_warning(f"heedful: no native kernel ({why}); PyTorch does its work.")
            return
        self.app.display_info(f"heedful: native kernel for {', '.join(path.stem for path in libraries)}")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"  # loaded with ctypes: any Python 3
        build_data["artifacts"] += [f"{NATIVE}/lib/*"]


def _up_to_date(compiler: ModuleType) -> list[Path]:
    """The libraries that were compiled in place, if nothing they are made of has changed since."""
    libraries = list(compiler.LIBRARIES.glob(f"*{compiler.SUFFIX}"))
    sources = [Path(compiler.__file__), *compiler.SOURCES.iterdir()]
    oldest = min((path.stat().st_mtime for path in libraries), default=0.0)
    return libraries if oldest > max(path.stat().st_mtime for path in sources) else []


def _by_path(file: Path) -> ModuleType:
    """A module that cannot be imported by name yet, since heedful needs torch, which a build does not have."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
