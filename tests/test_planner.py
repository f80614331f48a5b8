"""The planner: small cases by hand, reasons with their numbers, bounds that hold, costs, purchases, menus and refusals."""

import dataclasses
import subprocess
import sys

import pytest

from labkit import hardware
from labkit.costs import cost
from labkit.draw_plan import draw_plan
from labkit.explorer import START, chosen
from labkit.layouts import Layout, divisors, layouts, refusal
from labkit.plan_bound import least_step_s
from labkit.planner import examine, plan
from labkit.purchases import Offer, compare, offers
from labkit.runs import memory
from labkit.runs.models import find
from labkit.runs.shapes import of_shape
from labkit.runs.stacks import EAGER, MEGATRON

SMALL = of_shape("small", layers=8, hidden=1024, heads=8, kv_heads=8, ffn=4096, vocab=32000)
TASK = {"batch": 16, "seq_len": 512, "micro_batches": (1, 2, 4)}
SERVER = hardware.RTX4090_SERVER


def planned(model=SMALL, cards=4, **changes):
    return plan(model, **{"cards": cards} | TASK | changes)


class TestLayouts:
    def test_two_cards_by_hand(self):
        found = layouts(2, batch=4, micro_batches=(1, 8))
        ways = [(one.dp, one.tp, one.pp, one.zero) for one in found if not one.recompute]
        assert ways == [(2, 1, 1, 0), (2, 1, 1, 1), (2, 1, 1, 2), (2, 1, 1, 3), (1, 1, 2, 0), (1, 2, 1, 0)]
        assert all(one.micro_batch == 1 and one.cards == 2 for one in found) and len(found) == 12

    def test_every_layout_is_there_once_and_uses_every_card(self):
        found = layouts(12, batch=64)
        assert len(set(found)) == len(found)
        assert {(one.dp, one.tp, one.pp) for one in found} == {
            (12 // tp // pp, tp, pp) for tp in divisors(12) for pp in divisors(12 // tp)
        }

    @pytest.mark.parametrize(
        "layout, model, batch, kind, text",
        [
            (Layout(tp=8), "Qwen2.5-7B", 64, "heads", "28 heads do not divide into tp 8; use 1, 2, 4, 7, 14, 28"),
            (Layout(tp=4), "Qwen2.5-3B", 64, "heads", "2 key/value heads do not divide into tp 4; use 1, 2"),
            (Layout(pp=16), "GPT-2-124M", 64, "layers", "12 layers do not fill 16 stages; use at most 12"),
            (Layout(dp=4, micro_batch=4), "GPT-2-124M", 24, "batch", "24 does not divide into dp 4 × micro-batch 4 = 16"),
            (Layout(dp=2, pp=2, zero=2), "GPT-2-124M", 64, "ZeRO and pipeline", "ZeRO-2 reduces gradients after every"),
            (Layout(pp=4, zero=3), "GPT-2-124M", 64, "ZeRO without replicas", "dp is 1; use 0"),
        ],
    )
    def test_what_does_not_divide_is_refused_with_its_numbers(self, layout, model, batch, kind, text):
        found = refusal(layout, find(model), batch)
        assert found.kind == kind and text in found.text

    def test_what_divides_is_not_refused(self):
        assert refusal(Layout(dp=2, tp=2, pp=2, zero=1, micro_batch=2), find("Llama-2-7B"), 64) is None


class TestRanking:
    def test_it_is_the_order_of_all_predictions(self):
        """All layouts that fit are predicted one by one, and the best of them are what the search found with its bounds."""
        found = planned(most=5)
        every = [one for one in (*found.ranked, *found.slower) if not one.note.startswith("fits without")]
        rates = sorted((examine(SMALL, one.layout, batch=16, seq_len=512).tokens_per_s for one in every), reverse=True)
        assert len(rates) > 8
        assert [one.tokens_per_s for one in found.ranked] == pytest.approx(rates[:5])
        assert found.best is found.ranked[0]

    def test_no_prediction_is_faster_than_its_bound(self):
        for model, cards in ((SMALL, 4), ("GPT-2-355M", 8)):
            every = plan(model, cards=cards, **TASK, most=1)
            for one in (*every.ranked, *every.slower)[::7]:
                step_s = examine(model, one.layout, batch=16, seq_len=512).estimate.step_time_s
                assert least_step_s(one.run) <= step_s * (1 + 1e-9), one.layout

    def test_every_layout_is_ranked_slower_or_failed(self):
        found = planned()
        assert sorted(one.layout for one in found.ranked + found.slower + found.failed) == sorted(
            layouts(4, batch=16, micro_batches=(1, 2, 4))
        )

    def test_where_the_links_are_slow_the_pipeline_wins_and_where_they_are_fast_it_need_not(self):
        slow = planned(on=SERVER.with_(staged_bytes_per_s=1e8, host_bytes_per_s=1e9), most=1).best
        assert slow.layout.pp == 4
        fast = planned(on=SERVER.with_(staged_bytes_per_s=1e13, host_bytes_per_s=1e15), most=1).best
        assert fast.layout.pp < 4 and fast.tokens_per_s > slow.tokens_per_s

    def test_recompute_is_only_considered_where_it_is_needed(self):
        found = planned()
        assert not [one for one in found.ranked if one.layout.recompute]
        notes = {one.note for one in found.where(recompute=True) if not one.refusal}
        assert notes == {"fits without recompute, which is faster"}


class TestMemory:
    def test_the_states_of_one_card_by_hand(self):
        """Megatron's 18 bytes per parameter, of a model whose activations and logits are small."""
        held = memory.stages_bytes(examine(SMALL, Layout(), batch=1, seq_len=8).run)
        assert len(held) == 1
        states = sum(held[0][kind] for kind in ("weights", "gradients", "optimizer state"))
        assert states == pytest.approx(18 * SMALL.parameters, rel=0.01)

    def test_the_lack_is_what_the_fullest_card_holds_less_what_it_has(self):
        found = plan("Llama-2-7B", cards=1, batch=1, seq_len=128, micro_batches=(1,))
        assert found.best is None and not found.ranked and "no layout fits" in repr(found)
        lack = found.failed[0].refusal
        run = found.failed[0].run
        total = sum(memory.peak_bytes(run).values())
        assert lack.over_bytes == total - SERVER.card.usable_bytes > 18 * 6.7e9 - 26e9
        assert f"{lack.over_bytes / 2**30:.1f} GiB over the 22.7 GiB of an RTX 4090; most is optimizer state" in lack.text

    def test_more_memory_lets_more_layouts_fit(self):
        tight = planned(on=SERVER.with_(usable_bytes=3e9))
        assert len(tight.ranked + tight.slower) < len(planned().ranked + planned().slower)
        assert {one.refusal.kind for one in tight.failed} >= {"memory"}
        kinds = tight.reasons()
        count, nearest = kinds["memory"]
        assert nearest.refusal.over_bytes == min(one.refusal.over_bytes for one in tight.failed if one.refusal.kind == "memory")
        assert sum(many for many, _ in kinds.values()) == len(tight.failed)


class TestPrinting:
    def test_what_is_not_validated_is_marked_and_said(self):
        tensor = examine(SMALL, Layout(tp=4), batch=16, seq_len=512)
        assert "unvalidated: no public measurement of tensor" in repr(tensor)
        assert examine(SMALL, Layout(pp=4), batch=16, seq_len=512).doubts == []
        other = examine(SMALL, Layout(pp=4), on=hardware.RTX5090_SERVER, batch=16, seq_len=512)
        assert "unvalidated: all runs of the fit were made on an RTX 4090, not on an RTX 5090" in repr(other)
        assert "| * |" in repr(planned(most=40)) and "* unvalidated" in repr(planned(most=40))

    def test_the_error_on_published_runs_stands_beside_the_predictions(self):
        assert "published runs: median" in repr(planned())

    def test_where_finds_layouts_by_their_ways(self):
        found = planned()
        assert {one.layout.tp for one in found.where(tp=4)} == {4}
        assert len(found.where(dp=4, zero=3, micro_batch=1)) == 2
        with pytest.raises(ValueError, match="a layout has no ep; it has dp, tp, pp"):
            found.where(ep=2)

    def test_the_interval_is_in_tokens_per_second(self):
        one = planned().best
        low, high = one.interval
        assert low < one.tokens_per_s < high
        assert high == pytest.approx(16 * 512 / one.estimate.interval[0])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"model": "GPT-17"}, "model 'GPT-17' is unknown; use one of Qwen2.5-0.5B"),
        ({"cards": 9}, "has 8 cards, 9 are asked for; use hardware.cluster"),
        ({"cards": 0}, "cards is 0; it must be at least 1"),
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"seq_len": 2.5}, "seq_len is 2.5; pass a whole number"),
        ({"micro_batches": (0,)}, "a micro-batch is 0; it must be at least 1"),
        ({"most": 0}, "most is 0"),
        ({"on": "my garage"}, "on='my garage' is no machine"),
    ],
)
def test_a_wrong_request_is_refused_with_its_numbers(options, message):
    with pytest.raises(ValueError, match=message):
        planned(**options)


