//! The ledger of output: whatever the transport, dialect, limits, pace and cuts, a client gets every byte or learns
//! exactly which it will never get, and the child ends.
//!
//! Each case is drawn from a seed and compared with a model of what the client knows. `REMEX_LEDGER_SEED` runs one case,
//! `REMEX_LEDGER_CASES` as many as one likes.

use std::{
    collections::BTreeMap,
    env, fs,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{PATIENCE, Reader, Server, check_numbers, decode, start_params, with};

/// How many cases a run has.
const CASES: u64 = 160;

/// How many run at once; they mostly wait.
const AT_ONCE: usize = 12;

/// How long the servers hold output for a client that is away or does not read back.
const RESUME_HOLD: Duration = Duration::from_millis(100);

/// When a client reports what it has consumed: as ours do.
const REPORT_BYTES: u64 = 64 << 10;
const REPORT_EVENTS: u64 = 1024;

/// More than what is on its way to a client at any time.
const IN_TRANSIT: u64 = 1 << 20;

/// Numbers that look random and are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = dice.below(2));
        dice
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).expect("an index is small")]
    }

    fn is_one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    /// Returns a time up to three times as long as output is held for a client that is away.
    fn absence(&mut self) -> Duration {
        if self.is_one_in(2) {
            return Duration::ZERO;
        }
        RESUME_HOLD * u32::try_from(self.below(30)).expect("small") / 10
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    WebSocket,
    Unix,
    Stdio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// The first one, which cannot resume.
    Oldest,
    /// That of today's clients, which ask for nothing.
    Base,
    Acks,
    Consumed,
    ConsumedAndAcks,
    /// All of it, and binary messages.
    Binary,
}

impl Dialect {
    fn capabilities(self) -> &'static [&'static str] {
        match self {
            Dialect::Oldest | Dialect::Base => &[],
            Dialect::Acks => &["acks", "processGap"],
            Dialect::Consumed => &["consumed"],
            Dialect::ConsumedAndAcks => &["consumed", "acks", "processGap"],
            Dialect::Binary => &["consumed", "acks", "processGap", "binaryFrames"],
        }
    }

    fn consumes(self) -> bool {
        matches!(self, Dialect::Consumed | Dialect::ConsumedAndAcks | Dialect::Binary)
    }

    fn hello(self, session: &Value) -> Value {
        match self {
            Dialect::Oldest => json!({"clientName": "ledger"}),
            Dialect::Base => json!({"clientName": "ledger", "resumeSessionId": session}),
            _ => {
                let capabilities = self.capabilities();
                json!({"clientName": "ledger", "resumeSessionId": session, "capabilities": capabilities})
            }
        }
    }
}

/// The operator's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limited {
    No,
    Bytes,
    Events,
    /// All processes of a session together.
    Session,
}

impl Limited {
    const ALL: [Limited; 4] = [Limited::No, Limited::Bytes, Limited::Events, Limited::Session];

    fn config(self) -> String {
        let limits = match self {
            Limited::No => "",
            Limited::Bytes => "retain_bytes = '48KiB'\ndurable_retain_bytes = '64KiB'\n",
            Limited::Events => "retain_events = 20\n",
            Limited::Session => "session_retain_bytes = '128KiB'\n",
        };
        let hold = RESUME_HOLD.as_millis();
        format!("[limits]\nresume_hold = '{hold}ms'\n{limits}")
    }
}

#[derive(Debug)]
struct Case {
    seed: u64,
    transport: Transport,
    dialect: Dialect,
    limited: Limited,
    durable: bool,
    overflow: &'static str,
    retain_bytes: Option<u64>,
    cuts: u64,
    /// Whether a consumer reports each event; otherwise it waits for more, as if it had some left to consume.
    reports_all: bool,
    /// How often the client pauses instead of reading the next message.
    pause_one_in: u64,
}

