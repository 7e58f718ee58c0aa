"""Everything that decides a run, in one frozen record. The same recipe on the same text gives the same model."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from heedful.train.problems import RunProblem
from heedful.train.schedules import SCHEDULES, Schedule, schedule, settings_of

Kind = Literal["bytes", "characters"]
Position = Literal["rotary", "alibi", "sinusoidal", "learned", "none"]
Precision = Literal["auto", "float32", "bfloat16"]
CHOICES = {
    "tokens": ("bytes", "characters"),
    "position": ("rotary", "alibi", "sinusoidal", "learned", "none"),
    "schedule": tuple(SCHEDULES),
    "precision": ("auto", "float32", "bfloat16"),
}
POSITIVE = (
    "num_layers",
    "num_heads",
    "embed_dim",
    "context",
    "steps",
    "batch",
    "accumulate",
    "eval_every",
    "eval_windows",
)


@dataclass(frozen=True)
class Recipe:
    """The model, the text and how to train.

    Attributes:
        text: Paths of text files; none: the novel that comes with the package.
        tokens: What a token is.
        num_layers: Blocks of attention and feed-forward.
        num_heads: Query heads of each block.
        num_kv_heads: Key and value heads; None: as many as query heads.
        embed_dim: Width of the model.
        position: How the model knows the order of tokens.
        qk_norm: Whether queries and keys are normalized, which keeps scores from growing.
        dropout: Chance of dropping an attention weight or a feed-forward output.
        context: Tokens in a window.
        batch: Windows in a batch.
        accumulate: Batches whose gradients are added up before each update.
        echo: Share of windows that say their first part again, which teaches a model to copy. It falls to half over
            the run, since a model that has heard too many echoes goes on repeating itself.
        steps: Updates in the run.
        schedule: Name of the learning-rate schedule.
        lr: Rate at the peak. None: 3e-3; `noam` sets its own.
        warmup: Updates until the peak.
        floor: Rate at the end, as a share of the peak, for schedules that go down to a floor.
        weight_decay: Of matrices; vectors are not decayed.
        clip: Largest norm of the gradient.
        precision: "auto" takes bfloat16 where the CPU computes with it, else float32.
        seed: Decides start values, the order of the text and dropout.
        eval_every: Updates between evaluations, each of which also saves a checkpoint.
        eval_windows: Most windows of held-out text per evaluation.
        patience: Evaluations without a better loss before the run stops early; None: never.
    """

    text: tuple[str, ...] = ()
    tokens: Kind = "bytes"
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int | None = None
    embed_dim: int = 96
    position: Position = "rotary"
    qk_norm: bool = False
    dropout: float = 0.0
    context: int = 128
    batch: int = 16
    accumulate: int = 1
    echo: float = 0.25
    steps: int = 2000
    schedule: str = "cosine"
    lr: float | None = None
    warmup: int = 100
    floor: float = 0.05
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: Precision = "auto"
    seed: int = 0
    eval_every: int = 200
    eval_windows: int = 128
    patience: int | None = 5

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise RunProblem(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise RunProblem(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("dropout", "echo", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise RunProblem(f"{name} must be between 0 and 1, got {getattr(self, name)}.")
        self._check_heads()
        self._check_rate()

    def _check_heads(self) -> None:
        if self.embed_dim % self.num_heads:
            raise RunProblem(
                f"embed_dim must be a multiple of num_heads, got {self.embed_dim} and {self.num_heads}."
            )
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise RunProblem(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}."
            )
        if self.position == "rotary" and self.embed_dim // self.num_heads % 2:
            raise RunProblem(
                f"Rotary positions need heads of even size, got {self.embed_dim} // {self.num_heads} = "
                f"{self.embed_dim // self.num_heads}."
            )

    def _check_rate(self) -> None:
        if self.lr is not None and self.schedule == "noam":
            raise RunProblem(
                "noam sets the rate itself, from embed_dim and warmup, so it takes no lr.\n"
                "For the same curve with a peak of your own: --schedule inverse-sqrt --lr RATE"
            )
        if self.lr is not None and not self.lr > 0:
            raise RunProblem(f"lr must be above zero, got {self.lr}.")
        try:
            self.rate(0)
        except ValueError as error:
            raise RunProblem(f"The schedule doesn't fit a run of {self.steps} steps. {error}") from None

    @property
    def base_rate(self) -> float:
        """What the schedule multiplies."""
        if self.schedule == "noam":
            return 1.0
        return 3e-3 if self.lr is None else self.lr

    @property
    def factor(self) -> Schedule:
        """The schedule, from the step to a factor on `base_rate`."""
        offered = {
            "embed_dim": self.embed_dim,
            "warmup": self.warmup,
            "total": self.steps,
            "floor": self.floor,
            "decay": max(1, (self.steps - self.warmup) // 5),
            "period": max(1, (self.steps - self.warmup) // 4),
        }
        takes = settings_of(self.schedule)
        # One-cycle ends far below any other floor, by its own definition.
        wanted = [
            name for name in takes if name in offered and (self.schedule, name) != ("one-cycle", "floor")
        ]
        return schedule(self.schedule, **{name: offered[name] for name in wanted})

    def rate(self, step: int) -> float:
        """The learning rate of an update, counted from 0."""
        return self.base_rate * self.factor(step)

    def echo_at(self, step: int) -> float:
        """The share of windows that repeat themselves, for an update counted from 0."""
        return self.echo * (1 - step / self.steps / 2)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one update learns from."""
        return self.batch * self.accumulate * self.context

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Recipe":
        """From plain data, as `to_json` gives it."""
        return cls(**{**data, "text": tuple(data["text"])})
