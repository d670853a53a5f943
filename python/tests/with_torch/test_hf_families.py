"""Every family of transformers whose experts are pluggable, against its own "eager"."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hf_families  # noqa: E402
import torch  # noqa: E402

import moetoken.torch.hf  # noqa: E402

FAMILIES = hf_families.decorated()
# Their eager adds up in float32, whatever the type of the layer; the last computes everything so, in
# a bfloat16 layer too, which no implementation that is plugged in does, transformers' own included.
SUMS_OF_FLOAT32 = {"inkling2", "inkling2_loop"}
WIDE = {"openai_privacy_filter"}


@pytest.fixture(autouse=True)
def registered():
    moetoken.torch.hf.register()


def test_all_are_found():
    families = {family for family, _ in FAMILIES}
    assert {"olmoe", "mixtral", "gpt_oss", "nemotron_h", "muse_spark", "aria"} <= families
    assert len(FAMILIES) >= 60


@pytest.mark.parametrize("family, name", FAMILIES)
def test_float64(family, name, monkeypatch):
    if family not in WIDE:
        hf_families.keep_float64(monkeypatch)
    module = hf_families.experts(family, name)
    given = hf_families.routing()
    expected = hf_families.results(module, "eager", *given)
    found = hf_families.results(module, "moetoken", *given)
    assert found.keys() == expected.keys()
    bound = 4 * 2**-24 if family in SUMS_OF_FLOAT32 else 64 * 2**-24 if family in WIDE else 1e-12
    for key, value in expected.items():
        scale = max(1, float(value.abs().max()))
        assert float((found[key] - value).abs().max()) <= bound * scale, key
        assert value.abs().max() > 0, key


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("family, name", FAMILIES)
def test_bfloat16_is_as_near_as_eager(family, name):
    """Errors against float64: of the output at most those of eager, which rounds the sum K times.

    Both round what goes into the sum alike, by other GEMMs: a tenth is left for that. Gradients
    are rounded in as many places, but not the same; one rounding at the end all have.
    """
    module = hf_families.experts(family, name, torch.bfloat16)
    given = hf_families.routing(64, torch.bfloat16)
    narrow = {k: hf_families.results(module, k, *given) for k in ("eager", "moetoken")}
    if family in WIDE:
        narrow["eager"] = hf_families.results(module, "grouped_mm", *given)
    wide = tuple(t.double() if t.is_floating_point() else t for t in given)
    module.double()
    for key, exact in hf_families.results(module, "moetoken", *wide).items():
        allowed = (1.1 if key == "output" else 1.5) * error(narrow["eager"][key], exact)
        assert error(narrow["moetoken"][key], exact) <= max(allowed, 2**-9), key
