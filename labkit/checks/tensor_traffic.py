"""What tensor parallelism hands to all_reduce, by formula, what learners usually forget of it, and what the wire takes."""


def tensor_traffic(job, *, per_block=4, ends=2, small=3, element_bytes=None, rows=None):
    """(calls, bytes) that a rank of tensor_parallel hands to all_reduce in one step.

    Shoeybi et al., "Megatron-LM", 2019, sections 3 and 5: per block two sums forward and two backward of B T D numbers, one
    for the embedding forward, one for the gradient of the head's input, three of B T numbers in the loss.
    """
    large, tokens = per_block * job.blocks + ends, job.seq_len * (rows or job.batch_size)
    return large + small, (large * job.d_model + small) * tokens * (element_bytes or job.dtype.itemsize)


MISTAKES = {
    "a block has two sums forward and two backward; these are the forward ones only": {"per_block": 2},
    "the embedding's sum forward and the one for the gradient of the head's input are missing": {"ends": 0},
    "one of two is missing: the embedding's sum forward, or the one for the gradient of the head's input": {"ends": 1},
    "the three sums of the loss, of B·T numbers, are missing": {"small": 0},
    "only the blocks: embedding, head and loss add sums": {"ends": 0, "small": 0},
    "bytes are expected: a number has `job.dtype.itemsize` of them": {"element_bytes": 1},
    "that is the traffic of one sequence; a step has `job.batch_size`": {"rows": 1},
    "a number has `job.dtype.itemsize` bytes, not always 4": {"element_bytes": 4},
    "a number has `job.dtype.itemsize` bytes, not always 8": {"element_bytes": 8},
    "that counts query, key and value apart, as DTensor does: six sums for a block": {"per_block": 6},
}


def wire_seconds(job, alpha_s, bytes_per_s):
    """{technique: seconds of a step's all_reduces on two ranks, where a rank sends as much as it hands over}."""
    traffic = {"tensor parallel": tensor_traffic(job), "data parallel": (2, (job.parameters + 1) * job.dtype.itemsize)}
    return {name: calls * alpha_s + nbytes / bytes_per_s for name, (calls, nbytes) in traffic.items()}
