//! Server state and client state over a simulated link that splits, delays, loses and reconnects.
//!
//! No sockets, no sleeps, no clock: every choice comes from a seed, and a failure names its seed.

mod client;
mod server;
mod wire;

use std::{
    collections::{BTreeMap, VecDeque},
    env, panic,
};

use remex_proto::state::{
    line_framer::{Line, LineFramer},
    output_log::Stream,
    pending::AfterDisconnect,
    session_table::{OnDetach, Takeover},
};
use serde::{Serialize, de::DeserializeOwned};

use client::{Client, State};
use server::{Overflow, Server};
use wire::{Call, Connection, ToClient, ToServer};

/// How many seeds, unless `REMEX_LINK_SEEDS` says otherwise.
const SEEDS: u64 = 4_000;
const STEPS: usize = 400;
/// More rounds than any seed needs to come to rest.
const ROUNDS: usize = 2_000;
/// A second client of the same owner, which takes the session over and reads nothing.
const RIVAL: Connection = Connection::MAX;

#[test]
fn nothing_is_lost_or_duplicated_on_a_faulty_link() {
    let seeds = env::var("REMEX_LINK_SEEDS")
        .map_or(SEEDS, |count| count.parse().expect("the count of seeds is a number"));
    for seed in 0..seeds {
        let outcome = panic::catch_unwind(|| World::new(seed).run());
        assert!(outcome.is_ok(), "seed {seed} fails; run it alone to see why");
    }
}

struct World {
    random: Random,
    server: Server,
    client: Client,
    /// Connections that at least one side believes in.
    links: BTreeMap<Connection, Link>,
    connections: Connection,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let overflows: Vec<_> = (0..1 + random.below(3))
            .map(|_| if random.chance(30) { Overflow::Evict } else { Overflow::Pause })
            .collect();
        let on_detach = match random.below(10) {
            0 => OnDetach::ExpireAfterMs(random.below(200) as u64),
            1..=5 => OnDetach::ExpireAfterMs(1_000_000),
            _ => OnDetach::Keep,
        };
        World {
            server: Server::new(&overflows, on_detach, 0),
            client: Client::new(overflows.len(), 0),
            links: BTreeMap::from([(0, Link::new())]),
            connections: 1,
            random,
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        for _ in 0..ROUNDS {
            if self.is_at_rest() {
                return self.check();
            }
            self.calm_down();
        }
        panic!("the two sides do not come to rest");
    }

    fn step(&mut self) {
        let process = self.random.below(self.client.consumers.len());
        match self.random.below(200) {
            0..40 => {
                let stream = if self.random.chance(70) { Stream::Stdout } else { Stream::Stderr };
                self.server.print(process, stream, 1 + self.random.below(40));
            }
            40..75 => self.server.stream(process, 1 + self.random.below(4)),
            75..120 => _ = self.carry(Direction::ToClient),
            120..150 => _ = self.carry(Direction::ToServer),
            150..165 => self.client.acknowledge(process),
            165..175 => {
                let len = self.random.below(30);
                let chunk = (0..len).map(|_| self.random.below(256) as u8).collect();
                self.client.write(process, chunk);
            }
            175..185 => self.server.read_stdin(process, self.random.below(40)),
            185..187 => _ = self.client.call(Call::Ping, AfterDisconnect::Fail),
            187..190 => self.server.pass_time(self.random.below(100) as u64),
            190 => self.cut(),
            191..195 => self.notice(50),
            195..198 => self.connect(),
            198 if self.random.chance(30) => _ = self.server.resume(RIVAL, Takeover::Yes),
            198 => self.server.lose(RIVAL),
            _ if self.random.chance(10) => self.server.wind_up(process),
            _ => self.client.catch_up(),
        }
        self.dispatch();
    }

    /// Continues without further faults: broken connections are noticed, and data in flight arrives.
    fn calm_down(&mut self) {
        self.server.lose(RIVAL);
        self.notice(100);
        self.connect();
        for process in 0..self.client.consumers.len() {
            self.server.wind_up(process);
            self.server.stream(process, 4);
            self.server.read_stdin(process, usize::MAX);
            self.client.acknowledge(process);
        }
        self.client.catch_up();
        self.dispatch();
        for direction in [Direction::ToServer, Direction::ToClient] {
            while self.carry(direction) {}
            self.dispatch();
        }
    }

    fn is_at_rest(&self) -> bool {
        let has_seen_all = |(process, consumer): (&server::Process, &client::Consumer)| {
            process.log.is_closed() && consumer.seen == process.log.next_seq() - 1
        };
        let is_settled = matches!(self.client.state, State::Up(_))
            && self.server.processes.iter().zip(&self.client.consumers).all(has_seen_all)
            && self.client.pending.is_empty()
            && self.server.processes.iter().zip(&self.client.written).all(|(p, w)| p.input.len() == w.len());
        is_settled || self.client.state == State::Gone
    }

