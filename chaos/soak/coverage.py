"""What a run did not cover, said from what it was: a green run is no word on what it did not try."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.asking import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Iterable


def not_covered(run: dict[str, Any]) -> list[str]:
    """Of the data of a run, a sentence for each."""
    engine: list[dict[str, Any]] = run.get("engine", [])
    models = ", ".join(sorted({one["model"] for one in engine})) or "those of its configuration"
    words = [len(prompt.split()) for prompt in PROMPTS]
    found = [
        f"Models: only {models}. Other architectures, sizes and quantizations were not loaded.",
        f"Prompts: {min(words)} to {max(words)} words, and answers of {run.get('tokens', 0)} tokens. Long prompts, full contexts and"
        " long answers were not asked.",
        f"Sequences: {_sequences(engine)}. More callers than {run.get('streams', 0)} streams of members and one caller of the"
        " gateway were not there.",
        f"Hardware: this machine ({run.get('machine', 'unknown')}). Other processors, kernels and drivers, and GPUs it does not have,"
        " were not tried; a machine that sleeps, and days of idling, neither.",
    ]
    if unused := run.get("unused_faults"):
        found.append(f"Faults that were not done: {', '.join(unused)}.")
    for why in sorted({one["skipped"] for one in run["rounds"] if one.get("skipped")}):
        found.append(f"Faults that were due and could not be done: {why}.")
    judged = set(run.get("judged", []))
    if "answers have receipts" not in judged:
        found.append(
            "Receipts: this engine's servers do not write down which requests they served, so that none was executed twice is"
            " known from its callers alone."
        )
    if "ledger reconciles" not in judged:
        found.append("Counts: the gateway's were held against its callers' in no round.")
    for why, kinds in _by_reason(run.get("uncontrolled", {}).items()).items():
        found.append(f"Texts of {', '.join(kinds)} were not compared: {why}.")
    if not any(one["invariant"].endswith("is flat") for one in run["end"]):
        found.append("Growth: the run was too short for a slope of memory, descriptors and threads.")
    return found


def _sequences(engine: Iterable[dict[str, Any]]) -> str:
    return ", ".join(f"{one['role']} with {one['sequences'] or 'as many as fit'}" for one in engine) or "as configured"


def _by_reason(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, why in pairs:
        found.setdefault(why, []).append(kind)
    return found
