#!/usr/bin/env python3
"""Cycles for 16 elements of every vector kernel's loop, by llvm-mca's models of three CPUs.

A guard of speed for CPUs that are not at hand: compiles the kernel files, takes the loop of each
kernel over its blocks (rows already in the first-level cache) and has llvm-mca say how many cycles
a round takes. Fails when one takes over 5 % more than recorded. LLVM 14 knows Neoverse N1 as a
Cortex-A57.

usage: model_cycles.py [--update | --table] SOURCE_DIR DLPACK_INCLUDE_DIR EXPECTED
  EXPECTED  file of lines "kernel cpu cycles"; --update writes it anew
  --table   prints the table of docs/performance.md
Exit status 77 (skipped): a compiler or llvm-mca is missing, or is not the one of EXPECTED.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PERCENT = 5
FLAGS = "-std=c11 -O2 -DNDEBUG -fPIC -ffp-contract=off -D_POSIX_C_SOURCE=200809L".split()
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = AVX2 + [f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")]

# The flags are those of src/CMakeLists.txt. File, compiler, flags, llvm-mca's architecture, CPUs
TARGETS = [
    ("avx2", "gcc", AVX2, "x86-64", ["znver3", "icelake-server"]),
    ("avx512", "gcc", AVX512 + ["-mprefer-vector-width=512"], "x86-64", ["icelake-server"]),
    ("neon", "aarch64-linux-gnu-gcc", ["-fno-schedule-insns"], "aarch64", ["neoverse-n1"]),
]

TOOLS = ["gcc", "aarch64-linux-gnu-gcc", "llvm-mca", "objdump", "aarch64-linux-gnu-objdump"]

KERNEL = re.compile(r"^(?:scale|dot|scale_dot|sum)_rows_(?:f32|f16|bf16|f64)_(?:avx2|avx512|neon)$")
MULTIPLY = re.compile(r"^(?:vmulp|vfmadd|fmul|fmla)")
JUMP = re.compile(r"^(?:j[a-z]+|b(?:\.[a-z]+)?|cbn?z|tbn?z)\b")


def tool_versions():
    """What the record depends on, or None where a tool is missing."""
    words = []
    if not all(shutil.which(tool) for tool in TOOLS):
        return None
    for tool in ("gcc", "aarch64-linux-gnu-gcc"):
        version = subprocess.run([tool, "-dumpversion"], capture_output=True, text=True, check=True)
        words.append(f"{tool} {version.stdout.strip().split('.')[0]}")
    version = subprocess.run(["llvm-mca", "--version"], capture_output=True, text=True, check=True)
    words.append("llvm-mca " + re.search(r"version (\d+)", version.stdout).group(1))
    return ", ".join(words)


def functions(objdump, path):
    """name -> [(address, instruction)]"""
    command = [objdump, "-d", "--no-show-raw-insn", str(path)]
    found, body = {}, None
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        head = re.match(r"^[0-9a-f]+ <([^>]+)>:$", line)
        code = re.match(r"^\s*([0-9a-f]+):\s+(.*)$", line)
        if head:
            body = found.setdefault(head.group(1), [])
        elif code and body is not None:
            text = re.split(r"\s*(?:#|//)\s", code.group(2))[0].strip()
            body.append((int(code.group(1), 16), text))
    return found


def block_loop(body):
    """The loop over blocks: of the runs that end in a jump to their beginning and hold no other
    such run, the one that multiplies most. Code that is moved out of the way makes runs too."""
    index = {address: i for i, (address, _) in enumerate(body)}
    loops = set()
    for i, (_, text) in enumerate(body):
        target = re.search(r"\b([0-9a-f]+) <", text) if JUMP.match(text) else None
        if target and index.get(int(target.group(1), 16), i + 1) <= i:
            loops.add((index[int(target.group(1), 16)], i))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    runs = [[text for _, text in body[first : last + 1]] for first, last in sorted(inner)]
    best = max(runs, key=lambda run: sum(bool(MULTIPLY.match(text)) for text in run), default=[])
    return best if any(MULTIPLY.match(text) for text in best) else []


def assembly(loop):
    """llvm-mca takes no addresses: jumps go to a label, the rest is as it is."""
    lines = ["loop:"]
    for text in loop:
        if JUMP.match(text):
            text = re.sub(r"\b[0-9a-f]+ <[^>]*>", "loop", text)
        text = re.sub(r"\s<[^>]*>", "", text)
        lines.append(re.sub(r"^(?:cs |data16 )+", "", text))
    return "\n".join(line for line in lines if not line.startswith("nop")) + "\n"


def elements_of(name):
    """A sum adds two blocks of 32 at a time, but with float64."""
    return 64 if name.startswith("sum") and "_f64_" not in name else 32


def cycles(arch, cpu, name, loop):
    command = ["llvm-mca", f"-march={arch}", f"-mcpu={cpu}", "-iterations=100"]
    result = subprocess.run(
        command, input=assembly(loop), capture_output=True, text=True, check=True
    ).stdout
    total = int(re.search(r"Total Cycles:\s+(\d+)", result).group(1))
    return total / 100 * 16 / elements_of(name)


def measure(source, dlpack):
    counts = {}
    with tempfile.TemporaryDirectory() as work:
        for isa, compiler, flags, arch, cpus in TARGETS:
            path = Path(work) / f"{isa}.o"
            include = [f"-I{source}/include", f"-I{source}/src", "-idirafter", dlpack]
            command = [compiler, *FLAGS, *flags, *include, "-c", "-o", str(path)]
            subprocess.run([*command, f"{source}/src/rows/rows_{isa}.c"], check=True)
            objdump = compiler.replace("gcc", "objdump")
            for name, body in functions(objdump, path).items():
                loop = block_loop(body) if KERNEL.match(name) else []
                for cpu in cpus if loop else []:
                    counts[name, cpu] = cycles(arch, cpu, name, loop)
    return counts


def print_table(counts):
    columns = sorted({(name.rsplit("_", 1)[1], cpu) for name, cpu in counts})
    print("| kernel | " + " | ".join(f"{isa}, {cpu}" for isa, cpu in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for kernel in sorted({name.rsplit("_", 1)[0] for name, _ in counts}):
        row = [f"{counts[f'{kernel}_{isa}', cpu]:.1f}" for isa, cpu in columns]
        print(f"| `{kernel}` | " + " | ".join(row) + " |")


def compare(counts, expected):
    recorded = {}
    for line in expected.read_text().splitlines()[1:]:
        name, cpu, wanted = line.split()
        recorded[name, cpu] = float(wanted)
    failed = set(counts) != set(recorded)
    for key, count in sorted(counts.items()):
        change = 100 * (count / recorded.get(key, count) - 1)
        verdict = ""
        if abs(change) > PERCENT:
            verdict = f"more than {PERCENT} % above" if change > 0 else "better: --update"
            failed = True
        print(f"{key[0]:26} {key[1]:15} {count:6.2f}  {change:+.1f} %  {verdict}")
    return 1 if failed else 0


def main(arguments):
    option = arguments.pop(0) if arguments[0].startswith("--") else ""
    source, dlpack, expected = arguments[0], arguments[1], Path(arguments[2])
    versions = tool_versions()
    if versions is None:
        print("gcc, aarch64-linux-gnu-gcc, llvm-mca or an objdump is not installed")
        return 77
    if not option and (not expected.is_file() or expected.read_text().splitlines()[0] != versions):
        print(f"nothing is recorded for {versions}")
        return 77
    counts = measure(source, dlpack)
    if option == "--update":
        lines = [f"{name} {cpu} {count:.2f}" for (name, cpu), count in sorted(counts.items())]
        expected.write_text("\n".join([versions, *lines]) + "\n")
        return 0
    if option == "--table":
        print_table(counts)
        return 0
    return compare(counts, expected)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
