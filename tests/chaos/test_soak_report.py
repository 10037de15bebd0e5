"""The report of a soak: one file that needs nothing else, says what was found and what was not looked at, and is small."""

from __future__ import annotations

import json
import random
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from chaos.asking import KINDS
from chaos.soak import comparing, coverage, plots, report
from chaos.soak.pauses import Pauses
from supervisor import journal
from supervisor.slot import Slot

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = ("server", "proxy", "keeper")


def a_round(number: int, chance: random.Random) -> dict[str, Any]:
    fault = FAULTS[number // 5 % 3] if number % 5 == 0 else ""
    slow = chance.uniform(1, 4) if fault else 0.0
    names = [f"{way} {kind}" for way in ("client", "gateway") for kind in KINDS]
    return {
        "number": number,
        "at_s": number * 2.01,
        "verdict": "holds",
        "fault": fault,
        "pids": [chance.randrange(40_000)] if fault else [],
        "recovery_s": round(slow, 3) if fault else None,
        "paused_s": 0.5 if fault == "proxy" else 0.0,
        "outcomes": {"complete": 18, **({"interrupted": 2} if fault else {})},
        "latency_s": {name: [round(chance.uniform(0.2, 0.5), 3), round(0.6 + slow, 3)] for name in names},
        "took_s": {"visit": 1.24, "answers": 0.5, "look": 0.2},
        "processes": 6,
        "judgements": [],
        "usage": {who: [chance.randrange(10**8), 21, 13] for who in ("warden", "keeper", "chat", "embed")},
    }


def a_run(rounds: int = 30) -> dict[str, Any]:
    chance = random.Random(1)
    made = [a_round(number, chance) for number in range(1, rounds + 1)]
    kills = [
        {
            "at_s": one["at_s"],
            "round": one["number"],
            "fault": one["fault"],
            "pids": one["pids"],
            "touched": ["chat"],
            "healed_s": 2.5,
            "explains": [f"soak-0.1.{one['number']}", f"soak-1.0.{one['number']}"],
        }
        for one in made
        if one["fault"]
    ]
    return {
        "command": "queenright soak --rounds 600",
        "machine": "2 cores",
        "verdict": "holds",
        "rounds": made,
        "kills": kills,
        "requests": {"client chat": {"complete": 900, "interrupted": 12}, "gateway embeddings": {"complete": 1234}},
        "end": [{"invariant": "memory is flat", "verdict": "holds", "seen": ""}],
        "judged": {"engine as planned": rounds, "requests end well": rounds},
        "uncontrolled": {"chat": "it computes <several> at once"},
        "engine": [{"group": "chat", "role": "chat", "model": "smollm2-135m", "sequences": 4, "context": 1024}],
        "unused_faults": ["warden"],
        "faults": ", ".join(FAULTS),
        "streams": 4,
        "tokens": 12,
    }


class Reader(HTMLParser):
    """The text of a page, and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_page_says_what_was_found_and_needs_nothing_else() -> None:
    found = read(report.page(a_run()))
    text = " ".join(found.text)
    assert (
        "30 of 30 rounds green, 6 of them with a fault. 552 requests: 0 failed, 12 broken off or without a gateway (12 explained by the"
        in text
    )
    assert "What did not hold" not in text
    assert "soak-0.1.25" in text  # the kill log has what it explains
    assert found.tags.count("svg") >= 8
    assert not found.fetched
    assert "script" not in found.tags


def test_what_did_not_hold_is_at_the_top() -> None:
    run = a_run()
    run["rounds"][3] |= {
        "verdict": "broken",
        "judgements": [{"invariant": "no zombie", "verdict": "broken", "seen": "<12>"}],
    }
    page = report.page(run)
    assert "&lt;12&gt;" in page
    assert page.index("What did not hold") < page.index("Recovery, by fault")


def test_a_run_without_rounds_and_one_without_faults_have_a_page() -> None:
    assert "0 of 0 rounds green" in report.page(a_run(0))
    assert "There was no fault" in report.page(a_run(3))


def test_what_was_not_covered_is_said_from_what_was_run() -> None:
    run = a_run()
    words = " ".join(coverage.not_covered(run))
    for said in (
        "smollm2-135m",
        "chat with 4",
        "2 cores",
        "not done: warden",
        "Receipts:",
        "chat were not compared: it",
    ):
        assert said in words, said
    assert "Growth" not in words
    run["judged"]["answers have receipts"] = 30
    run["end"] = []
    words = " ".join(coverage.not_covered(run))
    assert "Receipts:" not in words
    assert "Growth" in words
    run["rounds"][5]["skipped"] = "oom kill: / is not delegated to us"
    words = " ".join(coverage.not_covered(run))
    assert "could not be done: oom kill: / is not delegated to us" in words
    assert "Counts:" in words


def test_600_rounds_can_be_committed() -> None:
    run = a_run(600)
    lines = "\n".join(report.line(one) for one in run["rounds"])
    sizes = [len(report.page(run)), len(json.dumps(run, separators=(",", ":"))), len(lines)]
    assert sum(sizes) < 1_500_000, sizes


def test_two_reports_are_compared() -> None:
    empty = {**a_run(0), "verdict": "broken"}
    rows = dict(line.split("  ", 1) for line in comparing.compare(empty, a_run()).splitlines()[1:])
    cells = {name: value.split() for name, value in rows.items()}
    assert cells["verdict"] == ["broken", "holds"]
    assert cells["requests complete"] == ["0", "540"]
    assert cells["recovery without pauses: proxy"][0] == "-"
    assert cells["memory at the end: keeper"][0] == "-"


def test_a_recovery_is_told_with_and_without_the_pauses_of_the_restart_policy() -> None:
    rows = {row[0]: row[1:] for row in report.recovery(a_run(600)["rounds"])}
    assert rows["keeper"][4:] == ("0.00 s", *rows["keeper"][1::2][:2])
    median, _, most, pause, without, most_without = (float(cell.split()[0]) for cell in rows["proxy"][1:])
    assert (pause, round(median - without, 2), round(most - most_without, 2)) == (0.5, 0.5, 0.5)


def test_a_pause_that_was_not_waited_for_to_its_end_leaves_nothing_and_not_less() -> None:
    ((_, *_, pause, without, most_without),) = report.recovery(
        [{"fault": "keeper", "recovery_s": 1.0, "paused_s": 4.0}]
    )
    assert (pause, without, most_without) == ("4.00 s", "0.00 s", "0.00 s")


def test_the_longest_pause_of_a_group_since_the_last_time_is_read_from_the_journal(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    pauses = Pauses(slot)
    assert pauses.since_the_last_time() == 0.0
    for group, restart, delay in (("a", True, 1.0), ("b", True, 2.0), ("a", True, 4.0), ("c", False, 30.0)):
        journal.note(slot, "ended", group=group, restart=restart, delay=delay)
        journal.note(slot, "state", group=group)
    with slot.events.open("a") as file:
        file.write('{"what":"ended"}\n[]\nnot JSON\n')
    assert pauses.since_the_last_time() == 5.0
    assert pauses.since_the_last_time() == 0.0


def test_ticks_are_round_and_reach_above() -> None:
    assert plots.ticks(0) == [0, 1]
    assert plots.ticks(3.7, 4) == [0, 1, 2, 3, 4]
    assert plots.ticks(142, 4) == [0, 50, 100, 150]
