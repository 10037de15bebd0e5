"""The five steps of `queenright demo`, each of them observed from outside."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from chaos import observer
from chaos.driving import Driven
from chaos.story import Story, require, require_there
from supervisor import identity
from supervisor.errors import QueenrightError
from supervisor.identity import Liveness
from supervisor.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chaos.observer import Sighting

ANSWER_LIMIT = 180.0  # budget: one answer; a busy machine with two cores takes a minute
HEALTH_LIMIT = 2.0  # budget: a server's /health on loopback; it answers in a millisecond, and is asked again
GONE_LIMIT = 15.0  # budget: from the last member's leaving to nothing left; teardown is bounded by 8 s
FLAT = 0.10
"""Engine memory counts as flat when it changes by less than this part: a second copy would be 100 %."""

CONFIGURATION = """\
[engine]
slot = {slot}

[gateway]
listen = "127.0.0.1:0"
deadline_s = {deadline_s}

[groups.chat]
[[groups.chat.launches]]
role = "chat"
model = "smollm2-135m"
context = 1024
sequences = 4
arguments = ["--threads", "{threads}"]

[groups.embed]
[[groups.embed.launches]]
role = "embed"
model = "minilm-l6"
context = 512
arguments = ["--threads", "1"]
"""


def configuration(slot: Slot, *, deadline_s: float = ANSWER_LIMIT) -> str:
    """Two small models on half of the cores, in this slot; the gateway gives a request so many seconds. The gateway takes whichever port is free: the default one is for
    an engine of the user's."""
    threads = max(1, (os.cpu_count() or 2) // 2)
    return CONFIGURATION.format(slot=json.dumps(str(slot.path)), threads=threads, deadline_s=deadline_s)


class Stage:
    """The slot, the front ends, and the five steps."""

    def __init__(self, place: Path, story: Story) -> None:
        self.story = story
        self.slot = Slot(place / "slot")
        self.config = place / "queenright.toml"
        self.config.write_text(configuration(self.slot))
        self.front_ends: list[Driven] = []

    def clear(self) -> None:
        """Leave nothing, however far it came."""
        from supervisor import stopping

        for front_end in self.front_ends:
            front_end.kill()
        with suppress(QueenrightError):  # it went with its members, as it should
            stopping.stop(self.slot, who="the end of the demo")

    # --- the steps --------------------------------------------------------------------------------------------------

    def first(self) -> None:
        """No engine; the first front end gets one built."""
        self.story.step("No engine yet. A first front end asks for one")
        before = observer.look(self.slot).everything
        require(not before, f"nothing runs before, but {len(before)} processes do")
        began = time.monotonic()
        tui = self._start("tui")
        opened = tui.hear("open", ANSWER_LIMIT)
        require(opened["how"] == "build", f"the first front end builds, but it did {opened['how']}")
        self.story.fact("open_s", opened["seconds"], f"built: warden and keeper up in {opened['seconds']:.2f} s")
        tui.tell(do="ask", id="first", role="chat", stream=True)
        tui.hear("first token", ANSWER_LIMIT, id="first")
        first_s = time.monotonic() - began
        self.story.fact("first_token_s", first_s, f"first token {first_s:.2f} s after the front end was started")
        self._complete(tui, "first")
        tui.tell(do="ask", id="first embedding", role="embed")  # mapped weights count once they were read
        self._complete(tui, "first embedding")
        seen = observer.wait_until("both groups with a proxy and a server", self._whole, ANSWER_LIMIT)
        self.story.fact("processes", describe(seen), f"running: {describe(seen)}")
        self.story.seen()

    def second(self) -> None:
        """Another front end binds: nothing is spawned."""
        self.story.step("A second front end joins")
        before = observer.look(self.slot)
        held = observer.memory(before.engine)
        mcp = self._start("mcp")
        opened = mcp.hear("open", ANSWER_LIMIT)
        require(opened["how"] == "bind", f"the second front end binds, but it did {opened['how']}")
        mcp.tell(do="ask", id="embedding", role="embed")
        self._complete(mcp, "embedding")
        after = observer.look(self.slot)
        require(after.everything == before.everything, "no process came or went")
        grown = observer.memory(after.engine) / held - 1
        require(abs(grown) < FLAT, f"engine memory is flat, but it changed by {grown:+.1%}")
        self.story.fact("open_s", opened["seconds"], f"bound in {opened['seconds']:.2f} s; nothing was spawned")
        self.story.fact("memory_change", grown, f"engine memory {held / 2**20:.0f} MiB, changed by {grown:+.1%}")
        self.story.seen()

    def both(self) -> None:
        """Two answers at once."""
        self.story.step("Both stream answers at the same time")
        for front_end in self.front_ends:
            front_end.tell(do="ask", id="together", role="chat", stream=True, tokens=48)
        spans = []
        for front_end in self.front_ends:
            answer = self._complete(front_end, "together")
            spans.append((answer["began"] + answer["first_s"], answer["began"] + answer["seconds"]))
            self.story.fact(
                f"{front_end.name}_s",
                answer["seconds"],
                f"{front_end.name}: {answer['size']} pieces, first after {answer['first_s']:.2f} s, all in {answer['seconds']:.2f} s",
            )
        overlap = min(end for _, end in spans) - max(start for start, _ in spans)
        require(overlap > 0, "the two streams overlap in time")
        self.story.fact("overlap_s", overlap, f"both were streaming for {overlap:.2f} s")
        self.story.seen()

    def kills(self) -> None:
        """kill -9 under load: server, proxy, keeper."""
        self.story.step("Under load from both, kill -9 of the chat server, then its proxy, then the keeper")
        embed = observer.look(self.slot).group("embed")
        stream, plain = {"role": "chat", "stream": True, "tokens": 12}, {"role": "chat", "tokens": 12}
        for front_end in self.front_ends:
            front_end.tell(do="load", workers=[stream, plain, {"role": "embed"}])
        self._under_load()
        with self._killing("chat server", lambda seen: seen.servers["chat"][0]) as victim:
            self._recovered("chat server", lambda s: s.servers.get("chat") and victim not in s.servers["chat"])
        with self._killing("chat proxy", lambda seen: seen.leaders["chat"]) as victim:
            self._recovered("chat proxy", lambda s: s.leaders.get("chat", victim) != victim and s.servers.get("chat"))
        engine = observer.look(self.slot).engine
        with self._killing("keeper", lambda seen: require_there(seen.keeper, "keeper")) as victim:
            self._recovered("keeper", lambda s: s.keeper not in (None, victim) and self._keeper_answers())
        require(observer.look(self.slot).engine == engine, "no engine process changed when the keeper was killed")
        self.story.fact("engine_unchanged", True, "killing the keeper changed no process of the engine")
        for front_end in self.front_ends:
            front_end.tell(do="calm")
        for front_end in self.front_ends:
            front_end.hear("calm", ANSWER_LIMIT)
        require(observer.look(self.slot).group("embed") == embed, "the embed group's processes are untouched")
        self.story.fact("embed_untouched", True, "the embed group's processes were not touched by any of it")
        self._count_outcomes()
        self.story.seen()

    def leaving(self) -> None:
        """The last one out stops it."""
        self.story.step("Both leave")
        everything = observer.look(self.slot).everything
        for front_end in self.front_ends:
            status = front_end.leave()
            require(status == 0, f"front end {front_end.name} ends with 0, not {status}")
        began = time.monotonic()
        observer.wait_until("the warden is gone", lambda: not observer.look(self.slot).warden or None, GONE_LIMIT)
        gone_s = time.monotonic() - began
        left = [process.pid for process in everything if identity.liveness(process) is not Liveness.DEAD]
        require(not left and not observer.look(self.slot).everything, f"no process is left, but {left} are")
        held = observer.held_locks(self.slot)
        require(not held, f"no lock is held, but {', '.join(held)} are")
        self.story.fact(
            "gone_s", gone_s, f"everything gone {gone_s:.2f} s after the last one left: no process, no lock"
        )
        self.story.seen()

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> Driven:
        front_end = Driven(self.config, name)
        self.front_ends.append(front_end)
        return front_end

    def _whole(self) -> Sighting | None:
        seen = observer.look(self.slot)
        names = ("chat", "embed")
        there = all(name in seen.leaders and len(seen.servers.get(name, ())) == 1 for name in names)
        return seen if there and seen.keeper and seen.warden else None

    def _complete(self, front_end: Driven, identifier: str) -> dict[str, Any]:
        answer = front_end.hear("answer", ANSWER_LIMIT, id=identifier)
        require(answer["outcome"] == "complete", f"request {identifier} completes, but: {answer.get('why')}")
        return answer

    def _under_load(self) -> None:
        """Until every chat worker of every front end has had an answer to a request begun from now on: then no request
        is caught by two kills (a request whose bytes were sent twice is not sent a third time), and the next kill
        meets requests in flight."""
        began = time.monotonic()

        def served() -> bool | None:
            fresh = [
                {answer["stream"] for answer in one.answers() if answer["role"] == "chat" and answer["began"] >= began}
                for one in self.front_ends
            ]
            return True if all(kinds == {True, False} for kinds in fresh) else None

        observer.wait_until("every worker is being answered", served, ANSWER_LIMIT)

    @contextmanager
    def _killing(self, what: str, choose: Callable[[Sighting], Any]) -> Iterator[Any]:
        victim = choose(observer.wait_until("both groups are whole", self._whole, ANSWER_LIMIT))
        self._killed_at = time.monotonic()
        identity.signal_exact(victim, signal.SIGKILL)
        self.story.fact(f"{what} pid", victim.pid, f"kill -9 {victim.pid} ({what})")
        yield victim
        self._under_load()

    def _recovered(self, what: str, back: Callable[[Sighting], Any]) -> None:
        """Back means: another process in its place, and for a server or proxy that it answers."""

        def seen() -> bool | None:
            sighting = observer.look(self.slot)
            return True if back(sighting) and (what == "keeper" or self._chat_answers()) else None

        observer.wait_until(f"{what} is back", seen, ANSWER_LIMIT)
        seconds = time.monotonic() - self._killed_at
        self.story.fact(f"{what} recovery_s", seconds, f"{what} back after {seconds:.2f} s")

    def _chat_answers(self) -> bool:
        """Whether the chat server says on its own port that it is healthy. The port is read from the kernel."""
        import http.client

        for server in observer.look(self.slot).servers.get("chat", ()):
            for port in observer.listening_ports(server):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_LIMIT)
                try:
                    connection.request("GET", "/health")
                    return connection.getresponse().status == 200
                except (OSError, http.client.HTTPException):
                    return False
                finally:
                    connection.close()
        return False

    def _keeper_answers(self) -> bool:
        return bool(self._status())

    def _status(self) -> dict[str, Any]:
        from supervisor import control

        try:
            return control.ask(self.slot, "status")
        except control.ControlError:
            return {}

    def _count_outcomes(self) -> None:
        answers = [answer for front_end in self.front_ends for answer in front_end.answers()]
        chat = [answer for answer in answers if answer["role"] == "chat"]
        count = {name: sum(a["outcome"] == name for a in chat) for name in ("complete", "interrupted", "failed")}
        count["embeddings complete"] = sum(a["outcome"] == "complete" and a["role"] == "embed" for a in answers)
        failed = [answer["why"] for answer in answers if answer["outcome"] == "failed"]
        require(not failed, f"no request fails, but {len(failed)} did; the first: {failed[:1]}")
        early = [a for a in answers if a["outcome"] == "interrupted" and a["first_s"] is None]
        require(not early, f"a request is only interrupted after its first byte, but {len(early)} were before")
        self.story.fact(
            "outcomes",
            count,
            f"chat: {count['complete']} complete, {count['interrupted']} interrupted after their first byte, 0 failed; "
            f"embeddings: {count['embeddings complete']} complete, 0 failed",
        )


def describe(seen: Sighting) -> str:
    """Who runs, with pids."""
    groups = [
        f"{name}: proxy {seen.leaders[name].pid}, server {' '.join(str(one.pid) for one in seen.servers[name])}"
        for name in sorted(seen.leaders)
    ]
    return (
        f"warden {seen.warden.pid if seen.warden else '?'}, keeper {seen.keeper.pid if seen.keeper else '?'}; "
        + "; ".join(groups)
    )
