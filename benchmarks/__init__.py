"""Speed beside peers, in one run: `python -m benchmarks`, or `make bench`. Nothing here is a test."""
