"""What a person types: generate, status, verify, recipes, bench."""
