"""The memory account of a rank: how many bytes are weights, gradients, optimizer state, activations, and when most are held.

A tensor's kind is that of its maker: what `job.model()` makes, and every other nn.Parameter, are weights; what is
accumulated into a parameter's `.grad` are gradients; what an optimizer makes and keeps is its state; what autograd saves for
the backward pass are activations; for what is made by hand `rank.memory` says it. Bytes are those of storages, so views
count once and a storage that was resized to nothing does not count. Works on real tensors and under FakeTensorMode.
"""

import contextlib
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils.weak import WeakIdKeyDictionary

from labkit.memory_hooks import told_of_resizes, told_of_saved, told_of_updates
from labkit.observed import ObservedJob
from labkit.storages import Ledger, refuse_unknown_kind, tensors_in

_DEVICE = torch.ops.prim.device.default


class MemoryAccount(TorchDispatchMode):
    """Watches what happens while it is entered; under FakeTensorMode enter it after that mode.

    .peak_bytes .peak .when   the fullest moment since the first step began: bytes, {kind: bytes}, such as "backward, step 1"
    .now                      {kind: bytes} of what is alive
    .before_update            {kind: bytes} before the last step's first update, None where none was seen
    .after_step               {kind: bytes} at the end of the last step
    `device_type` says whose tensors count (None: all but meta ones). A `watcher` is told of all that autograd saves,
    by `.saved(tensor)`, and of the begin of each step's update, by `.before_update()`.
    """

    def __init__(self, device_type=None, watcher=None):
        super().__init__()
        self.ledger, self._watcher = Ledger(device_type), watcher
        self._kinds, self._spans, self._doing, self._step = [], [], "build", None
        self._updates, self._made_in_update = 0, []
        self._models, self._parameters = [], WeakIdKeyDictionary()
        self.before_update = self.after_step = None

    @property
    def now(self):
        return self.ledger.by_kind()

    @property
    def peak_bytes(self):
        return self.ledger.most_bytes

    @property
    def peak(self):
        return self.ledger.at_most()

    @property
    def when(self):
        return self.ledger.most_when

    def observe(self, job):
        """Returns the job, whose models' parameters are weights, and whose optimizers' own tensors are their state."""
        return ObservedJob.of(job, notes=self)

    def see_model(self, model, is_whole=True):
        """Counts what a module holds, now and whenever a step begins or ends, under weights."""
        self._models.append(weakref.ref(model))
        self._see_model(model)

    def see_optimizer(self, optimizer, parameters):
        """Counts the float32 copies of an optimizer that keeps some under optimizer state."""
        for master in getattr(optimizer, "masters", ()):
            self._raise(master, "optimizer state")

    def begin_step(self, step):
        """Says that a step begins; before the first one the strategy is built, which is not part of the peak."""
        self._see_models()
        first, self._step, self._doing = self._step is None, step, "forward"
        self.before_update = None
        if first:
            self.ledger.restart(self._when)

    def end_step(self):
        """Says that the step has ended."""
        self._see_models()
        self.after_step = self.now

    @contextlib.contextmanager
    def memory(self, kind, name=""):
        """Counts what is made within under `kind`; innermost first."""
        refuse_unknown_kind(kind)
        self._kinds.append((kind, name))
        try:
            yield
        finally:
            self._kinds.pop()

    @contextlib.contextmanager
    def span(self, kind):
        """Names what the rank does, for `.when`; an optimizer's span is an update."""
        if kind == "optimizer":
            self._begin_update()
        self._spans.append(kind)
        try:
            yield
        finally:
            self._spans.pop()

    def take_parameter(self, parameter):
        """Counts a parameter under weights, and what is accumulated into its gradient under gradients."""
        if parameter in self._parameters:
            return
        self._parameters[parameter] = True
        self._raise(parameter, "weights")
        if parameter.requires_grad and parameter.is_leaf:
            own = weakref.ref(self)
            parameter.register_post_accumulate_grad_hook(lambda p: own() and own()._see_gradient(p))

    def __enter__(self):
        self._open = contextlib.ExitStack()
        self._open.enter_context(told_of_resizes(lambda storage: self.ledger.resized(storage, self._when)))
        self._open.enter_context(told_of_updates(self._begin_optimizer, self._end_optimizer))
        self._open.enter_context(told_of_saved(self._see_saved))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._open.close()

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # torch's guard against compiling this costs more than what is done here

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is _DEVICE:  # every second call of a fake tensor, and it makes nothing
            return function(*args)
        given = [*tensors_in(args), *tensors_in(kwargs.values())]
        for tensor in given:
            if isinstance(tensor, torch.nn.Parameter):
                self.take_parameter(tensor)
            self._see(tensor)
        if any(is_traceable_wrapper_subclass_type(one) for one in types):
            return NotImplemented  # the wrapper's own operations come next, on what it holds
        if not self._updates and torch._C._current_graph_task_id() != -1:
            self._doing = "backward"
        made = function(*args, **kwargs)
        for tensor in tensors_in([made]):
            self._see_made(tensor)
        return made

    @property
    def _when(self):
        doing = self._spans[-1] if self._spans else "optimizer" if self._updates else self._doing
        return doing if self._step is None else f"{doing}, step {self._step}"

    def _see(self, tensor):
        return self.ledger.touch(tensor, self._when)

    def _see_made(self, tensor):
        if self._kinds:
            self.ledger.touch(tensor, self._when, *self._kinds[-1])
        elif self._updates:
            self._made_in_update += self.ledger.touch(tensor, self._when)
        else:
            self._see(tensor)

    def _raise(self, tensor, kind):
        for entry in self._see(tensor):
            self.ledger.raise_kind(entry, kind)

    def _see_saved(self, tensor):
        if torch._C._current_graph_task_id() == -1:
            self._doing = "forward"
        if isinstance(tensor, torch.nn.Parameter):
            self.take_parameter(tensor)
        self._raise(tensor, "activations")
        if self._watcher:
            self._watcher.saved(tensor)

    def _see_gradient(self, parameter):
        if parameter.grad is not None:
            self._raise(parameter.grad, "gradients")

    def _see_model(self, model):
        for tensor in (*model.parameters(), *model.buffers()):
            if isinstance(tensor, torch.nn.Parameter):
                self.take_parameter(tensor)
            self._raise(tensor, "weights")

    def _see_models(self):
        for model in (one() for one in self._models):
            if model is not None:
                self._see_model(model)
        for parameter in list(self._parameters):
            self._see_gradient(parameter)

    def _begin_update(self):
        if self._step is not None and self.before_update is None:
            self._see_models()
            self.before_update = self.now
            if self._watcher:
                self._watcher.before_update()

    def _begin_optimizer(self):
        self._begin_update()
        self._updates += 1

    def _end_optimizer(self):
        self._updates -= 1
        if not self._updates:
            for entry in self._made_in_update:
                if entry.nbytes:  # what has died since was an intermediate result
                    self.ledger.raise_kind(entry, "optimizer state")
            self._made_in_update = []
