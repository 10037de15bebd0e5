"""Every time limit of the core, with its reason. Seconds, unless the name says otherwise.

The inequalities between them are checked at import by a function that raises (`-O` strips `assert`).
"""

from __future__ import annotations

from typing import Final

# --- stopping -------------------------------------------------------------------------------------------------------

GROUP_GRACE: Final = 2.5
"""From the start of a group's stop to SIGKILL. llama-server with `--sse-ping-interval 1` lets go of streams within
2.1 s (measured); non-streams hold it until their client hangs up, and nothing but SIGKILL helps."""

UNLOAD_LIMIT: Final = 1.0
"""The unload request before SIGTERM. After an unload llama-swap exits at once; without one it drains up to 30 s."""

SWEEP_LIMIT: Final = 1.5
"""From SIGKILL to every process of the generation gone. A sweep takes milliseconds; only a process in
uninterruptible sleep is later, and that one is reported as unkillable."""

GROUP_STOP: Final = 5.0
"""One group, whatever happens: grace + sweep + slack for a loaded machine."""

UNDO_LIMIT: Final = 2.5
"""For ending what a generation started outside its own processes, once those are gone; after that it is called unkillable, and
tried on. `docker kill` and `podman kill` take some 0.2 s."""

UNDO_PAUSE: Final = 0.5
"""Between two tries of that: the container engine's service may be restarting."""

UNDO_PAUSE_MOST: Final = 8.0
"""The longest pause between two tries: a container engine that is away for a night is asked every few seconds."""

UNDO_TRY: Final = 10.0
"""One try. A container engine that hangs for longer will not answer this question any more."""

TEARDOWN: Final = 8.0
"""All groups at once, and the keeper's own leaving. Must stay under the 10 s that podman, docker and people wait."""

WARDEN_STOP: Final = 8.3
"""How long the warden waits for a keeper that was told to stop before it kills everything itself."""

STOP_ANSWER: Final = 5.0
"""For a keeper to answer at all when it is asked to stop. After that it counts as hung, and the warden is asked."""

DRAIN_MOST: Final = 3600.0
"""The longest drain before a planned stop that may be asked for. Longer than any answer takes (STALL_LIMIT); who waits for
more has forgotten a stop that still is to come."""

DRAIN_LOOK: Final = 0.02
"""Between two looks for a moment without a request in flight. A look reads a few numbers."""

DRAIN_LEARN: Final = 2.0
"""For a keeper to learn what is in flight, before a drain goes on without knowing. A new one reads it from the proxies'
event streams within some 0.1 s; of what does not tell, nobody ever knows."""

CONSOLE_DRAIN: Final = 0.5
"""For the last lines of a keeper that ends; a stopped terminal must not hold it up."""

HANDOFF_WAIT: Final = 15.0
"""How long a newcomer waits for a stopping engine to leave the slot. Longer than any teardown."""

HANDOFF_DRAIN: Final = 5.0
"""For the requests in flight of a detached engine whose place `queenright run` takes. Those without a first byte are
replayed on the next engine anyway; a long stream must not keep a unit from starting."""

HANDOFF_TRIES: Final = 3
"""Engines that `queenright run` stops for its own start. A member with a request in hand may build the next one before it
gets build.lock; who loses three times exits, and a service manager tries again."""

WARDEN_SILENCE: Final = 10.0
"""A warden whose control socket gave no answer for so long is taken for hung, if it is seen stopped (state T) besides.
A slow fsync, a busy machine or a keeper's restart is over sooner."""

# --- starting -------------------------------------------------------------------------------------------------------

BUILD_LOCK_WAIT: Final = 30.0
"""For build.lock. Its holder keeps it for at most CONTROL_WAIT, so three builders in a row fit."""

CONTROL_WAIT: Final = 10.0
"""From the spawn of a warden to the first word of its keeper. Measured: 0.5 s, and 4 s with a load of 9 on two cores."""

UNIT_WAIT: Final = 2.0
"""For systemd-run to have made a scope for a new warden; after that it is started without one. A manager answers within
some 10 ms; one that hangs would keep D-Bus callers for 25 s, and build.lock is held meanwhile."""

QUESTION_LIMIT: Final = 10.0
"""For a caller to say its question, which is one line sent at once. Whoever connects and is silent is let go."""

