"""The pure engine: rules in TOML, events in, decisions out. No I/O and no clock."""
