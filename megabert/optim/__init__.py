"""Optimizers over flat shards, learning-rate schedules, and the fragment table that the engine gives them."""

from megabert.optim.adamw import AdamW
from megabert.optim.base import BaseOptimizer, Fragment, StepSettings, UpdateSink, no_decay
from megabert.optim.build import build_optimizer
from megabert.optim.lamb import Lamb
from megabert.optim.schedules import learning_rate, linear_warmup_decay
