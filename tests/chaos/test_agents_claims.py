"""Every claim about agents on one engine can fail: for each there is a run that breaks it and no other, and without the claim
that run is green. No process is started here."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from chaos.agents import claims, command, tasks
from chaos.agents.seen import Crew, Report, Request, Run, Sample, Watch
from chaos.gpu import Held
from chaos.observer import Sighting
from chaos.soak.verdicts import Verdict, worst
from supervisor.identity import Identity
from supervisor.slot import Slot
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 2**20
PORTS = {"chat": 2001, "embed": 2002}


def who(pid: int) -> Identity:
    return Identity("boot", 1, pid, pid)


def sighting(**facts: Any) -> Sighting:
    leaders = {"chat": who(11), "embed": who(21)}
    servers = {"chat": (who(12),), "embed": (who(22),)}
    return Sighting(**{"warden": who(1), "keeper": who(2), "leaders": leaders, "servers": servers, **facts})


def report(number: int, how: str = "bind", **facts: Any) -> Report:
    requests = [Request("chat", 1.0, 8.0, "complete"), Request("embed", 1.1, 1.2, "complete")]
    urls = {role: f"http://127.0.0.1:{port}" for role, port in PORTS.items()}
    return Report(**{"name": f"agent-{number}", "pid": 100 + number, "how": how, "urls": urls, "requests": requests,
                     "status": 0, "why": "", "wrong": [], **facts})  # fmt: skip


def crew(count: int, **facts: Any) -> Crew:
    reports = [report(0, "build"), *(report(number) for number in range(1, count))]
    pids = [one.pid for one in reports]
    samples = [Sample(float(at), sighting(), pids, [], 300 * MIB, 5000 * MIB) for at in range(10)]
    ports = {"chat": [PORTS["chat"]], "embed": [PORTS["embed"]]}
    return Crew(**{"reports": reports, "samples": samples, "ports": ports, "seconds": 9.0, "left": [],
                   "device_after": Held({"GPU-1": 900 * MIB}), **facts})  # fmt: skip


def good() -> Run:
    groups = {"chat": 1, "embed": 1}
    return Run(groups, {"chat": "chat", "embed": "embed"}, [], Held({"GPU-1": 900 * MIB}), crew(1), crew(4))


def changed(run: Run, at: int = 4, **facts: Any) -> Run:
    """One look of the four, another one."""
    samples = list(run.four.samples)
    samples[at] = samples[at]._replace(**facts)
    return run._replace(four=run.four._replace(samples=samples))


def all_looks(run: Run, **facts: Any) -> Run:
    return run._replace(four=run.four._replace(samples=[one._replace(**facts) for one in run.four.samples]))


def one_agent(run: Run, **facts: Any) -> Run:
    reports = list(run.four.reports)
    reports[2] = reports[2]._replace(**facts)
    return run._replace(four=run.four._replace(reports=reports))


def with_requests(run: Run, requests: list[Request]) -> Run:
    return one_agent(run, requests=requests)


ONE_AFTER_THE_OTHER = [Request("chat", 1.0, 2.0, "complete"), Request("embed", 2.5, 8.0, "complete")]

PLANTED: dict[str, tuple[str, Callable[[Run], Run]]] = {
    "an engine that was there": ("started from nothing", lambda run: run._replace(before=["lock warden.lock"])),
    "two that built": ("one built, the others bound", lambda run: one_agent(run, how="build")),
    "none that built": (
        "one built, the others bound",
        lambda run: run._replace(
            four=run.four._replace(reports=[one._replace(how="bind") for one in run.four.reports])
        ),
    ),
    "a second warden, for one look": (
        "one built, the others bound",
        lambda run: changed(run, sighting=sighting(warden=who(77))),
    ),
    "an agent that is no member": ("one built, the others bound", lambda run: changed(run, members=[100, 101, 103])),
    "a member that is no agent": (
        "one built, the others bound",
        lambda run: changed(run, members=[100, 101, 102, 103, 999]),
    ),
    "an engine beside it": ("one built, the others bound", lambda run: changed(run, beside=["/private"])),
    "a second server": (
        "one engine served",
        lambda run: all_looks(run, sighting=sighting(servers={"chat": (who(12), who(13)), "embed": (who(22),)})),
    ),
    "a server that was replaced": (
        "one engine served",
        lambda run: changed(run, sighting=sighting(servers={"chat": (who(14),), "embed": (who(22),)})),
    ),
    "a group that nobody planned": (
        "one engine served",
        lambda run: all_looks(run, sighting=sighting(leaders={"chat": who(11), "embed": who(21), "more": who(31)})),
    ),
    "requests that went elsewhere": (
        "one engine served",
        lambda run: one_agent(run, urls={"chat": "http://127.0.0.1:9999", "embed": "http://127.0.0.1:2002"}),
    ),
    "chat and embeddings in turn": ("all at once", lambda run: with_requests(run, ONE_AFTER_THE_OTHER)),
    "chats in turn, and embeddings all the while": (
        "all at once",
        lambda run: with_requests(run, [Request("chat", 8.1, 8.9, "complete"), Request("embed", 1.1, 8.9, "complete")]),
    ),
    "memory that grew": ("memory is flat", lambda run: all_looks(run, memory=331 * MIB)),
    "memory that shrank": ("memory is flat", lambda run: all_looks(run, memory=269 * MIB)),
    "an answer that is wrong": ("tasks are verified", lambda run: one_agent(run, wrong=["ANSWER.md says nothing"])),
    "a request that failed": (
        "requests were answered",
        lambda run: with_requests(
            run, [Request("chat", 1.0, 8.0, "complete"), Request("embed", 1.1, 1.2, "failed", "status 500")]
        ),
    ),
    "an agent that crashed": ("requests were answered", lambda run: one_agent(run, status=1)),
    "a process that stayed": ("nothing remained", lambda run: run._replace(four=run.four._replace(left=["pid 5"]))),
    "a process that stayed after the first": (
        "nothing remained",
        lambda run: run._replace(baseline=run.baseline._replace(left=["lock build.lock"])),
    ),
    "GPU memory that grew": ("GPU memory is flat", lambda run: all_looks(run, device=5300 * MIB)),
    "GPU memory that shrank": ("GPU memory is flat", lambda run: all_looks(run, device=4700 * MIB)),
    "GPU memory that was kept": (
        "GPU memory was given back",
        lambda run: run._replace(four=run.four._replace(device_after=Held({"GPU-1": 1300 * MIB}))),
    ),
}


def verdicts(run: Run) -> dict[str, Verdict]:
    return {one.invariant: one.verdict for one in claims.judge(run)}


def test_a_good_run_is_green() -> None:
    assert set(verdicts(good()).values()) == {Verdict.HOLDS}


def test_every_claim_has_something_that_breaks_it() -> None:
    assert {claim for claim, _ in PLANTED.values()} == set(claims.CLAIMS)


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_breaks_its_claim_and_no_other(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, plant = PLANTED[what]
    run = plant(good())
    assert [name for name, verdict in verdicts(run).items() if verdict is Verdict.BROKEN] == [claim]
    monkeypatch.delitem(claims.CLAIMS, claim)
    assert worst(claims.judge(run)) is Verdict.HOLDS  # nothing else would have found it


def test_agents_that_never_met_are_no_proof() -> None:
    late = [Request("chat", 20.0, 28.0, "complete"), Request("embed", 20.1, 20.2, "complete")]
    found = verdicts(with_requests(good(), late))
    assert found["all at once"] is Verdict.BROKEN
    assert found["one built, the others bound"] is Verdict.UNKNOWN
    assert found["one engine served"] is Verdict.UNKNOWN


UNSEEN: dict[str, tuple[str, Callable[[Run], Run]]] = {
    "no look at the locks": ("one built, the others bound", lambda run: changed(run, members=None)),
    "no look at the processes": ("one engine served", lambda run: changed(run, sighting=None)),
    "no look at the memory": ("memory is flat", lambda run: changed(run, memory=None)),
    "no look at the GPU": ("GPU memory is flat", lambda run: changed(run, device=None)),
    "a GPU that cannot be read": (
        "GPU memory was given back",
        lambda run: run._replace(device_before=Held(None, "the driver hangs")),
    ),
    "memory of nothing": (
        "memory is flat",
        lambda run: run._replace(
            baseline=run.baseline._replace(samples=[one._replace(memory=0) for one in run.baseline.samples])
        ),
    ),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_what_was_not_seen_is_not_green(what: str) -> None:
    claim, plant = UNSEEN[what]
    assert verdicts(plant(good()))[claim] is Verdict.UNKNOWN


def test_a_look_that_failed_is_one_that_saw_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch ended at the first one, and what came after it was never looked at."""
    monkeypatch.setattr("chaos.gpu.look", lambda: Held(None, "none", is_absent=True))
    monkeypatch.setattr("chaos.observer.look", lambda slot: 1 / 0)
    with Watch(Slot(tmp_path)) as watch:
        wait_until(lambda: len(watch.samples) >= 2)
    assert {(one.sighting, one.members, one.memory) for one in watch.samples} == {(None, None, None)}