impl Case {
    fn new(seed: u64) -> Self {
        let dice = &mut Dice::new(seed);
        let transport =
            dice.one_of(&[Transport::WebSocket, Transport::Unix, Transport::Unix, Transport::Stdio]);
        let dialect = dice.one_of(&[
            Dialect::Oldest,
            Dialect::Base,
            Dialect::Base,
            Dialect::Acks,
            Dialect::Consumed,
            Dialect::ConsumedAndAcks,
            Dialect::Binary,
            Dialect::Binary,
        ]);
        let limited = dice.one_of(&Limited::ALL);
        let can_resume = dialect != Dialect::Oldest && transport != Transport::Stdio;
        Case {
            seed,
            transport,
            dialect,
            limited,
            durable: transport != Transport::Stdio && dialect != Dialect::Oldest && dice.is_one_in(2),
            overflow: dice.one_of(&["pause", "pause", "hold", "hold", "evict"]),
            retain_bytes: dice.one_of(&[None, None, Some(4 << 10), Some(64 << 10), Some(256 << 10)]),
            cuts: if can_resume { dice.below(4) } else { 0 },
            pause_one_in: dice.one_of(&[4, 64, u64::MAX]),
            // Only who has something left may wait where there is little room.
            reports_all: limited != Limited::No || dice.is_one_in(2),
        }
    }

    /// Returns whether the client says what it has received.
    fn is_acknowledged(&self) -> bool {
        self.transport == Transport::WebSocket || self.dialect.capabilities().contains(&"acks")
    }

    /// Returns whether the client must get every byte.
    fn loses_nothing(&self) -> bool {
        let is_roomy = self.limited != Limited::Bytes
            && self.limited != Limited::Session
            && self.limited != Limited::Events
            && self.retain_bytes.is_none_or(|bytes| bytes >= IN_TRANSIT);
        match self.overflow {
            "evict" => false,
            _ if self.cuts == 0 => true,
            // Without acknowledgements, what was on its way can be read back only if the log had room for it.
            "hold" => self.is_acknowledged() || is_roomy,
            _ => false,
        }
    }
}

/// Returns a script that prints consecutive numbers in bursts, and how many bytes that is.
fn script(dice: &mut Dice) -> (String, u64) {
    let (mut script, mut next) = (String::new(), 10_000_000_u64);
    for _ in 0..=dice.below(6) {
        let count = dice.one_of(&[50, 3000, 20_000, 60_000]);
        let last = next + count - 1;
        if count == 50 {
            // Each line by itself, so that it is an event of its own.
            script +=
                &format!("i={next}; while [ $i -le {last} ]; do echo $i; i=$((i+1)); sleep 0.002; done\n");
        } else {
            script += &format!("seq {next} {last}\n");
        }
        script += dice.one_of(&["", "sleep 0.02\n", "sleep 0.15\n"]);
        next += count;
    }
    (script, (next - 10_000_000) * 9)
}

/// The servers that the cases share.
struct Servers {
    by_limits: Vec<(Limited, Server)>,
    _directory: TempDir,
}

impl Servers {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let path = |name: String| directory.path().join(name).display().to_string();
        let by_limits = Limited::ALL.map(|limited| {
            let config = path(format!("{limited:?}.toml"));
            fs::write(&config, limited.config()).expect("a file can be written");
            let socket = format!("unix://{}", path(format!("{limited:?}.sock")));
            let state = path(format!("{limited:?}"));
            let flags =
                ["--config", &config, "--listen", "ws://127.0.0.1:0", "--listen", &socket, "--state", &state];
            (limited, Server::serve(&flags))
        });
        Servers { by_limits: by_limits.into(), _directory: directory }
    }

    fn address(&self, case: &Case) -> &str {
        let server = self.by_limits.iter().find(|(limited, _)| *limited == case.limited);
        let (_, server) = server.expect("there is a server for each");
        let [websocket, unix] = server.addresses() else { panic!("it has two listeners") };
        if case.transport == Transport::WebSocket { websocket } else { unix }
    }
}