class TestCost:
    def test_hours_energy_rent_and_price_by_hand(self):
        one = planned(cards=4).best
        found = cost(one, 3600 * one.tokens_per_s)
        assert found.hours == pytest.approx(1)
        assert found.energy_kwh == pytest.approx(4 * 0.450) and found.price_usd == 4 * 1599
        assert found.rent_usd == pytest.approx(4 * 0.31)
        assert "vast.ai on 26 September 2025" in repr(found) and "450 W a card, read: press" in repr(found)

    def test_what_no_source_tells_is_not_made_up(self):
        one = planned(cards=4, on=hardware.RTX5090_SERVER.with_(tdp_w=None, price_usd=None), most=1).best
        found = cost(one, 1e6)
        assert (found.energy_kwh, found.rent_usd, found.price_usd) == (None, None, None)
        assert repr(found).count("not known") == 3

    def test_no_tokens_and_no_prediction_are_refused(self):
        found = planned()
        with pytest.raises(ValueError, match="tokens is 0; pass how many"):
            cost(found.best, 0)
        for nothing in (None, found.where(dp=4, micro_batch=1, recompute=True)[0]):
            with pytest.raises(ValueError, match="there is no prediction to cost"):
                cost(nothing, 1e9)


class TestPurchases:
    def test_the_best_comes_first_and_what_fits_nowhere_last(self):
        tiny = Offer("tiny cards", SERVER.with_(usable_bytes=1e8), 10.0)
        faster = Offer("cards twice as fast", SERVER.with_(matmul_efficiency=2.0))
        found = compare(SMALL, (tiny, faster), **TASK)
        assert [offer.name for offer, _ in found.rows] == ["cards twice as fast", "tiny cards"]
        assert found.gain(found.rows[0][1]) > 1.2 and found.is_clear(found.rows[0][1])
        assert found.gain(None) == 0 and not found.is_clear(None)
        lines = repr(found).splitlines()
        assert "not known" in lines[3] and "none fits" in lines[4] and "| 10" in lines[4]
        assert found.draw(note="your prediction: card").description == "<labkit picture>"

    def test_a_difference_within_the_interval_is_not_beyond_doubt(self):
        found = compare(SMALL, (Offer("the same", SERVER.with_(price_usd=1.0)),), **TASK)
        assert found.gain(found.rows[0][1]) == pytest.approx(1) and not found.is_clear(found.rows[0][1])

    def test_offers_differ_from_the_server_in_what_they_name(self):
        link, host, cards, newer, second = offers()
        assert link.machine.peer_to_peer and link.machine.card == SERVER.card
        assert host.machine.host_bytes_per_s > SERVER.host_bytes_per_s
        assert cards.machine.card.memory_bytes == 48 * 2**30 and cards.machine.card.sms == SERVER.card.sms
        assert newer.machine.card.name == "RTX 5090" and newer.price_usd == 8 * 1999
        assert second.machine.world_size == 16 and second.price_usd == 8 * 1599


