"""α and β from times: known ones are found, and what cannot be fitted is refused."""

import math
import random
import statistics

import pytest

from labkit.cost_fit import Cost, fit_cost, joined, slowest

SIZES = [4**k for k in range(5, 13)]
TRUE = Cost(200e-6, 1.5e9)


def test_exact_times_give_back_alpha_and_beta():
    fitted = fit_cost({nbytes: [TRUE.seconds(nbytes)] for nbytes in SIZES})
    assert math.isclose(fitted.alpha_s, TRUE.alpha_s, rel_tol=1e-9)
    assert math.isclose(fitted.bytes_per_s, TRUE.bytes_per_s, rel_tol=1e-9)


def test_outliers_do_not_count_and_small_messages_do():
    """One call in five takes 20 times as long; the largest message is off by 10 %, which would drown a plain fit's α."""
    draw = random.Random(0)
    samples = {nbytes: [TRUE.seconds(nbytes) * draw.uniform(0.97, 1.03) for _ in range(20)] for nbytes in SIZES}
    for times in samples.values():
        times[::5] = [20 * seconds for seconds in times[::5]]
    samples[SIZES[-1]] = [1.1 * seconds for seconds in samples[SIZES[-1]]]
    fitted = fit_cost(samples)
    assert math.isclose(fitted.alpha_s, TRUE.alpha_s, rel_tol=0.05)
    assert math.isclose(fitted.bytes_per_s, TRUE.bytes_per_s, rel_tol=0.08)


def test_it_is_the_least_sum_of_squared_relative_errors():
    draw = random.Random(1)
    samples = {nbytes: [TRUE.seconds(nbytes) * draw.uniform(0.7, 1.3)] for nbytes in SIZES}

    def cost(alpha_s, bytes_per_s):
        one = Cost(alpha_s, bytes_per_s)
        return sum((one.seconds(nbytes) / times[0] - 1) ** 2 for nbytes, times in samples.items())

    best = fit_cost(samples)
    least = cost(best.alpha_s, best.bytes_per_s)
    for change in (0.99, 1.01):
        assert cost(best.alpha_s * change, best.bytes_per_s) > least
        assert cost(best.alpha_s, best.bytes_per_s * change) > least


def test_residuals_are_measured_over_fitted():
    residuals = TRUE.residuals({4096: [1.25 * TRUE.seconds(4096)], 1024: [0.5 * TRUE.seconds(1024)]})
    assert residuals == pytest.approx({1024: -0.5, 4096: 0.25})


def test_alpha_is_never_negative():
    fitted = fit_cost({1000: [1e-6], 2000: [3e-6], 4000: [8e-6]})
    assert fitted.alpha_s == 0.0 and fitted.bytes_per_s > 0


@pytest.mark.parametrize("samples", [{}, {4096: [1e-3]}, {4096: [0.0], 8192: [1e-3]}])
def test_too_little_is_refused(samples):
    with pytest.raises(ValueError, match="give at least 2 sizes"):
        fit_cost(samples)


def test_larger_messages_that_are_faster_are_refused():
    with pytest.raises(ValueError, match="larger messages took no longer"):
        fit_cost({1000: [3e-3], 10**6: [1e-3], 10**7: [1e-4]})


def test_a_call_is_over_when_its_last_rank_is():
    ranks = [{"send": {8: [1.0, 5.0], 16: [2.0, 2.0]}}, {"send": {8: [3.0, 4.0], 16: [1.0, 9.0]}}]
    assert slowest(ranks) == {"send": {8: [3.0, 5.0], 16: [2.0, 9.0]}}
    assert joined([slowest(ranks), slowest(ranks)])["send"][16] == [2.0, 9.0, 2.0, 9.0]


def test_the_text_says_both():
    assert str(TRUE) == "α = 200 µs, β = 1.50 GB/s"
    assert statistics.median([TRUE.seconds(0), TRUE.seconds(1.5e9)]) == pytest.approx(200e-6 + 0.5)
