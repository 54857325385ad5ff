"""Pure parsers, one module per format that a run writes."""
