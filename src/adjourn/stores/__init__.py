"""Stores that outlive the process: `adjourn.stores.sqlite` (one file) and `adjourn.stores.postgres` (a shared server)."""
