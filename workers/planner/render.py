"""A plan for people, and the same as data for `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.planner.checked import told
from workers.planner.decide import Plan, Refusal
from workers.planner.shapes import GIB, HOST, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.planner.crosscheck import Check
    from workers.planner.ledger import Account
    from workers.planner.model import Model


def size(number: int) -> str:
    """Bytes as people say them."""
    return f"{number / GIB:.2f} GiB" if abs(number) >= GIB else f"{number / MIB:.1f} MiB"


def text(title: str, model: Model, found: Plan | Refusal, check: Check) -> Iterator[str]:
    """The lines of a plan: what, where, how much, how known; what it comes to; what was asked and what is done."""
    yield f"{title}: {model.name} ({model.architecture or 'unknown architecture'}, {size(model.weights.total)} of weights)"
    if isinstance(found, Refusal):
        yield f"  does not fit: {found.why}" if found.placed else f"  refused: {found.why}"
    if found.choice is not None:
        asked, done = found.request, found.choice
        if isinstance(found, Plan):
            how = (
                f", the experts of {done.cpu_moe} of {len(model.layers)} layers in system memory"
                if done.cpu_moe
                else ""
            )
            yield f"  runs: {done.window:,} tokens for each of {done.sequences} sequences{how}"
        asked_window = "auto" if asked.context is None else f"{asked.context:,}"
        asked_sequences = "auto" if asked.sequences is None else str(asked.sequences)
        yield f"  {'':18}{'asked':>12}  {'planned':>12}"
        yield f"  {'context':18}{asked_window:>12}  {done.window:>12,}"
        yield f"  {'sequences':18}{asked_sequences:>12}  {done.sequences:>12}"
        kinds = f"{asked.settings.type_k}/{asked.settings.type_v}", f"{done.settings.type_k}/{done.settings.type_v}"
        yield f"  {'K/V':18}{kinds[0]:>12}  {kinds[1]:>12}"
        moe = "auto" if asked.settings.cpu_moe is None else str(min(asked.settings.cpu_moe, len(model.layers)))
        if model.has_routed_experts:
            yield f"  {'n_cpu_moe':18}{moe:>12}  {done.cpu_moe:>12}"
    if found.placed is not None:
        yield from _table(found.placed.account)
        if len(found.placed.split) > 1:
            yield f"  layers by card: {', '.join(map(str, found.placed.split))}"
    if found.binds:
        yield f"  what binds: {found.binds}"
    yield from _estimate(check)
    if isinstance(found, Plan):
        for note in found.notes:
            yield f"  note: {note}"
    elif found.offers:
        yield "  what would fit:"
        for offer in found.offers:
            more = f", n_cpu_moe {offer.cpu_moe}" if offer.cpu_moe and "moe" not in offer.what else ""
            yield f"    {offer.what} ({offer.context:,} tokens for {offer.sequences}{more})"


def _estimate(check: Check) -> Iterator[str]:
    if check.why_none:
        yield f"  llama.cpp's own estimate: none ({check.why_none})"
    elif check.differing:
        yield from (f"  llama.cpp's own estimate: {line}" for line in told(check))
    elif check.compared:
        yield f"  llama.cpp's own estimate ({check.by}): the same"


def _table(account: Account) -> Iterator[str]:
    for budget in account.budgets:
        yield f"  {budget.name}" + (f" [{budget.place}]" if budget.place != HOST else "")
        for line in account.lines:
            if line.place == budget.place:
                why = f"  {line.why}" if line.why else ""
                yield f"    {line.what:36} {size(line.bytes):>11}  {line.how:9}{why}"
        source = f" ({budget.source})" if budget.source else ""
        yield f"    {'needed':36} {size(account.needed(budget.place)):>11}"
        yield f"    {'can be had':36} {size(budget.usable):>11}  {size(budget.free)} free{source}, less {size(budget.reserve)}"
        yield f"    {'left':36} {size(account.left(budget)):>11}"


def estimate_data(check: Check) -> dict[str, Any]:
    """What came of asking for llama.cpp's own estimate, for programs."""
    return {
        "by": check.by or None,
        "why_none": check.why_none or None,
        "differs": bool(check.differing),
        "compared": [
            {"place": one.place or None, "what": one.what, "modelled": one.modelled, "estimated": one.estimated,
             "differs": one.differs}
            for one in check.compared
        ],
    }  # fmt: skip


def data(title: str, model: Model, found: Plan | Refusal, check: Check) -> dict[str, Any]:
    """The same for programs. Bytes and tokens are whole numbers."""
    result: dict[str, Any] = {
        "role": title,
        "fits": isinstance(found, Plan),
        "model": {
            "name": model.name,
            "architecture": model.architecture,
            "files": [str(path) for path in model.files],
            "weights_bytes": model.weights.total,
            "experts_bytes": model.weights.experts,
            "layers": len(model.layers),
            "trained_context": model.trained_context,
            "conservative": list(model.conservative),
        },
        "requested": _asked(found),
        "binds": found.binds,
        "estimate": estimate_data(check),
    }
    if found.choice is not None and found.placed is not None:
        done = found.choice
        result["effective"] = {
            "context": done.window,
            "sequences": done.sequences,
            "ctx_size": done.shape.ctx_size,
            "type_k": done.settings.type_k.value,
            "type_v": done.settings.type_v.value,
            "flash_attention": done.settings.flash.value,
            "unified": done.settings.unified,
            "n_cpu_moe": done.cpu_moe,
            "cache_ram_mib": done.settings.cache_ram_mib,
            "split": list(found.placed.split),
        }
        result["ledger"] = [
            {"what": line.what, "bytes": line.bytes, "place": line.place, "how": line.how.value, "why": line.why,
             "transient": line.transient}
            for line in found.placed.account.lines
        ]  # fmt: skip
        account = found.placed.account
        result["places"] = [
            {"place": budget.place, "name": budget.name, "total": budget.total, "free": budget.free,
             "reserve": budget.reserve, "source": budget.source, "needed": account.needed(budget.place),
             "left": account.left(budget)}
            for budget in account.budgets
        ]  # fmt: skip
    if isinstance(found, Plan):
        result["notes"] = list(found.notes)
    else:
        result["why"] = found.why
        result["would_fit"] = [
            {"what": offer.what, "context": offer.context, "sequences": offer.sequences, "n_cpu_moe": offer.cpu_moe,
             "type_k": offer.type_k.value, "n_gpu_layers": offer.gpu_layers}
            for offer in found.offers
        ]  # fmt: skip
    return result


def _asked(found: Plan | Refusal) -> dict[str, Any]:
    asked = found.request
    return {
        "context": asked.context,
        "sequences": asked.sequences,
        "type_k": asked.settings.type_k.value,
        "type_v": asked.settings.type_v.value,
        "flash_attention": asked.settings.flash.value,
        "n_cpu_moe": asked.settings.cpu_moe,
        "offload": asked.offload,
    }
