// Genkit's JavaScript client against a server of ours. Arguments: the agents' address, a token. Prints one JSON object.
import { AgentError, remoteAgent } from 'genkit/beta/client';

const [base, token] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const agent = (name, stateManagement, given = headers) =>
  remoteAgent({ url: `${base}/${name}`, headers: given, stateManagement });
const clerk = agent('clerk', 'server');
const guest = agent('guest', 'client');
const done = {};

const failure = async (work) => {
  try {
    await work();
  } catch (e) {
    return { kind: e instanceof AgentError ? 'AgentError' : e.constructor.name, status: e.status, message: e.message };
  }
  return { kind: 'nothing was thrown' };
};
const shown = (response) => ({
  text: response.text,
  finishReason: response.finishReason,
  hasSnapshot: response.snapshotId !== undefined,
  interrupts: response.interrupts.map((i) => ({ name: i.name, ref: i.ref, input: i.input })),
});

const steps = {
  async send() {
    const response = await clerk.chat().send('hello');
    return { ...shown(response), sessionId: typeof response.sessionId };
  },
  async stream() {
    const turn = clerk.chat().sendStream('one two three');
    const texts = [];
    let last = '';
    for await (const chunk of turn.stream) {
      if (chunk.text) texts.push(chunk.text);
      last = chunk.accumulatedText;
    }
    return { texts, last, end: shown(await turn.response) };
  },
  async respond() {
    const chat = clerk.chat();
    const paused = await chat.send('pay 5');
    const ended = await chat.resume({ respond: [paused.interrupts[0].respond({ paid: 'by hand' })] });
    return { paused: shown(paused), ended: shown(ended), count: chat.messages.length };
  },
  async respondFalsy() {
    const out = [];
    for (const value of [0, false, '', null]) {
      const chat = clerk.chat();
      const paused = await chat.send('pay 5');
      out.push((await chat.resume({ respond: [paused.interrupts[0].respond(value)] })).text);
    }
    return out;
  },
  async restart() {
    const chat = clerk.chat();
    const paused = await chat.send('pay 6');
    const ended = await chat.resume({ restart: [paused.interrupts[0].restart()] });
    return shown(ended);
  },
  async restartWithMetadata() {
    const chat = clerk.chat();
    const paused = await chat.send('pay 7');
    const part = { ...paused.interrupts[0].restart(), metadata: { resumed: { approved: true } } };
    return shown(await chat.resume({ restart: [part] }));
  },
  async pausesAgain() {
    const chat = clerk.chat();
    const first = await chat.send('pay 13');
    const second = await chat.resume({ restart: [first.interrupts[0].restart()] });
    const third = await chat.resume({ restart: [second.interrupts[0].restart()] });
    return [shown(first), shown(second), shown(third)];
  },
  async partialAnswers() {
    const chat = clerk.chat();
    const both = await chat.send('pay 8 pay 9');
    const one = await chat.resume({ respond: [both.interrupts[1].respond('second')] });
    const none = await chat.resume({ respond: [one.interrupts[0].respond('first')] });
    return [shown(both), shown(one), shown(none)];
  },
  async pauseInTheStream() {
    const turn = clerk.chat().sendStream('pay 5');
    const seen = [];
    for await (const chunk of turn.stream) {
      for (const part of chunk.toolRequests) seen.push([part.toolRequest.name, part.metadata.interrupt]);
    }
    await turn.response;
    return seen;
  },
  async resumeBySnapshot() {
    const paused = await clerk.chat().send('pay 10');
    const chat = await clerk.loadChat({ snapshotId: paused.snapshotId });
    const last = chat.messages[chat.messages.length - 1];
    const request = last.content.find((p) => p.toolRequest).toolRequest;
    const part = { toolResponse: { name: request.name, ref: request.ref, output: 'from afar' } };
    return shown(await chat.resume({ respond: [part] }));
  },
  async resumeBySession() {
    const first = await clerk.chat({ sessionId: 'chosen-by-js' }).send('hello');
    const chat = clerk.chat({ sessionId: 'chosen-by-js' });
    const second = await chat.send('again');
    const loaded = await clerk.loadChat({ sessionId: 'chosen-by-js' });
    return { first: first.sessionId, second: second.sessionId, messages: loaded.messages.map((m) => m.role) };
  },
  async forged() {
    const chat = clerk.chat();
    const paused = await chat.send('pay 5');
    const part = paused.interrupts[0].restart();
    part.toolRequest.input = { amount: 5000 };
    const refused = await failure(() => chat.resume({ restart: [part] }));
    const ended = await chat.resume({ respond: [paused.interrupts[0].respond('still open')] });
    return { refused, ended: shown(ended) };
  },
  async twice() {
    const chat = clerk.chat();
    const paused = await chat.send('pay 5');
    const again = clerk.chat({ snapshotId: paused.snapshotId });
    await chat.resume({ respond: [paused.interrupts[0].respond('first')] });
    return failure(() => again.resume({ respond: [paused.interrupts[0].respond('second')] }));
  },
  async messageWhilePaused() {
    const chat = clerk.chat();
    await chat.send('pay 5');
    return failure(() => chat.send('never mind'));
  },
  async abort() {
    const chat = clerk.chat();
    const task = await chat.detach('slow 1');
    const before = await task.abort();
    const snapshot = await task.wait({ intervalMs: 20 });
    return { before, status: snapshot.status, again: await task.abort(), missing: (await clerk.abort('n_none')) ?? null };
  },
  async detachedPause() {
    const task = await clerk.chat().detach('pay 11');
    const snapshot = await task.wait({ intervalMs: 20 });
    const chat = clerk.chat({ snapshotId: task.snapshotId });
    const request = snapshot.state.messages.at(-1).content[0].toolRequest;
    const part = { toolResponse: { name: request.name, ref: request.ref, output: 'later' } };
    return { reason: snapshot.finishReason, ended: shown(await chat.resume({ respond: [part] })) };
  },
  async missingSnapshot() {
    const failed = await failure(() => clerk.loadChat({ snapshotId: 'n_none' }));
    return { snapshot: (await clerk.getSnapshot('n_none')) ?? null, failed };
  },
  async goesAway() {
    const chat = clerk.chat({ sessionId: 'left-by-js' });
    const turn = chat.sendStream('pay 12');
    for await (const chunk of turn.stream) {
      if (chunk.toolRequests.length) break;
    }
    process.once('unhandledRejection', () => {}); // the client's own: it gives up a stream that nobody reads any more
    turn.abort();
    const response = await turn.response;
    let snapshot;
    do {
      snapshot = await clerk.getSnapshot({ sessionId: 'left-by-js' });
    } while (snapshot?.status !== 'completed');
    return { here: response.finishReason, there: snapshot.finishReason };
  },
  async failingTool() {
    return failure(() => clerk.chat().send('explode'));
  },
  async state() {
    const chat = clerk.chat();
    const turn = chat.sendStream('note hello');
    const seen = [];
    for await (const chunk of turn.stream) {
      if (chunk.custom) seen.push(chunk.custom);
      if (chunk.artifact) seen.push(chunk.artifact.name);
    }
    await turn.response;
    return { seen, state: chat.state, artifacts: chat.artifacts.map((a) => a.parts[0].text) };
  },
  async guest() {
    const chat = guest.chat();
    const first = await chat.send('hello');
    const paused = await chat.send('pay 13');
    const again = await chat.resume({ restart: [paused.interrupts[0].restart()] });
    const ended = await chat.resume({ respond: [again.interrupts[0].respond('enough')] });
    const last = await chat.send('thanks');
    return { all: [first, paused, again, ended, last].map(shown), roles: chat.messages.map((m) => m.role) };
  },
  async guestTools() {
    const chat = guest.chat();
    await chat.send('note hello');
    await chat.send('note again');
    const last = await chat.send('thanks');
    return { last: shown(last), state: chat.state, artifacts: chat.artifacts.map((a) => a.parts[0].text) };
  },
  async misuse() {
    return {
      snapshot: await failure(() => clerk.chat({ snapshotId: 'n_none' }).send('x')),
      state: await failure(() => clerk.chat({ state: { messages: [] } }).send('x')),
      ids: await failure(() => guest.chat({ sessionId: 's' }).send('x')),
      agent: await failure(() => agent('nobody', 'server').chat().send('x')),
    };
  },
  async strangers() {
    const without = agent('clerk', 'server', {});
    const wrong = agent('clerk', 'server', { Authorization: 'Bearer nonsense' });
    return [await failure(() => without.chat().send('x')), await failure(() => wrong.getSnapshot('n_1'))];
  },
};

for (const [name, step] of Object.entries(steps)) {
  try {
    done[name] = await step();
  } catch (e) {
    done[name] = { thrown: String(e?.stack ?? e) };
  }
}
console.log(JSON.stringify(done));
