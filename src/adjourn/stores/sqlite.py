"""Sessions in one SQLite file, which several processes may share.

All changes go through one thread, which runs what is queued in one transaction (each in a savepoint of its own) and
syncs once for all of it: one caller waits for one sync, a thousand wait for a few. A future is done after the commit, never
before. Reads have connections of their own and wait for nobody: in the calling thread where that may block, else in a few
threads beside the event loop.
"""

import asyncio
import atexit
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from adjourn.errors import StoreError, StoreUnavailable
from adjourn.store import Tx
from adjourn.stores.sqlite_file import File, is_busy, is_storage
from adjourn.stores.sqlite_rows import SQLiteTx

T = TypeVar("T")
