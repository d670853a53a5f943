"""Other projects' published tests against moetoken's functions of the same names, on the CPU.

Each project is a checkout at a known commit; a plugin of pytest in stand_ins/ puts moetoken in the
place of what the tests import, and the CPU in that of the device. Nothing of a project is changed. A
test that asks for what is not there is skipped and says for what.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent


class Project(NamedTuple):
    name: str
    url: str
    commit: str
    plugin: str
    folder: str  # where pytest runs
    tests: tuple[str, ...]  # patterns below it
    options: tuple[str, ...] = ()
    known: str = ""  # failures that are right


PROJECTS = (
    Project(
        "op-plugin",
        "https://gitee.com/ascend/op-plugin.git",
        "517f2e7d0f202f38b76310706cb977ca2388ad21",
        "moetoken_torch_npu",
        "test/test_custom_ops",
        ("test_npu_moe_*.py",),
        known="two tests of npu_moe_re_routing give counts that add up to more tokens than there are; "
        "that is refused here",
    ),
    Project(
        "TransformerEngine",
        "https://github.com/NVIDIA/TransformerEngine.git",
        "d0067d0da6cb01811b8072a7d304f0e00344ce2b",
        "moetoken_transformer_engine",
        "tests/pytorch",
        ("test_permutation.py", "test_fused_router.py"),
    ),
    Project(
        "Megatron-LM",
        "https://github.com/NVIDIA/Megatron-LM.git",
        "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
        "moetoken_megatron",
        ".",
        (
            "tests/unit_tests/transformer/moe/test_token_dispatcher.py",
            "tests/unit_tests/transformer/moe/test_routers.py",
        ),
        ("--noconftest",),
        known="a test of the router that needs an expert group finds none, as the test before it was "
        "skipped half-way",
    ),
)


class Outcome(NamedTuple):
    counts: Counter[str]  # passed, failed, skipped
    reasons: Counter[str]  # of those skipped
    failures: list[str]


def _checkout(project: Project, given: Path | None) -> Path:
    if given is not None:
        folder = given / project.name
        if not folder.is_dir():
            sys.exit(f"peers: {folder} is missing; --from expects a folder for each project")
        return folder
    folder = HERE / ".checkouts" / project.name
    git = ["git", "-C", str(folder)]
    if not (folder / ".git").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([*git, "init", "-q"], check=True)
    found = subprocess.run([*git, "rev-parse", "-q", "HEAD"], capture_output=True, text=True)
    if found.stdout.strip() != project.commit:
        print(f"{project.name}: fetching {project.commit[:12]}", file=sys.stderr)
        for command in (
            ["fetch", "-q", "--depth", "1", project.url, project.commit],
            ["checkout", "-q", "FETCH_HEAD"],
        ):
            if subprocess.run([*git, *command]).returncode != 0:
                sys.exit(f"peers: {project.url} at {project.commit} cannot be fetched; "
                         "--from DIR takes checkouts that are there")  # fmt: skip
    return folder


def _read(report: Path) -> Outcome:
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    failures = []
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is not None:
            counts["failed"] += 1
            message = (wrong.get("message") or "").strip().split("\n")[0]
            failures.append(f"{case.get('name')}: {message}")
        elif skipped is not None:
            counts["skipped"] += 1
            message = (skipped.get("message") or "").strip().split("\n")[0]
            reasons[message.removeprefix("Skipped: ")] += 1
        else:
            counts["passed"] += 1
    return Outcome(counts, reasons, failures)


def _run(project: Project, folder: Path, extra: list[str]) -> Outcome:
    place = folder / project.folder
    files = [str(path) for pattern in project.tests for path in sorted(place.glob(pattern))]
    if not files:
        sys.exit(f"peers: {place} has no {', '.join(project.tests)}")
    paths = [str(place), str(HERE / "stand_ins"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p",
             "no:warnings", "-p", project.plugin, f"--junitxml={report}", *project.options, *files,
             *extra],
            cwd=place,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )  # fmt: skip
        if not report.exists():
            sys.exit(f"peers: the tests of {project.name} did not run")
        return _read(report)


def _print(project: Project, outcome: Outcome) -> None:
    counts = outcome.counts
    print(f"\n{project.name} {project.commit[:12]}: {sum(counts.values())} tests, "
          f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    for reason, count in outcome.reasons.most_common():
        print(f"  {count:5d} skipped: {reason}")
    for failure in outcome.failures:
        print(f"        failed: {failure}")
    if project.known and outcome.failures:
        print(f"        known: {project.known}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python/tests/peers/run", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("projects", nargs="*", metavar="PROJECT",
                        help=f"of {', '.join(p.name for p in PROJECTS)}; all by default")
    parser.add_argument("--from", dest="given", type=Path, metavar="DIR",
                        help="checkouts, one folder for each project")
    parser.add_argument("-k", metavar="EXPRESSION", help="pytest's: only these tests")
    arguments = parser.parse_args()
    names = {project.name: project for project in PROJECTS}
    for name in arguments.projects:
        if name not in names:
            parser.error(f"no project {name!r}; there are {', '.join(names)}")
    chosen = [names[name] for name in arguments.projects] or list(PROJECTS)
    extra = ["-k", arguments.k] if arguments.k else []
    outcomes = [
        (project, _run(project, _checkout(project, arguments.given), extra)) for project in chosen
    ]
    for project, outcome in outcomes:
        _print(project, outcome)
    return int(any(outcome.failures for project, outcome in outcomes if not project.known))


if __name__ == "__main__":
    sys.exit(main())
