"""What was seen, in a file and back."""

import json
from dataclasses import dataclass

import pytest
import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful import Reduction, edits, masks
from heedful.watching import edit, load, watch
from watched_models import Attention, Small, text


def seen_of(model: nn.Module, *reductions: Reduction):
    with torch.no_grad(), watch(model, *reductions) as seen:
        model(text())
    return seen


class Own(nn.Module):
    """heedful's function with whatever is given."""

    def __init__(self, **options):
        super().__init__()
        self.attention, self.options = Attention(), options

    def forward(self, x):
        query, key, value = self.attention.heads(x)
        return heedful.scaled_dot_product_attention(query, key[:, :1], value[:, :1], **self.options).output


CALLS = {
    "plain": {},
    "grouped with sinks and softcap": {"sinks": torch.randn(3), "softcap": 3.0, "scale": 0.7},
    "start": {"mask": masks.causal(), "query_start": torch.tensor([0, -2])},
    "window and documents": {
        "mask": (masks.window(3, 1) | masks.prefix(2)) & ~masks.documents(torch.tensor([0, 0, 1, 1, -1]))
    },
    "padding": {"mask": masks.padding(torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])) & masks.causal()},
    "dense": {"mask": torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0)) > 0.3},
    "bias": {
        "attn_bias": (torch.randn(1, 3, 5, 5, generator=torch.Generator().manual_seed(1)), heedful.Alibi(3))
    },
    "cross": {"mask": masks.documents(torch.arange(5) // 2, torch.arange(5) // 3)},
}


@pytest.mark.parametrize("name", CALLS)
def test_weights_answer_as_before(name: str, tmp_path) -> None:
    seen = seen_of(Own(**CALLS[name]))
    seen.save(tmp_path / "seen.safetensors")
    (before,), (after,) = seen[""], load(tmp_path / "seen.safetensors")[""]
    torch.testing.assert_close(after.full(), before.full(), rtol=0, atol=1e-7)
    torch.testing.assert_close(after.received("max", "kv_head"), before.received("max", "kv_head"))


class EvenKeys(masks.Mask):
    """A mask of one's own."""

    def block(self, rows, keys):
        return (rows.key_positions(keys) % 2 == 0).expand(rows.shape[2], -1)


def test_a_mask_of_ones_own_is_kept_as_a_matrix(tmp_path) -> None:
    seen = seen_of(Own(mask=EvenKeys() & masks.causal()))
    seen.save(tmp_path / "seen.safetensors")
    assert torch.equal(load(tmp_path / "seen.safetensors")[""].full(), seen[""].full())


def test_answers_come_back(tmp_path) -> None:
    by_key = heedful.ByKey(torch.tensor([0, 0, 1, 2, 2]))
    questions = (heedful.Entropy(), heedful.TopK(3), heedful.Received("mean"), by_key, heedful.Pooled(2, 3))
    seen = seen_of(Small(), *questions)
    seen.save(tmp_path / "seen.safetensors")
    again = load(tmp_path / "seen.safetensors")
    for before, after in zip(seen.values(), again.values(), strict=True):
        assert after.shape == before.shape
        assert torch.equal(after.entropy(), before.entropy())
        assert torch.equal(after.topk(2).indices, before.topk(2).indices)
        assert torch.equal(after.received("mean"), before.received("mean"))
        *_, groups, pooled = after.kept
        assert torch.equal(groups.groups, by_key.groups)
        assert torch.equal(after.reduce(groups)[0], before.reduce(by_key)[0])
        assert torch.equal(after.reduce(pooled)[0], before.reduce(questions[-1])[0])
        with pytest.raises(RuntimeError, match="kept their answers only"):
            after.max_logit()


def test_names_order_and_what_was_missed_come_back(tmp_path) -> None:
    from watched_models import OwnSoftmax

    model = Small(Attention, OwnSoftmax, Attention)
    with pytest.warns(UserWarning, match="could not see"), torch.no_grad(), watch(model) as seen:
        model(text())
    seen.save(tmp_path / "seen.safetensors")
    again = load(tmp_path / "seen.safetensors")
    assert repr(again) == repr(seen)
    assert again.missed == seen.missed == {"layers.1": "it takes a softmax of its own"}
    assert again.layers[2].name == seen.layers[2].name == "layers.2"


def test_a_cache_is_written_once(tmp_path) -> None:
    class Cached(Attention):
        keys = None

        def forward(self, x):
            query, key, _ = self.heads(x)
            self.keys = key if self.keys is None else torch.cat([self.keys, key], 2)
            F.scaled_dot_product_attention(query, self.keys, self.keys)
            return x

    model = Small(Cached)
    with torch.no_grad(), watch(model) as seen:
        for step in range(5):
            model(text()[:, step : step + 1])
    seen.save(tmp_path / "seen.safetensors")
    with safetensors.safe_open(tmp_path / "seen.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {name for name in names if "key" in name or "value" in name} == {"0.4.key"}
    again = load(tmp_path / "seen.safetensors")
    assert torch.equal(again.layers[0].rows(), seen.layers[0].rows())


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch) -> None:
    path = tmp_path / "seen.safetensors"
    seen = seen_of(Small())
    seen.save(path)
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        seen_of(Small(Attention)).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@dataclass(frozen=True)
class Mine(Reduction):
    def panel(self, panel):
        return panel.weights.amax(-1)


def test_what_no_file_can_hold_is_refused(tmp_path) -> None:
    with pytest.raises(NotImplementedError) as caught:
        seen_of(Small(), Mine()).save(tmp_path / "seen.safetensors")
    assert str(caught.value) == (
        "Mine is a reduction of your own, which no file can name. Keep its answers with torch.save."
    )
    model = Small(Attention)
    with torch.no_grad(), edit(model, {"layers.0": edits.ablate(1)}), watch(model) as seen:
        model(text())
    with pytest.raises(NotImplementedError) as caught:
        seen.save(tmp_path / "seen.safetensors")
    assert str(caught.value) == (
        "'layers.0', call 0, has an edit, which no file can hold. Watch with reductions, and save their answers."
    )
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused(tmp_path) -> None:
    path = tmp_path / "seen.safetensors"
    with pytest.raises(FileNotFoundError) as missing:
        load(path)
    assert str(missing.value) == f"There is no file {path}. seen.save(path) writes one."
    path.write_bytes(b"no safetensors file")
    with pytest.raises(ValueError, match="is damaged, or no safetensors file"):
        load(path)
    for metadata, found in (
        (None, "no format"),
        ({"format": "heedful.seen/99", "seen": json.dumps({})}, "format 'heedful.seen/99'"),
    ):
        safetensors.torch.save_file({"x": torch.zeros(1)}, path, metadata)
        with pytest.raises(ValueError) as caught:
            load(path)
        assert str(caught.value) == (
            f"{path} has {found}, expected 'heedful.seen/1': it was not written by seen.save(), or by a newer heedful."
        )


def test_a_folder_that_is_not_there_is_named(tmp_path) -> None:
    path = tmp_path / "nowhere" / "seen.safetensors"
    with pytest.raises(FileNotFoundError) as caught:
        seen_of(Own()).save(path)
    assert str(caught.value) == f"{path} cannot be written: there is no folder {path.parent}."
