"""The names of all draws that make an instance.

Each decision hashes the key of its instance (or document, or bucket) together with its name, so no two decisions share
their randomness. Published shards depend on the numbers, and compiled loops freeze them.
"""

SHORT = 0  # whether the target length is a short one
TARGET = 1  # the short target length
SPLIT_POINT = 2  # after which sentence A ends
IS_RANDOM = 3  # google: whether B is a random one
MASKS = 4  # which tokens are masked, and how
ORDER = 5  # where in the shard the instance goes
LABELS = 6  # balanced: the order among pairs of one length, and the coin of a label
CANDIDATE = 7  # who takes from whom in a stretch (balanced), or the random document, with the attempt's number (google)
START = 8  # google: the sentence of that document where B starts
TRUNCATE = 9  # which end of a side is cut, with the side's number
DIRECTION = 10  # sentence order: whether the document is walked from its end
PARTNER = 11  # the buckets that exchange Bs in a pass (balanced), or the window of random documents (google)
SIDE = 12  # balanced: the order of texts, which tells who may take from whom
