"""The learning rate that ``auto`` stands for."""

import pytest

from megabert.downstream.finetuning.rates import RATES, resolve_rate
from megabert.settings.config.finetune import FinetuneConfig


def resolve(width: int, **settings):
    return resolve_rate(FinetuneConfig(model="m", data="d", **settings), width)


@pytest.mark.parametrize(
    ("width", "row"),
    [
        (32, 128),
        (128, 128),
        (180, 128),
        (182, 256),
        (256, 256),
        (312, 256),
        (315, 384),
        (512, 384),
        (768, 768),
        (4096, 768),
    ],
)
@pytest.mark.parametrize("random_weights", [False, True])
def test_auto_is_the_rate_of_the_nearest_width_and_of_the_start(width, row, random_weights):
    config, reason = resolve(width, random_weights=random_weights)
    assert config.learning_rate == RATES[row][random_weights]
    start = "random" if random_weights else "pre-trained"
    rate = f"{config.learning_rate:g}"
    assert reason == f"learning rate {rate} (auto): {start} weights of width {width}, by the table's row for {row}"


def test_number_stays():
    config, reason = resolve(256, learning_rate=0.01)
    assert (config.learning_rate, reason) == (0.01, "learning rate 0.01, as given")
