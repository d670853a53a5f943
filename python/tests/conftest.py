"""What all tests share: which frameworks are here, and how many examples Hypothesis tries."""

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

FRAMEWORKS = ("torch", "megatron-core", "jax", "ml_dtypes", "transformers")

settings.register_profile(
    "default",
    deadline=None,
    database=None,  # nothing is left behind; a failing case prints how to run it again
    max_examples=int(os.environ.get("MOETOKEN_EXAMPLES", "40")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")


def installed_version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def pytest_report_header(config):
    found = [f"{name} {installed_version(name) or 'MISSING'}" for name in FRAMEWORKS]
    return "frameworks: " + ", ".join(found)


def pytest_configure(config):
    """With MOETOKEN_REQUIRE_FRAMEWORKS set, as in CI, a missing framework is an error."""
    missing = [name for name in FRAMEWORKS if installed_version(name) is None]
    if missing and os.environ.get("MOETOKEN_REQUIRE_FRAMEWORKS"):
        raise pytest.UsageError("frameworks missing: " + ", ".join(missing))
