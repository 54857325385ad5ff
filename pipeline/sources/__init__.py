"""Where events come from: one module per source."""
