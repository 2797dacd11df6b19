"""The ops of a run, held against their definitions on every rank's device before anything is trained with them."""

from collections.abc import Sequence

from megabert.distributed.process_group import World, raise_everywhere, run_on_all_ranks
from megabert.engine.engine import DTYPES
from megabert.foundation.errors import ConfigError
from megabert.observability.logs import logger
from megabert.ops.backend import BACKENDS, forget_disproved, obstacles_of
from megabert.ops.proof.first_run import agree, cases_of, find_failures, settle
from megabert.ops.triton_support.tuned_tiles import use_file
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig, Precision


def prove_ops(
    model: ModelConfig, ops: OpsConfig, world: World, *, lengths: Sequence[int], precision: Precision, has_lamb: bool
) -> tuple[str, ...]:
    """Prove the backends that a model may use, and let all ranks use the same; every rank calls it.

    Args:
        model: The model, its vocabulary known; an ELECTRA's generator is proven as well.
        ops: The choice of backends.
        world: This rank and the others, which use the same backends.
        lengths: Longest sequence of each phase.
        precision: The run's precision, not ``auto``.
        has_lamb: Whether the optimizer runs LAMB's passes.

    Returns:
        A sentence for each backend that was replaced.

    Raises:
        ConfigError: The file of tile sizes is missing, damaged, or for another device.
        KernelError: A backend differs, and may not be replaced.
    """
    sha256 = run_on_all_ranks(world, lambda: use_file(ops.tile_sizes, world.device))
    if len(set(world.gather(sha256))) > 1:
        message = f"{ops.tile_sizes}: ranks read different files of that name. Copy one to every node."
        raise_everywhere(world, ConfigError(message))
    if sha256:
        logger.info("tile sizes: %s, SHA-256 %s", ops.tile_sizes, sha256)
    models = [model] if model.generator_size is None else [model, model.generator()]
    requested = {op: name for op, name in ops.backends.items() if has_lamb or op != "lamb"}
    cases = cases_of(models, lengths, DTYPES[precision], in_fp8=precision == "fp8")
    replaced: tuple[str, ...] = ()
    if ops.unproven == "trust":
        forget_disproved()
    else:
        failures = world.gather(run_on_all_ranks(world, lambda: find_failures(cases, requested, world.device)))
        replaced = run_on_all_ranks(
            world, lambda: settle(failures, requested, unproven=ops.unproven, device=world.device)
        )
    used = sorted({op for op, _ in cases} & BACKENDS.keys())
    obstacles = world.gather({op: obstacles_of(op, world.device.type) for op in used})
    return replaced + agree(obstacles, requested)
