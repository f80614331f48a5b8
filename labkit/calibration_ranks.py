"""What each rank measures of this machine, all ranks at once, as in a step: rates of kernels, launches, and links.

Every time is the median of several, on a synchronised device. Sizes are those of the workbook's jobs.
"""

import time
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F

SIDES = (16, 48, 128, 256, 512, 1024)  # of square products
SIZES = (2**10, 2**14, 2**18, 2**20, 2**22)  # bytes of messages and collectives
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
LARGE_SIDE, GPU_SIDE = 768, 4096
ELEMENTS = 2**20
CHAIN = 60  # small operations in a row


def measure_rank(rank, dtypes):
    """Returns {name: what was measured}; ranks call it together. Names are those of `calibration`."""
    clock = Clock(rank.device)
    found = {"peak": {name: peak(clock, name) for name in dtypes}, "curve": curve(clock)}
    found |= {"memory": memory(clock), "operations": operations(clock), "attention": attention(clock)}
    found |= {"launch": launch(clock), "floor": floor(clock)}
    if rank.world_size > 1:
        found |= {"collectives": {name: collective(rank, clock, name) for name in COLLECTIVES}, "messages": messages(rank, clock)}
    if clock.cuda:
        found |= {"copy": copies(clock), "sms": torch.cuda.get_device_properties(rank.device).multi_processor_count}
    return found


class Clock:
    """Times functions on one device."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"

    def synchronise(self):
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, function, *, least_s=0.02, most=30):
        """The median time of one call: at least 3, until `least_s` have passed; the first one is dropped."""
        function()
        self.synchronise()
        times, begin = [], time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - begin < least_s and len(times) < most):
            start = time.perf_counter()
            function()
            self.synchronise()
            times.append(time.perf_counter() - start)
        return median(times)

    def counted(self, function, count):
        """The median time of each of `count` calls of a collective or message, which all ranks make equally often."""
        times = []
        for _ in range(count + 1):
            dist.barrier()
            self.synchronise()
            start = time.perf_counter()
            function()
            self.synchronise()
            times.append(time.perf_counter() - start)
        return median(times[1:])

    def random(self, *shape, dtype=torch.float32):
        return torch.rand(*shape, device=self.device).to(dtype)


def peak(clock, name):
    """FLOP/s of a large square product."""
    side = GPU_SIDE if clock.cuda else LARGE_SIDE
    left, right = (clock.random(side, side, dtype=getattr(torch, name)) for _ in range(2))
    return 2 * side**3 / clock.seconds(lambda: left @ right, least_s=0.05)


def curve(clock):
    """[(FLOPs, FLOP/s)] of square float32 products of growing size, launches included."""
    pairs = []
    for side in SIDES:
        left, right = clock.random(side, side), clock.random(side, side)
        pairs.append((2 * side**3, 2 * side**3 / clock.seconds(lambda left=left, right=right: left @ right)))
    return pairs


def memory(clock):
    """Bytes per second of an addition, whose two inputs and result are read and written."""
    elements = ELEMENTS * (64 if clock.cuda else 1)
    left, right = clock.random(elements), clock.random(elements)
    return 3 * 4 * elements / clock.seconds(lambda: left + right)


def operations(clock):
    """{torch's name: bytes per second} of operations that take more arithmetic than a copy, bytes counted as the tracer does."""
    x = clock.random(1024, ELEMENTS // 1024)
    weight, bias = clock.random(x.shape[1]), clock.random(x.shape[1])
    aten, size = torch.ops.aten, 4 * ELEMENTS
    out, mean, rstd = aten.native_layer_norm(x, [x.shape[1]], weight, bias, 1e-5)
    logs = x.log_softmax(1)
    calls = {
        "gelu": (2, lambda: aten.gelu(x)),
        "gelu_backward": (3, lambda: aten.gelu_backward(x, x)),
        "native_layer_norm": (2, lambda: aten.native_layer_norm(x, [x.shape[1]], weight, bias, 1e-5)),
        "native_layer_norm_backward": (
            3,
            lambda: aten.native_layer_norm_backward(x, out, [x.shape[1]], mean, rstd, weight, bias, [True] * 3),
        ),
        "_log_softmax": (2, lambda: aten._log_softmax(x, 1, False)),
        "_log_softmax_backward_data": (3, lambda: aten._log_softmax_backward_data(x, logs, 1, torch.float32)),
    }
    return {name: tensors * size / clock.seconds(call) for name, (tensors, call) in calls.items()}


def attention(clock):
    """FLOP/s of causal attention, forward and backward, counted as half of the square; bfloat16 on a GPU."""
    batch, heads, length, width = (8, 16, 1024, 64) if clock.cuda else (2, 4, 256, 64)
    dtype = torch.bfloat16 if clock.cuda else torch.float32
    flops = 2 * batch * heads * length * length * width
    made = [clock.random(batch, heads, length, width, dtype=dtype).requires_grad_() for _ in range(3)]
    forward_s = clock.seconds(lambda: F.scaled_dot_product_attention(*made, is_causal=True))
    out = F.scaled_dot_product_attention(*made, is_causal=True)
    gradient = torch.ones_like(out)
    backward_s = clock.seconds(lambda: torch.autograd.grad(out, made, gradient, retain_graph=True))
    return flops / forward_s, 2 * flops / backward_s


def launch(clock):
    """Seconds of the host per small operation, with autograd, there and back."""
    scale = clock.random(8).requires_grad_()

    def chain():
        x = scale
        for _ in range(CHAIN):
            x = x * scale
        x.sum().backward()

    return clock.seconds(chain, least_s=0.05) / (4 * CHAIN)  # a product; backward two products and a sum


def floor(clock):
    """Seconds that a tiny kernel takes on the device; what a CPU takes is in its launch."""
    if not clock.cuda:
        return 0.0
    x, begin, end = clock.random(8), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    clock.synchronise()
    begin.record()
    for _ in range(10 * CHAIN):
        x.add_(1)
    end.record()
    clock.synchronise()
    return begin.elapsed_time(end) / 1e3 / (10 * CHAIN)


def collective(rank, clock, name):
    """{payload bytes: seconds} of one collective; the payload is the whole tensor."""
    found = {}
    for size in SIZES:
        whole = clock.random(size // 4)
        part = whole[: whole.numel() // rank.world_size].clone()
        whole = whole[: part.numel() * rank.world_size]
        calls = {
            "all_reduce": lambda whole=whole: dist.all_reduce(whole),
            "all_gather": lambda whole=whole, part=part: dist.all_gather_single(whole, part),
            "reduce_scatter": lambda whole=whole, part=part: dist.reduce_scatter_single(part, whole),
            "broadcast": lambda whole=whole: dist.broadcast(whole, 0),
            "all_to_all": lambda whole=whole: dist.all_to_all_single(torch.empty_like(whole), whole),
        }
        found[4 * whole.numel()] = clock.counted(calls[name], 9)
    return found


def messages(rank, clock):
    """{bytes: seconds} of a message from rank 0 to rank 1, half of its way there and back."""
    found = {}
    for size in SIZES:
        x = clock.random(size // 4)

        def there_and_back(x=x):
            if rank.rank == 0:
                dist.send(x, 1)
                dist.recv(x, 1)
            elif rank.rank == 1:
                dist.recv(x, 0)
                dist.send(x, 0)

        found[size] = clock.counted(there_and_back, 9) / 2
    return found


def copies(clock):
    """Bytes per second from pinned host memory to the device."""
    host = torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device=clock.device)
    return host.numel() / clock.seconds(lambda: device.copy_(host, non_blocking=True))