class TestMenus:
    def test_the_start_is_a_plan_that_fits(self):
        one = chosen()
        assert one.layout == Layout(pp=8) and one.refusal is None and one.run.cards == START["cards"]

    def test_dp_is_what_is_left_of_the_cards(self):
        one = chosen(model="GPT-2-355M", cards=16, tp=2, pp=2, seq_len=512)
        assert one.layout.dp == 4 and one.run.machine.servers == 2

    def test_what_does_not_fit_is_predicted_and_refused(self):
        one = chosen(pp=4, zero=1)
        assert one.refusal.kind == "memory" and one.estimate.tokens_per_s > 0

    @pytest.mark.parametrize(
        "changes, message",
        [
            ({"cards": 2}, "2 cards do not divide into tp 1 × pp 8 = 8"),
            ({"colour": "red"}, "there is no menu colour; there are model, machine"),
            ({"machine": "abacus"}, "machine 'abacus' is unknown; use one of RTX 4090, ordinary host"),
            ({"network": "string", "cards": 16}, "network 'string' is unknown"),
        ],
    )
    def test_a_wrong_choice_is_refused(self, changes, message):
        with pytest.raises(ValueError, match=message):
            chosen(**changes)

    def test_pictures_of_what_fits_of_what_does_not_and_of_nothing(self):
        for one in (examine(SMALL, Layout(pp=4), batch=16, seq_len=512), chosen(pp=4, zero=1, batch=8)):
            steps, held = draw_plan(one)
            assert steps.description == held.description == "<labkit picture>"
        with pytest.raises(ValueError, match="there is no prediction to draw"):
            draw_plan(chosen(model="Qwen2.5-7B", tp=8, pp=1))


def test_other_software_counts_other_states():
    held = {
        one.name: sum(memory.peak_bytes(examine(SMALL, Layout(), software=one, batch=1).run).values())
        for one in (EAGER, MEGATRON)
    }
    assert len(set(held.values())) == 2


def test_plans_need_neither_matplotlib_nor_ipywidgets():
    block = "import sys; sys.modules.update(dict.fromkeys(('matplotlib', 'ipywidgets', 'IPython')))"
    code = (
        f"{block}; from labkit.explorer import chosen; from labkit.purchases import offers; print(len(offers()), chosen().layout)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert found.stdout == "5 pp 8, micro-batch 1\n", found.stderr


def test_a_plan_is_a_value():
    one = planned().best
    assert dataclasses.replace(one, note="mine").note == "mine" and one == planned().best
