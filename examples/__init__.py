"""Small programs that show Adjourn at work. Run one with `python -m examples.<name>`."""
