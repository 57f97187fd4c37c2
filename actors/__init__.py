"""One replica: the engine (no ray) and the Ray shell around it."""
