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
CARD = "NVIDIA H200"
"""The card of these aims; on any other one they are a yardstick."""
COMPILED = "compiled_in_window"
KILLED = "resumed after kill -9 in both phases"
EIGHT, FP8 = "the eight in a loop", "fp8"
"""The loop of `products` that decides on fp8, and its kinds."""
FP8_TFLOP_PER_S = 1200
"""Rate of the eight products in fp8, at the limit of power, with which fp8 reaches its aims."""
SIXTEEN_BITS, SPREADS = ("torch in bfloat16", "torch in bfloat16, sequences reversed"), 1.5
"""Runs of `agreement`, and the multiple of the larger of their distances from float32 that the kernels may have."""
SPEEDRUN_MINUTES = 3.5


def held_against_bars(parts: Mapping[str, Rows]) -> dict[str, dict[str, Any]]:
    """Return, by what is aimed at, the bar, what was found, and whether it is reached."""
    found: dict[str, dict[str, Any]] = {}
    all_bars = (_compilations, _products, _parity, _copy_shares, _attention, _throughput, _agreement, _resume)
    for bars in (*all_bars, _speedrun, _pretraining):
        for name, bar, value, is_reached in bars(parts):
            found[name] = {"bar": bar, "found": value, "reached": is_reached}
    return found


Bar = tuple[str, Any, Any, bool]


def _compilations(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    found = [f"{part}: {name}" for part, rows in parts.items() for name, row in rows.items() if row.get(COMPILED)]
    if any(parts.values()):
        yield "rows that Triton compiled a kernel for while they were timed", 0, found or 0, not found


def _products(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    """Take the best rate of the eight products in fp8: it says what other scales or sums would bring."""
    rows = parts.get("products", {}).items()
    rates = [row.get("tflop_per_s", 0) for name, row in rows if f"{EIGHT}, {FP8}" in name]
    if rates:
        rate = max(rates)
        yield f"products, {EIGHT}, {FP8}: TFLOP/s", f"{CARD}: {FP8_TFLOP_PER_S}", rate, rate >= FP8_TFLOP_PER_S


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
    """Forward and backward together, against SDPA's best backend with equal dropout and its layout copies."""
    both: dict[str, dict[str, float]] = {}
    for name, row in {**parts.get("ops", {}), **parts.get("peers", {})}.items():
        for way in ("forward", "backward"):
            shape, _, who = name.partition(f" {way} ")
            if shape.startswith("attention") and who and "ms" in row:
                both.setdefault(f"{shape} {who}", {})[way] = row["ms"]
    totals = {name: sum(ways.values()) for name, ways in both.items() if len(ways) == 2}
    for name, ours in totals.items():
        shape, _, who = name.rpartition(" megabert")
        peers = [ms for other, ms in totals.items() if other.startswith(f"{shape} sdpa") and "," not in other]
        if not who and shape and peers:
            yield f"{shape}: ms, both ways, at most SDPA's", round(min(peers), 4), round(ours, 4), ours <= min(peers)


def _throughput(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    """Hold tokens/s and MFU against bars, of the trainer only MFU: its sequences are shorter, and its pieces fewer."""
    trainer, in_16_bits = parts.get("trainer", {}), parts.get("training", {})
    rows = {**in_16_bits, **parts.get(FP8, {}), **parts.get("peers", {}), **trainer}
    for length, (aim, floor) in TOKENS_PER_S.items():
        theirs = [row.get("tokens_per_s", 0) for name, row in rows.items() if name.startswith(f"length {length} trans")]
        for name, row in rows.items():
            if not name.startswith(f"length {length} megabert") or "tokens_per_s" not in row:
                continue
            found = row["tokens_per_s"]
            mfu = row.get("mfu_pct") or 0.0
            yield f"{name}: MFU", f"{CARD}: {MFU_PCT}", mfu, mfu >= MFU_PCT
            if name not in trainer:
                yield f"{name}: tokens/s", f"{CARD}: {aim} (floor {floor})", found, found >= aim
            in_bf16 = in_16_bits.get(name.replace(f"{FP8} ", ""), {}).get("tokens_per_s")
            if FP8 in name and in_bf16:
                yield f"{name}: tokens/s, in bfloat16", in_bf16, found, found > in_bf16
            if theirs and name not in trainer:
                yield f"{name}: tokens/s, transformers", max(theirs), found, found > max(theirs)


def _agreement(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    rows = parts.get("agreement", {})
    for length in TOKENS_PER_S:
        kinds = {kind: f"length {length} {kind} against reference" for kind in ("fused", *SIXTEEN_BITS)}
        found = [rows[name]["largest_difference"] for name in kinds.values() if name in rows]
        if len(found) == len(kinds):
            ours, bar = found[0], SPREADS * max(found[1:])
            yield f"length {length}: largest difference from the float32 losses", bar, ours, ours <= bar


def _resume(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    waits = parts.get("resume", {}).get("synchronizations per step", {})
    if "passes" in waits:
        yield "waits of the host for the GPU in a step", 1, waits["per_step"], waits["passes"]
    row = parts.get("resume", {}).get(KILLED, {})
    if "passes" in row:
        yield KILLED, "bit-identical", row.get("first_difference") or "equal", row["passes"]


def _speedrun(parts: Mapping[str, Rows]) -> Iterator[Bar]:
    row = parts.get("speedrun", {}).get("speed run", {})
    if "minutes" in row:
        minutes, random, ours = row["minutes"], row["snli_accuracy_random"], row["snli_accuracy"]
        yield "speed run: minutes", f"{CARD}: {SPEEDRUN_MINUTES}", minutes, minutes <= SPEEDRUN_MINUTES
        yield "speed run: SNLI, random weights", random, ours, (ours or 0.0) > (random or 1.0)


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
