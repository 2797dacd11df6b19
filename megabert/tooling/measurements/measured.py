"""Rates of a job's machines: ``megabert doctor --prove`` measures and writes them, ``megabert estimate`` reads them."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from megabert.foundation.errors import ConfigError
from megabert.foundation.json_files import read_json
from megabert.settings.config.loading import differences

Rate = Annotated[float, Field(gt=0, lt=1e18, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, lt=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
CollectiveName = Literal["all_reduce", "reduce_scatter", "all_gather"]
Scope = Literal["job", "node", "network"]
_AGAIN = "Run megabert doctor --prove again, with the recipe and the flags of this estimate."
FREE_FIELDS = ("num_hidden_layers", "preset")
"""Fields of a model that may differ from the measured one: layers are counted apart."""


@dataclass(frozen=True, kw_only=True)
class CollectiveSpeed:
    """Seconds of a collective among some ranks, as a straight line over its bytes."""

    name: CollectiveName
    scope: Scope
    """All ranks; the ranks of a node, all nodes at the same time; or one rank of each node, all such groups at once."""
    message_s: Seconds
    """Seconds of an empty message."""
    byte_s: Seconds
    """Further seconds per byte of the whole tensor, as it is before a reduce-scatter and after an all-gather."""


@dataclass(frozen=True, kw_only=True)
class PhaseSpeed:
    """Seconds of forward and backward pass of a micro-step, at one length of sequences."""

    max_seq_length: Count
    tokens: Count
    """Packed tokens of the micro-step."""
    layer_s: Seconds
    """Seconds of one encoder layer, a mean over the kinds of layers."""
    ends_s: Annotated[float, Field(gt=-1e6, lt=1e6, allow_inf_nan=False)]
    """Seconds of everything else: embeddings, heads and losses, less the part of the last layer that is left out."""

    def micro_step_s(self, layers: int) -> float:
        """Return the seconds of a model of so many layers."""
        return layers * self.layer_s + self.ends_s


@dataclass(frozen=True, kw_only=True)
class MeasuredRates:
    """The rates of the slowest rank of a job, in one precision and with the shapes of one model."""

    device: str
    """The GPU's own name, or ``cpu``."""
    memory_gib: Rate
    nodes: Count
    ranks_per_node: Count
    precision: Literal["bf16", "fp16", "fp32", "fp8"]
    model: dict[str, Any]
    """Fields of the model's configuration."""
    copy_gb_s: Rate
    """Bytes read and written per second by a large copy."""
    product_tflops: Rate
    """Rate of the matrix products of a layer, each weighted by its time."""
    host_to_device_gb_s: Rate | None
    """None on a CPU."""
    disk_write_mib_s: Rate
    disk_read_mib_s: Rate
    phases: tuple[PhaseSpeed, ...]
    optimizer_s_per_parameter: Seconds
    """Seconds of the optimizer's update and of the gradient's norm."""
    collectives: tuple[CollectiveSpeed, ...]
    loader_tokens_per_s: Rate | None
    """Tokens that one rank's loader plans, reads and packs per second; None if no shards were given."""

    def phase(self, max_seq_length: int) -> PhaseSpeed:
        """Return the measurement of a length.

        Raises:
            ConfigError: This length was not measured.
        """
        lengths = [phase.max_seq_length for phase in self.phases]
        if max_seq_length not in lengths:
            raise ConfigError(
                f"--measured: length {max_seq_length} was not measured, only {', '.join(map(str, lengths))}. {_AGAIN}"
            )
        return self.phases[lengths.index(max_seq_length)]

    def refuse_other_model(self, model: dict[str, Any], precision: str) -> None:
        """Refuse a recipe that these rates say nothing about.

        Raises:
            ConfigError: The model's shapes, apart from its layers, or the precision differ from those measured.
        """
        measured, asked = (
            {"precision": own, **{f"model.{name}": fields.get(name) for name in model if name not in FREE_FIELDS}}
            for own, fields in ((self.precision, self.model), (precision, model))
        )
        changes = differences(measured, asked)
        if changes:
            lines = "\n".join(f"  {name}: {a!r} was measured, {b!r} is asked for" for name, (a, b) in changes.items())
            raise ConfigError(f"--measured: these rates are of another model or precision.\n{lines}\n{_AGAIN}")

    def collective(self, name: CollectiveName, nodes: int, ranks_per_node: int) -> tuple[float, float]:
        """Return seconds per message and per byte of a collective of so many ranks.

        For the ranks that were measured it is their own line. For others, a ring inside each node and one between the
        nodes, to which every rank of a node contributes its share.

        Raises:
            ConfigError: Ranks that share a node, or nodes, are asked for, and none were measured.
        """
        if nodes * ranks_per_node == 1:
            return 0.0, 0.0
        lines = {line.scope: line for line in self.collectives if line.name == name}
        if (nodes, ranks_per_node) == (self.nodes, self.ranks_per_node):
            line = lines.get("job") or lines.get("node") or lines["network"]
            return line.message_s, line.byte_s
        message_s = byte_s = 0.0
        measured, asked = self.ranks_per_node, ranks_per_node
        if asked > 1:
            line = self._line(lines, "node", f"--gpus {asked}", "several ranks on a node")
            message_s += line.message_s * nodes * (asked - 1) / (measured - 1)
            byte_s += line.byte_s * _share(asked) / _share(measured)
        if nodes > 1:
            line = self._line(lines, "network", f"--nodes {nodes}", "several nodes")
            message_s += line.message_s * (nodes - 1) / (self.nodes - 1)
            byte_s += line.byte_s / asked * _share(nodes) / _share(self.nodes)
        return message_s, byte_s

    def _line(self, lines: dict[Scope, CollectiveSpeed], scope: Scope, asked: str, needed: str) -> CollectiveSpeed:
        if scope not in lines:
            raise ConfigError(
                f"--measured: {self.nodes} node(s) x {self.ranks_per_node} rank(s) were measured, which says nothing "
                f"about {asked}. Run megabert doctor --prove on {needed}."
            )
        return lines[scope]


@dataclass(frozen=True, kw_only=True)
class _Proof:
    measured: MeasuredRates


def read_measured(path: Path) -> MeasuredRates:
    """Return the rates in a file that ``megabert doctor --prove --save`` has written.

    Raises:
        ConfigError: The file is missing or damaged.
    """
    remedy = "Write it with megabert doctor --prove --save FILE."
    return read_json(path, _Proof, remedy=remedy, error=ConfigError).measured


def _share(ranks: int) -> float:
    """Return the share of a tensor that passes each link of a ring."""
    return (ranks - 1) / ranks
