"""Transfers that are in flight at the same time share the links that they use, like fluids in pipes.

Each transfer has a speed: the share of the rate that it would have alone. Where the transfers on a resource would keep it
busy for more than all of the time, all of them are slowed down alike, until none asks for too much (max-min fairness).
Speeds change only when a transfer begins or ends.
"""

FULL = 1 + 1e-12


class Flow:
    """One transfer in flight: `left_s` is what it still needs alone, `load` its share of each resource at full speed."""

    __slots__ = ("item", "left_s", "load", "speed", "number", "since_s", "version")

    def __init__(self, item, uses, number, now_s):
        alone_s = max(uses.values())
        self.item, self.left_s, self.number, self.since_s = item, alone_s, number, now_s
        self.load = {resource: seconds / alone_s for resource, seconds in uses.items()}
        self.speed, self.version = 0.0, 0


class Fluid:
    """All flows of a machine; `start` and `end` return those whose end has moved."""

    def __init__(self):
        self._users, self._count = {}, 0

    def start(self, item, uses, now_s):
        """Lets a transfer begin; returns the flows whose speed changed, its own among them."""
        self._count += 1
        flow = Flow(item, uses, self._count, now_s)
        for resource in flow.load:
            self._users.setdefault(resource, {})[flow.number] = flow
        return self._share(flow, now_s)

    def end(self, flow, now_s):
        """Takes a flow out that is over; returns the flows whose speed changed."""
        for resource in flow.load:
            del self._users[resource][flow.number]
        return self._share(flow, now_s)

    def _share(self, changed, now_s):
        flows, contended = self._touched(changed)
        speeds = _speeds(flows, contended) if contended else dict.fromkeys(flows, 1.0)
        moved = []
        for number, speed in speeds.items():
            flow = flows[number]
            if flow.speed != speed:
                flow.left_s = max(0.0, flow.left_s - flow.speed * (now_s - flow.since_s))
                flow.speed, flow.since_s = speed, now_s
                flow.version += 1
                moved.append(flow)
        return moved

    def _touched(self, changed):
        """The flows that a change may slow down or speed up, and the users of each resource that is short among them."""
        flows, contended, queue = {}, {}, []
        for resource in changed.load:
            for number, flow in self._users[resource].items():
                if number not in flows:
                    flows[number] = flow
                    queue.append(flow)
        while queue:
            for resource in queue.pop().load:
                users = self._users[resource]
                if len(users) == 1 or resource in contended or sum(one.load[resource] for one in users.values()) <= FULL:
                    continue
                contended[resource] = users
                new = [one for number, one in users.items() if number not in flows]
                flows.update((one.number, one) for one in new)
                queue += new
        return flows, contended


def _speeds(flows, contended):
    """{number: speed}: all rise together; when a resource is full, its users stay as they are."""
    speeds, rising = {}, dict(flows)
    rooms = dict.fromkeys(contended, 1.0)
    while rising:
        level, full = 1.0, None
        for resource, room in rooms.items():
            load = sum(flow.load[resource] for number, flow in contended[resource].items() if number in rising)
            if load and room / load < level:
                level, full = room / load, resource
        stopped = list(rising) if full is None else [number for number in contended[full] if number in rising]
        for number in stopped:
            speeds[number] = level
            for resource, share in rising.pop(number).load.items():
                if resource in rooms:
                    rooms[resource] = max(0.0, rooms[resource] - share * level)
        rooms.pop(full, None)
    return speeds
