"""Memory of a rank."""

import resource
import sys

import torch


def peak_bytes(device):
    """Returns the most memory that this rank held: the allocator's peak on CUDA, the process's resident set on CPU.

    On CPU it includes what is shared with the other ranks, such as torch's own code.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
