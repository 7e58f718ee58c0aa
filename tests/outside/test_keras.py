"""Keras's own attention tests on the torch backend, with torch's attention function replaced by heedful's."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="the outside suites need keras")

PLUGIN = """
import torch
import heedful

calls = 0


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    global calls
    calls += 1
    mask = bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = attn_mask
    elif attn_mask is not None:
        bias = attn_mask
    if is_causal:
        mask = heedful.masks.causal() if mask is None else heedful.masks.causal() & mask
    start = 0 if is_causal else None
    return heedful.scaled_dot_product_attention(
        query, key, value, mask, attn_bias=bias, dropout_p=dropout_p, scale=scale, query_start=start
    ).output


def pytest_configure(config):
    torch.nn.functional.scaled_dot_product_attention = attention


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"heedful answered {calls} calls")
"""
SUITES = {
    "multi_head_attention": (["keras.src.layers.attention.multi_head_attention_test"], "", 40),
    "grouped_query_attention": (["keras.src.layers.attention.grouped_query_attention_test"], "", 30),
    "dot_product_attention": (["keras.src.ops.nn_test"], "dot_product_attention", 20),
}


def run(modules: list[str], chosen: str, folder: Path, plugin: bool) -> tuple[int, int, str]:
    """How many of keras's tests passed and failed, and what pytest printed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        *modules,
        "-W",
        "ignore",
    ]
    command += ["-p", "through_heedful"] * plugin + (["-k", chosen] if chosen else [])
    (folder / "through_heedful.py").write_text(PLUGIN)
    paths = [str(folder), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=600, check=False
    )
    passed, failed = (re.search(rf"(\d+) {word}", done.stdout) for word in ("passed", "failed"))
    return int(passed[1]) if passed else 0, int(failed[1]) if failed else 0, done.stdout + done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", SUITES)
def test_what_passes_on_torch_passes_on_heedful(suite: str, tmp_path: Path) -> None:
    modules, chosen, least = SUITES[suite]
    passed, failed, text = run(modules, chosen, tmp_path, plugin=False)
    ours, our_failures, our_text = run(modules, chosen, tmp_path, plugin=True)
    answered = re.search(r"heedful answered (\d+) calls", our_text)
    assert answered, our_text
    print(f"keras {suite}: {ours} of {passed} tests pass, heedful answered {answered[1]} calls")
    assert passed >= least, text
    assert int(answered[1]) > 0
    assert (ours, our_failures) == (passed, failed), our_text
