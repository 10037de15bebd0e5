"""What a soak leaves: JSON lines while it runs, and one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from chaos.soak import plots
from chaos.soak.coverage import not_covered

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_FAULT: Final = "no fault"
WHAT: Final = (("Memory that they wrote", 0, 2**20, "MiB"), ("Descriptors", 1, 1, ""), ("Threads", 2, 1, ""))
"""Of `usage`: its title, its place, its unit."""

STYLE: Final = """
:root{--ink:#222;--soft:#667;--line:#dde;--back:#fff;--paper:#f8f8fa}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--soft:#99a;--line:#334;--back:#17171a;--paper:#1f1f24}}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:var(--ink);background:var(--back)}
h2{margin:2.2rem 0 .3rem;font-size:1.15rem} p{margin:.4rem 0} code{font-size:.9em;overflow-wrap:anywhere}
table{border-collapse:collapse;margin:.4rem 0} td,th{padding:.15rem 1rem .15rem 0;text-align:left;vertical-align:top}
th{font-weight:600;border-bottom:1px solid var(--line)} td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
svg{background:var(--paper);width:100%;height:auto;display:block;margin:.3rem 0} svg text{font-size:11px;fill:var(--soft)}
.e{text-anchor:end}.m{text-anchor:middle}.g{stroke:var(--line);fill:none}.k{stroke:var(--ink);stroke-width:2}
polyline{fill:none;stroke-width:1.4} .legend span{margin-right:1.2rem;color:var(--soft)}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}
.holds{color:#3b8a3e}.broken{color:#c62828}.unknown{color:#b26a00} .soft{color:var(--soft)} .two{display:grid;gap:0 1rem}
@media(min-width:50rem){.two{grid-template-columns:1fr 1fr}} .two p{color:var(--soft)}
details{margin:.4rem 0} summary{cursor:pointer}
"""


def page(run: dict[str, Any]) -> str:
    """The report of a run, as `telling.as_data` tells it."""
    rounds: list[dict[str, Any]] = run["rounds"]
    faults = colours(rounds)
    parts = [
        f"<h1>Soak: <span class={run['verdict']}>{run['verdict']}</span></h1>",
        f"<p>{html.escape(in_a_sentence(run))}</p>",
        f"<p class=soft><code>{html.escape(run.get('command', ''))}</code></p>",
        _table(_summary(run)),
        _broken(run),
        "<h2>Rounds</h2>",
        plots.timeline([(one["number"], one["verdict"], one["fault"]) for one in rounds], faults),
        plots.legend(faults),
        "<h2>Recovery, by fault</h2>",
        "<p class=soft>Seconds from the fault until the engine was whole and had answered requests of each role, begun after it,"
        " to a member and through the gateway. A <i>pause</i> is the restart policy's: who dies again within a minute is started"
        " later each time, and a soak kills that often. <i>Without</i> them: what the supervisor and the engine took.</p>",
        plots.strips(by_fault(rounds), faults) if faults else "<p>There was no fault.</p>",
        _table(
            [
                ("fault", "times", "median", "95 %", "most", "longest pause", "median without", "most without"),
                *recovery(rounds),
            ],
            numbers=7,
        )
        if faults
        else "",
        "<h2>Requests</h2>",
        _table(_requests(run), numbers=9),
        "<h2>Latency through faults</h2>",
        "<p class=soft>The slowest request of each round in seconds; rounds with a fault in its colour.</p>",
        _latencies(rounds, faults),
        _table([("", "median", "most"), *latency(rounds)], numbers=2),
        "<h2>Processes, and what they hold</h2>",
        _usages(rounds),
        "<h2>What was judged</h2>",
        _table([("invariant", "rounds"), *_judged(run)], numbers=1),
        "<h2>What this run did not cover</h2>",
        f"<ul>{''.join(f'<li>{html.escape(words)}</li>' for words in not_covered(run))}</ul>",
        "<h2>Kill log</h2>",
        "<p class=soft>Each fault, and the requests whose being broken off it explains.</p>",
        _kills(run),
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>queenright soak: {run['verdict']}</title><style>{STYLE}</style>{''.join(parts)}</html>\n"
    )


def in_a_sentence(run: dict[str, Any]) -> str:
    """What came of it."""
    rounds, count = run["rounds"], outcomes(run["rounds"])
    green = sum(one["verdict"] == "holds" for one in rounds)
    faults = sum(bool(one["fault"]) for one in rounds)
    failed = count.get("failed", 0)
    words = f"{green} of {len(rounds)} rounds green, {faults} of them with a fault. {sum(count.values()):,} requests: {failed} failed"
    cut = count.get("interrupted", 0) + count.get("unreachable", 0)
    words += (
        f", {cut} broken off or without a gateway ({sum(len(kill['explains']) for kill in run.get('kills', []))} explained by the kill log)"
        if cut
        else ""
    )
    return words + (f", {count['refused']} refused with a time to come again." if "refused" in count else ".")


def colours(rounds: Sequence[dict[str, Any]]) -> dict[str, str]:
    """A colour for each fault there was, in the order of their coming."""
    names = dict.fromkeys(one["fault"] for one in rounds if one["fault"])
    return {name: plots.hue(number) for number, name in enumerate(names)}


def outcomes(rounds: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Requests of the whole run by outcome."""
    found: dict[str, int] = {}
    for one in rounds:
        for outcome, times in one["outcomes"].items():
            found[outcome] = found.get(outcome, 0) + times
    return found


def by_fault(rounds: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Seconds of each recovery, by fault."""
    found: dict[str, list[float]] = {}
    for one in rounds:
        if one["fault"]:
            found.setdefault(one["fault"], []).append(one["recovery_s"])
    return found


def recovery(rounds: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """By fault: times, median, 95th percentile and most; the longest pause of the restart policy, and without pauses the median
    and the most."""
    found = []
    for fault, times in sorted(by_fault(rounds).items()):
        pauses = [one["paused_s"] for one in rounds if one["fault"] == fault]
        # A pause may have been cut short.
        without = [max(0.0, time - pause) for time, pause in zip(times, pauses, strict=True)]
        figures = [median(times), sorted(times)[int(0.95 * (len(times) - 1) + 0.5)], max(times)]
        figures += [max(pauses), median(without), max(without)]
        found.append((fault, len(times), *(f"{figure:.2f} s" for figure in figures)))
    return found


def latency(rounds: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """By way and kind: the median of the rounds' medians, and the most there was."""
    found: dict[str, list[Sequence[float]]] = {}
    for one in rounds:
        for name, times in one["latency_s"].items():
            found.setdefault(name, []).append(times)
    return [
        (name, f"{median(times[0] for times in all_):.2f} s", f"{max(times[1] for times in all_):.2f} s")
        for name, all_ in sorted(found.items())
    ]


def _summary(run: dict[str, Any]) -> list[tuple[Any, ...]]:
    rounds = run["rounds"]
    seconds = rounds[-1]["at_s"] if rounds else 0.0
    engine = "; ".join(
        f"{one['role']}: {one['model']}, {one['sequences'] or 'as many as fit'} sequences of {one['context'] or 'as many as fit'} tokens"
        for one in run.get("engine", [])
    )
    return [
        ("took", f"{seconds / 60:.1f} min, {seconds / max(len(rounds), 1):.2f} s a round"),
        ("engine", engine),
        ("machine", run.get("machine", "")),
        ("version", run.get("version", "")),
        ("faults", f"{run.get('faults', '')}; seed {run.get('seed', '')}"),
    ]


def _requests(run: dict[str, Any]) -> list[tuple[Any, ...]]:
    counts: dict[str, dict[str, int]] = run.get("requests", {})
    names = sorted({outcome for one in counts.values() for outcome in one}, key=lambda name: (name != "complete", name))
    rows = [(kind, *(f"{one.get(name, 0):,}" for name in names)) for kind, one in sorted(counts.items())]
    total = ("all", *(f"{sum(one.get(name, 0) for one in counts.values()):,}" for name in names))
    return [("", *names), *rows, total]


def _broken(run: dict[str, Any]) -> str:
    rows = [
        (one["number"], j["invariant"], j["verdict"], j["seen"]) for one in run["rounds"] for j in one["judgements"]
    ]
    rows += [("end", j["invariant"], j["verdict"], j["seen"]) for j in run["end"] if j["verdict"] != "holds"]
    if not rows:
        return ""
    return "<h2 class=broken>What did not hold</h2>" + _table(
        [("round", "invariant", "verdict", "seen"), *rows], head=True
    )


def _judged(run: dict[str, Any]) -> list[tuple[str, str]]:
    counts = run.get("judged", {})
    return [
        *((name, f"{times:,}") for name, times in counts.items()),
        *((one["invariant"], "end") for one in run["end"]),
    ]


def _latencies(rounds: Sequence[dict[str, Any]], faults: dict[str, str]) -> str:
    parts = []
    for role, words in (("embeddings", "embeddings"), ("", "chat and completions")):
        slowest = [
            (
                one["number"],
                max(
                    (times[1] for name, times in one["latency_s"].items() if name.endswith("embeddings") == bool(role)),
                    default=0.0,
                ),
                one["fault"],
            )
            for one in rounds
        ]
        axes = plots.Axes(len(rounds), max((y for _, y, _ in slowest), default=0.0), unit="s")
        axes.columns("")
        axes.dots([(x, y, "") for x, y, fault in slowest if not fault], "#99a", size=1.5)
        for name, colour in faults.items():
            axes.dots(
                [(x, y, f"round {x}, {fault}: {y:.2f} s") for x, y, fault in slowest if fault == name], colour, size=3
            )
        parts.append(f"<p>{words}</p>{axes.svg(words)}")
    return "".join(parts) + plots.legend({NO_FAULT: "#99a", **faults})


def _usages(rounds: Sequence[dict[str, Any]]) -> str:
    measured = [(one["at_s"] / 60, one["usage"]) for one in rounds if one["usage"]]
    if not measured:
        return "<p>Nothing could be measured.</p>"
    names = {
        name: plots.hue(number) for number, name in enumerate(sorted({name for _, one in measured for name in one}))
    }
    last = measured[-1][0]
    axes = plots.Axes(last, max(one["processes"] for one in rounds), unit="processes", height=110)
    axes.columns(" min")
    axes.line([(one["at_s"] / 60, one["processes"]) for one in rounds], plots.hue(0))
    parts = [axes.svg("processes")]
    for title, place, unit, words in WHAT:
        drawn = []
        for name, colour in names.items():
            values = [(at, one[name][place] / unit) for at, one in measured if name in one]
            small = plots.Axes(last, max(value for _, value in values), unit=words, height=120, width=440)
            small.columns(" min")
            small.line(values, colour)
            drawn.append(
                f"<div><p>{html.escape(name)}: {values[0][1]:,.1f} to {values[-1][1]:,.1f} {words}</p>{small.svg(f'{title} of {name}')}</div>"
            )
        block = f"<div class=two>{''.join(drawn)}</div>"
        parts.append(
            f"<p>{title}</p>{block}" if place == 0 else f"<details><summary>{title}</summary>{block}</details>"
        )
    return "".join(parts)


def _kills(run: dict[str, Any]) -> str:
    rows: list[tuple[Any, ...]] = [("at", "round", "fault", "pids", "touched", "healed", "explains")]
    for kill in run.get("kills", []):
        healed = "never" if kill["healed_s"] is None else f"{kill['healed_s']:.2f} s"
        pids = ", ".join(str(pid) for pid in kill["pids"])
        rows.append(
            (
                f"{kill['at_s']:.1f} s",
                kill["round"],
                kill["fault"],
                pids,
                ", ".join(kill["touched"]),
                healed,
                ", ".join(kill["explains"]),
            )
        )
    return f"<details><summary>{len(rows) - 1} faults</summary>{_table(rows, head=True)}</details>"


def _table(rows: Sequence[tuple[Any, ...]], *, head: bool = False, numbers: int = 0) -> str:
    """`numbers`: how many of the last columns are numbers; a table with some has a head."""
    cells = []
    for place, row in enumerate(rows):
        tag = "th" if (head or numbers) and place == 0 else "td"
        line = ""
        for column, cell in enumerate(row):
            kind = " class=n" if column >= max(1, len(row) - numbers) and numbers else ""
            line += f"<{tag}{kind}>{html.escape(str(cell))}"
        cells.append(f"<tr>{line}")
    return f"<table>{''.join(cells)}</table>"


def line(row: dict[str, Any]) -> str:
    """One round as a line of JSON."""
    return json.dumps(row, separators=(",", ":"))
