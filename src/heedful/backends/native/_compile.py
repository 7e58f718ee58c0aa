"""Compile the kernel: one shared library per instruction-set level, with whatever C++ compiler is there.

Run as a script, `python _compile.py`, it compiles in place; the wheel's build hook calls `compile_all`. It needs the
standard library only, since neither torch nor heedful is there when a wheel is built.
"""

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "src"
LIBRARIES = HERE / "lib"
SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
LEVELS = {
    "x86_64": {
        **{level: [f"-march={level}"] for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4")},
        "x86-64-v4-bf16": ["-march=x86-64-v4", "-mavx512bf16"],
    },
    "aarch64": {"armv8-a": [] if sys.platform == "darwin" else ["-march=armv8-a"]},
}
FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"),
    # A product and a sum are one operation where the machine has it; nothing else about floats is relaxed.
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wextra"),
]
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    # The sanitizer does not know OpenMP's barriers: without -fopenmp the threads are std::thread.
    "thread": ["-fsanitize=thread"],
}


class CannotCompile(Exception):
    """Why there is no library."""


def machine() -> str:
    """The name of this machine's processor family, as in LEVELS."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def find_compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, or the first of the usual names."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise CannotCompile("no C++ compiler was found (looked for $CXX, c++, g++, clang++)")


def run(command: list[str]) -> str:
    """The output of a command; CannotCompile with the compiler's first complaint when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCompile(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line]
            or done.stderr.splitlines()
            or ["?"]
        )
        raise CannotCompile(f"{command[0]} failed: {lines[0]}")
    return done.stdout


def takes(compiler: list[str], flags: list[str]) -> bool:
    """Whether the compiler makes a shared library with these flags."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.cpp")
        source.write_text("int heedful_nothing() { return 0; }\n")
        try:
            run([*compiler, "-shared", "-fPIC", *flags, str(source), "-o", str(Path(folder, "empty"))])
        except CannotCompile:
            return False
    return True


def compile_all(folder: Path = LIBRARIES, sanitize: str | None = None, jobs: int | None = None) -> list[Path]:
    """Compile every level of this machine's family into `folder`.

    Args:
        folder: Where the libraries go.
        sanitize: "address" (and undefined behavior) or "thread": a checking build.
        jobs: Compilers at a time; None: one per processor.

    Returns:
        The libraries, one per level that the compiler knows.

    Raises:
        CannotCompile: There is no compiler, or it fails; the message is one line.
    """
    if sys.platform == "win32":
        raise CannotCompile(
            "the kernel needs the vector types of GCC or Clang, which Windows builds do not use"
        )
    levels = LEVELS.get(machine())
    if levels is None:
        raise CannotCompile(f"the kernel is written for x86_64 and aarch64, this is {machine()}")
    compiler = find_compiler()
    flags = list(FLAGS)
    if sanitize:
        flags += ["-g", "-O1", *SANITIZERS[sanitize]]
    if sanitize != "thread" and takes(compiler, ["-fopenmp"]):
        flags.append("-fopenmp")
    elif sys.platform != "darwin":
        flags.append("-pthread")
    folder.mkdir(parents=True, exist_ok=True)
    known = {level: each for level, each in levels.items() if takes(compiler, each)}
    if not known:
        raise CannotCompile(f"{compiler[0]} knows none of {', '.join(levels)}")

    def build(level: str) -> Path:
        return _link(
            compiler, [*flags, *known[level], f'-DHEEDFUL_LEVEL="{level}"'], folder / f"{level}{SUFFIX}"
        )

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        return list(pool.map(build, known))


def _link(compiler: list[str], flags: list[str], library: Path) -> Path:
    """One library, put in place whole: a process that has the old one open keeps it."""
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    unfinished = library.with_name(f".{library.name}.{os.getpid()}")
    try:
        run([*compiler, *flags, *sources, "-o", str(unfinished)])
        unfinished.replace(library)
    finally:
        unfinished.unlink(missing_ok=True)
    return library


def main() -> None:
    """Compile in place, and say what was made."""
    parser = argparse.ArgumentParser(description="Compile heedful's native kernel in place.")
    parser.add_argument(
        "--sanitize", choices=sorted(SANITIZERS), help="a checking build, for `make sanitize`"
    )
    parser.add_argument(
        "--into", type=Path, default=LIBRARIES, help="where the libraries go (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, help="compilers at a time")
    options = parser.parse_args()
    try:
        libraries = compile_all(options.into, options.sanitize, options.jobs)
    except CannotCompile as error:
        print(
            f"heedful's native kernel was not compiled: {error}. heedful works without it.", file=sys.stderr
        )
        raise SystemExit(1) from None
    print("\n".join(str(library) for library in libraries))


if __name__ == "__main__":
    main()
