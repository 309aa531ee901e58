"""Engines, which make turns survive machines: one that runs them on Temporal."""
