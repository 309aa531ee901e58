"""Other systems' wire formats and protocols."""
