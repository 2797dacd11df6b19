"""``python -m forked.rank_program NAME``: says its rank and the value of NAME, ends with its rank as exit code.

Where SLEEP is set, it says its process and does not end.
"""

import os
import sys
import time

if __name__ == "__main__":
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    is_asleep = "SLEEP" in os.environ
    line = f"{os.getpid()}\n" if is_asleep else f"rank {rank} of {size}: {os.environ.get(sys.argv[1])}\n"
    os.write(1, line.encode())
    if is_asleep:
        time.sleep(1e6)
    sys.exit(int(rank))
