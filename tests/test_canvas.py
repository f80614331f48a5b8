"""The frame of all pictures: PNG, notebook form, colours, frames drawn anew in part, nothing global changed."""

import io
import json
import subprocess
import sys

import numpy as np
from artists import records_of
from matplotlib import rcParams
from matplotlib.colors import to_rgba
from PIL import Image

from labkit.canvas import RANK_COLOURS, frame, panel, plain, png, short
from labkit.draw import TrainingPicture, draw_training


class TestCanvas:
    def test_png_is_twice_the_display_width_and_keeps_flat_colours(self):
        figure = frame(200, title="a title", badge="measured on 2 CPU cores")
        panel(figure, 60, 40, 300, 100).set_facecolor(RANK_COLOURS[0])
        data, width_px = png(figure)
        image = Image.open(io.BytesIO(data)).convert("RGB")
        assert (width_px, image.size) == (900, (1800, 400))
        assert image.getpixel((2, 2)) == (255, 255, 255)
        assert image.getpixel((300, 200)) == tuple(bytes.fromhex(RANK_COLOURS[0][1:]))

    def test_a_picture_of_many_colours_is_packed_too(self):
        figure = frame(300)
        panel(figure, 0, 0, 900, 300).imshow(np.random.default_rng(0).random((300, 900, 3)))
        assert Image.open(io.BytesIO(png(figure)[0])).size == (1800, 600)

    def test_a_notebook_gets_a_png_and_a_text_that_never_changes(self):
        bundles = [draw_training(records_of(n))._repr_mimebundle_() for n in (0, 5)]
        assert bundles[0][0]["text/plain"] == bundles[1][0]["text/plain"]
        assert bundles[0][0]["image/png"] != bundles[1][0]["image/png"]
        assert bundles[0][1] == {"image/png": {"width": 900}}

    def test_only_what_moved_is_drawn_anew_with_the_same_result(self):
        reference = [5.0] * 40
        picture = TrainingPicture(steps=40, title="t", reference=reference)
        for steps in (0, 11, 12, 40):
            shown = picture.update(records_of(steps, 3))
            fresh = draw_training(records_of(steps, 3), steps=40, title="t", reference=reference)
            assert png(shown) == png(fresh), steps

    def test_the_badge_of_a_prediction_is_dashed(self):
        styles = [frame(100, badge=badge).texts[-1].get_bbox_patch().get_linestyle() for badge in ("measured", "predicted for")]
        assert styles == ["-", "--"]

    def test_numbers_in_few_characters(self):
        assert [short(x) for x in (0, 2.3145, 847.2, 14_200, 3_222_528, -1500)] == [
            "0.00",
            "2.31",
            "847",
            "14.2 k",
            "3.22 M",
            "-1.50 k",
        ]
        assert [plain(x) for x in (0, 0.5, 250, 12_500, 3e6)] == ["0", "0.5", "250", "12.5 k", "3 M"]

    def test_nothing_global_is_changed_and_pyplot_stays_out(self):
        code = """
import json, sys
import matplotlib
def settings():  # to read the backend would import pyplot
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from labkit.draw import draw_training, png
png(draw_training([], title="t", badge="b"))
print(json.dumps(["matplotlib.pyplot" in sys.modules, before == settings()]))
"""
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert json.loads(out) == [False, True]

    def test_a_learner_s_dark_style_does_not_reach_the_background(self):
        before = rcParams["axes.facecolor"]
        rcParams["axes.facecolor"] = rcParams["figure.facecolor"] = "black"
        try:
            figure = draw_training(records_of(3))
        finally:
            rcParams["axes.facecolor"] = rcParams["figure.facecolor"] = before
        assert {figure.get_facecolor(), *(axes.get_facecolor() for axes in figure.axes)} == {to_rgba("white")}
