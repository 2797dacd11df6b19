"""What tests of whole builds share: what to compare, how to stop, and a look into a shard."""

import pyarrow as pa

from data_prep.execution.executors import Executor
from megabert.foundation.files import sha256_file


def hashes(folder):
    """SHA-256 of every file that a reader of the build sees."""
    paths = [path for part in ("instances", "documents", "tokenizer") for path in (folder / part).rglob("*")]
    return {str(path.relative_to(folder)): sha256_file(path) for path in sorted(paths) if path.is_file()}


def hashes_of_data(folder):
    """Return `hashes` without those of manifests, which name the input."""
    return {path: digest for path, digest in hashes(folder).items() if not path.endswith("manifest.json")}


class Stopping(Executor):
    """Ends with an error after some tasks, as a kill between two units would."""

    def __init__(self, tasks):
        self.left = tasks

    def run(self, function, tasks):
        for index, task in enumerate(tasks):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield index, function(task)


def read_shard(path):
    """Return a shard's rows, whether they are stored compressed, and the rows of its first record batch."""
    with pa.memory_map(str(path)) as source:
        content = source.read_buffer()
        reader = pa.ipc.open_file(content)
        batch, table = reader.get_batch(0), reader.read_all()
        is_view = 0 <= batch["input_ids"].values.buffers()[1].address - content.address < content.size
        return table.to_pylist(), not is_view, len(batch)
