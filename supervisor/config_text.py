"""The commented configuration that `queenright init` writes: every key, with its default, meaning and unit.

A key that stands behind `# ` is at its default, or is an example where its default is "unset". Tests load the text
as it is, and with every such key uncommented, and compare the defaults with those of `config_shape`.
"""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = """\
# queenright.toml: one inference engine for every process that asks for it.
#
# Looked for from the working directory upwards, then in the user's configuration directory; `--config PATH` or
# QUEENRIGHT_CONFIG name another. Relative paths are relative to this file, and `~` is your home directory.
# A key behind `# ` shows its default. Unknown keys are refused, so a slip of the pen is never passed over.

[engine]

# The directory in which the engine lives. Unset: `queenright/slot` in the user's state directory, one engine for
# all your programs. QUEENRIGHT_SLOT goes before it.
# slot = "~/.local/state/queenright/slot"

# true: the engine outlives its last member, until `queenright stop`.
# keep_warm = false

# The llama-server to run: a path. Unset: QUEENRIGHT_LLAMA_SERVER, then PATH, then the one of an installed wheel:
# lilbee-engine, else those of the extra `engine`.
# llama_server = "/usr/local/bin/llama-server"

# The llama-swap to run: a path, or "built-in" for the proxy that comes with queenright. Unset: QUEENRIGHT_LLAMA_SWAP,
# then PATH, then the one of the wheel lilbee-engine, then the built-in one.
# llama_swap = "built-in"

# The gateway: one URL for every OpenAI client that does not use our library.
[gateway]

# false: there is none.
# enabled = true

# Where it listens. Port 0 = whichever is free. Where the default is taken, it takes another port that is free; where an
# address stands here, it takes no other, and says so.
# listen = "127.0.0.1:11411"

# A file with API keys, one a line, that clients must send. Only you may read it: (umask 077; openssl rand -hex 32 > FILE).
# Any address but one of loopback takes a key.
# api_key_file = "gateway.keys"

# Names by which clients call the gateway, besides localhost: "engine.lan", "host.docker.internal".
# hosts = []

# Web pages that may use it, as browsers write them: "http://localhost:3000". No other page may.
# origins = []

# MiB that one request may have.
# body_limit_mb = 64

# By which name /v1/models calls a model: its "role" or its "model". Requests may name either, or an alias.
# ids = "role"

# Seconds that a request may take to the first byte of its answer: so long it is held while its group is down.
# deadline_s = 600.0

# Seconds without an answer after which a streaming request gets a comment that says what it waits for, and then another.
# comment_after_s = 5.0

# Whether a stream that is cut in the middle goes on from what was delivered, once its group is rebuilt.
# resume = false

# A group is one proxy and the servers behind it. A group is rebuilt as a unit, and never with its neighbours: what
# may fall together goes into one group. The name is up to you: a-z, 0-9 and -, at most 32 characters.
[groups.chat]

# What kind of engine it is: "llama-swap", or "command" for any other program that serves a port.
# kind = "llama-swap"

# What that kind alone knows. llama-swap knows nothing; docs/reference/configuration.md has what a command needs.
# options = {}

# Seconds from the start of a stop until what still runs is killed. Above 0, below 3.5.
# grace_s = 2.5

# Seconds a start may take until all models are loaded. More for large models on slow disks; at most 86400.
# start_limit_s = 120.0

# Seconds in which a server may owe answers without any progress and without computing, before it counts as wedged and
# the group is rebuilt. At least 2, at most 86400.
# wedge_limit_s = 60.0

# Seconds after a start in which no silence counts against a server. 0 to 86400; unset, the kind's own.
# start_period_s = 60.0

# Seconds that a server may compute without any progress and without an answer, before its group is rebuilt. At least 600.
# stall_limit_s = 3600.0

# Requests that may wait in the gateway for each of the group's servers; more are answered with 429. At most 10000.
# queue_limit = 128

# false: start it as it is written here, without a plan of its memory. Nothing is refused then, and nothing promised to it.
# plan = true

# Files of queenright.payload.toml that the group reads: those that are missing or stale are fetched before it starts.
# payload = []

# Environment variables for this group's processes, beside the few they always get.
# environment = { CUDA_VISIBLE_DEVICES = "0" }

# A launch is one server. Give as many [[groups.chat.launches]] as there are models.
[[groups.chat.launches]]

# What clients ask for. Each role is there once in the whole engine.
role = "chat"

# A catalog model (`queenright model pull NAME` brings it), or the path of a GGUF file.
model = "smollm2-135m"

# Tokens per sequence. With two sequences, the server keeps room for twice as many. "auto": as many as fit when it is
# started (`queenright plan` says how many that is).
# context = 4096

# Requests served at once; more wait. 1 to 64, or "auto": as many as fit, up to 4.
# sequences = 1

# Tokens that all sequences share, each with `context` of them at most; a request waits until its prompt and its whole
# answer fit. At least `context`; 0 = each sequence has its own `context`, and nothing is shared.
# pool = 0

# Seconds without a request after which the weights leave memory; the next request loads them again. 0 = never.
# idle_ttl_s = 0

# Where an engine runs already, it is used with the context it has. An engine with less than this many tokens per
# sequence will not do: it is given more, or another is started beside it. At most `context`; 0 = whatever it has.
# least_context = 0

# MiB of system memory that the server may keep earlier prompts in. 0 = none.
# cache_ram_mib = 0

# More names by which clients of the gateway may ask for this model.
# aliases = []

# More arguments for llama-server, as they are. Those that the keys above set (--ctx-size and the like) are refused.
# arguments = []

[groups.embed]

[[groups.embed.launches]]
role = "embed"
model = "minilm-l6"
# MiniLM was trained on 512 tokens: more context would be memory for nothing.
context = 512
"""

TEMPLATE_MODELS: Final = ("smollm2-135m", "minilm-l6")
"""The models that it names, of the catalog."""