/// What the client knows of one process.
#[derive(Default)]
struct Model {
    output: BTreeMap<u64, Vec<u8>>,
    /// Missing events: first and last, and their bytes.
    gaps: Vec<(u64, u64, u64)>,
    /// Exit and close.
    ends: Vec<u64>,
    /// Everything up to here is known to be there or missing.
    seq: u64,
    closed: Option<u64>,
    unreported: (u64, u64),
    /// What was reported last.
    reported: u64,
    /// Bytes that came behind a hole before the connection was cut. Without acknowledgements, the server cannot know
    /// that they did.
    unsure: u64,
}

impl Model {
    fn on_output(&mut self, seq: u64, chunk: &Value) {
        let bytes = decode(chunk);
        self.unreported = (self.unreported.0 + bytes.len() as u64, self.unreported.1 + 1);
        let before = self.output.insert(seq, bytes);
        assert!(
            before.is_none_or(|before| before == self.output[&seq]),
            "event {seq} differs when it comes again"
        );
    }

    fn on_gap(&mut self, gap: &Value) {
        let number = |member: &str| gap[member].as_u64().unwrap_or_else(|| panic!("no `{member}`: {gap}"));
        self.gaps.push((number("fromSeq"), number("toSeq"), number("bytes")));
    }

    fn on_note(&mut self, message: &Value) {
        let params = &message["params"];
        let seq = || params["seq"].as_u64().unwrap_or_else(|| panic!("no seq: {message}"));
        match message["method"].as_str() {
            Some("process/output") => self.on_output(seq(), &params["chunk"]),
            Some("process/gap") => self.on_gap(params),
            Some("process/exited") => self.ends.push(seq()),
            Some("process/closed") => {
                self.ends.push(seq());
                self.closed = Some(seq());
            }
            other => panic!("unexpected {other:?}: {message}"),
        }
        self.go_on();
    }

    fn on_read(&mut self, reply: &Value, asked_after: u64) {
        if reply["gap"].is_object() {
            self.on_gap(&reply["gap"]);
        }
        for chunk in reply["chunks"].as_array().expect("chunks are an array") {
            self.on_output(chunk["seq"].as_u64().expect("a chunk has a seq"), &chunk["chunk"]);
        }
        let next = reply["nextSeq"].as_u64().expect("a read says where to go on");
        // The exit and the close can only be inferred from missing numbers between chunks.
        let known = self.output.range(asked_after + 1..next).map(|(seq, _)| *seq).collect::<Vec<_>>();
        for seq in asked_after + 1..next {
            if known.binary_search(&seq).is_err()
                && !self.gaps.iter().any(|(from, to, _)| (*from..=*to).contains(&seq))
            {
                self.ends.push(seq);
            }
        }
        if reply["closed"] == true {
            self.closed = Some(next - 1);
        }
        self.go_on();
    }

