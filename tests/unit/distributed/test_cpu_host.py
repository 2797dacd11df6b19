import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, torch
from megabert.distributed.cpu_host import keep_freed_memory

class MallocInfo(ctypes.Structure):  # malloc.h: struct mallinfo
    _fields_ = [(name, ctypes.c_int) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

mallinfo = ctypes.CDLL(None).mallinfo
mallinfo.restype = MallocInfo
def mapped_and_shrunk():
    before = mallinfo()
    block = torch.ones(34 << 18)  # 34 MiB, above the 32 MiB to which glibc itself would adapt
    during = mallinfo()
    del block
    return during.hblks - before.hblks, during.arena - mallinfo().arena

assert mapped_and_shrunk()[0] == 1  # otherwise the next lines show nothing
assert keep_freed_memory()
assert mapped_and_shrunk() == (0, 0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_a_large_block_comes_from_the_heap_which_does_not_shrink():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
