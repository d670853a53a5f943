"""What a user writes passes the strict type checker, and what is wrong does not."""

import os
from pathlib import Path

import pytest

import moetoken

api = pytest.importorskip("mypy.api")

RIGHT = """
import numpy as np
import moetoken
from moetoken import ids

logits = np.zeros((4, 8), np.float32)
routed = moetoken.router(logits, recipe="mixtral", token_mask=np.ones(4, bool))
chosen: np.ndarray = routed.expert_ids
loss, scores_grad = moetoken.router_balance_loss(routed.scores, routed.rows_per_expert, topk=2)
grad: np.ndarray = moetoken.router_grad(logits, chosen, None, scores_grad, recipe="mixtral")
bias: np.ndarray = moetoken.router_update_bias(np.zeros(8), routed.rows_per_expert, 0.1)
kept = moetoken.router_drop(chosen, routed.weights, experts_num=8, capacity=2)
sent = ids.permute(logits, kept.kept_ids, kept.kept_weights, experts_num=8)
total: float = float(moetoken.router_z_loss(logits, coeff=0.1).loss)
"""

RIGHT_TORCH = """
import torch
import moetoken.torch
from moetoken.torch import megatron, npu, transformer_engine

logits = torch.zeros(4, 8)
routed = moetoken.torch.router(logits, topk=2, score="sigmoid", normalize=True)
if routed.scores is not None:
    loss: torch.Tensor = moetoken.torch.router_balance_loss(
        routed.scores, routed.rows_per_expert, topk=2)
probs, routing_map = megatron.topk_routing_with_score_function(logits, 2)
y, expert_idx, out = npu.npu_moe_gating_top_k(logits, 2, norm_type=1)
again, bits = transformer_engine.fused_topk_with_score_function(
    logits, 2, False, None, None, None, "softmax", None)
"""

WRONG = """
import numpy as np
import moetoken

moetoken.router(np.zeros((4, 8)), topk="2")
moetoken.router_drop(np.zeros((4, 2), int), np.zeros((4, 2)), capacity=2)
"""


def check(folder, text):
    (folder / "user.py").write_text(text)
    # PyTorch itself, whose check takes half a minute, is Any.
    lines = ["[mypy]", "follow_imports = silent", "[mypy-torch.*]", "follow_imports = skip"]
    (folder / "mypy.ini").write_text("\n".join(lines))
    arguments = ["--strict", "--cache-dir", str(folder / "cache"), str(folder / "user.py")]
    before = os.environ.get("MYPYPATH")
    home = Path(moetoken.__file__).parents[1]
    if home.name != "site-packages":  # where mypy looks by itself, and wants not to be told to
        os.environ["MYPYPATH"] = str(home)
    try:
        printed, problems, _ = api.run([*arguments, "--config-file", str(folder / "mypy.ini")])
    finally:
        if before is None:
            os.environ.pop("MYPYPATH", None)
        else:
            os.environ["MYPYPATH"] = before
    assert not problems, problems
    return printed


def test_what_a_user_writes(tmp_path):
    printed = check(tmp_path, RIGHT)
    assert "Success: no issues found" in printed, printed
    printed = check(tmp_path, WRONG)
    assert 'Argument "topk" to "router"' in printed
    assert 'Missing named argument "experts_num" for "router_drop"' in printed


def test_what_a_user_of_pytorch_writes(tmp_path):
    pytest.importorskip("torch")
    printed = check(tmp_path, RIGHT_TORCH)
    assert "Success: no issues found" in printed, printed
