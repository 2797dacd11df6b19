"""Attention as a web page of its own: everything in one file, nothing fetched.

The page carries the queries and keys of the layers shown in float32, and a DeBERTa's scores of positions. Scores,
softmax and pictures are computed from them in the browser. ``render_page`` fills ``page.html`` with the scripts and
styles next to it.
"""

import base64
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from torch import Tensor

from megabert.errors import ConfigError
from megabert.inspection.attention import AttentionRecord

SCRIPTS = ("numbers.js", "head_view.js", "model_view.js", "neuron_view.js", "page.js")
MAX_MIB = 64
"""Largest page in MiB of base64; browsers take long to open larger ones."""


def render_page(record: AttentionRecord, *, model: str, layers: Sequence[int] | None = None) -> str:
    """Return the page as HTML.

    Args:
        record: The queries, keys and tokens to show.
        model: Name of the model, for the heading.
        layers: Numbers of the layers to show, from 0; None shows all.

    Raises:
        ConfigError: A layer does not exist, or the page would be too large to open.
    """
    chosen = _choose_layers(layers, record.q_LNSH.shape[0])
    shown = (record.q_LNSH[chosen], record.k_LNSH[chosen])
    positions = None if record.position_scores_LNSS is None else record.position_scores_LNSS[chosen]
    numbers = sum(values.numel() for values in (*shown, *([] if positions is None else [positions])))
    _check_size(numbers, record, len(chosen))
    data = {
        "model": model,
        "tokens": record.pieces,
        "segmentBStart": record.segment_b_start,
        "layers": chosen,
        "reaches": [record.reaches[layer] for layer in chosen],
        "heads": record.q_LNSH.shape[1],
        "headWidth": record.q_LNSH.shape[-1],
        "queries": _encode_floats(shown[0]),
        "keys": _encode_floats(shown[1]),
        "kinds": record.kinds,
        "positionScores": None if positions is None else _encode_floats(positions),
    }
    parts = {
        "STYLE": _read("page.css"),
        "DATA": _encode_json(data),
        "SCRIPT": "\n".join(_read(name) for name in SCRIPTS),
    }
    # In one pass: what is inserted, such as a path that ends in *SCRIPT*, is not searched.
    return re.sub(r"/\*([A-Z]+)\*/", lambda place: parts[place[1]], _read("page.html"))


def _choose_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    chosen = list(range(count)) if layers is None else sorted(set(layers))
    wrong = [layer for layer in chosen if not 0 <= layer < count]
    if wrong or not chosen:
        raise ConfigError(f"--layers {' '.join(map(str, wrong))}: the model has the layers 0 to {count - 1}.")
    return chosen


def _check_size(numbers: int, record: AttentionRecord, layers: int) -> None:
    mib = numbers * 4 * 4 / 3 / 2**20  # 4 bytes a float32; base64 writes 3 bytes as 4 characters
    if mib > MAX_MIB:
        raise ConfigError(
            f"{len(record.pieces)} tokens in {layers} layers of {record.context_LSD.shape[-1]} make a page of "
            f"{mib:.0f} MiB, allowed are {MAX_MIB}. Shorten the text, or show fewer layers with --layers."
        )


def _encode_floats(values: Tensor) -> str:
    return base64.b64encode(values.numpy().astype(np.dtype("<f4")).tobytes()).decode("ascii")


def _encode_json(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the script element that holds it, whatever the tokens are."""
    text = json.dumps(data, ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
