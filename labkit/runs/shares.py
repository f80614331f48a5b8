"""Who holds what of a run: layers, parameters and bytes of each stage and card."""

from labkit.runs.configuration import Configuration

BYTES = {"float8": 1, "float32": 4, "tfloat32": 4}


def layers_of(run: Configuration, stage: int, chunk: int = 0) -> int:
    """Returns the layers of one chunk of a stage; where layers do not divide, the first parts have one more."""
    part, parts = chunk * run.pp + stage, run.pp * run.chunks
    return run.model.layers // parts + (part < run.model.layers % parts)


def stage_parameters(run: Configuration, stage: int) -> float:
    """Returns the parameters of one card of a stage, tensor parallelism taken off, data parallelism not."""
    blocks = sum(layers_of(run, stage, chunk) for chunk in range(run.chunks)) * run.model.block_parameters
    outer = 0
    if run.pp == 1:
        outer = run.model.outer_parameters
    elif stage in (0, run.pp - 1):
        outer = run.model.embedding_parameters
    return (blocks + outer) / run.tp


def trained(run: Configuration, stage: int) -> float:
    """Returns the parameters that one card of a stage trains: all, or the adapters'."""
    if not run.adapter_rank:
        return stage_parameters(run, stage)
    return sum(layers_of(run, stage, chunk) for chunk in range(run.chunks)) * adapter_parameters(run) / run.tp


def adapter_parameters(run: Configuration) -> int:
    """Returns the LoRA parameters of one block: all matrices but the attention's output have adapters."""
    model = run.model
    widths = 3 * model.hidden + model.qkv_width + (3 if model.gated else 2) * (model.hidden + model.ffn)
    return run.adapter_rank * widths


def layer_bytes(run: Configuration) -> float:
    """Returns what one block's computing copy weighs on one card when it is gathered or streamed."""
    per_weight = 0.53 if run.base == "nf4" else BYTES.get(run.dtype, 2)
    return run.model.block_parameters * per_weight / run.tp


def gradient_bytes(run: Configuration) -> float:
    """Returns what one block's gradients weigh on one card when they are reduced."""
    if run.adapter_rank:
        return adapter_parameters(run) * 4 / run.tp
    return run.model.block_parameters * run.stack.gradient_bytes / run.tp
