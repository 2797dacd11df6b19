"""Attention as a web page of its own: everything in one file, nothing fetched.

The page carries the queries and keys of the layers shown in float32, and a DeBERTa's scores of positions. Scores,
softmax and pictures are computed from them in the browser. ``render_attention`` fills ``page.html`` with the scripts
and styles next to it.
"""

import base64
import json
import re
from collections.abc import Sequence
from importlib import resources

import numpy as np
from torch import Tensor

from megabert.downstream.inspection.attention import AttentionRecord
from megabert.foundation.errors import ConfigError

SCRIPTS = ("numbers.js", "head_view.js", "model_view.js", "neuron_view.js", "page.js")
MAX_MIB = 64
"""Largest page in MiB of base64; browsers take long to open larger ones."""


def render_attention(record: AttentionRecord, *, model: str, layers: Sequence[int] | None = None) -> str:
    """Return the page as HTML.

    Args:
        record: The queries, keys and tokens to show.
        model: Name of the model, for the heading.
        layers: Numbers of the layers to show, from 0; None shows all.

    Raises:
        ConfigError: A layer does not exist, or the page would be too large to open.
    """
    count = record.q_LNSH.shape[0]
    chosen = list(range(count)) if layers is None else sorted(set(layers))
    wrong = [layer for layer in chosen if not 0 <= layer < count]
    if wrong or not chosen:
        raise ConfigError(f"--layers {' '.join(map(str, wrong))}: the model has the layers 0 to {count - 1}.")
    shown = {"queries": record.q_LNSH[chosen], "keys": record.k_LNSH[chosen]}
    if record.position_scores_LNSS is not None:
        shown["positionScores"] = record.position_scores_LNSS[chosen]
    # 4 bytes per float32; base64 writes 3 bytes as 4 characters.
    mib = sum(values.numel() for values in shown.values()) * 4 * 4 / 3 / 2**20
    if mib > MAX_MIB:
        raise ConfigError(
            f"{len(record.pieces)} tokens in {len(chosen)} layers of {record.context_LSD.shape[-1]} make a page of "
            f"{mib:.0f} MiB, allowed are {MAX_MIB}. Shorten the text, or show fewer layers with --layers."
        )
    data = {
        "model": model,
        "tokens": record.pieces,
        "segmentBStart": record.segment_b_start,
        "layers": chosen,
        "reaches": [record.reaches[layer] for layer in chosen],
        "heads": record.q_LNSH.shape[1],
        "headWidth": record.q_LNSH.shape[-1],
        "kinds": record.kinds,
        "positionScores": None,
        **{name: base64.b64encode(values.numpy().astype("<f4").tobytes()).decode() for name, values in shown.items()},
    }
    # Escaped, so that no token can end the script element that holds the JSON.
    text = json.dumps(data).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    parts = {"STYLE": _read("page.css"), "DATA": text, "SCRIPT": "\n".join(map(_read, SCRIPTS))}
    # All in one pass: an inserted text, such as a path that ends in *SCRIPT*, is not searched.
    return re.sub(r"/\*([A-Z]+)\*/", lambda place: parts[place[1]], _read("page.html"))


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
