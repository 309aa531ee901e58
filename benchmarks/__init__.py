"""What Adjourn costs, beside its peers: `python -m benchmarks`. Run on demand; nothing here is timed in CI."""
