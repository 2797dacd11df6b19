"""Which parameters take no weight decay: biases and LayerNorm, as in google-research/bert."""

import re

_NO_DECAY = re.compile(r"(^|\.)(bias|LayerNorm|layer_norm|ln)(\.|$)")


def no_decay(name: str) -> bool:
    """Tell whether the parameter of this name is a bias or belongs to a LayerNorm."""
    return name.endswith("bias") or _NO_DECAY.search(name) is not None
