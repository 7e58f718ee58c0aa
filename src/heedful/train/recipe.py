"""Everything that decides a run, in one frozen record. The same recipe on the same text gives the same model."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from heedful.train.problems import BadSetting
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
    "num_kv_heads",
    "embed_dim",
    "context",
    "steps",
    "batch",
    "accumulate",
    "eval_every",
    "eval_windows",
    "patience",
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
        warmup: Updates until the peak. None: 100, or a quarter of the steps where that is fewer.
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
    warmup: int | None = None
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
                raise BadSetting(name, f"must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        for name in POSITIVE:
            if (number := getattr(self, name)) is not None and number < 1:
                raise BadSetting(name, f"must be at least 1, got {number}.")
        for name in ("dropout", "echo", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadSetting(name, f"must be between 0 and 1, got {getattr(self, name)}.")
        for name in ("lr", "clip"):
            if (number := getattr(self, name)) is not None and not number > 0:
                raise BadSetting(name, f"must be above zero, got {number}.")
        if not self.weight_decay >= 0:
            raise BadSetting("weight_decay", f"must not be negative, got {self.weight_decay}.")
        self._check_heads()
        self._check_schedule()

    def _check_heads(self) -> None:
        width, heads, kv_heads = self.embed_dim, self.num_heads, self.num_kv_heads
        if width % heads:
            raise BadSetting(
                "embed_dim", f"must be a multiple of num_heads, got {width} and {heads}.", "num_heads"
            )
        if heads % (kv_heads or heads):
            raise BadSetting(
                "num_heads",
                f"must be a multiple of num_kv_heads, got {heads} and {kv_heads}.",
                "num_kv_heads",
            )
        if self.position == "rotary" and width // heads % 2:
            raise BadSetting(
                "embed_dim",
                f"must be an even multiple of num_heads, since rotary positions turn pairs of entries; got {width} "
                f"and {heads}, so heads of {width // heads}.",
                "num_heads",
            )

    def _check_schedule(self) -> None:
        takes = settings_of(self.schedule)
        if self.lr is not None and self.schedule == "noam":
            raise BadSetting(
                "lr",
                "must be left out with noam, which sets the rate itself, from embed_dim and warmup.\n"
                "For the same curve with a peak of your own take the schedule inverse-sqrt.",
                "embed_dim",
                "warmup",
            )
        if self.warmup is not None and self.warmup < 0:
            raise BadSetting("warmup", f"must not be negative, got {self.warmup}. 0 means no warm-up.")
        if self.warmup is not None and {"total", "warmup"} <= set(takes) and self.warmup >= self.steps:
            raise BadSetting(
                "warmup", f"must be less than steps, got {self.warmup} of {self.steps}.", "steps"
            )

    @property
    def warm_up(self) -> int:
        """Updates until the peak."""
        return min(100, self.steps // 4) if self.warmup is None else self.warmup

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
            "warmup": self.warm_up,
            "total": self.steps,
            "floor": self.floor,
            "decay": max(1, (self.steps - self.warm_up) // 5),
            "period": max(1, (self.steps - self.warm_up) // 4),
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
