"""Watch a prime-rl run: sources, events, journal, delivery and the command line."""
