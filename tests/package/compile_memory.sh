#!/bin/sh
# compile_memory.sh COMPILE_COMMANDS - the files with the most code in them compile in 1 GB, with and
# without optimisation: what the compiler's memory grows to.
set -eu
commands=$1
python3 - "$commands" <<'PYTHON'
import json, os, shlex, subprocess, sys

LIMIT_MB = 1024
HEAVY = ("rows/rows_", "router/scores/scores_")
count, most = 0, 0
for entry in json.load(open(sys.argv[1])):
    if not any(f"/src/{name}" in entry["file"] for name in HEAVY):
        continue
    words = shlex.split(entry["command"])
    words = [w for w in words if not w.startswith(("-O", "-W")) and "ccache" not in w]
    words[words.index("-o") + 1] = "/dev/null"
    for level in ("-O0", "-O2"):
        child = subprocess.Popen([*words, level, "-w"], cwd=entry["directory"])
        _, status, usage = os.wait4(child.pid, 0)
        grown = usage.ru_maxrss // 1024
        most = max(most, grown)
        if status != 0 or grown > LIMIT_MB:
            sys.exit(f"{entry['file']} {level}: status {status}, {grown} MB, expected {LIMIT_MB}")
        count += 1
if count < 8:
    sys.exit(f"only {count} files were compiled")
print(f"{count} compilations, {most} MB at most")
PYTHON
