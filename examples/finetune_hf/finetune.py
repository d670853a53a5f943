"""Trains a small random OLMoE on text of this machine, once with each experts implementation.

    python examples/finetune_hf/finetune.py [--text FILE...] [--implementations A,B] [OPTION...]

The text is read as bytes. Every implementation starts from the same weights and sees the same text,
in a process of its own; printed are the loss, the median time of a step and the most memory that
the process had. The package's extra "hf" brings what this needs: pip install 'moetoken[hf]'.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

TEXTS = ["/usr/share/common-licenses", str(Path(__file__).parents[2] / "docs")]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", nargs="+", default=TEXTS, help="files, or folders of files")
    parser.add_argument("--implementations", default="moetoken,grouped_mm,eager")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--inner", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--topk", type=int, default=4)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    return parser.parse_args()


def text(places):
    """The bytes of all files, in the order of their names."""
    files = []
    for place in map(Path, places):
        files += sorted(f for f in place.rglob("*") if f.is_file()) if place.is_dir() else [place]
    found = b"\n".join(file.read_bytes() for file in files)
    if not found:
        raise SystemExit(f"finetune: no text in {' '.join(map(str, places))}; --text names files")
    return found


def model_of(arguments, implementation):
    import torch
    from transformers import OlmoeConfig, OlmoeForCausalLM

    import moetoken.torch.hf

    moetoken.torch.hf.register()
    torch.manual_seed(0)
    config = OlmoeConfig(
        vocab_size=256,
        hidden_size=arguments.hidden,
        intermediate_size=arguments.inner,
        num_hidden_layers=arguments.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=arguments.experts,
        num_experts_per_tok=arguments.topk,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = OlmoeForCausalLM(config).to(getattr(torch, arguments.dtype))
    model.set_experts_implementation(implementation)
    return model


def train(arguments, implementation):
    """{"losses", "seconds", "bytes"} of one run."""
    import torch

    model = model_of(arguments, implementation)
    data = torch.frombuffer(bytearray(text(arguments.text)), dtype=torch.uint8).long()
    if len(data) <= arguments.length:
        raise SystemExit(f"finetune: the text has {len(data)} bytes, --length {arguments.length}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate)
    losses, seconds = [], []
    for _ in range(arguments.steps):
        starts = torch.randint(len(data) - arguments.length, (arguments.batch,))
        batch = torch.stack([data[start : start + arguments.length] for start in starts])
        began = time.perf_counter()
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"losses": losses, "seconds": statistics.median(seconds), "bytes": peak}


def main():
    arguments = parse()
    if arguments.alone:
        print(json.dumps(train(arguments, arguments.alone)))
        return
    print(f"{'experts':12} {'step':>10} {'memory':>10} {'first loss':>11} {'last loss':>11}")
    for implementation in arguments.implementations.split(","):
        command = [sys.executable, *sys.argv, "--alone", implementation]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        step, memory = f"{found['seconds'] * 1e3:.1f} ms", f"{found['bytes'] / 2**20:.0f} MB"
        first, last = found["losses"][0], found["losses"][-1]
        print(f"{implementation:12} {step:>10} {memory:>10} {first:11.6f} {last:11.6f}", flush=True)


if __name__ == "__main__":
    main()