CONTROL_ANSWER: Final = 2.0
"""One question on the control socket. The keeper answers from memory in under a millisecond."""

START_LIMIT: Final = 120.0
"""Default for one group from spawn to all its models loaded. llama-server with an absurd context stays in `loading`
for ever (measured), so a limit is needed; a 120B model from a slow disk needs a larger one in the configuration."""

READY_POLL_FIRST: Final = 0.001
"""After the first look at a port that is about to listen, doubled after each further one up to READY_POLL. A small
program listens a millisecond after its start (measured)."""

READY_POLL: Final = 0.02
"""Between two looks at what is about to come or go, and tells nobody: a port, a keeper, a warden's end. A look costs about
0.1 ms."""

READY_POLL_LONG: Final = 2.0
"""A proxy listens after 0.05 s (llama-swap) to 0.3 s (the built-in one); whoever takes this long is in no hurry."""

READY_POLL_MOST: Final = 0.25
"""Between two looks after READY_POLL_LONG."""

BROKEN_OFF: Final = 1.0
"""For the end of a proxy that broke off a load, before the breaking off is taken for the cause. The kernel closes a dead
one's connections some milliseconds before the warden can tell of its death."""

# --- restarting -----------------------------------------------------------------------------------------------------

RESTART_DELAYS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Before the first, second, … restart in a row of a group. The first is at once: most deaths are one of a kind."""

RESTART_RESET: Final = 60.0
"""Healthy for so long, and the count of restarts begins anew."""

RESTART_JITTER: Final = 0.25
"""Part of a delay that is added by chance, so that groups felled by one cause do not come back in step. Less than the
step between two delays."""

RESTART_INTENSITY: Final = 30
"""Restarts of a group within RESTART_PERIOD, whatever the lives between them; then it is given up. A group that dies as
soon as it serves gets there in 12 to 15 minutes, one that always lives just longer than RESTART_RESET in 31."""

RESTART_PERIOD: Final = 3600.0
"""The window in which restarts are counted. Longer than RESTART_INTENSITY lives that each end a row: who dies more often
than every two minutes is caught, one that dies now and then never is."""

PORT_TRIES: Final = 3
"""Starts in a row that found one of their ports taken by another program. Each chooses another port, so a second conflict
is rare and a third has a reason that trying does not find."""

DOOMED_TRIES: Final = 3
"""Starts of a group that never became healthy. llama-server exits 1 for a bad flag and for a corrupt file alike;
trying longer than this has never helped anybody."""

TERM_STORM_PAUSE: Final = 0.1
"""An engine process that exits by SIGTERM unasked waits this long before a rebuild: a SIGTERM to everything at once
(a shutdown) must start nothing."""

KEEPER_DELAYS: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Before the warden starts a keeper that crashed. Never given up: without a keeper nobody watches the engine."""

KEEPER_FAILING: Final = len(KEEPER_DELAYS)
"""Keepers that died in a row until `status` calls it failing: by then the delay has grown to its end. They are tried on."""

KEEPER_STABLE: Final = 30.0
"""A keeper that lived this long counts as having worked, and the delays begin anew."""

KEEPER_BEAT: Final = 2.0
"""Between two beats of a keeper to its warden. A beat costs both about 0.1 ms."""

KEEPER_SILENCE: Final = 10.0
"""Without a beat for so long a keeper is looked at. Five beats are missed then: no blip, no garbage collection. A start
is silence too, and takes 0.5 s, or 4 s with a load of 9 on two cores (measured)."""

KEEPER_LOOK: Final = 1.0
"""Between two looks at a silent keeper. One that slept through both, without a hundredth of a second of CPU, hangs; and a
warden that is late by so much for a look did not run itself."""
PUBLISH_PAUSE: Final = 0.1
"""From a group's change to its record on disk. The record is for those who look without asking, and describing a group
takes 0.5 ms (measured): a rebuild, which is six changes in four milliseconds, must not pay it six times, and of a hundred
groups that start together most are up when it is over."""

PUBLISH_RETRY: Final = 1.0
"""From a record that could not be written to the next try. A disk that was full has space again at a moment that nobody
tells, and until then those who read the record see what is no more."""

