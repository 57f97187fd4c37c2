"""Measurements against others, on the same prompts, weights, dtype and threads."""
