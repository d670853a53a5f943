"""Measures a case: prepares all peers, then times them in turn, round by round.

Knows workers only by `ask`, so that they may be processes or, in tests, objects.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import statistics
import time
from typing import Any, Callable, Mapping, Optional, Protocol

from .cases import Shape
from .registry import GROUPS, PEERS, REFERENCE, Peer

__all__ = ["Asked", "measure"]


class Asked(Protocol):
    """A worker: commands and answers are those of worker.py."""

    def ask(self, **command: Any) -> dict[str, Any]: ...


MOST_OF_MEMORY = 0.8
_SETTLE_SECONDS = 0.03  # threads of the process before may spin for a while when their work is done

Say = Callable[[str], None]


def _available_bytes() -> Optional[int]:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _entry(peer: Peer) -> dict[str, Any]:
    """What is reported of a peer in a case; `status` is ok, refused, skipped or failed."""
    return {
        "peer": peer.name,
        "status": "ok",
        "reason": "",
        "seconds": None,
        "fastest_seconds": None,
        "slowest_seconds": None,
        "rounds": 0,
        "calls": 0,
        "prepare_seconds": None,
        "agreement": None,
        "ratio": None,
    }


def _needed_bytes(shape: Shape, group: str) -> int:
    """About what a group's process has in memory at most."""
    data = shape.rows_bytes + shape.rows_bytes // shape.topk_num
    size = 4  # 16-bit types have float32 tensors on the way, and freed memory may be kept
    return data + shape.rows * shape.hidden_size * size * GROUPS[group].tensors


def _batches(shape: Shape, peers: list[Peer]) -> list[list[Peer]]:
    """All peers at once where memory allows it, else group by group."""
    groups: dict[str, list[Peer]] = {}
    for peer in peers:
        groups.setdefault(peer.group, []).append(peer)
    needed = sum(_needed_bytes(shape, group) for group in groups)
    available = _available_bytes()
    if available is None or needed < MOST_OF_MEMORY * available:
        return [peers]
    return list(groups.values())


def _load_data(workers: Mapping[str, Asked], shape: Shape, peers: list[Peer]) -> dict[str, str]:
    """Has the data made in the peers' processes; why not, by group, where it could not be."""

    def load(group: str) -> str:
        needed, available = _needed_bytes(shape, group), _available_bytes()
        if available is not None and needed > MOST_OF_MEMORY * available:
            there = f"{available / 2**30:.1f} GiB are available"
            return f"needs about {needed / 2**30:.1f} GiB, {there}"
        return workers[group].ask(do="case", shape=dataclasses.asdict(shape)).get("error", "")

    groups = list(dict.fromkeys(peer.group for peer in peers))
    with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
        reasons = dict(zip(groups, pool.map(load, groups)))
    return {group: reason for group, reason in reasons.items() if reason}


def _prepare(worker: Asked, peer: Peer, reasons: dict[str, str]) -> dict[str, Any]:
    """Where the group's process ends, the rest of the group has no data: that goes to `reasons`."""
    entry = _entry(peer)
    answer = worker.ask(do="prepare", peer=peer.name)
    if "error" in answer:
        if answer.get("ended"):
            reasons[peer.group] = answer["error"]
        return {**entry, "status": "failed", "reason": answer["error"]}
    entry.update(answer)
    if not entry["agreement"]["same"]:
        entry.update(status="refused", reason=entry["agreement"]["reason"])
    return entry


def _time_in_turn(
    workers: Mapping[str, Asked], entries: list[dict[str, Any]], rounds: int, say: Say
) -> dict[str, list[float]]:
    """Each round starts with another peer."""
    times: dict[str, list[float]] = {entry["peer"]: [] for entry in entries}
    group_before = ""
    for i in range(rounds):
        first = i % max(1, len(entries))
        for entry in entries[first:] + entries[:first]:
            if entry["status"] != "ok":
                continue
            name, group = entry["peer"], PEERS[entry["peer"]].group
            say(f"round {i + 1} of {rounds}, {name}")
            if group != group_before:
                time.sleep(_SETTLE_SECONDS)
            group_before = group
            answer = workers[group].ask(do="time", peer=name, calls=entry["calls"])
            if "error" not in answer:
                times[name].append(answer["seconds"])
                continue
            for other in entries:
                if other is entry or (answer.get("ended") and PEERS[other["peer"]].group == group):
                    other.update(status="failed", reason=answer["error"])
        entries = [entry for entry in entries if entry["status"] == "ok"]
    return times


def _set_times(entry: dict[str, Any], times: list[float]) -> None:
    entry["seconds"] = statistics.median(times)
    entry["fastest_seconds"], entry["slowest_seconds"] = min(times), max(times)
    entry["rounds"] = len(times)


def _set_ratios(entries: list[dict[str, Any]]) -> None:
    reference = next((e["seconds"] for e in entries if e["peer"] == REFERENCE), None)
    for entry in entries:
        if entry["seconds"] and reference:
            entry["ratio"] = entry["seconds"] / reference


def _measure_batch(
    workers: Mapping[str, Asked], peers: list[Peer], shape: Shape, rounds: int, say: Say
) -> list[dict[str, Any]]:
    """The results of some peers, whose processes hold the data at the same time."""
    say("making the data")
    reasons = _load_data(workers, shape, peers)
    entries = []
    for peer in peers:
        say(f"preparing {peer.name}")
        if peer.group in reasons:
            entry = {**_entry(peer), "status": "skipped", "reason": reasons[peer.group]}
        else:
            entry = _prepare(workers[peer.group], peer, reasons)
        entries.append(entry)
    for entry in entries:  # prepared before the group's process ended
        if entry["status"] == "ok" and PEERS[entry["peer"]].group in reasons:
            entry.update(status="failed", reason=reasons[PEERS[entry["peer"]].group])
    ready = [entry for entry in entries if entry["status"] == "ok"]
    say("a round that does not count")
    _time_in_turn(workers, [entry for entry in ready if entry["calls"] == 1], 1, lambda _: None)
    times = _time_in_turn(workers, ready, rounds, say)
    for entry in ready:
        if entry["status"] == "ok":
            _set_times(entry, times[entry["peer"]])
    for group in dict.fromkeys(peer.group for peer in peers):
        workers[group].ask(do="forget")
    return entries


def measure(
    workers: Mapping[str, Asked],
    peers: list[str],
    shape: Shape,
    memory: str,
    rounds: int,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """One case as JSON has it: the shape's fields, the memory setting, and a result a peer."""
    batches = _batches(shape, [PEERS[name] for name in peers])
    found = {}
    for batch in batches:
        for entry in _measure_batch(workers, batch, shape, rounds, say):
            found[entry["peer"]] = entry
    entries = [found[name] for name in peers]
    _set_ratios(entries)
    return {
        **dataclasses.asdict(shape),
        "memory": memory,
        "interleaved": len(batches) == 1,
        "results": entries,
    }
