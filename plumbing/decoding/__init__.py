"""Fast decoding: a static key-value cache, CUDA graphs, attention that copies no keys."""
