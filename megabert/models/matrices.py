"""The matrices of the layers, told by module and not by name: Muon orthogonalises them, and nothing else."""

from torch import nn

from megabert.models.encoder import BertEncoder
from megabert.models.layers import Dense


def layer_matrices(model: nn.Module, *, per_head: bool = False) -> dict[str, int]:
    """Return the weights of the dense layers within an encoder's layers, and how many matrices each is.

    Queries, keys and values are three matrices, GeGLU's two projections are two, whatever is stored as one parameter.
    Embeddings, their projection, biases, LayerNorm, DeBERTa's table and convolution, the pooler and the heads are not
    among them.

    Args:
        model: Any model of this package; ELECTRA's two encoders both count.
        per_head: Count each head of queries, keys and values as a matrix.

    Returns:
        Name of the parameter -> number of matrices of equal size that it is cut into along its rows.
    """
    encoders = [(path, module) for path, module in model.named_modules() if isinstance(module, BertEncoder)]
    return {
        f"{name}.weight": module.stacked * (module.heads if per_head else 1)
        for path, encoder in encoders
        for name, module in encoder.layer.named_modules(prefix=f"{path}.layer")
        if isinstance(module, Dense)
    }
