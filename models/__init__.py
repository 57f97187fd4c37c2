"""Networks, weights, K/V pages and text: everything that changes when a checkpoint changes."""
