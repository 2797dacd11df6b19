import resource
import subprocess
import sys

SCRIPT = """
import resource, sys, torch
from megabert.ops.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(48 << 18) for _ in range(2)]  # 48 MiB each, above glibc's own limit
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    result = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True)
    return int(result.stdout)


def test_freed_memory_is_used_again_without_page_faults():
    pages = 48 * 2**20 // resource.getpagesize()
    assert page_faults("leave") > 10 * pages / 512  # as many even with huge pages
    assert page_faults("keep") < pages / 512
