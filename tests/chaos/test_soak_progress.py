"""What a soak says while it runs: every round where it is no terminal, a bar and what matters where it is one."""

from __future__ import annotations

import io
from typing import Any

from chaos.soak.progress import Progress
from chaos.soak.soak import Told
from chaos.soak.verdicts import Judgement, Verdict


def told(number: int, **facts: Any) -> Told:
    known: dict[str, Any] = dict.fromkeys(Told._fields)
    known |= {
        "number": number,
        "at_s": 2.0 * number,
        "fault": "",
        "skipped": "",
        "paused_s": 0.0,
        "outcomes": {"complete": 3},
    }
    known |= {"judgements": [Judgement("no zombie", Verdict.HOLDS)], **facts}
    return Told(**known)


ROUNDS = (
    told(1),
    told(2, fault="proxy", recovery_s=1.5, paused_s=0.5, outcomes={"complete": 2, "interrupted": 1}),
    told(3, judgements=[Judgement("no zombie", Verdict.BROKEN, "dead and kept: [12]")]),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(stream: io.StringIO) -> str:
    with Progress(stream, 3) as progress:
        for one in ROUNDS:
            progress(one)
    assert progress.words == "NOT GREEN 1, faults 1 (to 1.5 s), complete 8, interrupted 1"
    return stream.getvalue()


def test_without_a_terminal_there_is_a_line_for_each_round() -> None:
    lines = said(io.StringIO()).splitlines()
    assert lines == [
        "    1     2.0 s  holds    3 complete",
        "    2     4.0 s  holds    2 complete, 1 interrupted  proxy, answering again after 1.50 s, 0.50 s of it the restart policy's pause",
        "    3     6.0 s  broken   3 complete",
        "      no zombie: broken: dead and kept: [12]",
    ]


def test_on_a_terminal_faults_and_what_is_not_green_stay_above_the_bar() -> None:
    text = said(Terminal())
    assert "proxy, answering again after 1.50 s" in text
    assert "no zombie: broken" in text
    assert "  1     2.0 s  holds" not in text
    assert "3/3" in text