NARRATION_PAUSE: Final = 0.1
"""From a group's change to its line on the console and in events.jsonl, which has the time of the change: saying it
takes 0.3 ms (measured), and a rebuild has other things to do."""

NOTIFY_PULSE: Final = 5.0
"""Between two words to a service manager that waits for a start to end: what is loading, and that it goes on."""

NOTIFY_EXTENSION: Final = 20.0
"""How much longer each of them has the manager wait. A keeper that is replaced is back within that, and goes on saying it;
what bounds the load itself is the group's own start limit."""

UNIT_START: Final = 90.0
"""What a unit of ours gives a start before its first extension is needed."""

UNIT_STOP: Final = 30.0
"""What a unit of ours gives a stop: the engine's teardown, then the warden's, and slack for a machine that shuts down."""

UNIT_RETRY: Final = 10.0
"""RestartSec= of a unit of ours. A slot that is in use is tried again so often, for half a second of CPU each time."""

UNIT_WATCHDOG: Final = 90.0
"""Silence after which a unit of ours counts as hung. A hung keeper is the warden's to replace, and one that keeps dying
comes back after half a minute at most: that takes longer than all this together only where the warden hangs."""
# --- memory ---------------------------------------------------------------------------------------------------------

NVML_ABSENT: Final = 10.0
"""A machine without NVIDIA's library is taken to have none for so long: a driver is not installed between two groups."""

NVML_LIMIT: Final = 10.0
"""For the driver to say what devices there are. It takes 0.1 s, and some seconds where no process keeps the driver awake
(nvidia-persistenced): each card is then initialised for the question. A wedged driver never answers."""

NVML_END: Final = 1.0
"""For a killed question to be gone. One that a wedged driver holds in the kernel is left behind."""

PLANNING_WAIT: Final = 30.0
"""For the machine's book of reservations. Its holder asks the driver (NVML_LIMIT at worst) and makes at most two estimates
of under a second each; two of them fit, and one who is stopped is named."""

MEMORY_SETTLE: Final = 1.0
"""From a predecessor's death until its memory is free, at most. Kernel and driver give it back as it dies; what is not
free a second later is somebody else's, or needs no longer wait to be told."""

MEMORY_LOOK: Final = 0.1
"""Between two looks whether it is. A look at a device takes about as long."""

READBACK_LOOK: Final = 60.0
"""Between two looks at what a group's processes hold: a cache fills with use, over minutes. A look reads the page tables of
each server, 10 ms for 100 GB in small pages."""

READBACK_LIMIT: Final = 5.0
"""For a server to say what it serves. It is a page of its own; one that is busy says it at the next look."""

# --- watching -------------------------------------------------------------------------------------------------------

MEMBER_POLL: Final = 0.25
"""Between two looks at the member locks: the last one out is noticed within a second (docs/concepts.md, "Stopping"), and
100 raw probes of 100 locks a second cost 0.03 % of a core (measured)."""

LOAD_LOOK: Final = 1.0
"""Between two looks at how far a load is. Each takes up to 8 ms of a thread (measured), and only while something loads."""

LOAD_SAID: Final = 3.0
"""A load that takes longer has its progress said on the terminal of `queenright run`. One that is over by then needs no word."""

USE_STEP: Final = 10.0
"""Between two words of a member that it uses the engine. For people, who see it as `12 s ago`; noting it takes 3 us and
comparing 0.2 us (measured), of a request that takes milliseconds."""

SLOT_POLL: Final = 1.0
"""Between two looks whether the slot directory is still there."""

HOLD_LOOK: Final = 1.0
"""Between two looks whether the time of a hold is over, while there is one. A look lists a directory."""

BUILD_LOCK_TRY: Final = 0.05
"""Between two tries of a lock that is polled."""

TICKET_LOCK_WAIT: Final = 0.5
"""For build.lock, of who comes by a ticket: many that come at once take some 2 ms each. Beyond it he goes the full way,
which can wait for a build."""

LOOK_LIMIT: Final = 0.8
"""For the keeper's answer to a command that only looks: those answer within a second, with or without it."""

WATCH_ROUND: Final = 1.0
"""One round of a watch: ages on the screen are at most so old, and a keeper that was stopped shows within two. A round
costs the keeper one snapshot, 1 ms (measured)."""

