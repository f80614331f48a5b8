"""Finding what was drawn in a figure, for the tests of pictures; and records to draw."""


def records_of(steps, ranks=2, **more):
    """Each rank r needs 1 + r seconds for the first step and 0.5 + 0.1 r for another; 100 tokens a step."""
    return [
        {"rank": r, "step": s, "time_s": 1 + r + s * (0.5 + 0.1 * r), "loss": 5.0 - s / 10, "tokens": 100, **more}
        for s in range(steps)
        for r in range(ranks)
    ]


def texts_of(figure):
    inside = [text.get_text() for axes in figure.axes for text in axes.texts]
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in figure.texts] + inside + legends


def line_of(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


def boxes_of(axes, kind):
    """[(left, top, right, bottom)] of the boxes of one kind, in axis units."""
    found = []
    for boxes in (boxes for boxes in axes.collections if boxes.get_label() == kind):
        for path in boxes.get_paths():
            (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.append((left, top, right, bottom))
    return sorted(found)
