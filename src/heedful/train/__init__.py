"""Training: learning-rate schedules, and a small transformer trained with them on real text.

from heedful.train import lambda_lr, schedule      # for a loop of your own
from heedful.train import Recipe, Trainer          # what `heedful train` does
from heedful.train import load_model               # what it made
"""

from heedful.train.loading import load_model
from heedful.train.rate_finder import range_test
from heedful.train.recipe import Recipe
from heedful.train.schedules import SCHEDULES, lambda_lr, schedule
from heedful.train.trainer import Trainer

__all__ = ["SCHEDULES", "Recipe", "Trainer", "lambda_lr", "load_model", "range_test", "schedule"]
