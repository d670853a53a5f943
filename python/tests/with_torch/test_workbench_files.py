"""PyTorch's own files and dumps as msprobe writes them, through the command-line tool."""

import collections
import io
import json
import subprocess
import zipfile

import pytest

import moetoken
from test_tool import TOOL

torch = pytest.importorskip("torch")

from moetoken.torch import npu  # noqa: E402

pytestmark = pytest.mark.skipif(TOOL is None, reason="the tool is not built (or MOETOKEN_TOOL set)")


def run(*words):
    return subprocess.run([TOOL, *map(str, words)], capture_output=True, text=True, check=False)


# ---- files --------------------------------------------------------------------------------------


def some_tensors():
    torch.manual_seed(3)
    base = torch.randn(6, 8)
    return {
        "whole": base,
        "columns": base[:, ::3],
        "turned": base.t(),
        "offset": base[2:, 5],
        "expanded": base[1:2].expand(4, 8),
        "bfloat16": base.to(torch.bfloat16)[1::2],
        "float16": base.to(torch.float16).reshape(3, 2, 8).permute(2, 0, 1),
        "float64": base.double(),
        "int32": torch.arange(5, dtype=torch.int32),
        "int64": torch.arange(6).reshape(2, 3).t(),
        "bool": base > 0,
        "int8": torch.tensor([-3, 4], dtype=torch.int8),
        "uint8": torch.tensor([200, 4], dtype=torch.uint8),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(base.clone()),
    }


def save_golden(path, tensors):
    arrays = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().contiguous()
        if plain.dtype == torch.bfloat16:  # NumPy has none; its values fit into float32
            plain = plain.float()
        arrays[name] = plain.numpy()
    moetoken.save(path, arrays, {})


