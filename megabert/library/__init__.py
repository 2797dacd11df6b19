"""megabert from Python: text to shards, a pre-training, its run, and models to look into, fine-tune and use.

`__all__` lists the public names, which keep their meaning within a major version; docs/library.md has them with their
signatures. Everything else in the package may change in any version. The commands do the same on files, in bounded
memory.
"""

from data_prep.library import Build, build
from megabert.downstream.finetuning.classifier import Classifier, Judgement
from megabert.downstream.finetuning.seed_results import Summary
from megabert.downstream.inspection.attention import AttentionRecord
from megabert.downstream.inspection.encode_text import RankedPiece
from megabert.downstream.inspection.pseudo_likelihood import Scores
from megabert.foundation.errors import CheckpointError, ConfigError, DataError, MegabertError
from megabert.library.models import Model, Tokens, fine_tune, load_classifier, load_model
from megabert.library.runs import ModelScores, Run, evaluate, export, load_run, pretrain, resume

__all__ = [
    "AttentionRecord",
    "Build",
    "CheckpointError",
    "Classifier",
    "ConfigError",
    "DataError",
    "Judgement",
    "MegabertError",
    "Model",
    "ModelScores",
    "RankedPiece",
    "Run",
    "Scores",
    "Summary",
    "Tokens",
    "build",
    "evaluate",
    "export",
    "fine_tune",
    "load_classifier",
    "load_model",
    "load_run",
    "pretrain",
    "resume",
]
