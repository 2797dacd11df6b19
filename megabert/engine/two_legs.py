"""A bucket's way in two legs, for many nodes; and the choice between it and one collective of all ranks.

That one (`buckets.Flat`) is what NCCL runs as a ring through every GPU: a node's cards carry each byte once, and the
latency grows with the number of GPUs. *Two legs* go inside the nodes first (NVLink) and then across (network), among
the GPUs with the same place in their nodes; weights come back the other way. As many bytes cross the network, but the
latency grows with the number of nodes alone. Between the legs a rank holds its node's sum, and here 16 bits are cheap:
rounded once to bfloat16, half of the gradients' bytes cross the network, and the owner adds up the nodes' sums in
float32. A ring in 16 bits would round in every hop; every rank sending 16 bits to every owner would round once, and
send as much as there are GPUs in a node times more.

    rank r = node * L + place     the partition of rank r: gradients[r] of W = N * L
    inside      gradients (N, L, w) -> my place's partitions of all nodes, summed over my node: (N, w)
    across      (N, w) -> my partition, summed over nodes: (w)
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.config.deepspeed import value_at
from megabert.distributed.process_group import World
from megabert.engine.buckets import Exchange, Flat, Work
from megabert.errors import ConfigError


class TwoLegs:
    """A collective inside each node, and one across nodes. Gloo waits for both at once: it hides nothing."""

    def __init__(self, world: World, *, per_node: int, network_dtype: torch.dtype) -> None:
        """Make the groups; every rank calls it.

        Args:
            world: All ranks, in blocks of ``per_node``.
            per_node: Ranks of a node; more than one node.
            network_dtype: Precision in which the sums of nodes cross the network.
        """
        self._places, self._nodes = per_node, world.size // per_node
        node, place = divmod(world.rank, per_node)
        inside, across = range(node * per_node, (node + 1) * per_node), range(place, world.size, per_node)
        self._inside, self._across = (
            dist.new_group(list(ranks), use_local_synchronization=True) for ranks in (inside, across)
        )
        self._network_dtype = network_dtype
        self._stream = torch.cuda.Stream(world.device) if world.device.type == "cuda" else None

    def reduce(self, gradient_sum: Tensor, gradients: Tensor) -> Work:
        """Do what ``Exchange.reduce`` says."""

        def both_legs() -> None:
            partitions = gradients.view(self._nodes, self._places, -1).transpose(0, 1).contiguous()
            node_sum = torch.empty_like(partitions[0])
            dist.reduce_scatter_tensor(node_sum.view(-1), partitions.view(-1), group=self._inside)
            if self._network_dtype == gradients.dtype:
                dist.reduce_scatter_tensor(gradient_sum, node_sum.view(-1), group=self._across)
                return
            rounded = node_sum.to(self._network_dtype)
            received = torch.empty_like(rounded)
            dist.all_to_all_single(received.view(-1), rounded.view(-1), group=self._across)
            torch.sum(received, dim=0, dtype=gradient_sum.dtype, out=gradient_sum)

        return _Enqueued(both_legs, self._stream)

    def gather(self, weights: Tensor, partition: Tensor) -> Work:
        """Do what ``Exchange.gather`` says."""

        def both_legs() -> None:
            mine = torch.empty(self._nodes, partition.numel(), dtype=partition.dtype, device=partition.device)
            dist.all_gather_into_tensor(mine.view(-1), partition, group=self._across)
            whole = torch.empty(self._places, *mine.shape, dtype=partition.dtype, device=partition.device)
            dist.all_gather_into_tensor(whole.view(-1), mine.view(-1), group=self._inside)
            weights.view(self._nodes, self._places, -1).copy_(whole.transpose(0, 1))

        return _Enqueued(both_legs, self._stream)


class _Enqueued:
    """Work on a stream of its own that begins after what the current stream has been given so far."""

    def __init__(self, work: Any, stream: torch.cuda.Stream | None) -> None:
        self._work = work  # holds the tensors until somebody has waited
        self._event: torch.cuda.Event | None = None
        if stream is None:
            work()
            return
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            work()
            self._event = stream.record_event()

    def wait(self) -> None:
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


def exchange_of(ds_config: Mapping[str, Any], world: World) -> Exchange:
    """Return the exchange that an engine file asks for; every rank calls it.

    Raises:
        ConfigError: Two legs are wanted, and ranks do not come in equal blocks of nodes.
    """
    if not value_at(ds_config, "hierarchy.enabled") or world.size == 1:
        return Flat()
    per_node = value_at(ds_config, "hierarchy.ranks_per_node") or _ranks_per_node(world.gather(socket.gethostname()))
    if world.size % per_node:
        raise ConfigError(
            f"hierarchy.ranks_per_node={per_node}: {world.size} ranks cannot be cut into nodes of {per_node}. "
            "Give a number that divides them, or leave it out."
        )
    if per_node == world.size:  # one node: there is no network
        return Flat()
    is_rounded = value_at(ds_config, "hierarchy.network_dtype") == "bf16"
    return TwoLegs(world, per_node=per_node, network_dtype=torch.bfloat16 if is_rounded else torch.float32)


def _ranks_per_node(hosts: Sequence[str]) -> int:
    """Return how many ranks each host has.

    Args:
        hosts: The host of each rank.
    """
    per_node = hosts.count(hosts[0])
    blocks = [hosts[start : start + per_node] for start in range(0, len(hosts), per_node)]
    if len({*hosts}) != len(blocks) or any(block != [block[0]] * per_node for block in blocks):
        counts = ", ".join(f"{host}: {hosts.count(host)}" for host in list(dict.fromkeys(hosts))[:4])
        raise ConfigError(
            f"hierarchy.enabled=true: ranks do not come in equal blocks of one host each ({counts}). Start as many "
            "ranks on every node, in the order of nodes, or remove hierarchy."
        )
    return per_node
