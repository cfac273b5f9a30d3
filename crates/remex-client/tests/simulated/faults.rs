//! The server, the cables to it, and what goes wrong when.
//!
//! Start at [`World`].

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use remex_client::{Error, Link, Target};
use remex_proto::state::line_framer::{Line, LineFramer};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    faulty_link::{Cable, Plan, Shore, Sight},
    random::Random,
    server::{Dialect, Server},
};

/// The longest pause between two tries of a client.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The longest time that the world sleeps when nothing happens.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// What is to go wrong in a run.
#[derive(Debug)]
pub(crate) struct Fate {
    pub(crate) dialect: Dialect,
    /// How many connections are faulty; the later ones are not.
    pub(crate) faulty: u32,
    /// How long a session lives without a connection.
    pub(crate) ttl: Duration,
    /// When the server is started again.
    pub(crate) restart_at: Option<Duration>,
    /// When the way to the server is gone for good.
    pub(crate) dead_at: Option<Duration>,
    /// When another client takes the session, for a few seconds.
    pub(crate) robbed_at: Option<Duration>,
}

impl Fate {
    pub(crate) fn new(random: &mut Random) -> Self {
        let dialect = if random.chance(20) { Dialect::Base } else { Dialect::Remex };
        let mut maybe =
            |percent, last| if random.chance(percent) { Some(random.millis(0, last)) } else { None };
        let (restart_at, dead_at, robbed_at) = (maybe(8, 15_000), maybe(4, 15_000), maybe(5, 15_000));
        let ttl = if random.chance(10) { random.millis(1_000, 20_000) } else { Duration::from_secs(3_600) };
        Fate { dialect, faulty: random.below(7) as u32, ttl, restart_at, dead_at, robbed_at }
    }
}

/// Everything but the client.
pub(crate) struct World {
    random: Random,
    began: Instant,
    fate: Fate,
    pub(crate) server: Server,
    cables: BTreeMap<u32, (Arc<Mutex<Cable>>, LineFramer)>,
    connections: u32,
    refuses_until: Option<Instant>,
    /// Until when another client has the session.
    robbed_until: Option<Instant>,
    shore: Arc<Shore>,
    /// Changes with everything that moves, for comparing runs.
    pub(crate) digest: u64,
}

