"""Training: learning-rate schedules, and a small transformer trained with them on real text.

from heedful.train import lambda_lr, schedule       # for a loop of your own
from heedful.train.trainer import Trainer           # what `heedful train` does, update by update
from heedful.train.loading import load_model        # what it made
"""

from heedful.train.rate_finder import range_test
from heedful.train.recipe import Recipe
from heedful.train.schedules import SCHEDULES, lambda_lr, schedule

__all__ = ["SCHEDULES", "Recipe", "lambda_lr", "range_test", "schedule"]
