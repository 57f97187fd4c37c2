"""drawloom: batch and online generation with block-diffusion, speculative and autoregressive decoding in one engine."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("drawloom")
except PackageNotFoundError:  # used from a source tree that was never installed
    __version__ = "0.0.0+source"
