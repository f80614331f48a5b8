"""What lives where, by the data of the picture's cells."""

import pytest
from artists import texts_of
from matplotlib.colors import to_rgba

from labkit.draw_placement import SAME_COLOUR, draw_placement


class TestPlacement:
    def account(self):
        rows = [
            {"rank": r, "kind": "weights", "name": "embed", "bytes": 4096, "fingerprint": "w", "shape": (8, 128)}
            for r in range(4)
        ]
        rows += [{"rank": r, "kind": "optimizer", "name": "embed", "bytes": 2048, "fingerprint": f"o{r}"} for r in range(4)]
        rows += [{"rank": r, "kind": "gradients", "name": "part", "bytes": 10, "fingerprint": f"g{r % 2}"} for r in range(4)]
        return [*rows, {"rank": 3, "kind": "weights", "name": "head", "bytes": 1_000_000, "fingerprint": "h"}]

    def cells(self, figure):
        """Colours of all cells by row, from the top: [[colour per rank]]."""
        rows = {}
        for box in figure.patches + figure.artists:
            if box is not figure.patch and round(box.get_height() * figure.get_figheight() * 100) == 21:
                rows.setdefault(round(-box.get_y(), 6), []).append(box.get_facecolor())
        return [rows[y] for y in sorted(rows)]

    def test_replicated_is_grey_and_own_parts_have_rank_colours(self):
        weights, head, optimizer, gradients = self.cells(draw_placement(self.account(), badge="b"))
        assert set(weights) == {to_rgba(SAME_COLOUR)}
        assert len(set(optimizer)) == 4 and to_rgba(SAME_COLOUR) not in optimizer
        assert head[:3] == [to_rgba("white")] * 3
        assert head[3] == optimizer[3]
        assert gradients == [optimizer[0], optimizer[1]] * 2

    def test_sizes_sums_and_names_are_written(self):
        texts = texts_of(draw_placement(self.account(), title="what lives where", badge="b"))
        assert texts.count("4.10 kB") == 4
        assert texts.count("8 × 128") == 4
        assert texts.count("10 B") == 4
        assert (texts.count("6.15 kB"), texts.count("1.01 MB")) == (3, 1)
        assert {"weights", "optimizer", "embed", "head", "rank 3", "the same on every rank", "not on this rank"} <= set(texts)

    def test_unknown_fingerprints_are_not_called_the_same(self):
        rows = [{"rank": r, "kind": "weights", "name": "w", "bytes": 1, "fingerprint": None} for r in range(2)]
        (cells,) = self.cells(draw_placement(rows))
        assert cells[0] != cells[1]

    def test_one_rank_has_nothing_to_compare_with(self):
        (cells,) = self.cells(draw_placement([{"rank": 0, "kind": "weights", "name": "w", "bytes": 1, "fingerprint": "x"}]))
        assert cells[0] != to_rgba(SAME_COLOUR)

    def test_an_empty_account_is_refused(self):
        with pytest.raises(ValueError, match="empty"):
            draw_placement([])
