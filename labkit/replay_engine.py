"""The discrete-event simulation: ranks get through their programs, transfers share links, time jumps from event to event."""

import heapq
from itertools import count

from labkit.deadlock import name_of, report
from labkit.fluid import Fluid
from labkit.joints import Joints, stream_of
from labkit.replay_program import Compiler, Issue, Run
from labkit.replay_state import Actor, Task
from labkit.trace_records import HostWork, Mark


class Engine:
    """Replays traces once; afterwards `actors` hold what each rank did. Raises Deadlock."""

    def __init__(self, traces, machine, *, record=True):
        compiler = Compiler(machine)
        self.record = record
        self.actors = {trace.rank: Actor(trace.rank, compiler.program(trace)) for trace in traces}
        self._events, self._numbers, self._fluid = [], count(), Fluid()
        self._joints = Joints(machine)
        self._overlap_cost = machine.card.overlap_cost
        self.end_s = 0.0

    def run(self):
        """Gets all ranks to the end of their programs."""
        for actor in self.actors.values():
            self._issue_own(actor)
            self._advance(actor)
        while self._events:
            now_s, _, action, what, version = heapq.heappop(self._events)
            if version is None or what.version == version:  # a flow's end may have moved since
                action(what, now_s)
        if self._joints.open or not all(actor.finished for actor in self.actors.values()):
            raise report(self.actors.values(), self._joints.open.values())
        self.end_s = max([self.end_s, *(max(actor.device_s, actor.host_s) for actor in self.actors.values())])

    def _at(self, time_s, action, what, version=None):
        heapq.heappush(self._events, (time_s, next(self._numbers), action, what, version))

    def _advance(self, actor):
        steps, rows = actor.steps, actor.rows
        while actor.at < len(steps):
            step = steps[actor.at]
            actor.at += 1
            if type(step) is Run:
                lost_s = min(actor.lost_s, self._overlap_cost * step.device_s)
                start_s = max(actor.device_s, actor.host_s + step.first_s)
                actor.device_s = max(actor.device_s + step.device_s, actor.host_s + step.lag_s) + lost_s
                actor.host_s += step.host_s
                actor.busy_s += step.device_s + lost_s
                actor.lost_s -= lost_s
                if self.record and step.device_s:
                    rows.append((step.phase, step.phase, start_s, actor.device_s, actor.labels))
            elif type(step) is Issue:
                if self._issue(actor, step):
                    return
            elif type(step) is Mark:
                self._mark(actor, step)
            elif self._wait(actor, step.ids):
                return

    def _issue(self, actor, step):
        """Whether the device has to wait now."""
        entry = step.entry
        actor.host_s += step.host_s
        task = self._submit(actor, entry, max(actor.device_s, actor.host_s))
        if not step.blocks_device:
            if self._overlap_cost and not isinstance(entry, HostWork):
                actor.lost_s += self._overlap_cost * self._joints.transfer([task]).busy_s
            return False
        actor.stops_host = step.blocks_host
        return self._wait(actor, (entry.id,))

    def _issue_own(self, actor):
        for after_s, entry in actor.own[actor.stops]:
            self._submit(actor, entry, actor.host_s + after_s)

    def _wait(self, actor, ids):
        tasks = [actor.tasks[one] for one in ids]
        actor.lost_s = 0.0
        actor.waits_for = {one.entry.id: one for one in tasks if one.done_s is None}
        if not actor.waits_for:
            actor.device_s = max([actor.device_s, *(one.done_s for one in tasks)])
        return bool(actor.waits_for)

    def _mark(self, actor, mark):
        if not self.record:
            return
        now_s = max(actor.device_s, actor.host_s)
        if mark.begins:
            actor.marks.append((mark, now_s, actor.labels))
            actor.labels = actor.labels | mark.labels | {"": mark.kind}
            return
        begun, start_s, before = actor.marks.pop()
        actor.labels = before
        actor.rows.append((mark.kind, mark.name or mark.kind, start_s, now_s, {**before, **begun.labels, "mark": True}))

    def _submit(self, actor, entry, ready_s):
        queue = actor.queue(stream_of(entry))
        task = actor.tasks[entry.id] = Task(actor.rank, entry, queue, ready_s, actor.labels)
        task.dependents = actor.awaited.pop(entry.id, [])
        for one in task.dependents:
            one.waits.append(task)
        for one in entry.after or ():
            self._depend(actor, task, one)
        task.joint = self._joints.join(task)
        if queue is not None:
            queue.append(task)
        self._try_arrive(task, 0.0)
        return task

    def _depend(self, actor, task, other):
        """`task` begins after the task with id `other`, which the device may not have issued yet."""
        earlier = actor.tasks.get(other)
        if earlier is not None and earlier.done_s is not None:
            task.ready_s = max(task.ready_s, earlier.done_s)
            return
        task.missing += 1
        if earlier is None:
            actor.awaited.setdefault(other, []).append(task)
        else:
            task.waits.append(earlier)
            earlier.dependents.append(task)

    def _try_arrive(self, task, now_s):
        if not task.arrives and not task.missing and (task.queue is None or task.queue[0] is task):
            task.arrives = True
            self._at(max(now_s, task.ready_s), self._arrived, task)

    def _arrived(self, task, now_s):
        joint = task.joint
        joint.arrived += 1
        if joint.arrived == joint.needed:
            joint.start_s, joint.transfer = now_s, self._joints.transfer(joint.tasks)
            self._at(now_s + joint.transfer.latency_s, self._begun, joint)

    def _begun(self, joint, now_s):
        uses = joint.transfer.uses
        if not uses:
            self._done(joint, now_s)
            return
        self._move(self._fluid.start(joint, uses, now_s))

    def _move(self, flows):
        for flow in flows:
            self._at(flow.since_s + flow.left_s / flow.speed, self._ended, flow, flow.version)

    def _ended(self, flow, now_s):
        self._move(self._fluid.end(flow, now_s))
        self._done(flow.item, now_s)

    def _done(self, joint, now_s):
        self._joints.done(joint)
        self.end_s = max(self.end_s, now_s)
        for task in joint.tasks:
            task.done_s = now_s
            if self.record:
                self.actors[task.rank].transfers.append((task.entry, joint.start_s, now_s, task.labels))
            if task.queue is not None:
                task.queue.popleft()
                if task.queue:
                    self._try_arrive(task.queue[0], now_s)
            for dependent in task.dependents:
                dependent.missing -= 1
                dependent.ready_s = max(dependent.ready_s, now_s)
                self._try_arrive(dependent, now_s)
        for task in joint.tasks:
            self._resume(self.actors[task.rank], task, now_s)

    def _resume(self, actor, task, now_s):
        if actor.waits_for and actor.waits_for.pop(task.entry.id, None) and not actor.waits_for:
            if now_s > actor.device_s:
                if self.record and not isinstance(task.entry, HostWork):
                    actor.rows.append(("wait", f"wait for {name_of(task.entry)}", actor.device_s, now_s, task.labels))
                actor.device_s = now_s
            if actor.stops_host:
                actor.host_s, actor.stops_host = max(actor.host_s, now_s), False
                actor.stops += 1
                self._issue_own(actor)
            self._advance(actor)
