"""Decoding algorithms as pure tensor code over groups of sequences: no model, no cache, no ray."""
