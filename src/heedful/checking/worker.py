"""The child process of a check: `python -m heedful.checking.worker OUTBOX SPEC OPTIONS`.

Writes one JSON object a line into the file OUTBOX: {"progress": ...} as it goes, {"diagnosis": ...} at the end.
What the target prints goes where the parent sends it, and can't get in between.
"""

import json
import sys
from pathlib import Path


def main(outbox: str, spec: str, options: str) -> None:
    """Load the target and examine it."""
    from heedful.checking.diagnosis import UNCLEAR, Diagnosis
    from heedful.checking.engine import examine
    from heedful.checking.functions import Options
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
        found = examine(target, Options(**json.loads(options)), spec, lambda words: send(progress=words))
        send(diagnosis=found.to_dict())


if __name__ == "__main__":
    main(*sys.argv[1:])
