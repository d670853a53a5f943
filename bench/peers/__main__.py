"""Entry of the comparison (compare.py), of the worker processes that it starts (worker.py), and of
the comparisons of routing by expert ids (by_ids.py) and of the router (router.py)."""

import sys
from pathlib import Path

# The folder above, so that the modules here are `peers.cases` and the like, wherever it is run.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        from peers.worker import main
    elif sys.argv[1:2] == ["by-ids"]:
        from peers.by_ids import main
    elif sys.argv[1:2] == ["router"]:
        from peers.router import main
    else:
        from peers.compare import main
    sys.exit(main())
