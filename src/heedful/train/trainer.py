"""The run itself: update, evaluate, save, in this order, until the steps are done."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from heedful.train import checkpoint
from heedful.train.batches import Batches, derived_seed
from heedful.train.health import Health, examine
from heedful.train.learning import compute_dtype, loss_of, new_model, new_optimizer
from heedful.train.problems import CheckpointProblem, Diverged
from heedful.train.recipe import Recipe
from heedful.train.run_folder import RunFolder
from heedful.train.text import Corpus, bigram_cross_entropy, load_corpus, require_length

# A smoothed loss this many nats above its best has run away: noise between batches is a tenth of it.
RUNAWAY = 1.0
SMOOTHING = 0.95


@dataclass(frozen=True)
class Evaluation:
    """What one look at the held-out text found."""

    loss: float
    improved: bool
    sample: str
    health: Health


@dataclass(frozen=True)
class Update:
    """One update, done. `step` counts it."""

    step: int
    loss: float
    rate: float
    norm: float
    seconds: float
    evaluation: Evaluation | None = None


@dataclass
class State:
    """What a run carries from step to step, besides weights and the optimizer."""

    step: int = 0
    seconds: float = 0.0
    average: float = math.nan
    best_average: float = math.inf
    best_loss: float = math.inf
    best_step: int = 0
    stale: int = 0


class Trainer:
    """A run that goes on, step by step, when its updates are asked for.

    Args:
        recipe: What to do.
        corpus: The text.
        folder: Where it is written down.
    """

    def __init__(self, recipe: Recipe, corpus: Corpus, folder: RunFolder) -> None:
        require_length(corpus, recipe.context)
        self.recipe, self.corpus, self.folder = recipe, corpus, folder
        self.model = new_model(recipe, corpus.vocabulary)
        self.optimizer = new_optimizer(self.model, recipe)
        self.batches = Batches(corpus.train, corpus.begin, recipe.context, recipe.batch, recipe.seed)
        self.held_out = Batches(corpus.held_out, corpus.begin, recipe.context, recipe.batch)
        self.dtype = compute_dtype(recipe.precision)
        self.state = State()

    @classmethod
    def start(cls, recipe: Recipe, parent: Path) -> "Trainer":
        """A new run, in a new folder inside `parent`, evaluated and saved before its first update."""
        corpus = load_corpus(recipe.text, kind=recipe.tokens)
        require_length(corpus, recipe.context)
        facts = {
            "text": corpus.name,
            "text_sha256": corpus.sha256,
            "bigram_loss": bigram_cross_entropy(corpus.train, corpus.held_out, corpus.vocabulary),
            "torch": torch.__version__,
        }
        trainer = cls(recipe, corpus, RunFolder.create(parent, recipe, corpus.tokenizer, facts))
        trainer.evaluate()
        return trainer

    @classmethod
    def resume(cls, path: Path) -> "Trainer":
        """A run that was stopped, from its newest checkpoint.

        Raises:
            RunProblem: There is no such run, its text has changed, or its checkpoint is another run's.
        """
        folder = RunFolder.find(path)
        recipe = folder.recipe
        corpus = load_corpus(recipe.text, kind=recipe.tokens)
        if corpus.sha256 != folder.config["text_sha256"]:
            raise CheckpointProblem(
                f"{corpus.name} has changed since {folder.path} was started: the run can't continue on another text.\n"
                f"  SHA-256 then  {folder.config['text_sha256']}\n"
                f"  SHA-256 now   {corpus.sha256}"
            )
        trainer = cls(recipe, corpus, folder)
        trainer.load(folder.last)
        folder.forget_after(trainer.state.step)
        return trainer

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or evaluations have stopped getting better."""
        patience = self.recipe.patience
        return self.state.step >= self.recipe.steps or (patience is not None and self.state.stale >= patience)

    def updates(self) -> Iterator[Update]:
        """Train: one update after the other, each with its evaluation and its checkpoint where they are due.

        Between two updates the run may be left, or saved and left.

        Raises:
            Diverged: The loss or a gradient is not a number, or the loss has run away.
        """
        while not self.finished:
            began = time.perf_counter()
            rate = self.recipe.rate(self.state.step)
            loss, norm = self._update(rate)
            self.state.step += 1
            self._watch_loss(loss, rate)
            due = self.state.step % self.recipe.eval_every == 0 or self.state.step == self.recipe.steps
            seconds = time.perf_counter() - began
            self.state.seconds += seconds
            entry = {"loss": loss, "rate": rate, "norm": norm, "seconds": seconds}
            self.folder.log(kind="update", step=self.state.step, **entry)
            evaluation = self.evaluate() if due else None
            yield Update(self.state.step, **entry, evaluation=evaluation)

    def _update(self, rate: float) -> tuple[float, float]:
        """Gradients of some batches, clipped, then one step of the optimizer: the loss and the norm before clipping."""
        recipe, step = self.recipe, self.state.step
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        total = 0.0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(recipe.seed, "step", step))
            for number in range(step * recipe.accumulate, (step + 1) * recipe.accumulate):
                batch = self.batches.at(number, recipe.echo_at(step))
                loss = loss_of(self.model, batch, self.dtype) / recipe.accumulate
                loss.backward()
                total += loss.item()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip).item()
        if not math.isfinite(total) or not math.isfinite(norm):
            raise Diverged(self._story(f"loss {total}, norm of the gradient {norm}", rate))
        self.optimizer.step()
        return total, norm

    def evaluate(self) -> Evaluation:
        """Look at the held-out text, write down what was found, and save."""
        self.model.eval()
        loss, health = examine(self.model, self.held_out, self.recipe.eval_windows)
        state = self.state
        improved = loss < state.best_loss
        state.stale = 0 if improved else state.stale + 1
        if improved:
            state.best_loss, state.best_step = loss, state.step
            checkpoint.save(self.folder.best, self.model.state_dict(), asdict(state))
        evaluation = Evaluation(loss, improved, self.sample(), health)
        self.folder.log(kind="evaluation", step=state.step, **asdict(evaluation))
        self.save()
        return evaluation

    def sample(self, prompt: str = "", count: int = 120) -> str:
        """Text that the model continues `prompt` with; the same every time for the same step."""
        ids = self.corpus.tokenizer.encode(prompt).ids
        count = min(count, self.recipe.context - len(ids))
        generator = torch.Generator().manual_seed(derived_seed(self.recipe.seed, "sample", self.state.step))
        tokens = self.model.eval().generate(torch.tensor([ids]), count, temperature=0.8, generator=generator)
        return self.corpus.tokenizer.decode(tokens[0].tolist())

    def save(self) -> None:
        """Write the newest checkpoint."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value
        checkpoint.save(self.folder.last, tensors, asdict(self.state))

    def load(self, path: Path) -> None:
        """Take weights, the optimizer's state and the counts from a checkpoint."""
        tensors, state = checkpoint.load(path)
        model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        restore(self.model, model, path)
        for name, parameter in self.model.named_parameters():
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"optimizer.{key}.{name}" in tensors:  # none before the first update
                    self.optimizer.state[parameter][key] = tensors[f"optimizer.{key}.{name}"]
        self.state = State(**state)

    def _watch_loss(self, loss: float, rate: float) -> None:
        """Stop a run whose smoothed loss has climbed far above its best."""
        state = self.state
        state.average = (
            loss if math.isnan(state.average) else SMOOTHING * state.average + (1 - SMOOTHING) * loss
        )
        if state.average > state.best_average + RUNAWAY:
            story = f"the smoothed loss is {state.average:.2f}, and was {state.best_average:.2f} at its best"
            raise Diverged(self._story(story, rate))
        state.best_average = min(state.best_average, state.average)

    def _story(self, what: str, rate: float) -> str:
        recipe = self.recipe
        longer = min(max(100, 2 * recipe.warm_up), recipe.steps // 2)
        warm_up = f"a longer warm-up (--warmup {longer}), " if longer > recipe.warm_up else ""
        return (
            f"Training diverged at step {self.state.step}: {what}; the rate was {rate:.2g}.\n"
            f"Nothing of it was saved: {self.folder.last} is from an earlier step, "
            f"{self.folder.best} from step {self.state.best_step}.\n"
            f"Try a lower rate (--lr {recipe.base_rate / 3:.1g}), {warm_up}"
            "or look for one: heedful train --find-lr"
        )


def restore(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Load weights whose names and sizes must be those of the model."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        name = next(name for name in [*expected, *found] if expected.get(name) != found.get(name))
        raise CheckpointProblem(
            f"{path} is the checkpoint of another run: {name} has the shape {found.get(name, 'of nothing')}, "
            f"and the recipe in {path.parent / 'config.json'} asks for {expected.get(name, 'nothing')}."
        )
    model.load_state_dict(tensors)
