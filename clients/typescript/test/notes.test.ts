// Acknowledgements for a server that does not read: they cost little memory, and are sent when it reads again.
import assert from "node:assert/strict";
import { PassThrough, Writable } from "node:stream";
import { test } from "node:test";
import type { Outgoing } from "../src/outgoing.js";
import { LineLink } from "../src/node/lines.js";
import { Notes } from "../src/notes.js";
import { within } from "./server.js";

/** A link that is full, and what it was given to send. */
function fullLink(): { isFull: boolean; sent: any[]; send(message: Outgoing): void } {
  return {
    isFull: true,
    sent: [],
    send(message) {
      this.sent.push(JSON.parse(message as string));
    },
  };
}

test("only the newest acknowledgement of each kind waits for a full connection", () => {
  const link = fullLink();
  const notes = new Notes(link);
  for (let seq = 1; seq <= 100; seq++) {
    notes.acknowledge(seq);
    notes.addConsumed("p", seq, 7);
    notes.addConsumed("p", 2 * seq, 8);
    notes.addBodyConsumed("r", seq);
  }
  notes.addConsumed("p", 5, 7);
  notes.addConsumed("q", 5, undefined);
  notes.dropUnnamed("q");
  notes.dropUnnamed("p");
  assert.deepEqual(link.sent, []);
  link.isFull = false;
  notes.flush();
  assert.deepEqual(link.sent.map(({ params }) => params), [
    { mark: 100 },
    { processId: "p", incarnation: 7, seq: 100 },
    { processId: "p", incarnation: 8, seq: 200 },
    { requestId: "r", seq: 100 },
  ]);
  notes.flush();
  assert.equal(link.sent.length, 4);
});

test("reports about unknown processes and refusals are bounded", () => {
  const link = fullLink();
  const notes = new Notes(link);
  for (let number = 0; number < 20_000; number++) {
    notes.addDiscarded(`p${number}`, 1, undefined, false);
    notes.refuse(number);
  }
  notes.addDiscarded("x".repeat(1025), 1, undefined, true);
  notes.refuse("x".repeat(1025));
  notes.addDiscarded("p1", 2, undefined, false);
  notes.addDiscarded("known", 1, undefined, true);
  link.isFull = false;
  notes.flush();
  const reports = link.sent.filter(({ method }) => method === "flow/consumed").map(({ params }) => params);
  assert.equal(reports.length, (16 << 10) + 1);
  assert.deepEqual([reports[1].seq, reports.at(-1).processId], [2, "known"]);
  assert.equal(link.sent.filter(({ error }) => error !== undefined).length, 256);
});

test("a connection of lines is full until its stream takes more", async () => {
  let taken: (() => void) | undefined;
  const output = new Writable({ highWaterMark: 16, write: (_chunk, _encoding, done) => void (taken = done) });
  const link = new LineLink(new PassThrough(), output);
  const drained = new Promise<void>((onDrain) => {
    link.start({ onDrain, onMessage: () => undefined, onOutput: () => undefined, onMalformed: () => undefined, onPong: () => undefined, onEnd: () => undefined });
  });
  assert.equal(link.isFull, false);
  link.send("x".repeat(32));
  await Promise.resolve();
  assert.equal(link.isFull, true);
  taken!();
  await within("the end of that", drained);
  assert.equal(link.isFull, false);
  link.destroy();
});
