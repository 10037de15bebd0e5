"""Every time and size limit of the built-in proxy, with its reason.

Where llama-swap has the same limit its value is kept, so that a group behaves alike over either proxy.
"""

from __future__ import annotations

# --- times, seconds -------------------------------------------------------------------------------------------

# budget: a load is bounded by at least this; llama-swap raises smaller values in silence, and so do we.
LEAST_HEALTH_CHECK_TIMEOUT = 15.0
DEFAULT_HEALTH_CHECK_TIMEOUT = 120.0

# budget: one probe of checkEndpoint. A /health that accepts and never answers must not eat the whole load budget:
# the next probe may meet a server that has recovered.
PROBE_BUDGET = 5.0

# budget: pause between two probes while a model loads: a tenth of the time waited so far, within these bounds.
# So readiness is noticed at most 10 % late, and a long load is not polled needlessly.
LEAST_PROBE_PAUSE = 0.02
MOST_PROBE_PAUSE = 0.25

# budget: SIGTERM to SIGKILL where the configuration says nothing (llama-swap's default).
DEFAULT_UNLOAD_TIMEOUT = 10.0

# budget: idle time is looked at this often (llama-swap's tick), so a model leaves between ttl and ttl + 1 s.
TTL_TICK = 1.0

# budget: how long a bare SIGTERM lets running requests finish. Long enough for the tail of an answer, far below
# llama-swap's 30 s, so that our own drain and a 2 s grace stay below the ten seconds a teardown may take.
DRAIN_BUDGET = 5.0

# budget: after SIGKILL a process that is not in uninterruptible sleep is gone within milliseconds; at the end of the
# proxy's life we wait no longer than this for one that is.
KILL_BUDGET = 2.0

# budget: connecting to a server on loopback is immediate or refused; more means its accept queue is full.
CONNECT_BUDGET = 30.0

# budget: for the rest of a body that nobody wants: so long its sender can still read why (the gateway's, too).
LINGER_BUDGET = 5.0

# --- sizes ----------------------------------------------------------------------------------------------------

# Request line and headers together. Go's default is 1 MiB; 64 KiB is four times what any client of ours was seen to send.
MAX_HEAD_BYTES = 64 * 1024

# A request body is held in memory to find its "model" and to be sent on unchanged.
MAX_BODY_BYTES = 256 * 1024 * 1024

# One read from a socket or pipe.
READ_BYTES = 64 * 1024

# Log history kept per source (llama-swap's figure).
LOG_HISTORY_BYTES = 100 * 1024

# Messages a subscriber of /api/events or /logs/stream may be behind before it loses some (llama-swap's figure).
SUBSCRIBER_BACKLOG = 1024

# Requests per model, waiting and running together (llama-swap's default).
DEFAULT_CONCURRENCY = 10

# Connections the kernel may hold for us while the interpreter still imports.
LISTEN_BACKLOG = 512
