"""The memory planner: what a launch needs, where, how that is known, and what is decided of it. Pure but for the reader
of headers (`model`), the estimator and the commands.

`model` reads facts, `kv`, `compute` and `weights` are the arithmetic, `request` says what is wanted, `flags` how it is
said to llama-server, `decide` decides, `ledger` is the account that must add up, `render` shows it.
"""
