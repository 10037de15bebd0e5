"""docs/reference/requests.md shows what the policy decides: the rows are made from it, and must stand there as they are."""

from __future__ import annotations

from pathlib import Path

from supervisor.request_policy import Action, Attempt, Outcome, Route, Sender, decide
from supervisor.stream_watch import Ending

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "requests.md"

SEEN = {
    Action.DELIVER: "the answer",
    Action.HOLD_AND_SEND_AGAIN: "held, sent again",
    Action.WAIT_AS_TOLD: "waits as told, sent again",
    Action.RESUME: "the rest, asked for",
    Action.INTERRUPTED: "`AnswerInterrupted`",
    Action.GIVE_UP: "503",
}

ANSWERS = {
    "any other status of the server": Attempt(Outcome.ANSWER, 500),
    "404 of the proxy (unknown model)": Attempt(Outcome.ANSWER, 404, Sender.PROXY),
    "500 of the proxy": Attempt(Outcome.ANSWER, 500, Sender.PROXY),
    "502 of the proxy, or without a body": Attempt(Outcome.ANSWER, 502, Sender.NOBODY),
    "500, 503 without a body": Attempt(Outcome.ANSWER, 503, Sender.NOBODY),
    "503 of the proxy": Attempt(Outcome.ANSWER, 503, Sender.PROXY),
    "503 `Loading model`": Attempt(Outcome.ANSWER, 503, Sender.LOADING),
    "429 of the proxy": Attempt(Outcome.ANSWER, 429, Sender.PROXY),
    "401 of the proxy": Attempt(Outcome.ANSWER, 401, Sender.PROXY),
}

ENDS = {
    ("clean end", Ending.TERMINATED): Outcome.STREAM_ENDED,
    ("clean end", Ending.FINISHED): Outcome.STREAM_ENDED,
    ("clean end", Ending.FAILED): Outcome.STREAM_ENDED,
    ("clean end", Ending.OPEN): Outcome.STREAM_ENDED,
    ("cut", Ending.TERMINATED): Outcome.STREAM_CUT,
    ("cut", Ending.FINISHED): Outcome.STREAM_CUT,
    ("cut", Ending.FAILED): Outcome.STREAM_CUT,
    ("cut", Ending.OPEN): Outcome.STREAM_CUT,
}


def seen(attempt: Attempt, route: Route = Route.REPLAYABLE, *, counted: int = 0) -> str:
    decision = decide(route, attempt, counted=counted, left_s=60.0)
    text = SEEN[decision.action]
    if decision.action is Action.HOLD_AND_SEND_AGAIN:
        text += ", counts" if decision.counts else ", does not count"
        text += "; another generation is waited for" if decision.gone else ""
    return text


def rows() -> list[str]:
    lost = [
        f"| `{outcome}` | {seen(Attempt(outcome))} | {seen(Attempt(outcome, first_byte=True))} "
        f"| {seen(Attempt(outcome), Route.ONCE)} |"
        for outcome in Outcome
        if outcome is not Outcome.ANSWER
    ]
    answers = [f"| {name} | {seen(attempt)} | {seen(attempt, Route.ONCE)} |" for name, attempt in ANSWERS.items()]
    ends = [
        f"| {how} | `{ending.name.lower()}` | {seen(Attempt(outcome, ending=ending, first_byte=True))} |"
        for (how, ending), outcome in ENDS.items()
    ]
    return lost + answers + ends


def test_every_row_of_the_policy_stands_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [row for row in rows() if row not in page]
    assert not missing, "\n".join(missing)


def test_the_page_has_no_row_that_the_policy_does_not_have() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    shown = [line for line in lines if line.startswith("| ") and not line.startswith("| when")]
    assert sorted(shown) == sorted(rows())