WATCH_PAUSE: Final = 0.25
"""Between two looks of a watch at a slot whose keeper says nothing. A look at an empty slot costs 0.1 ms."""

FOLLOW_POLL: Final = 0.2
"""Between two looks at a log that is followed; a person cannot tell it from at once."""

START_LOG_LOOK: Final = 1.0
"""Between two looks at what a generation writes while it starts. Before LOG_CHECK can cut it off its first lines are
kept."""

KERNEL_ANSWER: Final = 1.0
"""For the kernel's answer about sockets (sock_diag(7)); it takes 83 us (measured). After that the tables are read."""

PROC_ANSWER: Final = 1.0
"""For a file of /proc that shows a process's memory; reading it takes under 1 ms (measured)."""

FORK_WAIT: Final = 1.0
"""A fork waits so long for a join or leave, or for the opening of a lock, that is under way in another thread (they take some
0.1 ms), so that the child knows every descriptor it must close. Longer than that, and the child may keep one: the fork
goes on."""

PROBE_INTERVAL: Final = 1.0
"""Between two looks at one process. A group of a proxy and one server costs the keeper 0.15 % of a core (measured)."""

PROBE_ANSWER: Final = 2.0
"""For the answer to a probe. Far more than an answer takes: on a loaded machine it comes late, and a miss alone decides
nothing, so there is nothing to be gained from haste."""

OBSERVATIONS: Final = 2
"""Looks in a row (a count, not seconds) that must find a process stopped, or its port closed: one may fall into a
moment of somebody's debugger, or into an unload whose word is on its way."""

HANG_MISSES: Final = 3
"""Probes in a row (a count) without an answer before a process that shows no other life counts as hung. A saturated
server was restarted eight times a day by a watch that took one miss of 2 s for death (gonka-ai/gonka#1421)."""

HANG_NOTICED: Final = 5.0
"""By default a stopped process is noticed within this: a probe in progress, and the looks after it."""

BURN_SHARE: Final = 0.02
"""Share of a core (not seconds) from which a process counts as computing. Answering a probe a second takes llama-server
0.0004 of one (1,000 probes: 0.37 s, measured)."""

STALL_SHOWN: Final = 5.0
"""Requests in flight without progress for this long are shown as `busy` or `stalled`, and the server is looked at more
closely. Prompts of ordinary length are read in less."""

CLOSER_INTERVAL: Final = 2.0
"""Between two closer looks (llama-server's /slots), on suspicion only. More often than once a second they keep
llama-server from noticing clients that left (measured)."""

WEDGE_LIMIT: Final = 60.0
"""Default for a server with requests in flight that shows no progress and no CPU time, before it counts as wedged. A
canary is asked from half of it on. One batch of a large prompt on a GPU takes seconds, not half a minute."""

LOOP_LIMIT: Final = 600.0
"""For a server that computes and answers /health, while its scheduler says nothing: a GPU that spins for ever looks like
this. Between two batches llama-server's scheduler answers; on a CPU a batch of a huge model takes minutes at most."""

STALL_LIMIT: Final = 3600.0
"""For a server that computes and gives no sign of progress. A long prompt took a CPU 30 to 60 minutes, all endpoints
silent meanwhile (ikawrakow/ik_llama.cpp#1210): CPU time defers the verdict so long, and no longer, since a GPU's
spin-wait always takes CPU time."""

LOG_CAP_BYTES: Final = 8 * 1024 * 1024
"""A log file larger than this is copied to `.1` and truncated. Eight mebibytes are weeks of an idle engine."""

LOG_CHECK: Final = 10.0
"""Between two looks at the sizes of the logs. A flood of 100 MB/s overshoots the cap by a gigabyte for ten seconds;
llama-server at its worst writes a thousandth of that."""

# --- requests -------------------------------------------------------------------------------------------------------

REQUEST_DEADLINE: Final = 600.0
"""Default for one request of the client, holding and replays included. Prompts on a CPU take minutes."""

TOLD_WAIT: Final = 1.0
"""For a 429 without a readable `Retry-After`: what llama-swap v250 always says (measured)."""

