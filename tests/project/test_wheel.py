"""The package that people install, built and used outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "heedful").rglob("*.py")}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def build(folder: Path, **environment: str) -> Path:
    """Build a wheel, and give the folder with its contents."""
    command = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", *command], check=True, timeout=300, env=os.environ | environment)
    (wheel,) = folder.glob("heedful-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def answer_of(unpacked: Path, code: str, folder: Path) -> str:
    """What a program prints that imports the unpacked wheel, run outside the checkout."""
    done = subprocess.run(
        [sys.executable, "-c", f"import heedful, torch; x = torch.randn(2, 3, 5, 4); {code}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(unpacked)},
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_package_and_nothing_else(unpacked: Path) -> None:
    held = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
    assert held >= SOURCES | {"heedful/py.typed"}
    assert {name.split("/")[0].split("-")[0] for name in held} == {"heedful"}
    assert any(name.endswith("licenses/LICENSE") for name in held)


def test_the_wheel_works_outside_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    code = "print(heedful.__file__, *heedful.scaled_dot_product_attention(x, x, x).weights.shape)"
    assert answer_of(unpacked, code, tmp_path) == f"{unpacked / 'heedful' / '__init__.py'} 2 3 5 5\n"


def test_without_a_compiler_the_wheel_is_pure_and_works(tmp_path: Path) -> None:
    unpacked = build(tmp_path, CXX="no-such-compiler")
    assert next(tmp_path.glob("*.whl")).name.endswith("-py3-none-any.whl")
    assert list(unpacked.rglob("*.so")) == []
    code = "print(*heedful.scaled_dot_product_attention(x, x, x).output.shape)"
    assert answer_of(unpacked, code, tmp_path) == "2 3 5 4\n"
