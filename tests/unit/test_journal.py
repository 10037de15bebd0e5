"""events.jsonl: for people, and never in anybody's way."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor import budgets, journal, logfiles
from supervisor.console import Console
from supervisor.contract import State
from supervisor.narration import Narrator
from supervisor.slot import Slot

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    made = Slot(tmp_path / "slot")
    made.prepare()
    return made


def test_each_event_is_one_line_of_json(slot: Slot) -> None:
    began = time.time()
    journal.note(slot, "state", group="chat", state="failed", reason="two\nlines \udcff é")
    journal.note(slot, "stopped", groups=["chat"], clean=True)
    events = [json.loads(line) for line in slot.events.read_text().splitlines()]
    assert [event["what"] for event in events] == ["state", "stopped"]
    assert events[0]["reason"] == "two\nlines \udcff é"
    assert began - 1 <= events[0]["at"] <= time.time() + 1
    assert slot.events.stat().st_mode & 0o777 == 0o600


def test_writers_do_not_cut_each_others_lines(slot: Slot) -> None:
    def write(who: int) -> None:
        for number in range(100):
            journal.note(slot, "state", who=who, number=number, padding="x" * 500)

    writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    events = [json.loads(line) for line in slot.events.read_text().splitlines()]
    assert len(events) == 400
    for who in range(4):
        assert [event["number"] for event in events if event["who"] == who] == list(range(100))


def test_it_does_not_grow_for_ever(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfiles.cap, "__defaults__", (10_000,))
    for number in range(300):
        journal.note(slot, "state", number=number, padding="x" * 100)
        assert slot.events.stat().st_size <= 10_000
    assert json.loads((slot.path / "events.jsonl.1").read_text().splitlines()[-1])["what"] == "state"
    assert budgets.LOG_CAP_BYTES > 10_000


@pytest.mark.parametrize("trouble", ["a directory stands there", "no slot", "a full disk"])
def test_what_cannot_be_written_is_lost_and_nothing_else(
    slot: Slot, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "a directory stands there":
        slot.events.mkdir()
    elif trouble == "no slot":
        slot = Slot(slot.path / "elsewhere")
    else:
        full = os.open("/dev/full", os.O_WRONLY)
        monkeypatch.setattr(os, "open", lambda *_: full)
    journal.note(slot, "state")


class Heard:
    """A console that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_long_load_is_told_of_at_each_tenth(slot: Slot) -> None:
    heard = Heard()
    narrator = Narrator(slot, heard)  # type: ignore[arg-type]
    for read in (44, 47, 71, 100, None, 3, 9, 12):
        narrator.see_loads("chat", {} if read is None else {"chat": {"bytes": read << 20, "of": 100 << 20}})
    narrator.say_all()
    progress = [f"{read} %, {read}.0 of 100.0 MiB" for read in (44, 71, 100, 3, 12)]
    assert heard.lines == [f"chat: loading chat: {one}" for one in progress]
    assert not slot.events.exists(), "it is the state of a moment"


def test_where_the_gateway_is_and_why_it_is_nowhere_is_said_once(slot: Slot) -> None:
    heard = Heard()
    narrator = Narrator(slot, heard)  # type: ignore[arg-type]
    url, moved = "http://127.0.0.1:11412", "port 11411 was taken by another program, so it is on 11412"
    for state, where, reason in (
        ("off", None, ""),
        ("starting", None, ""),
        ("serving", url, ""),
        ("serving", url, ""),
        ("serving", url, moved),
        ("closing", url, ""),
        ("failed", None, "127.0.0.1:11411 is taken by another program"),
        ("serving", url, ""),
    ):
        narrator.see_gateway({"state": state, "url": where, "reason": reason})
    narrator.say_all()
    assert heard.lines == [
        f"gateway: {url}/v1",
        f"gateway: {url}/v1: {moved}",
        "gateway: serves nobody: 127.0.0.1:11411 is taken by another program",
        f"gateway: {url}/v1",
    ]


def test_a_keepers_events_stand_in_the_order_in_which_they_happened(slot: Slot) -> None:
    narrator = Narrator(slot, Console(False))
    narrator.see([("chat", State.REBUILDING, "its proxy ended: killed by SIGKILL")])
    narrator.note_end({"group": "chat", "generation": "a1", "cause": "signal"})
    narrator.see([("chat", State.REBUILDING, "restart 1 in a row at once")])
    narrator.say_left_warm(["chat"], ["/srv"])
    events = [json.loads(line) for line in slot.events.read_text().splitlines()]
    assert [event["what"] for event in events] == ["state", "ended", "state", "left warm"]
    assert events[1]["generation"] == "a1"
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