RETRY_AFTER: Final = 5
"""What our own 503 tells a caller to wait, in whole seconds (RFC 9110, 10.2.3): about one load of a small model."""

REPLAY_ATTEMPTS: Final = 2
"""Attempts whose bytes were sent. A request that killed two servers is not sent to a third."""

RESUMES_MOST: Final = 3
"""Continuations of one cut stream. An engine that dies under the same answer time and again dies of it."""

HOLD_DELAYS: Final = (0.02, 0.05, 0.1, 0.25)
"""Between looks at a group that refuses connections while nobody has yet said that it is down."""

WAIT_ROUND: Final = 5.0
"""One `wait` on the control socket, before it is asked anew. A keeper that dies closes it earlier."""

WATCH_END: Final = 1.0
"""For a thread that watches (over the engine, over a parent) to end: it is woken. Only one that is in the middle of acting on
what it saw takes longer."""

COMMENT_AFTER: Final = 5.0
"""From a streaming request's arrival at the gateway to its first comment, and from one comment to the next. Clients and
the proxies before them give a silent stream 10 s at the least (unslothai/unsloth#10911 tells of one); before this a load
of a small model is over, and its errors still have their own status."""

KEPT_FOR: Final = 5.0
"""For an idle connection to a group, as httpx has it. A new one on loopback takes 0.1 ms."""

CONNECT_LIMIT: Final = 5.0
"""TCP connect on loopback: immediate, or the backlog is full because the process is stopped."""

GATEWAY_PATIENCE: Final = 2.0
"""The gateway waits so long for the engine's own processes to be started before it takes the keeper's time for itself."""

GATEWAY_RETRY: Final = 5.0
"""Between two tries of a gateway that cannot serve: whoever has its port ends, and a key file is closed to others, without
anybody saying so. A try is a bind(2) and the look at a file."""

GATEWAY_START: Final = 10.0
"""For a gateway that is about to serve, of a program that would be given its address: GATEWAY_PATIENCE and half a second of
imports, on a machine that is busy with a load. Beyond it the program gets the group's own address."""

GATEWAY_UNREAD: Final = 120.0
"""For a caller to read on, once the buffers between us are full, or to be heard of at all: it has a server's place meanwhile.
A stopped program and a laptop that sleeps would keep it for ever."""

GATEWAY_KEEP_ALIVE: Final = 75.0
"""For an idle connection of a client. Longer than the pools of its library keep one (httpx 5 s, undici 4 s, Go 90 s with a
retry), since a request that meets a connection being closed fails."""

GATEWAY_BODY: Final = 120.0
"""From a request's head to the last byte of its body. The largest that is taken (64 MiB) comes in 6 s over a slow wireless
link of 10 MB/s; who sends a byte now and then holds a connection and memory for no longer."""

TURN_AWAY: Final = 0.5
"""For a connection beyond the most to read that there are too many: those are not counted, and so are gone soon."""

GATEWAY_LINGER: Final = 5.0
"""For the rest of a body that was refused: so long its sender can still read why."""

GATEWAY_LOOK: Final = 0.5
"""Between two looks whether a client that sent a request before its last one was answered is still there."""

GATEWAY_DRAIN: Final = 5.0
"""For the answers under way when a keeper makes room for the next. Meanwhile new connections wait with the warden, and so
must not for long; a stream that takes longer is broken off and says so."""

GATEWAY_MOVE: Final = 0.2
"""For the last words to connections whose engine is gone or that belong to an address given up: TEARDOWN has that much
to spare before WARDEN_STOP."""

UPSTREAM_CLOSED: Final = 1.0
"""From a stream that we close to a server that computes no more of it. llama-server's own thread of that connection sees it
with the next token, 0.03 s later, or with a ping of `--sse-ping-interval 1`, and says so to the scheduler before any
request that comes after it (measured)."""

QUEUE_RETRY_MOST: Final = 60.0
"""The longest `Retry-After` of a full queue. OpenAI's libraries take no longer one for serious."""

COUNT_LIMIT: Final = 5.0
"""For a server to count the tokens of a prompt. Its chat template and tokenizer take 0.1 s for a megabyte; one that is in
the middle of a batch, or not there, is not waited for, and the bound from bytes is used."""

# --- serving --------------------------------------------------------------------------------------------------------

