"""What the documentation shows: docstring examples as doctests, the blocks of docs/python.md."""

import contextlib
import doctest
import importlib
import io
import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"
MODULES = {
    "moetoken._operators": 4,
    "moetoken._files": 1,
    "moetoken._router": 6,
    "moetoken.ids": 4,
    "moetoken.torch": 3,
    "moetoken.torch._router": 3,
    "moetoken.torch._router.transformer_engine": 1,
    "moetoken.torch.ids": 2,
    "moetoken.torch.transformer_engine": 1,
    "moetoken.torch.vllm": 1,
    "moetoken.jax": 2,
    "moetoken.jax._router": 1,
    "moetoken.jax.ids": 2,
}


@contextlib.contextmanager
def narrow_jax():
    """JAX's 32-bit mode, which the examples show and other tests leave."""
    config = importlib.import_module("jax").config
    before = config.jax_enable_x64
    config.update("jax_enable_x64", False)
    try:
        yield
    finally:
        config.update("jax_enable_x64", before)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    if name.startswith(("moetoken.torch", "moetoken.jax")):
        pytest.importorskip(name.split(".")[1])
    module = importlib.import_module(name)
    found = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert len(found) == MODULES[name]
    with narrow_jax() if name.startswith("moetoken.jax") else contextlib.nullcontext():
        results = doctest.testmod(module)
    assert results.attempted and not results.failed


def sections():
    """[(title, [(code, expected output or None)])]"""
    for part in re.split(r"^## ", DOCUMENT.read_text(), flags=re.M)[1:]:
        pattern = r"^```python\n(.*?)^```\n(?:^```text\n(.*?)^```$)?"
        blocks = re.findall(pattern, part, flags=re.M | re.S)
        if blocks:
            yield part.splitlines()[0], blocks


def test_every_block_is_found():
    text = DOCUMENT.read_text()
    found = [block for _, blocks in sections() for block in blocks]
    assert len(found) == text.count("```python\n") > 0
    assert sum(bool(output) for _, output in found) == text.count("```text\n")


@pytest.mark.parametrize("title, blocks", [pytest.param(*part, id=part[0]) for part in sections()])
def test_document(title, blocks):
    for framework in {"PyTorch": ["torch", "transformers"], "JAX": ["jax"]}.get(title, []):
        pytest.importorskip(framework)
    names = {}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(DOCUMENT), "exec"), names)
        assert printed.getvalue() == expected, code


@pytest.mark.parametrize("name", ["moetoken", "moetoken.torch", "moetoken.jax"])
def test_help_says_shapes_and_errors(name):
    if "." in name:
        pytest.importorskip(name.split(".")[1])
    module = importlib.import_module(name)
    for function in ("permute", "permute_grad", "unpermute", "unpermute_grad"):
        text = getattr(module, function).__doc__
        assert re.search(r"\[[A-Z], [A-Z]\]", text) and "Raises\n" in text, function
