"""One file a library, each run in the environment where that library is: see benchmarks/temporal.py."""
