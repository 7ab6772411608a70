"""Compare answers to mathematical problems, in worker processes that can be killed."""
