"""From instances to packed micro-batches.

In the order in which a batch passes through: ``mixture`` says how many instances come from which source, ``order``
which are next and which rows these are in this epoch, ``tokens.shards`` reads the rows, ``dynamic_masking`` masks them
if the shards have no masks, ``packing`` plans which rank takes which instances, ``batch`` gathers them into
micro-batches, ``step_packer`` is all of this for one step, and ``loader`` does it one step ahead on a thread.
"""
