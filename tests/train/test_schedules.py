"""Schedules against their formulas, and step by step against transformers' and torch's own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from heedful.train import schedules
from heedful.train.schedules import SCHEDULES, lambda_lr, schedule, settings_of

TOTAL, WARMUP = 57, 9


def optimizer(lr=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=lr)


def rates(make, steps):
    """The rate of each update, as a training loop would see it."""
    opt = optimizer()
    scheduler = make(opt)
    seen = []
    for _ in range(steps):
        seen.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    return seen


def ours(name, steps, **settings):
    return rates(lambda opt: lambda_lr(opt, schedule(name, **settings)), steps)


def theirs(function, steps, **settings):
    transformers = pytest.importorskip("transformers")
    return rates(lambda opt: getattr(transformers.optimization, function)(opt, **settings), steps)


WARMED = {
    "constant with warm-up": (
        ("warmup", {"warmup": WARMUP}),
        ("get_constant_schedule_with_warmup", {"num_warmup_steps": WARMUP}),
    ),
    "linear": (
        ("linear", {"total": TOTAL, "warmup": WARMUP}),
        ("get_linear_schedule_with_warmup", {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL}),
    ),
    "cosine": (
        ("cosine", {"total": TOTAL, "warmup": WARMUP}),
        ("get_cosine_schedule_with_warmup", {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL}),
    ),
    "restarts": (
        ("restarts", {"total": TOTAL, "warmup": WARMUP, "period": (TOTAL - WARMUP) // 4}),
        (
            "get_cosine_with_hard_restarts_schedule_with_warmup",
            {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL, "num_cycles": 4},
        ),
    ),
    "wsd": (
        ("wsd", {"total": TOTAL, "warmup": WARMUP, "decay": 20}),
        (
            "get_wsd_schedule",
            {
                "num_warmup_steps": WARMUP,
                "num_training_steps": TOTAL,
                "num_decay_steps": 20,
                "decay_type": "linear",
            },
        ),
    ),
}


@pytest.mark.parametrize("case", WARMED)
def test_equals_transformers_with_the_warm_up_one_step_earlier(case):
    """Theirs begins with an update at zero; ours leaves that update out and is equal from the peak on."""
    (name, settings), (function, arguments) = WARMED[case]
    mine, other = ours(name, TOTAL + 1, **settings), theirs(function, TOTAL + 1, **arguments)
    assert other[0] == 0.0
    assert mine[:WARMUP] == pytest.approx(other[1 : WARMUP + 1], abs=1e-12)
    assert mine[WARMUP:] == pytest.approx(other[WARMUP:], abs=1e-12)


@pytest.mark.parametrize(
    ("function", "offset"),
    [("get_cosine_schedule_with_warmup", 0), ("get_cosine_with_min_lr_schedule_with_warmup_lr_rate", 1)],
)
def test_cosine_without_warm_up_equals_transformers(function, offset):
    floor = 0.1 if offset else 0.0
    extra = {"min_lr_rate": floor} if offset else {}
    other = theirs(function, TOTAL - offset, num_warmup_steps=0, num_training_steps=TOTAL, **extra)
    mine = ours("cosine", TOTAL, total=TOTAL, floor=floor)
    assert mine[offset:] == pytest.approx(other, abs=1e-12)


def test_cosine_stays_down_where_transformers_climbs_again():
    past = TOTAL + 20
    other = theirs("get_cosine_schedule_with_warmup", past, num_warmup_steps=WARMUP, num_training_steps=TOTAL)
    assert other[-1] > 0.3
    assert ours("cosine", past, total=TOTAL, warmup=WARMUP)[TOTAL:] == [0.0] * 20


def test_cosine_to_a_floor_equals_transformers():
    other = theirs(
        "get_cosine_with_min_lr_schedule_with_warmup",
        TOTAL + 6,
        num_warmup_steps=WARMUP,
        num_training_steps=TOTAL,
        min_lr_rate=0.1,
    )
    mine = ours("cosine", TOTAL + 5, total=TOTAL, warmup=WARMUP, floor=0.1)
    assert mine[WARMUP:TOTAL] == pytest.approx(other[WARMUP:TOTAL], abs=1e-12)


def test_inverse_sqrt_equals_transformers_one_step_earlier():
    other = theirs("get_inverse_sqrt_schedule", TOTAL + 1, num_warmup_steps=WARMUP)
    assert ours("inverse-sqrt", TOTAL, warmup=WARMUP) == pytest.approx(other[1:], abs=1e-12)


@pytest.mark.parametrize("rise", [0.1, 0.3, 0.55])
def test_one_cycle_equals_torch(rise):
    other = rates(
        lambda opt: lr_scheduler.OneCycleLR(
            opt,
            max_lr=1.0,
            total_steps=TOTAL,
            pct_start=rise,
            cycle_momentum=False,
            base_momentum=0,
            max_momentum=0,
        ),
        TOTAL - 1,
    )
    assert ours("one-cycle", TOTAL - 1, total=TOTAL, rise=rise) == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("growth", [1, 2, 3])
def test_restarts_equal_torch(growth):
    other = rates(
        lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=7, T_mult=growth, eta_min=0.05), TOTAL
    )
    mine = ours("restarts", TOTAL, total=TOTAL, period=7, growth=growth, floor=0.05)
    assert mine == pytest.approx(other, abs=1e-12)


def test_cosine_and_linear_equal_torch_without_warm_up():
    annealing = rates(lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=TOTAL, eta_min=0.1), TOTAL)
    assert ours("cosine", TOTAL, total=TOTAL, floor=0.1) == pytest.approx(annealing, abs=1e-9)
    falling = rates(
        lambda opt: lr_scheduler.LinearLR(opt, start_factor=1.0, end_factor=0.2, total_iters=TOTAL), TOTAL + 5
    )
    assert ours("linear", TOTAL + 5, total=TOTAL, floor=0.2) == pytest.approx(falling, abs=1e-9)


def test_noam_is_the_formula_of_the_paper():
    for step in range(200):
        t = step + 1
        expected = 48**-0.5 * min(t**-0.5, t * 30**-1.5)
        assert schedules.noam(step, embed_dim=48, warmup=30) == pytest.approx(expected, rel=1e-14)
    peak = schedules.noam(29, embed_dim=48, warmup=30)
    assert peak == pytest.approx((48 * 30) ** -0.5)
    shape = [schedules.noam(step, embed_dim=48, warmup=30) / peak for step in range(200)]
    assert shape == pytest.approx([schedules.inverse_sqrt(step, warmup=30) for step in range(200)])


# Settings that every schedule takes, from a warm-up and a length drawn by hypothesis.
def settings_for(name, warmup, length):
    total = warmup + length
    offered = {
        "embed_dim": 64,
        "warmup": warmup,
        "total": total,
        "decay": max(1, length // 3),
        "period": max(1, length // 4),
    }
    return {key: offered[key] for key in settings_of(name) if key in offered}, total


@pytest.mark.parametrize("name", SCHEDULES)
@given(warmup=st.integers(0, 40), length=st.integers(2, 300))
def test_no_update_of_a_run_has_rate_zero_and_none_exceeds_the_peak(name, warmup, length):
    settings, total = settings_for(name, warmup, length)
    curve = [schedule(name, **settings)(step) for step in range(total)]
    assert min(curve) > 0
    assert max(curve) <= 1


@pytest.mark.parametrize("name", [name for name in SCHEDULES if "warmup" in settings_of(name)])
@given(warmup=st.integers(1, 40), length=st.integers(2, 300))
def test_first_update_has_base_over_warmup_and_the_rise_is_even(name, warmup, length):
    settings, _ = settings_for(name, warmup, length)
    curve = [schedule(name, **settings)(step) for step in range(warmup)]
    assert curve == pytest.approx([curve[-1] * (step + 1) / warmup for step in range(warmup)])


@pytest.mark.parametrize("name", [name for name in SCHEDULES if "total" in settings_of(name)])
@given(warmup=st.integers(0, 40), length=st.integers(2, 300))
def test_flat_after_the_end(name, warmup, length):
    settings, total = settings_for(name, warmup, length)
    end = schedule(name, **settings)(total)
    assert [schedule(name, **settings)(total + extra) for extra in (1, 7, 10 * total)] == [end] * 3
    assert end == (1 / 250_000 if name == "one-cycle" else 0.0)


@pytest.mark.parametrize("name", ["noam", "inverse-sqrt", "cosine", "linear", "wsd", "one-cycle"])
@given(warmup=st.integers(0, 40), length=st.integers(2, 300))
def test_never_rises_again_after_the_peak(name, warmup, length):
    settings, total = settings_for(name, warmup, length)
    curve = [schedule(name, **settings)(step) for step in range(total + 5)]
    peak = curve.index(max(curve))
    assert all(
        later <= earlier + 1e-12 for earlier, later in zip(curve[peak:], curve[peak + 1 :], strict=False)
    )


def test_restarts_grow_and_stop_at_the_end():
    curve = [schedules.cosine_restarts(step, period=2, growth=2, total=10) for step in range(12)]
    assert [step for step, factor in enumerate(curve) if factor == 1.0] == [0, 2, 6]
    assert curve[10:] == [0.0, 0.0]


def test_a_base_rate_is_multiplied_and_parameter_groups_keep_their_own():
    weight, bias = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))
    opt = torch.optim.SGD([{"params": [weight], "lr": 0.5}, {"params": [bias], "lr": 0.1}], lr=1.0)
    scheduler = lambda_lr(opt, schedule("warmup", warmup=4))
    opt.step()
    scheduler.step()
    assert [group["lr"] for group in opt.param_groups] == pytest.approx([0.25, 0.05])


@pytest.mark.parametrize("name", SCHEDULES)
def test_continues_from_saved_states(name):
    settings, total = settings_for(name, 5, 40)
    whole = ours(name, total, **settings)

    opt = optimizer()
    scheduler = lambda_lr(opt, schedule(name, **settings))
    for _ in range(17):
        opt.step()
        scheduler.step()
    saved = opt.state_dict(), scheduler.state_dict()

    fresh = optimizer()
    continued = lambda_lr(fresh, schedule(name, **settings))
    fresh.load_state_dict(saved[0])
    continued.load_state_dict(saved[1])
    rest = []
    for _ in range(17, total):
        rest.append(fresh.param_groups[0]["lr"])
        fresh.step()
        continued.step()
    assert rest == whole[17:]


@pytest.mark.parametrize("loaded", [True, False])
def test_continues_from_a_step_number_alone(loaded):
    whole = ours("cosine", 30, total=30, warmup=4)
    opt = optimizer()
    if loaded:
        used = optimizer()
        lambda_lr(used, schedule("cosine", total=30, warmup=4))
        opt.load_state_dict(used.state_dict())
    scheduler = lambda_lr(opt, schedule("cosine", total=30, warmup=4), start=11)
    rest = []
    for _ in range(11, 30):
        rest.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    assert rest == whole[11:]


MESSAGES = [
    (
        lambda: schedule("cosin", total=3),
        "schedule must be one of constant, warmup, noam, inverse-sqrt, cosine, linear, wsd, one-cycle, restarts, "
        "got 'cosin'.",
    ),
    (
        lambda: schedule("cosine", warmup=3),
        "schedule('cosine') needs total. It takes: total, warmup, floor.",
    ),
    (
        lambda: schedule("constant", total=3),
        "schedule('constant') takes no total. It takes: nothing.",
    ),
    (
        lambda: schedule("cosine", total=10, warmup=10),
        "cosine(): total must be more than warmup, got total 10 and warmup 10.",
    ),
    (
        lambda: schedule("linear", total=10, warmup=-1),
        "linear(): warmup must not be negative, got -1. 0 means no warm-up.",
    ),
    (
        lambda: schedule("linear", total=10, floor=1.5),
        "linear(): floor is a fraction of the base rate between 0 and 1, got 1.5.",
    ),
    (
        lambda: schedule("wsd", total=10, warmup=4, decay=7),
        "wsd(): decay must be between 1 and total - warmup = 6, got 7.\n"
        "The last `decay` of the 10 steps come after 4 steps of warm-up.",
    ),
    (
        lambda: schedule("one-cycle", total=10, rise=1.0),
        "one_cycle(): rise must be a fraction of the run between 0 and 1, got 1.0.",
    ),
    (
        lambda: schedule("restarts", total=10, period=0),
        "cosine_restarts(): period must be at least 1, got 0.",
    ),
    (
        lambda: schedule("noam", embed_dim=0, warmup=4),
        "noam(): embed_dim must be at least 1, got 0.",
    ),
    (
        lambda: schedules.constant(-1),
        "constant(): step must not be negative, got -1. The first update is step 0.",
    ),
]


@pytest.mark.parametrize(("call", "message"), MESSAGES, ids=[text.split(".")[0][:40] for _, text in MESSAGES])
def test_messages(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message


def test_math_of_the_half_cosine():
    assert schedules.cosine(25, total=100) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