/// The world as the client and its consumers share it with the task that moves it.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(crate) fn new(mut random: Random, fate: Fate) -> Self {
        let server = Server::new(fate.dialect, fate.ttl, random.fork());
        Shared(Arc::new(Mutex::new(World {
            random,
            began: Instant::now(),
            fate,
            server,
            cables: BTreeMap::new(),
            connections: 0,
            refuses_until: None,
            robbed_until: None,
            shore: Arc::default(),
            digest: 0,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    pub(crate) fn target(&self) -> Target {
        let shared = self.clone();
        Target::custom("the simulated server", move || shared.clone().dial())
    }

    async fn dial(self) -> Result<Link, Error> {
        let last_end = self.lock().shore.last_end();
        // Between its tries a client takes pauses that no seed decides about: here all are equally long.
        if let Some(last_end) = last_end.filter(|last_end| *last_end != Instant::now()) {
            sleep_until(last_end + LONGEST_PAUSE).await;
        }
        self.lock().connect()
    }

    /// Moves the world, for ever.
    pub(crate) async fn turn(self) {
        let shore = Arc::clone(&self.lock().shore);
        let mut pause = Duration::from_millis(1);
        loop {
            let (happened, tick) = {
                let mut world = self.lock();
                (world.tick(), world.random.millis(1, 15))
            };
            pause = if happened { tick } else { (pause * 2).min(LONGEST_SLEEP) };
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = shore.bell.notified() => {
                    pause = tick;
                    sleep(tick / 4).await;
                }
            }
        }
    }
}

impl World {
    fn connect(&mut self) -> Result<Link, Error> {
        let now = Instant::now();
        let is_dead = self.fate.dead_at.is_some_and(|at| now >= self.began + at);
        if is_dead || self.refuses_until.is_some_and(|until| now < until) {
            self.shore.end(now);
            return Err(Error::unreachable("the simulated server", "refused"));
        }
        let number = self.connections;
        self.connections += 1;
        let is_faulty = number < self.fate.faulty;
        let plan = if is_faulty { Plan::faulty(&mut self.random) } else { Plan::healthy(&mut self.random) };
        let cable = Arc::new(Mutex::new(Cable::new(plan, self.random.fork())));
        let link = Cable::link(&cable, &self.shore);
        let mut framer = LineFramer::new(1 << 30);
        framer.accept_binary();
        self.cables.insert(number, (cable, framer));
        self.server.accept(number);
        Ok(link)
    }

    /// Lets a little happen everywhere; tells whether something did.
    fn tick(&mut self) -> bool {
        let now = Instant::now();
        let mut happened = self.strike(now);
        happened |= self.carry_to_server(now);
        happened |= self.server.live(now);
        let numbers: Vec<u32> = self.cables.keys().copied().collect();
        for number in &numbers {
            let backlog = self.cables[number].0.lock().unwrap().backlog();
            if backlog < 128 << 10 {
                happened |= self.server.stream(*number);
            }
        }
        for (number, line) in std::mem::take(&mut self.server.outbox) {
            if let Some((cable, _)) = self.cables.get(&number) {
                self.digest = self.digest.rotate_left(7) ^ line.len() as u64;
                cable.lock().unwrap().say(&line);
            }
        }
        for number in std::mem::take(&mut self.server.hung_up) {
            if let Some((cable, _)) = self.cables.get(&number) {
                cable.lock().unwrap().hung_up = true;
            }
        }
        for number in &numbers {
            let max = self.random.between(1, 24 << 10);
            let mut cable = self.cables[number].0.lock().unwrap();
            happened |= cable.carry_to_client(max, now);
        }
        self.digest = self.digest.wrapping_mul(31) ^ (now - self.began).as_millis() as u64;
        self.clear_away(now);
        happened
    }

    /// Lets what the fate of the run wants happen.
    fn strike(&mut self, now: Instant) -> bool {
        let elapsed = now - self.began;
        let is_due = |at: &mut Option<Duration>| at.take_if(|at| elapsed >= *at).is_some();
        if is_due(&mut self.fate.restart_at) {
            self.server.restart(now);
            if self.random.chance(50) {
                self.refuses_until = Some(now + self.random.millis(10, 5_000));
            }
            return true;
        }
        if is_due(&mut self.fate.robbed_at) {
            self.server.rob(now);
            self.robbed_until = Some(now + self.random.millis(10, 10_000));
            return true;
        }
        if self.robbed_until.take_if(|until| *until <= now).is_some() {
            self.server.stop_robbing(now);
        }
        if self.fate.dead_at.is_some_and(|at| elapsed >= at) {
            for (cable, _) in self.cables.values() {
                let mut cable = cable.lock().unwrap();
                cable.cut(Sight::Reset, now);
            }
        }
        false
    }

    fn carry_to_server(&mut self, now: Instant) -> bool {
        let mut happened = false;
        for (&number, (cable, framer)) in &mut self.cables {
            let max = self.random.between(1, 24 << 10);
            let bytes = cable.lock().unwrap().carry_to_server(max, now);
            happened |= !bytes.is_empty();
            self.digest = self.digest.rotate_left(5) ^ bytes.len() as u64;
            framer.push(&bytes);
            for line in framer.by_ref() {
                let Line::Message(line) = line else { panic!("no line is too long") };
                self.server.receive(number, &line, now);
            }
        }
        happened
    }

    /// Lets the server notice what is gone, and forgets what both sides have left.
    fn clear_away(&mut self, now: Instant) {
        let World { cables, server, random, refuses_until, .. } = self;
        cables.retain(|number, (cable, _)| {
            let mut cable = cable.lock().unwrap();
            if std::mem::take(&mut cable.just_broken) && random.chance(25) {
                *refuses_until = Some(now + random.millis(10, 20_000));
            }
            if cable.noticed_at.is_some_and(|at| at <= now) {
                server.lose(*number, now);
                cable.hung_up = true;
            }
            let _ = cable.carry_to_client(0, now);
            cable.left.is_none() || server.is_connected(*number)
        });
    }
}
