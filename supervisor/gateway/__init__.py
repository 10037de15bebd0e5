"""The gateway: one stable URL for every OpenAI client that does not use our library, served by the keeper.

`upkeep` and `listening` are light, and all that a keeper imports at its start; `server` brings Starlette and Hypercorn,
and is imported once the engine's first processes are started.
"""
