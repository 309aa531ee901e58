"""`deploy/audit.py`: what it prints of each decision."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from adjourn import Adjourn, Store
from adjourn.parts import digest
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel, call
from deploy.deploy_kit import DEPLOY

APP = """
from adjourn import Adjourn
from adjourn.stores.sqlite import SQLiteStore

def make():
    return Adjourn(stores=[SQLiteStore("sessions.db")])
"""


async def decide(store: Store) -> None:
    """One call is approved as it was shown, one with another input."""
    pays = [call("pay", {"euros": 500}), call("pay", {"euros": 7})]
    ai = Adjourn(model=ScriptedModel([pays, "Paid."]))

    @ai.tool(approval=True)
    def pay(euros: int) -> str:
        return f"paid {euros}"

    agent = ai.define_agent("clerk", tools=[pay], store=store)
    session = agent.connect()
    await session.send("go").output
    first, second = session.interrupts
    await ai.inbox.restart(first.id, replace_input={"euros": 5}, by="ann", run=False)
    await ai.inbox.restart(second.id, by="ann", run=False)
    await ai.aclose()


def test_the_audit_says_that_an_input_was_replaced_and_by_which(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "audit.py", tmp_path)
    (tmp_path / "app.py").write_text(APP)
    asyncio.run(decide(SQLiteStore(tmp_path / "sessions.db")))
    done = subprocess.run(
        [sys.executable, "audit.py", "--by", "ann"], cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=True
    )  # fmt: skip
    edited, approved = (json.loads(line) for line in done.stdout.splitlines())
    assert edited["replacedBy"] == digest({"euros": 5})
    assert edited["input"] != approved["input"]
    assert "replacedBy" not in approved
