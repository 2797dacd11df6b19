"""What ``--help`` says of the fields of a configuration."""

from megabert.commands.field_help import field_help
from megabert.config.finetune import FinetuneConfig
from megabert.config.run import RunConfig


def paragraphs(text: str) -> dict[str, str]:
    """Return what follows each flag."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("  --"):
            found[line.strip()] = words = []
        else:
            words.append(line.strip())
    return {flag: " ".join(words) for flag, words in found.items()}


def test_fields_that_choose_among_words_name_them():
    shown = paragraphs(field_help(RunConfig))
    assert shown["--optimizer.name (default: lamb)"].endswith("One of lamb, adamw.")
    assert shown["--ops.attention (default: auto)"].endswith("One of auto, triton, torch.")
    assert shown["--ops.layer_norm (default: auto)"].endswith("One of auto, triton, apex, torch.")
    assert "One of" not in shown["--precision (default: auto)"]  # its documentation has all of them
    assert "One of" not in shown["--micro_batch_tokens (default: auto)"]  # a number, or one word


def test_defaults_are_shown_as_flags_take_them():
    shown = paragraphs(field_help(RunConfig))
    assert {"--optimizer.betas (default: [0.9, 0.999])", "--activation_checkpointing (default: false)"} <= shown.keys()
    assert {"--init_from (default: none)", "--phases.N.steps (required)"} <= shown.keys()


def test_switches_of_fine_tuning_have_hyphens():
    shown = paragraphs(field_help(FinetuneConfig, has_hyphens=True))
    assert {"--learning-rate (default: 3e-05)", "--ops.layer_norm (default: auto)"} <= shown.keys()
    assert "Shipped: zero0" in shown["--engine (default: auto)"]
