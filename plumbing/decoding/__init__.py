"""Decoding: where turns end; a static key-value cache, CUDA graphs, attention without copies."""
