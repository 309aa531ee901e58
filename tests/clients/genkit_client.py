# pyright: basic, reportMissingImports=false
"""Genkit's Python client against a server of ours. Arguments: the agents' address, a token. Prints one JSON object.

It runs in an environment of its own, which has nothing of this project.
"""

import asyncio
import contextlib
import json
import sys
import traceback
from typing import Any

from genkit.exp import AgentError, remote_agent


def agent(name: str, management: Any, headers: Any = None) -> Any:
    base, token = sys.argv[1:3]
    headers = {"Authorization": f"Bearer {token}"} if headers is None else headers
    return remote_agent(f"{base}/{name}", headers=headers, state_management=management)


def shown(response: Any) -> dict[str, Any]:
    return {
        "text": response.text,
        "finishReason": str(response.finish_reason),
        "hasSnapshot": response.snapshot_id is not None,
        "interrupts": [{"name": i.name, "ref": i.ref, "input": i.input} for i in response.interrupts],
    }


async def failure(work: Any) -> dict[str, Any]:
    try:
        await work
    except AgentError as e:
        reason = str(e.reason) if e.reason is not None else None
        return {"kind": "AgentError", "status": e.status, "message": e.message, "reason": reason}
    except Exception as e:
        return {"kind": type(e).__name__, "status": getattr(e, "status", None), "message": str(e)}
    return {"kind": "nothing was thrown"}


