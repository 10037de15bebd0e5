"""What an engine reads from disk: model files, their sidecars, the directories that it wants to find.

A manifest says of each file how long it is, its SHA-256 and where it comes from. Nothing here is deleted that cannot be
brought back: a new file is whole and checked before it takes the place of an old one, and what is retired is moved aside.
"""