    fn check(mut self) {
        self.server.pass_time(0);
        let is_gone = self.client.state == State::Gone;
        assert_eq!(self.server.given_up, usize::from(is_gone), "a session is given up once, when it expires");
        assert_eq!(self.client.outcomes.len(), self.client.calls_made, "every call completes");
        let written = self.client.written.iter();
        for ((process, consumer), written) in
            self.server.processes.iter().zip(&self.client.consumers).zip(written)
        {
            assert!(written.starts_with(&process.input), "writes arrive once and in order");
            let produced = process.log.total();
            assert!(consumer.position <= produced && consumer.lost <= process.log.evicted_bytes());
            if process.overflow == Overflow::Pause && !self.server.was_detached {
                assert_eq!(consumer.lost, 0, "nothing is evicted before an attached client has it");
            }
            if !is_gone {
                assert_eq!(*written, process.input, "no write is lost");
                assert_eq!(consumer.position, produced, "what was not delivered was counted");
                let mut ends: Vec<_> = process.log.exited().into_iter().chain([consumer.seen]).collect();
                ends.retain(|seq| !consumer.gaps.iter().any(|gap| gap.contains(seq)));
                assert_eq!(consumer.ends, ends, "a process exits once and closes once");
            }
        }
    }

    /// Reconnects if the client knows that it has to.
    fn connect(&mut self) {
        if self.client.state == State::Down {
            self.links.insert(self.connections, Link::new());
            self.client.start_resume(self.connections, self.random.chance(50));
            self.connections += 1;
        }
    }

    /// Injects a fault into the client's connection.
    fn cut(&mut self) {
        let Some(link) = self.client.connection().and_then(|connection| self.links.get_mut(&connection))
        else {
            return;
        };
        match self.random.below(3) {
            // Everything in flight is lost, and neither side has noticed yet.
            0 => link.break_off(),
            // The client disconnects, and its last messages may still arrive.
            1 => self.client.lose(),
            _ => {
                link.break_off();
                self.client.lose();
            }
        }
    }

    /// Lets each side notice, with some probability, that the other one has disconnected.
    fn notice(&mut self, percent: usize) {
        for (&connection, link) in &mut self.links {
            let is_current = self.client.connection() == Some(connection);
            if link.server == Side::There && (link.is_broken || !is_current) && self.random.chance(percent) {
                link.server = Side::Gone;
                self.server.lose(connection);
            }
            if is_current && (link.is_broken || link.server == Side::Gone) && self.random.chance(percent) {
                self.client.lose();
            }
        }
        let current = self.client.connection();
        self.links.retain(|&connection, link| link.server == Side::There || current == Some(connection));
    }

    /// Delivers a piece of the data in flight on one connection, and returns whether there was any.
    fn carry(&mut self, direction: Direction) -> bool {
        let current = self.client.connection();
        let links = self.links.iter_mut().filter(|(connection, link)| match direction {
            Direction::ToServer => link.server == Side::There && !link.to_server.bytes.is_empty(),
            Direction::ToClient => current == Some(**connection) && !link.to_client.bytes.is_empty(),
        });
        let mut links: Vec<_> = links.collect();
        if links.is_empty() {
            return false;
        }
        let (&connection, link) = links.swap_remove(self.random.below(links.len()));
        let max_len = if self.random.chance(30) { 8 } else { 800 };
        let len = 1 + self.random.below(max_len);
        match direction {
            Direction::ToServer => {
                let messages: Vec<ToServer> = link.to_server.carry(len);
                messages.into_iter().for_each(|message| self.server.receive(connection, message));
            }
            Direction::ToClient => {
                let messages: Vec<ToClient> = link.to_client.carry(len);
                messages.into_iter().for_each(|message| self.client.receive(message));
            }
        }
        true
    }

    /// Puts the messages of both sides on their link, if there is one.
    fn dispatch(&mut self) {
        for (connection, message) in self.server.outbox.drain(..) {
            if let Some(link) = self.links.get_mut(&connection) {
                link.send(Direction::ToClient, &message);
            }
        }
        for connection in self.server.hung_up.drain(..) {
            if let Some(link) = self.links.get_mut(&connection) {
                link.server = Side::Gone;
            }
        }
        let mut link = self.client.connection().and_then(|connection| self.links.get_mut(&connection));
        for message in self.client.outbox.drain(..) {
            if let Some(link) = &mut link {
                link.send(Direction::ToServer, &message);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    ToServer,
    ToClient,
}

/// One connection: two pipes and their state.
struct Link {
    to_server: Pipe,
    to_client: Pipe,
    /// Nothing arrives any more, whether a side has noticed it or not.
    is_broken: bool,
    server: Side,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    There,
    Gone,
}

impl Link {
    fn new() -> Self {
        Link { to_server: Pipe::new(), to_client: Pipe::new(), is_broken: false, server: Side::There }
    }

    fn send(&mut self, direction: Direction, message: &impl Serialize) {
        if self.is_broken {
            return;
        }
        let pipe = match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        };
        pipe.bytes.extend(serde_json::to_vec(message).expect("every message is plain data"));
        pipe.bytes.push_back(b'\n');
    }

    fn break_off(&mut self) {
        self.is_broken = true;
        self.to_server.bytes.clear();
        self.to_client.bytes.clear();
    }
}

/// One direction of a connection, with the framer at its far end.
struct Pipe {
    bytes: VecDeque<u8>,
    framer: LineFramer,
}

impl Pipe {
    fn new() -> Self {
        Pipe { bytes: VecDeque::new(), framer: LineFramer::new(64 * 1024) }
    }

    fn carry<T: DeserializeOwned>(&mut self, max_len: usize) -> Vec<T> {
        let len = max_len.min(self.bytes.len());
        let piece: Vec<u8> = self.bytes.drain(..len).collect();
        self.framer.push(&piece);
        let message = |line| match line {
            Line::Message(bytes) => serde_json::from_slice(&bytes).expect("what was sent is what arrives"),
            Line::TooLong => panic!("no message of this test is long"),
        };
        self.framer.by_ref().map(message).collect()
    }
}

/// A small pseudorandom generator; the same seed gives the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
