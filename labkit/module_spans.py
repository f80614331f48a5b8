"""Spans of strategies that make none of their own, as those of libraries: what their models, loss and optimizer did.

A forward span is a call of a model that `job.model` made, or of its embedding, block or head where these are called
alone, or of `job.loss`; a backward span goes from the gradient of what these returned to the end of that backward.
"""

import contextlib
import dataclasses

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from labkit.jobs import Job
from labkit.recorder import family


@contextlib.contextmanager
def timed(job, recorder):
    """The same job, whose models and losses leave spans in the recorder's `automatic`, as every optimizer's step does."""
    spans = ModuleSpans(recorder, job.batch_size)
    hooks = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: spans.begin("optimizer", optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, *_: spans.end(optimizer, {})),
    ]
    try:
        yield TimedJob.of(job, spans)
    finally:
        for hook in hooks:
            hook.remove()
        spans.number()


class TimedJob(Job):
    """The same job; `.spans` times what is made from it."""

    @classmethod
    def of(cls, job, spans):
        timed_job = cls(**{entry.name: getattr(job, entry.name) for entry in dataclasses.fields(job)})
        object.__setattr__(timed_job, "spans", spans)
        return timed_job

    def replace(self, **changes):
        changed = super().replace(**changes)
        object.__setattr__(changed, "spans", self.spans)
        return changed

    def model(self, **part):
        model = super().model(**part)
        self.spans.follow(model)
        return model

    def loss(self, logits, targets):
        self.spans.begin("forward", self.spans, "loss")
        loss = super().loss(logits, targets)
        labels = self.spans.end(self.spans, self.spans.latest)
        self.spans.await_gradient(loss, labels)
        return loss


class ModuleSpans:
    """One rank's automatic spans. Only the outermost of what is timed leaves one, and none is left within a backward."""

    def __init__(self, recorder, batch_size):
        self.recorder, self.batch_size = recorder, batch_size
        self.models, self.calls = 0, {}  # (step, module) -> [(rows of the input, labels)]
        self.latest, self.open, self.in_backward = {}, None, False

    def follow(self, model):
        """Times a model of `job.model`, and its parts where a strategy calls them without it."""
        chunk, self.models = self.models, self.models + 1
        parts = [model, model.embed, *model.blocks, model.head]
        for part in parts:
            if next(part.parameters(), None) is not None:
                self._follow(part, {"chunk": chunk} if part is model else {})

    def _follow(self, module, known):
        # Closures, since a copy of the model must not copy the recorder with it.
        def before(module, inputs):
            self.begin("forward", module)

        def after(module, inputs, output):
            if self._timing(module):
                labels = self._count(module, inputs, dict(known)) if torch.is_grad_enabled() else {}
                self.latest = self.end(module, labels)
                self.await_gradient(output, labels)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    def begin(self, kind, owner, name=""):
        """Opens a span, unless one is open; what was left open in an earlier step, by an error, is forgotten."""
        if torch.compiler.is_compiling() or self.in_backward or family(kind) in self.recorder.own:
            return
        if self.open is None or self.open[2] != self.recorder.step:
            self.open = owner, kind, self.recorder.step, name or kind, self.recorder.stamp()

    def end(self, owner, labels):
        """Closes the owner's span, if it is the open one; returns the labels."""
        if self._timing(owner):
            _, kind, _, name, start = self.open
            self.recorder.add_automatic(kind, name, start, labels)
            self.open = None
        return labels

    def await_gradient(self, output, labels):
        """The next backward that reaches this output leaves a span with these labels."""
        if torch.compiler.is_compiling() or not (isinstance(output, torch.Tensor) and output.requires_grad):
            return

        def begin(_):
            if self.in_backward or family("backward") in self.recorder.own:
                return
            self.in_backward, start = True, self.recorder.stamp()

            def end():
                self.in_backward = False
                self.recorder.add_automatic("backward", "backward", start, labels)

            torch.autograd.Variable._execution_engine.queue_callback(end)  # runs when the whole backward is done

        output.register_hook(begin)

    def number(self):
        """Writes micro-batch numbers where a module took equal pieces of a batch one after another, and chunks if several."""
        several = len({calls[0][1]["chunk"] for calls in self.calls.values() if "chunk" in calls[0][1]}) > 1
        for calls in self.calls.values():
            rows = {rows for rows, _ in calls}
            pieces = len(calls) > 1 and len(rows) == 1 and self.batch_size % (rows.pop() * len(calls)) == 0
            for at, (_, labels) in enumerate(calls):
                if pieces:
                    labels["micro_batch"] = at
                if not several:
                    labels.pop("chunk", None)

    def _timing(self, owner):
        return self.open is not None and self.open[0] is owner and not self.in_backward

    def _count(self, module, inputs, labels):
        rows = inputs[0].shape[0] if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].dim() else 0
        self.calls.setdefault((self.recorder.step, id(module)), []).append((max(rows, 1), labels))
        return labels
