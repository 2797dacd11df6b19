import subprocess
import sys

SCRIPT = """
import resource, sys, torch
from megabert.ops.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for step in range(16):
    if step == 4:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = torch.ones(34 << 18)  # 34 MiB, above the 32 MiB to which glibc itself would adapt
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    result = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True)
    return int(result.stdout)


def test_freed_memory_is_used_again_without_page_faults():
    assert page_faults("keep") < page_faults("leave") / 2  # the heap may still grow once or twice
