"""Seconds of the parts of a step."""

import time
from contextlib import contextmanager

PARTS = ("rollout_s", "verify_s", "gather_s", "train_s", "teacher_wait_s", "eval_s")  # of a step


class Stopwatch(dict):
    """Seconds by part of a step; `with watch("train_s"): ...` adds to watch["train_s"]."""

    def __init__(self, parts=PARTS):
        super().__init__(dict.fromkeys(parts, 0.0))

    @contextmanager
    def __call__(self, part: str):
        start = time.perf_counter()
        yield
        self[part] += time.perf_counter() - start