    fn go_on(&mut self) {
        loop {
            let next = self.seq + 1;
            if self.output.contains_key(&next) || self.ends.contains(&next) {
                self.seq = next;
            } else if let Some((_, to, _)) =
                self.gaps.iter().find(|(from, to, _)| (*from..=*to).contains(&next))
            {
                self.seq = *to;
            } else {
                return;
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.closed.is_some_and(|closed| self.seq >= closed)
    }

    /// Returns whether it is time to report what was consumed: all that came, or much of it, as our clients do.
    fn is_report_due(&mut self, case: &Case) -> bool {
        let report_bytes = case.retain_bytes.map_or(REPORT_BYTES, |retain| (retain / 4).min(REPORT_BYTES));
        let is_much = self.unreported.0 >= report_bytes || self.unreported.1 >= REPORT_EVENTS;
        let is_due = is_much || (case.reports_all && self.seq > self.reported);
        if is_due {
            self.reported = self.seq;
            self.unreported = (0, 0);
        }
        is_due
    }

    /// Checks every byte, and returns how many came and how many are missing.
    fn check(&self) -> (u64, u64) {
        let (mut seq, mut offset) = (0, 0_u64);
        // Where each event ended.
        let mut ends = BTreeMap::from([(0, 0_u64)]);
        while seq < self.seq {
            let next = seq + 1;
            if let Some(bytes) = self.output.get(&next) {
                check_numbers(offset, bytes);
                (seq, offset) = (next, offset + bytes.len() as u64);
            } else if self.ends.contains(&next) {
                seq = next;
            } else {
                let gap = self.gaps.iter().find(|(from, to, _)| (*from..=*to).contains(&next));
                let (from, to, bytes) = gap.expect("every event is known");
                // A part of what is evicted may have come before.
                offset = ends[&(from - 1)] + bytes;
                seq = *to;
            }
            ends.insert(seq, offset);
        }
        let received: u64 = self.output.values().map(|bytes| bytes.len() as u64).sum();
        (received, offset - received)
    }
}

/// A client that plays one case.
struct Player<'a> {
    case: &'a Case,
    reader: Reader,
    session: Value,
    model: Model,
    dice: Dice,
}

impl Player<'_> {
    fn take(&mut self, message: &Value) {
        match message["method"].as_str() {
            Some("flow/mark") => {
                let mark = message["params"]["mark"].clone();
                self.reader.notify("flow/ack", json!({"mark": mark}));
            }
            Some(_) => self.model.on_note(message),
            None => panic!("an answer to nothing: {message}"),
        }
        self.report();
    }

    fn report(&mut self) {
        if self.case.dialect.consumes() && self.model.is_report_due(self.case) {
            self.reader.notify("flow/consumed", json!({"processId": "p", "seq": self.model.seq}));
        }
    }

    fn take_passed(&mut self) {
        for message in self.reader.take_passed() {
            self.take(&message);
        }
    }

    fn read(&mut self, after: u64) -> Value {
        let read = json!({"processId": "p", "afterSeq": after});
        let reply = self.reader.call("process/read", read).expect("the process is there");
        // What was sent before the answer is known before it.
        self.take_passed();
        self.model.on_read(&reply, after);
        if self.model.seq > self.model.reported {
            // It may have shown that nothing is left to consume.
            self.model.unreported.0 = REPORT_BYTES;
        }
        self.report();
        reply
    }

    /// Cuts the connection, stays away for a while, resumes, and reads back what was missed, perhaps late.
    fn cut(self, address: &str) -> Self {
        let Player { case, reader, session, mut model, mut dice } = self;
        reader.cut();
        model.unsure += model.output.range(model.seq + 1..).map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        thread::sleep(dice.absence());
        let deadline = Instant::now() + PATIENCE;
        let reader = loop {
            let mut reader = Reader::connect(address);
            match reader.call("initialize", case.dialect.hello(&session)) {
                Ok(_) => {
                    reader.notify("initialized", json!({}));
                    break reader;
                }
                // It is held by the connection that was just cut.
                Err(error) => assert_eq!(error["code"], -32010, "{error}"),
            }
            assert!(Instant::now() < deadline, "the session is still held");
        };
        // A client reports again what it has consumed.
        model.unreported = (REPORT_BYTES, 0);
        let mut player = Player { case, reader, session, model, dice };
        player.take_passed();
        let late = player.dice.absence();
        if player.dice.is_one_in(2) {
            // Later still.
            thread::sleep(late / 2);
        }
        thread::sleep(late / 2);
        player.read(player.model.seq);
        player
    }
}