def as_version_1_13(data):
    """The archive as PyTorch 1.13 wrote it: no order of bytes, no serialisation id, the folder named
    after the file."""
    old = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as new, zipfile.ZipFile(old, "w") as archive:
        for name in new.namelist():
            folder, _, rest = name.partition("/")
            if rest == "data.pkl" or rest == "version" or rest.startswith("data/"):
                archive.writestr(f"old_file/{rest}", new.read(name))
    return old.getvalue()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_of_all_kinds(tmp_path, old, protocol):
    tensors = some_tensors()
    nested = {"a": {"b": [tensors["turned"], {"c": tensors["bfloat16"]}]}, 5: tensors["bool"]}
    flat = {"a.b.0": tensors["turned"], "a.b.1.c": tensors["bfloat16"], "5": tensors["bool"]}
    for name, saved, golden in (
        ("flat", tensors, tensors),
        ("ordered", collections.OrderedDict(tensors), tensors),
        ("nested", nested, flat),
    ):
        data = io.BytesIO()
        torch.save(saved, data, pickle_protocol=protocol)
        path = tmp_path / f"{name}.pt"
        path.write_bytes(as_version_1_13(data.getvalue()) if old else data.getvalue())
        save_golden(tmp_path / "golden.npz", golden)
        done = run("compare", path, tmp_path / "golden.npz", "--standard", "bits", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(json.loads(done.stdout)["tensors"]) == len(golden)


def test_a_models_state(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    save_golden(tmp_path / "golden.npz", model.state_dict())
    done = run("compare", tmp_path / "state.pt", tmp_path / "golden.npz", "--standard", "bits")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_tensor_alone_and_raw_bytes(tmp_path):
    tensor = torch.randn(4, 3)
    torch.save(tensor[::2], tmp_path / "x.pt")
    (tmp_path / "x.bin").write_bytes(tensor[::2].contiguous().numpy().tobytes())
    done = run(
        "compare", tmp_path / "x.pt", tmp_path / "x.bin",
        "--standard", "bits", "--dtype", "f32", "--shape", "2,3",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_could_be_executed_is_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    done = run("compare", tmp_path / "model.pt", tmp_path / "model.pt", "--standard", "bits")
    assert done.returncode == 1
    assert "'torch.nn.modules.linear.Linear', which no tensor needs" in done.stderr
    torch.save(torch.ones(2), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    done = run("compare", tmp_path / "old.pt", tmp_path / "old.pt", "--standard", "bits")
    assert done.returncode == 1
    assert "is a PyTorch file of the old kind" in done.stderr


def test_types_that_the_tool_does_not_know_are_named(tmp_path):
    torch.save({"x": torch.ones(2), "y": torch.ones(2, dtype=torch.int16)}, tmp_path / "x.pt")
    done = run("compare", tmp_path / "x.pt", tmp_path / "x.pt", "--standard", "bits")
    assert done.returncode == 1
    assert "tensor 'y' has type ShortStorage" in done.stderr
    done = run(
        "compare", tmp_path / "x.pt", tmp_path / "x.pt", "--standard", "bits", "--tensors", "x"
    )
    assert done.returncode == 0


# ---- dumps --------------------------------------------------------------------------------------


class Dump:
    """What msprobe's hooks record of calls: step0/rank0/dump.json and the tensors beside it."""

    def __init__(self, folder, suffix=".pt"):
        self.rank = folder / "step0" / "rank0"
        self.data = self.rank / "dump_tensor_data"
        self.data.mkdir(parents=True)
        self.suffix = suffix
        self.entries = {}

    def element(self, name, value):
        if isinstance(value, torch.Tensor):
            torch.save(value.detach(), self.data / f"{name}.pt")
            return {
                "type": "torch.Tensor",
                "dtype": str(value.dtype),
                "shape": list(value.shape),
                "requires_grad": value.requires_grad,
                "data_name": f"{name}.pt",
            }
        if value is None:
            return None
        return {"type": type(value).__name__, "value": value}

    def call(self, name, *args, **kwargs):
        """Calls the function and records it, its gradients of positional arguments included."""
        before = [key for key in self.entries if key.startswith(f"NPU.{name}.")]
        stem = f"NPU.{name}.{sum(key.endswith('.forward') for key in before)}"
        results = getattr(npu, name)(*args, **kwargs)
        results = results if isinstance(results, tuple) else (results,)
        forward = f"{stem}.forward"
        self.entries[forward] = {
            "input_args": [self.element(f"{forward}.input.{i}", x) for i, x in enumerate(args)],
            "input_kwargs": {
                key: self.element(f"{forward}.input.{key}", x) for key, x in kwargs.items()
            },
            "output": [self.element(f"{forward}.output.{i}", x) for i, x in enumerate(results)],
        }
        wanted = [i for i, x in enumerate(args) if getattr(x, "requires_grad", False)]
        if wanted:
            self.backward(f"{stem}.backward", args, wanted, results)
        return results

    def backward(self, name, args, wanted, results):
        outer = [
            None if x is None or x.grad_fn is None else torch.randn(x.shape).to(x.dtype)
            for x in results
        ]
        used = [(x, g) for x, g in zip(results, outer) if g is not None]
        found = torch.autograd.grad(
            [x for x, _ in used], [args[i] for i in wanted], [g for _, g in used]
        )
        gradients = dict(zip(wanted, found))
        self.entries[name] = {
            "input": [self.element(f"{name}.input.{i}", g) for i, g in enumerate(outer)],
            "output": [
                self.element(f"{name}.output.{i}", gradients.get(i)) for i in range(len(args))
            ],
        }

    def finish(self):
        text = {"task": "tensor", "level": "L1", "data": self.entries}
        (self.rank / "dump.json").write_text(json.dumps(text))


def random_dump(folder, dtype):
    """Calls of every function of the family, in the ways that training and inference make them."""
    torch.manual_seed(11)
    tokens_num, experts, topk, hidden = 13, 5, 2, 9
    dump = Dump(folder)
    tokens = torch.randn(tokens_num, hidden).to(dtype).requires_grad_()
    scores = torch.rand(tokens_num, experts)
    ids = scores.topk(topk, dim=1).indices
    routing_map = torch.zeros(tokens_num, experts, dtype=torch.bool).scatter(1, ids, True)
    probs = (scores.softmax(1) * routing_map).to(dtype)
    for padded, count in ((False, tokens_num * topk), (True, experts * 4)):
        rows, _, indices = dump.call(
            "npu_moe_token_permute_with_routing_map", tokens, routing_map,
            probs=probs, num_out_tokens=count, drop_and_pad=padded,
        )  # fmt: skip
        rows = rows.detach().requires_grad_()
        dump.call(
            "npu_moe_token_unpermute_with_routing_map", rows, indices, [tokens_num, hidden],
            probs=probs, routing_map=routing_map, drop_and_pad=padded,
        )  # fmt: skip
        _, index, token, _ = dump.call(
            "_npu_moe_token_unpermute_with_routing_map", rows.detach(), indices,
            [tokens_num, hidden], probs=probs, routing_map=routing_map, drop_and_pad=padded,
        )  # fmt: skip
        dump.call(
            "npu_moe_token_unpermute_with_routing_map_grad", torch.randn_like(tokens), index, token,
            routing_map, rows.detach(), probs, padded, [tokens_num, hidden],
        )  # fmt: skip
        dump.call(
            "npu_moe_token_permute_with_routing_map_grad", torch.randn_like(rows.detach()),
            torch.randn(rows.shape[0]).to(dtype), indices, routing_map, experts, tokens_num, padded,
        )  # fmt: skip
    rows, indices = dump.call("npu_moe_token_permute", tokens, ids, 20)
    rows, indices = dump.call("npu_moe_token_permute", tokens, ids.to(torch.int32))
    weights = torch.rand(tokens_num, topk).requires_grad_()
    dump.call("npu_moe_token_unpermute", rows.detach().requires_grad_(), indices, weights)
    dump.call("npu_moe_token_unpermute", rows.detach().requires_grad_(), indices)
    row_idx = torch.arange(tokens_num * topk, dtype=torch.int32).reshape(topk, tokens_num).t()
    plain = tokens.detach()
    expanded, places, _ = dump.call(
        "npu_moe_init_routing", plain, row_idx.contiguous(), ids.to(torch.int32), tokens_num
    )
    bias = torch.randn(experts, hidden).to(dtype)
    dump.call(
        "npu_moe_finalize_routing", expanded, plain, plain, bias, weights.detach().to(dtype), places,
        ids.to(torch.int32), 0,
    )  # fmt: skip
    for kind in (0, 1):
        dump.call(
            "npu_moe_init_routing_v2", plain, ids.to(torch.int32), expert_num=experts,
            expert_tokens_num_type=kind, expert_tokens_num_flag=True, row_idx_type=kind,
        )  # fmt: skip
    dump.call(
        "npu_moe_init_routing_v2", plain, ids.to(torch.int32), expert_num=experts,
        expert_tokens_num_type=1, expert_tokens_num_flag=True, active_expert_range=[1, 4],
    )  # fmt: skip
    expanded, places, _, _ = dump.call(
        "npu_moe_init_routing_v2", plain, ids.to(torch.int32), expert_num=experts,
        expert_capacity=4, drop_pad_mode=1,
    )  # fmt: skip
    dump.call(
        "npu_moe_finalize_routing", expanded, plain, None, None, weights.detach().to(dtype), places,
        None, 3,
    )  # fmt: skip
    counts = torch.tensor([[2, 0, 3], [1, 4, 3]])
    for kind in (0, 1):
        dump.call("npu_moe_re_routing", plain, counts, expert_token_num_type=kind, idx_type=kind)
    dump.finish()
    return dump


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_dump_of_the_drop_ins_passes(tmp_path, dtype):
    dump = random_dump(tmp_path, dtype)
    for standard in ("ecosystem-2026-07", "ecosystem-2026-04,atk-double,msprobe"):
        done = run("verify", tmp_path, "--standard", standard)
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"verify: {len(dump.entries)} calls" in done.stdout
    assert " 0 not checked" in done.stdout


def test_each_corrupted_result_is_found(tmp_path):
    """One element of each tensor that a call wrote, one tensor after the other."""
    dump = random_dump(tmp_path, torch.bfloat16)
    tried = 0
    for name, entry in dump.entries.items():
        for i, written in enumerate(entry["output"]):
            if written is None or "data_name" not in written or 0 in written["shape"]:
                continue
            path = dump.data / written["data_name"]
            good = path.read_bytes()
            tensor = torch.load(path).contiguous()
            tensor.view(-1)[tensor.numel() // 2] += 2 if tensor.is_floating_point() else 1
            torch.save(tensor, path)
            done = run("verify", tmp_path, "-q", "--standard", "ecosystem-2026-04")
            found = done.returncode == 1 and f"{name} output.{i} " in done.stderr
            assert found != is_never_read(name, i), f"{name} output.{i}: {done.stderr}"
            path.write_bytes(good)
            tried += 1
    assert tried > 40


def is_never_read(name, i):
    """Counts that were not asked for, scales of none, and, dropless, tokens of slots that are known."""
    dropless = "_npu_moe_token_unpermute_with_routing_map.0" in name and i == 2
    uncounted = "npu_moe_init_routing_v2.3" in name and i == 2
    return dropless or uncounted