SERVER_CLEANUP: Final = 12.0
"""For what a front end ends before its serving locks are released. The slowest part is an engine that we were the last
to use: TEARDOWN, and at worst WARDEN_STOP. Shorter than HANDOFF_WAIT, so that a successor who is there still gets it."""

SHUTDOWN_ANSWER: Final = 2.0
"""For a server's whole answer to a request to shut down; ours says 202 at once. The wait for its lock comes after."""

HOLDER_LOOK: Final = 0.5
"""Between two looks at who holds a serving lock: a holder writes its name after it has the lock, and its URL once it
listens. A look costs a small file and /proc/locks."""

PARENT_GRACE: Final = 4.0
"""From a parent's death to the hard exit of a child that was told and goes on living. An orphan must be gone within 5 s
(mcp-markdown-vault#45)."""

# --- people ---------------------------------------------------------------------------------------------------------

PATIENCE: Final = 2.0
"""Of waiting without a word, until a command says what it waits for: longer, and a person wonders whether anything happens."""

LOAD_STILL: Final = 5.0
"""Without a byte of a load after which `status` says for how long: before that a disk is just slow."""

STUCK_LOAD: Final = 30.0
"""Without a byte of a load after which that is named as wrong. A disk that spins up, or warming after the last byte, takes
less; llama-server is silent for a second or two (measured)."""

FORGOTTEN: Final = 86400.0
"""That a member has not used the engine, after which it is named: a night and a day."""

HOLD_MOST: Final = 366 * 86400.0
"""The longest hold that ends by itself: who means longer means until it is released."""


