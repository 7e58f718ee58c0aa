"""What stops a run with a message instead of a traceback."""


class RunProblem(Exception):
    """Training can't start or go on. The message says what is wrong, what was found and what to do."""


class BadSetting(RunProblem):
    """A setting of a recipe can't be used.

    Attributes:
        name: Which.
        problem: What is wrong with it, what was found and what to do, without the name in front.
        others: Other settings that `problem` names; a command calls them by its options.
    """

    def __init__(self, name: str, problem: str, *others: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name, self.problem, self.others = name, problem, others


class NoRun(RunProblem):
    """There is no run in a folder."""


class TextProblem(RunProblem):
    """The text can't be trained on."""


class CheckpointProblem(RunProblem):
    """A file isn't a checkpoint of this run, or can't be written."""


class Diverged(RunProblem):
    """The loss or a gradient is no longer a number, or the loss has run away. The last checkpoint is from before."""
