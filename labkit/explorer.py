"""The explorer: model, machine and layout by menus; timeline, tokens per second and memory per card are drawn anew."""

import math
from functools import partial

from labkit import hardware
from labkit.layouts import MICRO_BATCHES, Layout
from labkit.planner import examine
from labkit.runs.models import MODELS

MACHINES = {
    "RTX 4090, ordinary host": hardware.RTX4090_SERVER,
    "RTX 4090, good host": hardware.RTX4090_GOOD_HOST,
    "RTX 4090, bad host": hardware.RTX4090_BAD_HOST,
    "RTX 4090, peer-to-peer driver": hardware.RTX4090_PATCHED_P2P,
    "RTX 3090": hardware.RTX3090_SERVER,
    "RTX 5090": hardware.RTX5090_SERVER,
    "A100 80GB, NVLink": hardware.A100_80GB_SERVER,
}
START = {"model": "Llama-2-7B", "machine": "RTX 4090, ordinary host", "network": "100G InfiniBand", "cards": 8, "tp": 1, "pp": 8}
START |= {"zero": 0, "recompute": False, "micro_batch": 1, "batch": 64, "seq_len": 2048}
CHOICES = {
    "model": tuple(MODELS),
    "machine": tuple(MACHINES),
    "network": tuple(hardware.NETWORKS),
    "cards": (1, 2, 4, 8, 16, 32, 64),
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4, 8, 16, 32),
    "zero": (0, 1, 2, 3),
    "recompute": (False, True),
    "micro_batch": MICRO_BATCHES,
    "batch": (8, 16, 32, 64, 128, 256, 512),
    "seq_len": (512, 1024, 2048, 4096),
}
COLUMNS = 3


def chosen(**changes):
    """The Plan of one choice of the menus, START with these changes; dp is what tp and pp leave of the cards.

    Raises ValueError for an unknown menu, and for cards that tp · pp does not divide.
    """
    if unknown := [name for name in changes if name not in START]:
        raise ValueError(f"there is no menu {', '.join(unknown)}; there are {', '.join(START)}")
    wanted = START | changes
    cards, ways = wanted["cards"], wanted["tp"] * wanted["pp"]
    if cards % ways:
        raise ValueError(f"{cards} cards do not divide into tp {wanted['tp']} × pp {wanted['pp']} = {ways}")
    layout = Layout(cards // ways, wanted["tp"], wanted["pp"], wanted["zero"], wanted["recompute"], wanted["micro_batch"])
    on = machine(wanted["machine"], cards, wanted["network"])
    return examine(wanted["model"], layout, on=on, batch=wanted["batch"], seq_len=wanted["seq_len"])


def machine(name, cards, network):
    """The machine of that name with room for the cards: one server, or as many as they need on the network."""
    if name not in MACHINES:
        raise ValueError(f"machine {name!r} is unknown; use one of {', '.join(MACHINES)}")
    server = MACHINES[name]
    servers = math.ceil(cards / server.cards)
    return server if servers == 1 else hardware.cluster(servers, network, server=server)


def explorer(**changes):
    """Returns the panel, an ipywidgets box; `changes` are what its menus begin with, as for `chosen`."""
    import ipywidgets

    start = START | changes
    chosen(**start)
    look = ipywidgets.Layout(width="290px")
    menus = {name: _menu(ipywidgets, name, options, start[name], look) for name, options in CHOICES.items()}
    told, pictures = ipywidgets.HTML(), (ipywidgets.Image(), ipywidgets.Image())
    redraw = partial(_redraw, menus, told, pictures)
    for menu in menus.values():
        menu.observe(redraw, "value")
    redraw()
    grid = ipywidgets.Layout(grid_template_columns=f"repeat({COLUMNS}, 300px)")
    return ipywidgets.VBox([ipywidgets.GridBox(list(menus.values()), layout=grid), told, *pictures])


def _menu(ipywidgets, name, options, value, look):
    options = options if value in options else (*options, value)
    style = {"description_width": "90px"}
    return ipywidgets.Dropdown(options=options, value=value, description=name.replace("_", "-"), layout=look, style=style)


def _redraw(menus, told, pictures, change=None):
    from labkit.canvas import png
    from labkit.draw_plan import draw_plan

    try:
        plan = chosen(**{name: menu.value for name, menu in menus.items()})
    except ValueError as error:
        told.value = f"<b>{error}</b>"
        return
    told.value = f"<b>{plan}</b>" if plan.refusal else str(plan)
    if plan.estimate is None:
        return
    for picture, figure in zip(pictures, draw_plan(plan), strict=True):
        picture.value, picture.width = png(figure)
