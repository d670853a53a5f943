"""What calls from PyTorch cost: forward, and forward with backward, at 1, 64 and 4096 tokens.

    python bench/torch_calls.py [--tokens 1,64,4096] [--against FOLDER:LIBRARY]

The least and the median time of each call, on a layer of hidden size 2048 with 8 experts, two a
token. With --against the same calls of another version of the package, whose sources lie in FOLDER
(the one that holds `moetoken/`) and whose built libmoetoken_python.so is LIBRARY, are timed in
turn, in processes of their own, and the ratios are printed: above 1, this version is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import timeit
from typing import Any, Callable, Iterator

ROUNDS = 3  # of both versions in turn


def eager_calls(x: Any, g: Any, rows: Any, p: Any, m: Any) -> Iterator[tuple[str, Any]]:
    """The same in PyTorch's operations, as Megatron-Core writes them."""
    import torch

    tokens = torch.arange(len(x)).unsqueeze(0).expand(m.shape[1], -1)

    def permute() -> Any:
        token_of_row = tokens.masked_select(m.T.contiguous())
        return x.index_select(0, token_of_row), token_of_row

    def unpermute() -> Any:
        weights = p.T.contiguous().masked_select(m.T.contiguous())
        places = token_of_row.unsqueeze(1).expand(-1, x.shape[1])
        return torch.zeros_like(x).scatter_add_(0, places, rows * weights.unsqueeze(1))

    def unpermute_grad() -> Any:
        by_expert = m.T.contiguous()
        weights = p.T.contiguous().masked_select(by_expert)
        spread = g.index_select(0, token_of_row)
        probs_grad = torch.zeros_like(p.T).masked_scatter_(by_expert, (rows * spread).sum(1))
        return spread * weights.unsqueeze(1), probs_grad.T

    token_of_row = permute()[1]
    yield "permute", permute
    yield "unpermute", unpermute
    yield "unpermute_grad", unpermute_grad


def calls(tokens_num: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch

    import moetoken
    import moetoken.torch as mt
    from moetoken.torch import ids, megatron

    torch.manual_seed(0)
    hidden, experts, topk = 2048, 8, 2
    x, g = torch.randn(2, tokens_num, hidden)
    p = torch.rand(tokens_num, experts)
    top = p.topk(topk)
    m = torch.zeros_like(p, dtype=torch.bool).scatter_(1, top.indices, True)
    n = tokens_num * topk
    xg, pg = x.clone().requires_grad_(), p.clone().requires_grad_()
    rows, _, indices = mt.permute(x, m, num_out_tokens=n)
    token_id = (torch.arange(n) // topk).to(indices.dtype)
    out = (torch.empty_like(rows), torch.empty_like(p))
    keywords: dict[str, Any] = dict(routing_map=m, permuted_tokens=rows, probs=p)

    token_of_row = megatron.permute(x, m, num_out_tokens=n)[2]

    def both() -> Any:
        rows, _, indices = mt.permute(xg, m, num_out_tokens=n)
        return mt.unpermute(rows, indices, routing_map=m, probs=pg)

    def both_megatron() -> Any:
        rows, _, indices = megatron.permute(xg, m, num_out_tokens=n)[:3]
        return megatron.unpermute(rows, indices, x.shape, pg, m)

    sent = ids.permute(x, top.indices, experts_num=experts)
    places, out_indices = sent.sorted_indices, torch.empty_like(indices)
    tokens_out = torch.empty_like(x)

    yield "permute", lambda: mt.permute(x, m, num_out_tokens=n)
    yield (
        "permute, out=",
        lambda: moetoken.permute(x, m, num_out_tokens=n, out=(out[0], None, out_indices)),
    )
    yield "unpermute", lambda: mt.unpermute(rows, indices, routing_map=m, probs=p)
    yield (
        "unpermute, out=",
        lambda: moetoken.unpermute(
            rows, indices, routing_map=m, probs=p, out=(tokens_out, None, None, None),
            output_mask=(True, False, False, False),
        ),
    )  # fmt: skip
    yield "unpermute_grad", lambda: mt.unpermute_grad(g, indices, token_id, **keywords)
    yield (
        "unpermute_grad, out=",
        lambda: moetoken.unpermute_grad(g, indices, token_id, out=out, **keywords),
    )
    yield "ids.permute", lambda: ids.permute(x, top.indices, experts_num=experts)
    yield "ids.unpermute", lambda: ids.unpermute(rows, places, top.values)
    yield (
        "ids.unpermute_grad",
        lambda: ids.unpermute_grad(g, places, permuted_tokens=rows, weights=top.values),
    )
    yield "megatron.permute", lambda: megatron.permute(x, m, num_out_tokens=n)
    yield (
        "megatron.unpermute",
        lambda: megatron.unpermute(rows, token_of_row, x.shape, p, m),
    )
    for name, call in eager_calls(x, g, rows, p, m):
        yield f"eager {name}", call
    yield "forward, recorded", both
    yield "forward + backward", lambda: torch.autograd.grad(both(), (xg, pg), g)
    yield "megatron, both", lambda: torch.autograd.grad(both_megatron(), (xg, pg), g)


def measure(tokens: list[int]) -> dict[str, list[float]]:
    """Seconds of each call, many times."""
    found = {}
    for tokens_num in tokens:
        number = 20 if tokens_num < 1000 else 1
        for name, call in calls(tokens_num):
            call()
            times = timeit.repeat(call, number=number, repeat=100 if number > 1 else 15)
            found[f"{tokens_num:5} {name}"] = [time / number for time in times]
    return found


def measure_elsewhere(tokens: str, version: str) -> dict[str, list[float]]:
    folder, _, library = version.partition(":")
    environment = dict(os.environ)
    if version:
        environment |= {"PYTHONPATH": folder, "MOETOKEN_PYTHON_LIBRARY": library}
    command = [sys.executable, __file__, "--tokens", tokens, "--json"]
    run = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(run.stdout)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="1,64,4096")
    parser.add_argument("--against", metavar="FOLDER:LIBRARY")
    parser.add_argument("--json", action="store_true", help="all times, as one JSON object")
    given = parser.parse_args()
    if not given.against:
        found = measure([int(count) for count in given.tokens.split(",")])
        if given.json:
            print(json.dumps(found))
        for name, times in [] if given.json else found.items():
            print(f"{name:28} {min(times) * 1e6:9.1f} us, {statistics.median(times) * 1e6:9.1f}")
        return
    here: dict[str, list[float]] = {}
    there: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for all_times, version in ((there, given.against), (here, "")):
            for name, times in measure_elsewhere(given.tokens, version).items():
                all_times.setdefault(name, []).extend(times)
    print("the least of each in microseconds; the ratio of these, and of the medians")
    print(f"{'tokens, call':28} {'other':>9} {'this':>9}          {'least':>9} {'medians':>9}")
    for name, times in here.items():
        least, other = min(times), min(there[name])
        ratio = statistics.median(there[name]) / statistics.median(times)
        print(
            f"{name:28} {other * 1e6:9.1f} {least * 1e6:9.1f}          "
            f"{other / least:9.2f} {ratio:9.2f}"
        )


if __name__ == "__main__":
    main()