def test_two_looks_are_too_few() -> None:
    run = good()
    few = run._replace(four=run.four._replace(samples=run.four.samples[3:5]))
    found = verdicts(few)
    assert found["one built, the others bound"] is found["memory is flat"] is Verdict.UNKNOWN


def test_without_a_gpu_its_claims_are_not_judged_and_told_as_not_covered() -> None:
    run = good()._replace(device_before=Held(None, "there is no NVIDIA driver", is_absent=True))
    judged = claims.judge(run)
    assert not {one.invariant for one in judged} & set(claims.OF_A_GPU)
    data = command.as_data(run, judged, agents="scripted")
    assert data["verdict"] == "holds"
    assert any("no NVIDIA driver" in one for one in data["not_covered"])
    assert "no NVIDIA driver" in command.text(json.loads(json.dumps(data)))


def test_a_claim_that_crashes_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: Run) -> tuple[Verdict, str]:
        raise ValueError("out of honey")

    monkeypatch.setitem(claims.CLAIMS, "started from nothing", crash)
    assert verdicts(good())["started from nothing"] is Verdict.UNKNOWN


def test_a_run_that_came_to_nothing_is_not_green() -> None:
    assert command.as_data(None, [])["verdict"] == "unknown"


def test_the_most_at_once() -> None:
    assert claims.most_at_once([[(1, 2)], [(2, 3)], [(1.5, 1.7), (2.5, 4)]]) == 2
    assert claims.most_at_once([]) == 0


