"""What every test shares: seeds, one thread per worker, and how hard hypothesis tries."""

import os

import pytest
import torch
from hypothesis import settings

# No test may reach for a model hub. Read when huggingface_hub is imported, so it is set before anything is.
os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


def pytest_configure(config: pytest.Config) -> None:
    """Give each pytest-xdist worker, and what it starts, its share of the cores; torch would take them all."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    threads = max(1, (os.cpu_count() or 1) // workers)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