fn play(case: &Case, servers: &Servers) {
    let mut dice = Dice::new(case.seed.wrapping_add(1 << 32));
    let (script, bytes) = script(&mut dice);
    let directory = tempfile::tempdir().expect("a directory can be made");
    let config = directory.path().join("server.toml");
    fs::write(&config, case.limited.config()).expect("a file can be written");
    let (_server, address, mut reader) = match case.transport {
        Transport::Stdio => {
            let (server, reader) = Server::stdio_reader(&["--config", &config.display().to_string()]);
            (Some(server), "", reader)
        }
        Transport::WebSocket | Transport::Unix => {
            let address = servers.address(case);
            (None, address, Reader::connect(address))
        }
    };
    let answer = reader.call("initialize", case.dialect.hello(&Value::Null)).expect("the handshake succeeds");
    reader.notify("initialized", json!({}));
    let mut output = json!({"overflow": case.overflow});
    if let Some(retain_bytes) = case.retain_bytes {
        output["retainBytes"] = json!(retain_bytes);
    }
    let more = json!({"output": output, "durable": case.durable});
    if case.limited == Limited::Session {
        // Closed processes with unconsumed output use up a part of the retention of the session.
        for id in ["closed", "closed too"] {
            let params = start_params(id, &["/bin/sh", "-c", "head -c 60000 /dev/zero"]);
            reader.call("process/start", with(params, json!({"durable": false}))).expect("it starts");
            loop {
                let message = reader.next();
                match message["method"].as_str() {
                    Some("process/closed") => break,
                    Some("flow/mark") => reader.notify("flow/ack", message["params"].clone()),
                    _ => {}
                }
            }
        }
    }
    let params = with(start_params("p", &["/bin/sh", "-c", &script]), more);
    reader.call("process/start", params).expect("the process starts");
    let session = answer["sessionId"].clone();
    let mut player = Player { case, reader, session, model: Model::default(), dice };
    let mut cuts = case.cuts;
    let mut until_cut = player.dice.below(30);
    while !player.model.is_complete() {
        if cuts > 0 && until_cut == 0 {
            cuts -= 1;
            until_cut = player.dice.below(30);
            player = player.cut(address);
            continue;
        }
        until_cut = until_cut.saturating_sub(1);
        if player.model.closed.is_some() {
            // It was streamed the end, and has not read back everything before.
            player.read(player.model.seq);
            continue;
        }
        if player.dice.is_one_in(case.pause_one_in) {
            thread::sleep(Duration::from_millis(player.dice.below(20)));
        }
        let message = player.reader.next();
        player.take(&message);
        if player.model.closed.is_none()
            && player.model.output.last_key_value().is_some_and(|(last, _)| *last > player.model.seq)
        {
            // A client that was not told of a gap sees the numbers jump.
            player.read(player.model.seq);
        }
    }
    let (received, missing) = player.model.check();
    assert_eq!(received + missing, bytes, "what came and what is missing are all there was");
    let last = player.read(player.model.seq);
    assert_eq!(last["closed"], true);
    let (produced, evicted) = (last["produced"]["stdout"].as_u64(), last["evictedBytes"].as_u64());
    let unsure = if case.is_acknowledged() { 0 } else { player.model.unsure };
    assert_eq!(produced, Some(bytes), "{last}");
    assert!(
        evicted.is_some_and(|evicted| (missing..=missing + unsure).contains(&evicted)),
        "{missing}: {last}"
    );
    if case.loses_nothing() {
        assert_eq!(missing, 0, "nothing may be lost");
    }
    let session = json!({"sessionId": player.session});
    player.reader.call("session/end", session).expect("a session can be ended");
}

#[test]
fn every_byte_is_delivered_or_reported_as_lost() {
    let number = |name: &str| env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let servers = Servers::start();
    if let Some(seed) = number("REMEX_LEDGER_SEED") {
        let case = Case::new(seed);
        return play(&case, &servers);
    }
    let (cases, next) = (number("REMEX_LEDGER_CASES").unwrap_or(CASES), AtomicU64::new(1));
    let failed: Vec<String> = thread::scope(|scope| {
        let players: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    let mut failed = Vec::new();
                    while failed.is_empty() {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed > cases {
                            break;
                        }
                        let case = Case::new(seed);
                        if thread::scope(|scope| scope.spawn(|| play(&case, &servers)).join()).is_err() {
                            failed.push(format!("{case:?}"));
                        }
                    }
                    failed
                })
            })
            .collect();
        players.into_iter().flat_map(|player| player.join().expect("players do not fail")).collect()
    });
    assert!(failed.is_empty(), "with REMEX_LEDGER_SEED set to their seeds: {failed:#?}");
}
