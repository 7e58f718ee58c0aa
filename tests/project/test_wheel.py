"""The package that people install, built and used outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "heedful").rglob("*.py")}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's contents in an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = folder.glob("heedful-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_wheel_holds_the_package_and_nothing_else(unpacked: Path) -> None:
    held = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
    assert held >= SOURCES | {"heedful/py.typed"}
    assert {name.split("/")[0].split("-")[0] for name in held} == {"heedful"}
    assert any(name.endswith("licenses/LICENSE") for name in held)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_wheel_works_outside_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    code = (
        "import heedful, torch; x = torch.randn(2, 3, 5, 4); "
        "print(heedful.__file__, *heedful.scaled_dot_product_attention(x, x, x)[1].shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(unpacked)},
        check=True,
    )
    assert done.stdout == f"{unpacked / 'heedful' / '__init__.py'} 2 3 5 5\n"
