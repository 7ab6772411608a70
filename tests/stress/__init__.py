"""Long-running checks: faults, verifier fuzzing, mutation."""
