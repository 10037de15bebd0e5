"""Where the built-in proxy differs from llama-swap v250, as data.

The tests below run against both and ask here what to expect. Every trait has its line, by this name, in
docs/reference/built-in-proxy.md (a test sees to that).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """What a proxy does where the two are not alike."""

    cut_stream_looks_complete: bool
    """A stream whose server died ends with a proper last chunk."""
    limit_error_names_source: bool
    """The 429 body carries `"src":"llama-swap"` (v250 itself leaves it out there; its successor does not)."""
    hanging_health_is_bounded: bool
    """healthCheckTimeout also ends a load whose /health accepts and never answers."""
    unknown_keys_refused: bool
    """A key the proxy does not know is a configuration error."""
    unload_of_a_load_says_stopping: bool
    """Unloading a model that is starting goes starting, stopping, stopped; llama-swap leaves `stopping` out."""
    unload_cuts_open_requests: bool
    """An unload closes requests in flight before SIGTERM, so a server that waits for them ends at once."""
    swap_honours_unload_timeout: bool
    """The stop before a swap has unloadTimeout as its grace (llama-swap: healthCheckTimeout)."""
    unused_load_lives_for_ttl: bool
    """A model whose only client left during the load stays for its ttl (llama-swap: one second)."""
    leavings_of_a_dead_leader_killed: bool
    """When a server's main process ends, the rest of its process group is killed."""
    unload_blocks_other_models: bool
    """While one model is being stopped, requests to others wait."""
    drain_after_sigterm: float
    """Seconds that a bare SIGTERM lets requests in flight go on."""
    waits_for_load_after_sigterm: bool
    """A request that waits for a load counts as in flight then."""
    second_sigterm_ends_the_drain: bool
    """A second SIGTERM ends the drain."""
    stdout_pipe_blocks: bool
    """Standard output is a pipe nobody reads: everything hangs."""


BUILT_IN = Traits(
    cut_stream_looks_complete=False,
    limit_error_names_source=True,
    hanging_health_is_bounded=True,
    unknown_keys_refused=True,
    unload_of_a_load_says_stopping=True,
    unload_cuts_open_requests=True,
    swap_honours_unload_timeout=True,
    unused_load_lives_for_ttl=True,
    leavings_of_a_dead_leader_killed=True,
    unload_blocks_other_models=False,
    drain_after_sigterm=5.0,
    waits_for_load_after_sigterm=False,
    second_sigterm_ends_the_drain=True,
    stdout_pipe_blocks=False,
)
LLAMA_SWAP = Traits(
    cut_stream_looks_complete=True,
    limit_error_names_source=False,
    hanging_health_is_bounded=False,
    unknown_keys_refused=False,
    unload_of_a_load_says_stopping=False,
    unload_cuts_open_requests=False,
    swap_honours_unload_timeout=False,
    unused_load_lives_for_ttl=False,
    leavings_of_a_dead_leader_killed=False,
    unload_blocks_other_models=True,
    drain_after_sigterm=30.0,
    waits_for_load_after_sigterm=True,
    second_sigterm_ends_the_drain=False,
    stdout_pipe_blocks=True,
)