class Steps:
    def __init__(self) -> None:
        self.clerk = agent("clerk", "server")
        self.guest = agent("guest", "client")

    async def send(self) -> Any:
        response = await self.clerk.chat().send("hello")
        return {**shown(response), "sessionId": type(response.session_id).__name__}

    async def stream(self) -> Any:
        turn = self.clerk.chat().send_stream("one two three")
        texts, last = [], ""
        async for chunk in turn.stream:
            if chunk.text:
                texts.append(chunk.text)
            last = chunk.accumulated_text
        return {"texts": texts, "last": last, "end": shown(await turn.response)}

    async def respond(self) -> Any:
        chat = self.clerk.chat()
        paused = await chat.send("pay 5")
        ended = await chat.resume(respond=[paused.interrupts[0].respond({"paid": "by hand"})])
        return {"paused": shown(paused), "ended": shown(ended), "roles": [str(m.role) for m in chat.messages]}

    async def respondFalsy(self) -> Any:  # noqa: N802 - the names are those of the other client's steps
        out = []
        for value in (0, False, "", None):
            chat = self.clerk.chat()
            paused = await chat.send("pay 5")
            out.append((await chat.resume(respond=[paused.interrupts[0].respond(value)])).text)
        return out

    async def restart(self) -> Any:
        chat = self.clerk.chat()
        paused = await chat.send("pay 6")
        return shown(await chat.resume(restart=[paused.interrupts[0].restart()]))

    async def restartWithMetadata(self) -> Any:  # noqa: N802
        chat = self.clerk.chat()
        paused = await chat.send("pay 7")
        part = paused.interrupts[0].restart(resumed_metadata={"approved": True})
        return shown(await chat.resume(restart=[part]))

    async def replacedInput(self) -> Any:  # noqa: N802
        chat = self.clerk.chat()
        paused = await chat.send("pay 500")
        part = paused.interrupts[0].restart(replace_input={"amount": 50})
        return shown(await chat.resume(restart=[part]))

    async def pausesAgain(self) -> Any:  # noqa: N802
        chat = self.clerk.chat()
        first = await chat.send("pay 13")
        second = await chat.resume(restart=[first.interrupts[0].restart()])
        third = await chat.resume(restart=[second.interrupts[0].restart()])
        return [shown(first), shown(second), shown(third)]

    async def partialAnswers(self) -> Any:  # noqa: N802
        chat = self.clerk.chat()
        both = await chat.send("pay 8 pay 9")
        one = await chat.resume(respond=[both.interrupts[1].respond("second")])
        none = await chat.resume(respond=[one.interrupts[0].respond("first")])
        return [shown(both), shown(one), shown(none)]

    async def pauseInTheStream(self) -> Any:  # noqa: N802
        turn = self.clerk.chat().send_stream("pay 5")
        seen = []
        async for chunk in turn.stream:
            seen += [[p.tool_request.name, p.metadata["interrupt"]] for p in chunk.tool_requests]
        await turn.response
        return seen

    async def resumeBySnapshot(self) -> Any:  # noqa: N802
        paused = await self.clerk.chat().send("pay 10")
        chat = self.clerk.chat(snapshot_id=paused.snapshot_id)
        return shown(await chat.resume(respond=[paused.interrupts[0].respond("from afar")]))

    async def resumeBySession(self) -> Any:  # noqa: N802
        first = await self.clerk.chat(session_id="chosen-by-python").send("hello")
        second = await self.clerk.chat(session_id="chosen-by-python").send("again")
        loaded = await self.clerk.load_chat(session_id="chosen-by-python")
        roles = [str(m.role) for m in loaded.messages]
        return {"first": first.session_id, "second": second.session_id, "messages": roles}

    async def forged(self) -> Any:
        chat = self.clerk.chat()
        paused = await chat.send("pay 5")
        part = paused.interrupts[0].restart()
        part.tool_request.input = {"amount": 5000}
        refused = await failure(chat.resume(restart=[part]))
        ended = await chat.resume(respond=[paused.interrupts[0].respond("still open")])
        return {"refused": refused, "ended": shown(ended)}

    async def twice(self) -> Any:
        chat = self.clerk.chat()
        paused = await chat.send("pay 5")
        again = self.clerk.chat(snapshot_id=paused.snapshot_id)
        await chat.resume(respond=[paused.interrupts[0].respond("first")])
        return await failure(again.resume(respond=[paused.interrupts[0].respond("second")]))

    async def messageWhilePaused(self) -> Any:  # noqa: N802
        chat = self.clerk.chat()
        await chat.send("pay 5")
        return await failure(chat.send("never mind"))

    async def abort(self) -> Any:
        task = await self.clerk.chat().detach("slow 1")
        before = await task.abort()
        snapshot = await task.wait(interval=0.02)
        again, missing = await task.abort(), await self.clerk.abort("n_none")
        return {"before": str(before), "status": str(snapshot.status), "again": str(again), "missing": missing}

    async def detachedPause(self) -> Any:  # noqa: N802
        task = await self.clerk.chat().detach("pay 11")
        snapshot = await task.wait(interval=0.02)
        chat = await self.clerk.load_chat(snapshot_id=task.snapshot_id)
        request = chat.messages[-1].content[0].tool_request
        from genkit.exp.agent import AgentInterrupt

        part = AgentInterrupt(request.name, request.ref, request.input).respond("later")
        return {"reason": str(snapshot.finish_reason), "ended": shown(await chat.resume(respond=[part]))}

    async def missingSnapshot(self) -> Any:  # noqa: N802
        failed = await failure(self.clerk.load_chat(snapshot_id="n_none"))
        return {"snapshot": await self.clerk.get_snapshot(snapshot_id="n_none"), "failed": failed}

    async def goesAway(self) -> Any:  # noqa: N802
        turn = self.clerk.chat(session_id="left-by-python").send_stream("pay 12")
        async for chunk in turn.stream:
            if chunk.tool_requests:
                break
        turn.abort()
        with contextlib.suppress(asyncio.CancelledError):
            await turn.response
        while True:
            snapshot = await self.clerk.get_snapshot(session_id="left-by-python")
            if snapshot is not None and str(snapshot.status) == "completed":
                return {"there": str(snapshot.finish_reason)}

    async def failingTool(self) -> Any:  # noqa: N802
        return await failure(self.clerk.chat().send("explode"))

    async def state(self) -> Any:
        chat = self.clerk.chat()
        turn = chat.send_stream("note hello")
        seen: list[Any] = []
        async for chunk in turn.stream:
            if chunk.custom:
                seen.append(chunk.custom)
            if chunk.artifact:
                seen.append(chunk.artifact.name)
        await turn.response
        return {"seen": seen, "state": chat.state, "artifacts": [a.parts[0].text for a in chat.artifacts]}

    async def guest_(self) -> Any:
        chat = self.guest.chat()
        first = await chat.send("hello")
        paused = await chat.send("pay 13")
        again = await chat.resume(restart=[paused.interrupts[0].restart()])
        ended = await chat.resume(respond=[again.interrupts[0].respond("enough")])
        last = await chat.send("thanks")
        return {"all": [shown(r) for r in (first, paused, again, ended, last)]}

    async def guestTools(self) -> Any:  # noqa: N802
        chat = self.guest.chat()
        await chat.send("note hello")
        await chat.send("note again")
        last = await chat.send("thanks")
        return {"last": shown(last), "state": chat.state, "artifacts": [a.parts[0].text for a in chat.artifacts]}

    async def misuse(self) -> Any:
        from genkit import Message, Part

        said = [Message(role="user", content=[Part(text="x")])]
        as_client = agent("clerk", "client")
        as_server = agent("guest", "server")
        return {
            "snapshot": await failure(self.clerk.chat(snapshot_id="n_none").send("x")),
            "state": await failure(as_client.chat(messages=said).send("x")),
            "ids": await failure(as_server.chat(session_id="s").send("x")),
            "agent": await failure(agent("nobody", "server").chat().send("x")),
        }

    async def strangers(self) -> Any:
        without = agent("clerk", "server", {})
        wrong = agent("clerk", "server", {"Authorization": "Bearer nonsense"})
        return [await failure(without.chat().send("x")), await failure(wrong.get_snapshot(snapshot_id="n_1"))]


async def main() -> None:
    done: dict[str, Any] = {}
    steps = Steps()
    for name in [n for n in vars(Steps) if not n.startswith("__")]:
        try:
            done[name.rstrip("_")] = await getattr(steps, name)()
        except Exception:
            done[name.rstrip("_")] = {"thrown": traceback.format_exc()}
    print(json.dumps(done, default=str))


asyncio.run(main())
