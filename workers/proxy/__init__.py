"""A built-in substitute for llama-swap, for machines that have none. See docs/reference/built-in-proxy.md."""
