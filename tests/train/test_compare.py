"""What a comparison counts, and how it is told."""

import math

import pytest
from rich.console import Console

from heedful.train import compare as comparing
from heedful.train import terminal
from heedful.train.compare import Outcome, compare, recipes_for
from heedful.train.health import HeadHealth, Health
from heedful.train.problems import Diverged


def outcome(name="cosine", losses=(2.0, 1.0, 1.5), steps=(200, None, 100), diverged=0):
    curves = tuple(((100, loss + 1), (200, loss)) for loss in losses)
    return Outcome(name, 0.01, losses, steps, diverged, curves)


def lines(renderable, width=100):
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_mean_spread_and_median():
    assert (outcome().mean, outcome().spread, outcome().median_steps) == (1.5, 0.5, 200)
    assert outcome(losses=(2.0,), steps=(None,)).spread == 0.0
    assert outcome(steps=(None, None, 100)).median_steps is None
    empty = outcome(losses=(), steps=(), diverged=3)
    assert math.isnan(empty.mean)
    assert empty.median_steps is None


def test_the_table():
    table = terminal.comparison_table([outcome(), outcome("noam", (), (), 3)], 3)
    assert lines(table) == [
        "Lowest held-out loss, mean and spread over 3 seeds",
        "┏━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━┓",
        "┃ schedule ┃ peak rate ┃ held-out loss ┃ updates until 0.5 nats below pairs ┃ diverged ┃",
        "┡━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━┩",
        "│ cosine   │      0.01 │ 1.500 ± 0.500 │                                200 │   0 of 3 │",
        "│ noam     │      0.01 │               │                                    │   3 of 3 │",
        "└──────────┴───────────┴───────────────┴────────────────────────────────────┴──────────┘",
    ]


def test_the_curve_of_a_schedule_is_the_mean_over_its_seeds():
    curves = terminal.comparison_curves([outcome(), outcome("noam", (), (), 3)])
    assert curves.series == {"cosine": [(100, 2.5), (200, 1.5)]}


def test_runs_differ_in_schedule_and_seed_only(small):
    recipes = recipes_for(small(lr=0.01), ["cosine", "noam", "cosine"], [3, 4])
    assert list(recipes) == ["cosine", "noam"]
    assert [recipe.seed for recipe in recipes["noam"]] == [3, 4]
    assert {recipe.lr for recipe in recipes["cosine"]} == {0.01}
    assert {recipe.lr for recipe in recipes["noam"]} == {None}


def test_a_run_that_diverges_is_counted_and_the_others_go_on(small, tmp_path, monkeypatch):
    real = comparing.Trainer.updates

    def updates(self):
        yield from real(self)
        if (self.recipe.schedule, self.recipe.seed) == ("constant", 1):
            raise Diverged("on purpose")

    monkeypatch.setattr(comparing.Trainer, "updates", updates)
    seen = []
    found = compare(
        small(steps=6),
        ["constant", "linear"],
        [0, 1],
        tmp_path,
        lambda trainer, update: seen.append((trainer.recipe.schedule, trainer.recipe.seed, update is None)),
    )
    assert [(each.name, len(each.losses), each.diverged) for each in found] == [
        ("constant", 1, 1),
        ("linear", 2, 0),
    ]
    runs = [(name, seed) for name in ("constant", "linear") for seed in (0, 1)]
    assert seen == [(*run, begins) for run in runs for begins in (True, *[False] * 6)]
    assert found[1].curves[0][-1] == (6, pytest.approx(min(found[1].losses), abs=2))


def test_sparklines():
    assert terminal.sparkline([0, 0.2, 0.5, 0.99, 1, 3, -1], 0, 1) == "▁▂▅██" + "█▁"
    assert terminal.sparkline([0, 1], 0, 1, plain=True) == ".%"


def test_heads_are_told_with_their_history():
    def evaluation(kind, share):
        head = {"entropy": 2.5, "max_logit": 7.04, "sink": 0.1, "kind": kind, "shares": {"induction": share}}
        return {"health": {"heads": [[head, {**head, "kind": "mixed"}]]}}

    table = terminal.heads_table([evaluation("mixed", 0.1), evaluation("induction", 0.75)])
    assert lines(table) == [
        "Heads on the held-out text, over training",
        "layer.head  class at the end  weight on it        entropy       largest score",
        "0.0         induction         ▁▇            0.75  2.50 to 2.50  7.0",
        "0.1         mixed                                 2.50 to 2.50  7.0",
    ]


def test_heads_that_change_their_class_are_named():
    def health(*kinds):
        return Health((tuple(HeadHealth(1.0, 2.0, 0.1, kind, {}) for kind in kinds),), ())

    first, second = health("mixed", "previous token"), health("induction", "previous token")
    assert list(terminal.changed_classes(None, first)) == ["layer 0, head 1: mixed -> previous token"]
    assert list(terminal.changed_classes(first, second)) == ["layer 0, head 0: mixed -> induction"]
    assert list(terminal.changed_classes(second, second)) == []
