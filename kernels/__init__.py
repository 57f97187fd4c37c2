"""Tensors in, tensors out: each file holds a torch reference (the documentation) and later its Triton kernel behind one chooser."""
