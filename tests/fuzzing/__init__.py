"""What `tests/fuzz.py` draws and how it looks at what came of it."""