def check() -> None:
    """Raise ValueError unless the limits fit into one another. Called at import, and by a test on changed values."""
    rules = {
        "UNLOAD_LIMIT < GROUP_GRACE": UNLOAD_LIMIT < GROUP_GRACE,
        "GROUP_GRACE + SWEEP_LIMIT < GROUP_STOP": GROUP_GRACE + SWEEP_LIMIT < GROUP_STOP,
        "GROUP_STOP + UNDO_LIMIT < TEARDOWN": GROUP_STOP + UNDO_LIMIT < TEARDOWN,
        "UNDO_PAUSE < UNDO_PAUSE_MOST": UNDO_PAUSE < UNDO_PAUSE_MOST,
        "TEARDOWN < WARDEN_STOP": TEARDOWN < WARDEN_STOP,
        "WARDEN_STOP < HANDOFF_WAIT": WARDEN_STOP < HANDOFF_WAIT,
        "WARDEN_STOP + SWEEP_LIMIT < 10": WARDEN_STOP + SWEEP_LIMIT < 10,
        "3 * CONTROL_WAIT <= BUILD_LOCK_WAIT": 3 * CONTROL_WAIT <= BUILD_LOCK_WAIT,
        "STALL_LIMIT <= DRAIN_MOST": STALL_LIMIT <= DRAIN_MOST,
        "UNIT_WAIT < CONTROL_WAIT / 2": UNIT_WAIT < CONTROL_WAIT / 2,  # a warden must still have the time to start
        "WARDEN_STOP < SERVER_CLEANUP": WARDEN_STOP < SERVER_CLEANUP,
        "SERVER_CLEANUP < HANDOFF_WAIT": SERVER_CLEANUP < HANDOFF_WAIT,
        "TEARDOWN + GATEWAY_MOVE < WARDEN_STOP": TEARDOWN + GATEWAY_MOVE < WARDEN_STOP,
        "GATEWAY_PATIENCE < GATEWAY_START": GATEWAY_PATIENCE < GATEWAY_START,
        # `restart-keeper` waits for the next keeper as long as that.
        "GATEWAY_DRAIN < CONTROL_WAIT": GATEWAY_DRAIN < CONTROL_WAIT,
        "SHUTDOWN_ANSWER < HANDOFF_WAIT": SHUTDOWN_ANSWER < HANDOFF_WAIT,
        "PARENT_GRACE < 5": PARENT_GRACE < 5,
        # Seen to be hung, and looked at once more, before a newcomer gives up.
        "WARDEN_SILENCE + 2 * CONTROL_ANSWER < HANDOFF_WAIT": WARDEN_SILENCE + 2 * CONTROL_ANSWER < HANDOFF_WAIT,
        "2 * (NVML_LIMIT + NVML_END) < PLANNING_WAIT": 2 * (NVML_LIMIT + NVML_END) < PLANNING_WAIT,
        "MEMORY_LOOK < MEMORY_SETTLE <= 1": MEMORY_LOOK < MEMORY_SETTLE <= 1,  # ollama#11997: no longer wait than that
        "NVML_LIMIT + NVML_END < HANDOFF_WAIT": NVML_LIMIT + NVML_END < HANDOFF_WAIT,
        "MEMBER_POLL * 2 < 1": MEMBER_POLL * 2 < 1,
        "2 * NOTIFY_PULSE + CONTROL_WAIT <= NOTIFY_EXTENSION": 2 * NOTIFY_PULSE + CONTROL_WAIT <= NOTIFY_EXTENSION,
        "NOTIFY_EXTENSION < UNIT_START": NOTIFY_EXTENSION < UNIT_START,
        "WARDEN_STOP + SWEEP_LIMIT < UNIT_STOP": WARDEN_STOP + SWEEP_LIMIT < UNIT_STOP,
        "KEEPER_SILENCE + 2 * KEEPER_LOOK + KEEPER_DELAYS[-1] + CONTROL_WAIT < UNIT_WATCHDOG": (
            KEEPER_SILENCE + 2 * KEEPER_LOOK + KEEPER_DELAYS[-1] + CONTROL_WAIT < UNIT_WATCHDOG
        ),
        "PROBE_ANSWER + OBSERVATIONS * PROBE_INTERVAL < HANG_NOTICED": (
            PROBE_ANSWER + OBSERVATIONS * PROBE_INTERVAL < HANG_NOTICED
        ),
        "PROBE_ANSWER <= CLOSER_INTERVAL": PROBE_ANSWER <= CLOSER_INTERVAL,
        "1 < CLOSER_INTERVAL": CLOSER_INTERVAL > 1,
        "HANG_MISSES * (PROBE_INTERVAL + PROBE_ANSWER) < WEDGE_LIMIT / 2": (
            HANG_MISSES * (PROBE_INTERVAL + PROBE_ANSWER) < WEDGE_LIMIT / 2
        ),
        "COUNT_LIMIT <= RETRY_AFTER < QUEUE_RETRY_MOST": COUNT_LIMIT <= RETRY_AFTER < QUEUE_RETRY_MOST,
        "STALL_SHOWN < WEDGE_LIMIT / 2": STALL_SHOWN < WEDGE_LIMIT / 2,
        "WEDGE_LIMIT < LOOP_LIMIT < STALL_LIMIT": WEDGE_LIMIT < LOOP_LIMIT < STALL_LIMIT,
        "READY_POLL_FIRST < READY_POLL < READY_POLL_MOST": READY_POLL_FIRST < READY_POLL < READY_POLL_MOST,
        "RESTART_DELAYS grow": list(RESTART_DELAYS) == sorted(RESTART_DELAYS),
        "RESTART_INTENSITY * RESTART_RESET < RESTART_PERIOD": RESTART_INTENSITY * RESTART_RESET < RESTART_PERIOD,
        "LOAD_LOOK < LOAD_SAID": LOAD_LOOK < LOAD_SAID,
        "START_LOG_LOOK < LOG_CHECK": START_LOG_LOOK < LOG_CHECK,
        "KEEPER_DELAYS grow": list(KEEPER_DELAYS) == sorted(KEEPER_DELAYS),
        # Nothing is told to the service manager before there is a warden.
        "HANDOFF_TRIES * (HANDOFF_DRAIN + HANDOFF_WAIT) < UNIT_START": (
            HANDOFF_TRIES * (HANDOFF_DRAIN + HANDOFF_WAIT) < UNIT_START
        ),
        "4 * KEEPER_BEAT < KEEPER_SILENCE": 4 * KEEPER_BEAT < KEEPER_SILENCE,
        "KEEPER_SILENCE + 2 * KEEPER_LOOK < HANDOFF_WAIT": KEEPER_SILENCE + 2 * KEEPER_LOOK < HANDOFF_WAIT,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise ValueError("time limits do not fit into one another: " + "; ".join(broken))


check()
