"""From instances to packed micro-batches.

In the order in which a batch passes through: ``mixture`` says how many instances come from which source, ``order``
which are next and which rows these are in this epoch, ``tokens.shards`` reads the rows, ``packing`` plans which rank
takes which instances, ``batch`` gathers them into micro-batches, ``step_packer`` is all of this for one step, with
masks if the shards have none, and ``loader`` does it one step ahead on a thread.
"""
