"""CUDA graphs of decoding steps."""

from collections.abc import Callable

import torch

from plumbing.errors import first_lines


class Recorder:
    """Recorder of a model's decoding steps as CUDA graphs, in one memory pool."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.graph = None  # the last one, kept because a pool must not lose all of its graphs
        self.error = None  # why a step could not be captured

    def __call__(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Return a function that replays the kernels of `step`, which is run twice. If a capture
        fails, as it does where rotary embeddings compute on the host, return `step` itself."""
        if self.error:
            return step
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            step()  # libraries allocate and choose kernels at first use, which a capture forbids
            if torch.cuda.mem_get_info()[0] < 2**30:
                torch.cuda.empty_cache()  # a capture cannot, and torch.cuda.graph always does
            try:
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    out = step()
                finally:
                    graph.capture_end()
            except RuntimeError as error:
                self.error = first_lines(error.__context__ or error)
                reason = f"a decoding step cannot be a CUDA graph ({self.error})"
                print(f"note: {reason}: generation is slower", flush=True)
        torch.cuda.current_stream().wait_stream(self.stream)
        if self.error:
            return step
        self.graph = graph

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay
