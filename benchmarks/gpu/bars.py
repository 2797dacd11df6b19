"""What the figures have to reach: each bar and what was measured, as far as the rows are there."""

from collections.abc import Iterator, Mapping
from typing import Any

Rows = Mapping[str, Mapping[str, Any]]

COPY_SHARE = {"layer_norm": 0.85, "bias_gelu": 0.85, "lamb": 0.80}
"""Share of the measured copy bandwidth."""
TOKENS_PER_S = {128: (285_000, 266_000), 512: (269_000, 251_000)}
"""BERT-Large in bfloat16 on one H200, by length: the aim, ahead of every published Hopper result, and the floor, ahead
of those in 16 bits."""
MFU_PCT = 54.0
COMPILED = "compiled_in_window"
LOOP = "the twelve in a loop"
"""The row of `products` whose rate a step can keep."""
SUFFICES, FP8_NEEDED = 735, 680
"""TFLOP/s of the matrix products, on average, that reach 269,000 tokens/s at 512 in bfloat16, and that do not."""


def held_against_bars(parts: Mapping[str, Rows]) -> dict[str, dict[str, Any]]:
    """Return, by what is aimed at, the bar, what was found, and whether it is reached."""
    found: dict[str, dict[str, Any]] = {}
    all_bars = (_smoke, _compilations, _products, _parity, _copy_shares, _attention, _throughput)
    for bars in (*all_bars, _agreement, _resume, _pretraining):
        for name, bar, value, is_reached in bars(parts):
            found[name] = {"bar": bar, "found": value, "reached": is_reached}
    return found


Bar = tuple[str, Any, Any, bool]


def _compilations(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    found = [f"{part}: {name}" for part, rows in parts.items() for name, row in rows.items() if row.get(COMPILED)]
    if any(parts.values()):
        yield "rows that Triton compiled a kernel for while they were timed", 0, found or 0, not found


def _products(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    """Take the best 16-bit rate of the twelve products in a loop: it says which way the next version goes."""
    rates: dict[str, list[float]] = {}
    for name, row in parts.get("products", {}).items():
        shape = name.rpartition(", ")[0]
        if shape.endswith(LOOP):
            rates.setdefault(shape, []).append(row.get("tflop_per_s", 0))
    for shape, found in rates.items():
        bar = f"{SUFFICES} suffices; below {FP8_NEEDED} only fp8"
        yield f"matrix products, {shape}: TFLOP/s in bfloat16", bar, max(found), max(found) >= SUFFICES


def _smoke(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    rows = parts.get("smoke", {})
    if rows:
        failed = [name for name, row in rows.items() if "error" in row or row.get("passes") is False]
        yield "smoke: rows that failed", 0, failed or 0, not failed


def _parity(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    for dtype in ("bfloat16", "float16", "float32"):
        rows = [row for name, row in parts.get("parity", {}).items() if name.endswith(f" {dtype}")]
        if rows:
            passed = sum(row.get("passes") is True for row in rows)
            yield f"parity {dtype}", f"all of {len(rows)}", passed, passed == len(rows)


def _copy_shares(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    for name, row in parts.get("ops", {}).items():
        bar = COPY_SHARE.get(name.split()[0])
        if bar is not None and name.endswith("megabert") and row.get("share_of_copy") is not None:
            yield f"{name}: share of copy", bar, row["share_of_copy"], row["share_of_copy"] >= bar


def _attention(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    """Forward and backward together, against the best backend of SDPA with its layout copies."""
    both: dict[str, dict[str, float]] = {}
    for name, row in parts.get("ops", {}).items():
        for way in ("forward", "backward"):
            shape, _, who = name.partition(f" {way} ")
            if shape.startswith("attention") and who and "ms" in row:
                both.setdefault(f"{shape} {who}", {})[way] = row["ms"]
    totals = {name: sum(ways.values()) for name, ways in both.items() if len(ways) == 2}
    for name, ours in totals.items():
        shape, _, who = name.rpartition(" megabert")
        peers = [ms for other, ms in totals.items() if other.startswith(f"{shape} sdpa")]
        if not who and shape and peers:
            yield f"{shape}: ms, both ways, at most SDPA's", round(min(peers), 4), round(ours, 4), ours <= min(peers)


def _throughput(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    """Hold tokens/s and MFU against bars, of the trainer only MFU: its sequences are shorter, and its pieces fewer."""
    trainer = parts.get("trainer", {})
    rows = {**parts.get("training", {}), **parts.get("peers", {}), **trainer}
    for length, (aim, floor) in TOKENS_PER_S.items():
        theirs = [row.get("tokens_per_s", 0) for name, row in rows.items() if name.startswith(f"length {length} trans")]
        for name, row in rows.items():
            if not name.startswith(f"length {length} megabert") or "tokens_per_s" not in row:
                continue
            found = row["tokens_per_s"]
            yield f"{name}: MFU", MFU_PCT, row.get("mfu_pct"), (row.get("mfu_pct") or 0.0) >= MFU_PCT
            if name not in trainer:
                yield f"{name}: tokens/s", f"{aim} (floor {floor})", found, found >= aim
            if theirs and name not in trainer:
                yield f"{name}: tokens/s, transformers", max(theirs), found, found > max(theirs)


def _agreement(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    rows = parts.get("agreement", {})
    for length in TOKENS_PER_S:
        against = "against reference"
        value, bar = (
            rows.get(f"length {length} {kind} {against}", {}).get("largest_difference")
            for kind in ("fused", "torch in bfloat16")
        )
        if value is not None and bar is not None:
            yield f"length {length}: largest difference from the float32 losses, torch's", bar, value, value <= bar


def _resume(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    waits = parts.get("resume", {}).get("synchronizations per step", {})
    if "passes" in waits:
        yield "waits of the host for the GPU in a step", 1, waits["per_step"], waits["passes"]
    row = parts.get("resume", {}).get("after kill -9", {})
    if "passes" in row:
        yield "resume after kill -9", "bit-identical", row.get("first_difference") or "equal", row["passes"]


def _pretraining(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    rows = parts.get("pretraining", {})
    ours, theirs = (rows.get(f"{who}: held out", {}) for who in ("megabert", "transformers"))
    for length in (128, 512):
        key = f"mlm_loss_{length}"
        if key in ours and key in theirs:
            yield f"held-out loss at {length}, transformers'", theirs[key], ours[key], ours[key] <= theirs[key]
    seconds = [rows.get(f"{who}: trained", {}).get("seconds") for who in ("megabert", "transformers")]
    if None not in seconds:
        yield "seconds of the pre-training, transformers'", seconds[1], seconds[0], seconds[0] < seconds[1]
    scores = [rows.get(f"SNLI from {start}", {}).get("accuracy_pct") for start in ("megabert", "random weights")]
    if None not in scores:
        yield "SNLI, random weights", scores[1], scores[0], scores[0] > scores[1]