# --- tasks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> tasks.Project:
    return tasks.make(tmp_path / "one", random.Random(1), set())


def test_a_task_is_done_when_its_files_say_so(project: tasks.Project) -> None:
    assert tasks.wrong(project, ()) != []  # nothing was written
    (project.root / tasks.ANSWER).write_text(project.answer)
    assert tasks.wrong(project, ()) == []
    (project.root / tasks.ANSWER).write_text("\n- " + project.answer.replace("\n", "\n\n- ").removesuffix("- "))
    assert tasks.wrong(project, ()) == []  # as a model may write it


def test_every_way_to_do_it_wrong_is_told(project: tasks.Project, tmp_path: Path) -> None:
    answer = project.root / tasks.ANSWER
    lines = project.answer.splitlines(keepends=True)
    other = tasks.make(tmp_path / "two", random.Random(2), set(project.codes.values()))
    first, *_ = project.asked
    foreign = project.answer.replace(project.codes[first], other.codes[first])
    for text in ("", "".join(lines[:-1]), "".join(reversed(lines)), foreign, project.answer + "and more\n"):
        answer.write_text(text)
        assert tasks.wrong(project, ()) != [], text
    answer.write_text(foreign)
    assert "another project" in " ".join(tasks.wrong(project, set(other.codes.values())))
    answer.write_text(project.answer)
    (project.root / tasks.NOTES / f"{first}.md").write_text("no code any more")
    assert "not as it was" in " ".join(tasks.wrong(project, ()))


def test_a_scripted_agent_has_to_have_asked_the_model(project: tasks.Project) -> None:
    (project.root / tasks.ANSWER).write_text(project.answer)
    steps = project.root / tasks.STEPS
    assert tasks.wrong(project, (), steps=2) != []
    for said, right in (
        ([{"text": "a", "calls": 0}] * 2, True),
        ([{"text": "a", "calls": 0}], False),
        ([{"text": "a", "calls": 0}, {"text": "", "calls": 0}], False),
        ([{"text": "", "calls": 1}] * 2, True),
        (["nonsense"] * 2, False),
    ):
        steps.write_text(json.dumps(said))
        assert (tasks.wrong(project, (), steps=2) == []) is right, said


def test_no_two_projects_share_a_code(tmp_path: Path) -> None:
    chance, taken = random.Random(3), set[str]()
    made = [tasks.make(tmp_path / str(number), chance, taken) for number in range(5)]
    assert len({code for one in made for code in one.codes.values()}) == 5 * len(tasks.HIVES) == len(taken)
