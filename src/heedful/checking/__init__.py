"""`heedful check`: runs somebody's attention on inputs designed so that every classic mistake shows, and names it."""

from collections.abc import Callable, Mapping
from typing import Any

from heedful.checking.diagnosis import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "assert_attention", "check"]


def check(
    target: Any,
    *,
    kind: str | None = None,
    layout: str | None = None,
    heads: int | None = None,
    settings: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    progress: Callable[[str], None] = lambda words: None,
) -> Diagnosis:
    """Find out which classic mistakes an attention makes.

    The target is run on a few dozen small inputs whose sizes all differ, and compared with the right answer in
    float64. Where it differs, the mistake, or the pair of mistakes, that reproduces its output is searched for.

    Args:
        target: A function of (query, key, value, mask, ...); a module class or instance; a positional encoding, a
            rotary function, a mask builder, or a block with a key/value cache. Or a string, `"FILE.py:NAME"` or
            `"package.module:NAME"`, which is run in a child process; objects are run in this one.
        kind: "attention", "positions", "rotary", "mask" or "cache", where guessing from names fails.
        layout: "bhld", "blhd", "bld", "ld" or "ble" (batch, heads, length, size; e for heads times size). Where query,
            key and value come in one tensor: "bl3hd", "3bhld" and the like, or "bl-3hd" with all that follows the dash
            in one axis; "bl2hd" for key and value in one.
        heads: Number of heads of a module that doesn't say.
        settings: Values for other parameters, by name.
        timeout: Seconds until a child process is ended.
        progress: Called with a few words whenever the check turns to something new.

    Returns:
        A `Diagnosis`: verdict, mistakes, hazards and conventions. It prints as a report.

    Raises:
        ValueError: There is no such kind or layout.

    Cost:
        A second or two; up to ten when nothing known fits. Memory of a few megabytes beyond torch's own.
    """
    from heedful.checking.options import Options

    options = Options(kind, layout, heads, dict(settings or {}))
    if isinstance(target, str):
        from heedful.checking.isolation import check_apart

        return check_apart(target, options, timeout, progress)
    from heedful.checking.engine import examine

    return examine(target, options, progress=progress)


def assert_attention(target: Any, *, strict: bool = False, **options: Any) -> Diagnosis:
    """Fail with the whole report when an attention is wrong; for tests.

    Args:
        target: As for `check`.
        strict: Hazards fail, too.
        **options: As for `check`.

    Returns:
        The diagnosis, when there is nothing to complain about.

    Raises:
        AssertionError: The target is wrong, or it could not be told. The message is the report.
    """
    __tracebackhide__ = True  # so that pytest shows the report at the line of the caller
    found = check(target, **options)
    if found.exit_status(strict):
        raise AssertionError(str(found))
    return found
