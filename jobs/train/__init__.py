"""Training: text with checkable answers, and the recipes that make the small models of models/zoo."""
