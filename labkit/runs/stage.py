"""One pipeline stage writes down its step: passes over layers, what is fetched, reduced and sent, and the update."""

from labkit.operations import Forward
from labkit.runs import kernels
from labkit.runs.shares import gradient_bytes, layer_bytes, layers_of, trained
from labkit.trace_records import Collective, Copy, HostWork, Mark, Message, Trace, Wait

IN_FLIGHT = 4  # reductions of gradients that may run behind the layers
HOST_UPDATE_BYTES = 26  # gradient 2, master and both moments read and written: 2 x (4 + 4 + 4)


class Stage:
    """Writes the trace of one stage."""

    def __init__(self, run, stage, named, micro_batches):
        self.run, self.stage, self.parts, self.count = run, stage, named, micro_batches
        self.entries, self.number, self.grads, self.sent, self.outs = [], 0, [], [], []
        self.layer_bytes = layer_bytes(run)
        self.grad_bytes = gradient_bytes(run)

    def trace(self, order):
        for operation in order:
            first, last = operation.micro_batch == 0, operation.micro_batch == self.count - 1
            if isinstance(operation, Forward):
                self.forward(operation, first)
            else:
                self.backward(operation, last)
        self.wait(self.grads + self.sent + self.outs)
        self.optimizer()
        return Trace(self.stage, self.run.pp, tuple(self.entries))

    # passes

    def forward(self, operation, first):
        run, part = self.run, operation.chunk * self.run.pp + self.stage
        begin, end = part == 0, part == run.pp * run.chunks - 1
        if not begin:
            self.receive(part - 1, self.tag(operation, part, 0))
        self.mark("forward", operation, True)
        if begin:
            self.outer_gather(first)
            self.entries.append(self.parts["embedding"])
        for _ in self.layers(operation.chunk, first, self.keep):
            self.entries.append(self.parts["block forward"])
            self.reduce_activations()
        if end:
            self.entries.append(self.parts["head"])
        else:
            self.send(part + 1, self.tag(operation, part + 1, 0))
        self.mark("forward", operation, False)

    def backward(self, operation, last):
        run, part = self.run, operation.chunk * self.run.pp + self.stage
        if part < run.pp * run.chunks - 1:
            self.receive(part + 1, self.tag(operation, part, 1))
        self.mark("backward", operation, True)
        for _ in self.layers(operation.chunk, False, lambda layer: layer and self.reduce_gradients(last), backward=True):
            self.entries.append(self.parts["block backward"])
            self.reduce_activations()
            if "block" in run.recompute:
                self.reduce_activations(half=True)
        self.reduce_gradients(last)
        if part > 0:
            self.send(part - 1, self.tag(operation, part - 1, 1))
        else:
            self.outer_reduce(last)
        self.mark("backward", operation, False)

    def optimizer(self):
        run, stack = self.run, self.run.stack
        parameters = trained(run, self.stage)
        local = parameters / run.dp if run.zero else parameters
        offloaded = run.offload & {"master", "adam_m", "adam_v"}
        if not stack.direct and (offloaded or "weights" in run.offload):  # who keeps weights on the host updates them there
            work = self.issue(HostWork, "update", round(local * HOST_UPDATE_BYTES))
            self.wait([work])
            if "weights" not in run.offload:
                self.wait([self.copy("to_device", local * stack.weight_bytes)])
        elif offloaded:
            nbytes = 2 * len(offloaded) * local
            moved = [self.copy("to_device", nbytes), self.copy("to_host", nbytes)]
            self.entries.append(kernels.optimizer(run, local))
            self.wait(moved)
        else:
            self.entries.append(kernels.optimizer(run, local))
        if run.zero in (1, 2) and run.dp > 1 and not stack.direct and not run.shard_weights:
            self.wait([self.over("all_gather", "dp", parameters * min(2, stack.weight_bytes))])

    # transfers of a layer

    def layers(self, chunk, first, before, backward=False):
        """Yields a chunk's layers, each when its weights are there and the next layer's are on their way.

        `before` is called between the wait and what is sent ahead, so that this runs beside the layer's kernels.
        """
        count, gathered = layers_of(self.run, self.stage, chunk), self.gathered(first)
        held = self.gather(self.bring(backward), first)
        coming = self.bring(backward) if count > 1 else []
        for layer in range(count):
            self.wait(held + (coming if gathered else []) + self.grads[:-IN_FLIGHT])
            before(layer)
            held = self.gather(coming, first) if layer + 1 < count else []
            coming = self.bring(backward) if layer + 2 < count else []
            yield layer

    def gathered(self, first):
        """Whether the layer's weights come from the other cards; not where each reads all of them from the host."""
        run, direct = self.run, self.run.stack.direct
        return run.dp > 1 and (run.sharded or bool(first and direct and run.zero)) and not (run.streamed and direct)

    def bring(self, backward):
        """Starts the copies that a layer needs from the host: its weights, or this card's shard, and what forward sent there."""
        run, ids = self.run, []
        if run.streamed:
            shard = run.dp if run.zero == 3 and not run.stack.direct else 1
            ids.append(self.copy("to_device", self.layer_bytes / shard))
        if backward and "activations" in run.offload:
            ids.append(self.copy("to_device", self.kept_bytes()))
        return ids

    def gather(self, copied, first):
        """Gathers a layer's weights once they are copied; the ids to wait for."""
        if not self.gathered(first):
            return copied
        self.wait(copied)
        return [self.over("all_gather", "dp", self.layer_bytes)]

    def keep(self, layer):
        """Sends what the layer before keeps for backward to the host, at most two layers behind."""
        if "activations" in self.run.offload:
            self.wait(self.outs[:-1])
            self.outs.append(self.copy("to_host", self.kept_bytes()))

    def kept_bytes(self):
        return 2 * self.run.tokens * self.run.model.hidden

    def reduce_activations(self, half=False):
        """Tensor parallelism: attention's and MLP's sums, forward, or those of their inputs' gradients, backward."""
        if self.run.tp > 1:
            for _ in range(1 if half else 2):
                self.over("all_reduce", "tp", 2 * self.run.tokens * self.run.model.hidden, asynchronous=False)

    def reduce_gradients(self, last):
        run = self.run
        if not self.grad_bytes or not (last or run.zero >= 2 or run.reduce_always or "gradients" in run.offload):
            return
        shard = self.grad_bytes / (run.dp if run.zero else 1)
        if "gradients" in run.offload and run.stack.direct:
            self.add_on_host(shard)
        if run.dp > 1:
            self.grads.append(self.over("reduce_scatter" if run.zero else "all_reduce", "dp", self.grad_bytes))
        if not run.stack.direct and ("gradients" in run.offload or "master" in run.offload and (last or run.zero >= 2)):
            self.grads.append(self.copy("to_host", shard))
            if not last and run.zero >= 2:  # DeepSpeed adds on the card what the host holds already
                self.grads.append(self.copy("to_device", shard))

    def add_on_host(self, shard):
        """A kernel adds the layer before to the gradients in the host's memory; nothing else runs meanwhile."""
        self.wait(self.grads[:-1] + [self.copy("to_host", shard), self.copy("to_device", shard)])

    def outer_gather(self, first):
        run = self.run
        if first and run.dp > 1 and (run.sharded or (run.zero and run.stack.direct)):
            self.wait([self.over("all_gather", "dp", run.model.outer_parameters * 2 / run.tp)])

    def outer_reduce(self, last):
        run = self.run
        if not run.adapter_rank and run.dp > 1 and (last or run.reduce_always or run.zero >= 2 and not run.stack.direct):
            outer = run.model.outer_parameters if run.pp == 1 else run.model.embedding_parameters
            nbytes = outer * run.stack.gradient_bytes / run.tp
            self.grads.append(self.over("reduce_scatter" if run.zero else "all_reduce", "dp", nbytes))

    # entries

    def issue(self, kind, *fields, **more):
        self.number += 1
        self.entries.append(kind(*fields, id=self.number, asynchronous=more.pop("asynchronous", True), **more))
        return self.number

    def copy(self, direction, nbytes):
        return self.issue(Copy, direction, round(nbytes))

    def over(self, operation, axis, nbytes, *, asynchronous=True, after=()):
        name = f"{operation} over {axis}"
        return self.issue(Collective, name, (self.stage,), round(nbytes), (axis,), asynchronous=asynchronous, after=after or None)

    def wait(self, ids):
        if ids:
            self.entries.append(Wait(tuple(ids)))
        for held in (self.grads, self.sent, self.outs):
            held[:] = [one for one in held if one not in ids]

    def tag(self, operation, part, direction):
        return 2 * (operation.micro_batch * self.run.pp * self.run.chunks + part) + direction

    def send(self, part, tag):
        peer = part % self.run.pp
        self.sent.append(self.message("send", peer, tag, asynchronous=True))

    def receive(self, part, tag):
        self.message("recv", part % self.run.pp, tag, asynchronous=False)

    def message(self, operation, peer, tag, asynchronous):
        nbytes = round(2 * self.run.tokens * self.run.model.hidden)
        return self.issue(Message, operation, peer, nbytes, tag=tag, asynchronous=asynchronous)

    def mark(self, kind, operation, begins):
        labels = {"micro_batch": operation.micro_batch, "stage": self.stage}
        self.entries.append(Mark(kind, f"{kind} {operation.micro_batch}", begins, labels))
