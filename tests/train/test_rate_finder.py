"""The range test on a problem whose largest stable rate is known."""

import pytest
import torch

from heedful.train.rate_finder import range_test


def quadratic(curvature=4.0, dim=50):
    """Plain descent on curvature / 2 · |x|² is stable below a rate of 2 / curvature."""
    model = torch.nn.Linear(dim, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    return (
        model,
        torch.optim.SGD(model.parameters()),
        lambda step: curvature / 2 * model.weight.square().sum(),
    )


@pytest.mark.parametrize("curvature", [0.5, 4.0, 60.0])
def test_the_suggestion_is_below_the_stability_limit(curvature):
    model, optimizer, loss = quadratic(curvature)
    found = range_test(model, optimizer, loss, low=1e-4, high=100.0, steps=300)
    limit = 2 / curvature
    assert limit / 200 < found.suggestion < limit
    assert found.suggestion <= found.limit
    assert len(found.rates) == len(found.losses) < 300


def test_rates_grow_by_the_same_factor():
    model, optimizer, loss = quadratic()
    found = range_test(model, optimizer, loss, low=1e-5, high=1e-2, steps=31)
    rates = torch.tensor(found.rates, dtype=torch.float64)
    torch.testing.assert_close(rates, torch.logspace(-5, -2, 31, dtype=torch.float64))


def test_arguments():
    model, optimizer, loss = quadratic()
    for arguments, message in (
        (
            {"low": 1.0, "high": 0.1},
            "range_test(): low must be above zero and below high, got low 1.0 and high 0.1.",
        ),
        ({"steps": 9}, "range_test(): steps must be at least 10, got 9."),
        (
            {"low": 100.0, "high": 1000.0},
            "range_test(): the loss ran away after 2 updates, at a rate of 1e+02. Begin with a lower rate.",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            range_test(model, optimizer, loss, **arguments)
        assert str(caught.value) == message
