"""
The demo: a simulated run that fails, and an unmodified `runwatch run` that watches it.

It imports nothing of the engine. What it shows of runwatch it reads where
anybody could: in the journal, and in the run directory.
"""

DURATION_S = 60.0
"""How long the run takes if nothing else is asked for."""
