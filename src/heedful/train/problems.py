"""What stops a run with a message instead of a traceback."""


class RunProblem(Exception):
    """Training can't start or go on. The message says what is wrong, what was found and what to do."""


class TextProblem(RunProblem):
    """The text can't be trained on."""


class CheckpointProblem(RunProblem):
    """A file isn't a checkpoint of this run, or can't be written."""


class Diverged(RunProblem):
    """The loss or a gradient is no longer a number, or the loss has run away. The last checkpoint is from before."""
