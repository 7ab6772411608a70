"""CUDA graphs of decoding steps."""

from collections.abc import Callable

import torch

from plumbing.errors import first_lines, print_line

MAX_FAILURES = 3  # captures in a row that may run out of memory


class GraphCapture:
    """Capture of a model's decoding steps as CUDA graphs, in one memory pool.

    Memory may suffice for the next capture where it did not for this one. Another error, as of
    rotary embeddings that compute on the host, would come back."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.graph = None  # the last one, kept because a pool must not lose all of its graphs
        self.failures = 0  # captures in a row that ran out of memory
        self.is_off = False  # no step is captured any more

    def __call__(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Return a function that replays the kernels of `step`, which is run twice. If a capture
        fails return `step` itself: for this block of tokens where memory is short, but for all
        later ones, too, after MAX_FAILURES in a row or after another error."""
        if self.is_off:
            return step
        graph = torch.cuda.CUDAGraph()
        reason = ""
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
                cause = error.__context__ or error  # the step's error, not that of capture_end
                reason = first_lines(cause)
                # Of torch's allocator, or CUDA's own error as it makes the graph.
                lacks_memory = "out of memory" in str(cause)
        torch.cuda.current_stream().wait_stream(self.stream)
        if reason:
            self._note(reason, lacks_memory)
            return step
        self.failures = 0
        self.graph = graph

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    def _note(self, reason: str, lacks_memory: bool) -> None:
        """Count a failed capture, and print what follows from it."""
        if lacks_memory:
            self.failures += 1
            self.is_off = self.failures == MAX_FAILURES
            # A pool with blocks but no graph takes no further capture; the blocks return.
            self.graph = None
            self.pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()
            reason = f"{self.failures} of {MAX_FAILURES} in a row: {reason}"
        else:
            self.is_off = True
        extent = "from now on" if self.is_off else "in this block of tokens"
        print_line(
            f"note: a decoding step cannot be a CUDA graph ({reason}): generation is slower "
            f"{extent}: each token then takes the launches of all kernels, 20-30 ms for 28 layers"
        )
