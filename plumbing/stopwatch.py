"""Seconds of the parts of a step."""

import time
from contextlib import contextmanager

PARTS = ("rollout_s", "verify_s", "gather_s", "train_s", "teacher_wait_s", "eval_s")  # of a step


class Stopwatch(dict):
    """Seconds by part of a step; `with watch("train_s"): ...` adds to watch["train_s"]. clock: a
    function that returns the time in seconds."""

    def __init__(self, parts=PARTS, clock=time.perf_counter):
        super().__init__(dict.fromkeys(parts, 0.0))
        self.clock = clock

    @contextmanager
    def __call__(self, part: str):
        start = self.clock()
        yield
        self[part] += self.clock() - start
