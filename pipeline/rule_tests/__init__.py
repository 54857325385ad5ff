"""Rule tests in TOML: what happens in an invented run, and what the rules make of it."""
