"""What can keep a target from being checked, each with a paragraph that says what to do."""


class CannotCheck(Exception):
    """The target could not be loaded or called. The text is for the reader, whole."""
