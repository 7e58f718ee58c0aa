"""Runs a check in a child process, so that a target that hangs, crashes or shouts does no harm."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO

from heedful.checking.diagnosis import UNCLEAR, Diagnosis
from heedful.checking.options import Options

KEPT = 4000  # characters of what the target printed last


class Tail:
    """Reads a stream to its end, however long, and keeps the last part."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.text = stream, b""
        self.thread = threading.Thread(target=self.read, args=(stream,), daemon=True)
        self.thread.start()

    def read(self, stream: IO[bytes]) -> None:
        """Until the child closes it."""
        while chunk := stream.read1(65536):  # type: ignore[attr-defined]
            self.text = (self.text + chunk)[-KEPT:]

    def close(self) -> None:
        """Read what is left, once the child has ended."""
        self.thread.join(1.0)
        self.stream.close()

    def last_line(self) -> str:
        """The last line with something on it."""
        lines = [x for x in self.text.decode(errors="replace").splitlines() if x.strip()]
        return lines[-1].strip() if lines else ""


def check_apart(
    spec: str, options: Options, timeout: float, progress: Callable[[str], None] = lambda words: None
) -> Diagnosis:
    """Check `FILE.py:NAME` in a child process.

    Args:
        spec: The target.
        options: What the user says about it.
        timeout: Seconds before the child is ended.
        progress: Told what is going on, in a few words.

    Raises:
        ValueError: A setting is something that can't be handed to another process.
    """
    try:
        told = json.dumps(asdict(options))
    except TypeError as error:
        raise ValueError(
            f"settings of a target in a file must be numbers, text or lists of them ({error}); hand over the target "
            "itself instead of its name, and it is checked in this process"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        outbox = Path(folder) / "outbox"
        outbox.touch()
        command = [sys.executable, "-m", "heedful.checking.worker", str(outbox), spec, told]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert child.stdout is not None
        printed = Tail(child.stdout)
        try:
            doing, found = follow(child, outbox, time.monotonic() + timeout, progress)
        finally:
            ended = child.poll()
            child.kill()
            child.wait()
            printed.close()
    return found or Diagnosis(spec, UNCLEAR, explanation=ending(ended, doing, timeout, printed))


def follow(
    child: "subprocess.Popen[bytes]", outbox: Path, deadline: float, progress: Callable[[str], None]
) -> tuple[str, Diagnosis | None]:
    """Read messages until there is a diagnosis, the child has ended, or time is up."""
    doing, position = "starting", 0
    while True:
        over = child.poll() is not None or time.monotonic() > deadline
        with outbox.open(encoding="utf-8") as lines:
            lines.seek(position)
            while (line := lines.readline()).endswith("\n"):
                position = lines.tell()
                message = json.loads(line)
                if "diagnosis" in message:
                    return doing, Diagnosis.from_dict(message["diagnosis"])
                doing = message["progress"]
                progress(doing)
        if over:
            return doing, None
        time.sleep(0.02)


def ending(status: int | None, doing: str, timeout: float, printed: Tail) -> str:
    """A paragraph on why there is no diagnosis."""
    if status is None:
        return (
            f"it was still running after {timeout:g} seconds, while heedful was {doing}, and was ended. If it loops "
            "on small inputs, that is the mistake; if it is only slow (it compiles a kernel, loads a model), give it "
            "more time with --timeout SECONDS."
        )
    said = f" The last thing it printed: {printed.last_line()}" if printed.last_line() else ""
    if status < 0:
        name = signal.Signals(-status).name
        return (
            f"it crashed the process ({name}) while heedful was {doing}. That happens in native code: an index out "
            f"of bounds, a wrong pointer, too little memory.{said}"
        )
    return f"it ended the process with status {status} while heedful was {doing}: does it call exit?{said}"
