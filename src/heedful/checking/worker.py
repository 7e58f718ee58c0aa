"""The child process of a check: `python -m heedful.checking.worker OUTBOX SPEC OPTIONS`.

Writes one JSON object a line into the file OUTBOX: {"progress": ...} as it goes, {"diagnosis": ...} at the end.
What the target prints goes where the parent sends it, and can't get in between.
"""

import json
import sys
import traceback
from pathlib import Path


def main(outbox: str, spec: str, options: str) -> None:
    """Load the target and examine it."""
    from heedful.checking.diagnosis import UNCLEAR, Diagnosis
    from heedful.checking.engine import examine
    from heedful.checking.options import Options
    from heedful.checking.problems import CannotCheck
    from heedful.checking.targets import load

    with Path(outbox).open("a", encoding="utf-8", buffering=1) as lines:

        def send(**message: object) -> None:
            lines.write(json.dumps(message) + "\n")

        send(progress="importing it")
        sys.argv = [spec.rpartition(":")[0]]
        try:
            target = load(spec)
        except CannotCheck as problem:
            send(diagnosis=Diagnosis(spec, UNCLEAR, explanation=str(problem)).to_dict())
            return
        try:
            found = examine(target, Options(**json.loads(options)), spec, lambda words: send(progress=words))
        except Exception as error:
            traceback.print_exc()
            found = Diagnosis(spec, UNCLEAR, explanation=own_failure(error))
        send(diagnosis=found.to_dict())


def own_failure(error: Exception) -> str:
    """A paragraph for an error that the target can't be blamed for: all of its own are caught where it is called."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"heedful itself failed, which is a bug in heedful: {type(error).__name__}: {error} "
        f"({Path(frame.filename).name}, line {frame.lineno}). Please report it together with the target."
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
