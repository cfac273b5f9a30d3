//! The real client against a simulated server, over connections that split, stall, lose and break.
//!
//! No sockets, no processes, no waiting: time is simulated, and every choice comes from a seed. A failure names its
//! seed, and `REMEX_SEED=… cargo test -p remex-client --test simulated` runs that one alone.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]
#![allow(clippy::print_stdout, reason = "a failure names its seed")]

mod check;
mod faults;
mod faulty_link;
mod process;
mod random;
mod scenario;
mod server;

use std::{
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use remex_client::{Client, ConnectionState, Error, Options, SessionLost, process::Event};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use check::Check;
use faults::{Fate, Shared};
use random::Random;
use scenario::{Report, Role, Story};
use server::Server;

/// Seeds of each test, unless `REMEX_SIMULATED_SEEDS` says otherwise; the tests run side by side.
const SEEDS: u64 = 750;

/// Every run is over by then, or never.
const DEADLINE: Duration = Duration::from_secs(1_800);

#[test]
fn no_link_fault_loses_or_duplicates_anything_1() {
    run_quarter(0);
}

#[test]
fn no_link_fault_loses_or_duplicates_anything_2() {
    run_quarter(1);
}

#[test]
fn no_link_fault_loses_or_duplicates_anything_3() {
    run_quarter(2);
}

#[test]
fn no_link_fault_loses_or_duplicates_anything_4() {
    run_quarter(3);
}

#[test]
fn a_seed_reproduces_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

fn run_quarter(number: u64) {
    if let Ok(seed) = std::env::var("REMEX_SEED") {
        if number == 0 {
            run(seed.parse().expect("a seed is a number"));
        }
        return;
    }
    let count = std::env::var("REMEX_SIMULATED_SEEDS")
        .map_or(SEEDS, |count| count.parse().expect("the count of seeds is a number"));
    let seeds = number * count..(number + 1) * count;
    let mut tally = Tally::default();
    let mut failed = Vec::new();
    for seed in seeds {
        match panic::catch_unwind(|| run(seed)) {
            Ok(run) => tally.add(run.tally),
            Err(_) => failed.push(seed),
        }
        assert!(failed.len() < 10, "these seeds fail, among others: {failed:?}; run one with REMEX_SEED=…");
    }
    assert!(failed.is_empty(), "these seeds fail: {failed:?}; run one alone with REMEX_SEED={}", failed[0]);
    assert!(tally.is_rich(), "too little happened to prove anything: {tally:?}");
}

/// What happened in a run.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    /// Tells runs apart.
    digest: u64,
    tally: Tally,
}

/// How often things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    runs: usize,
    resumed: usize,
    repeated_starts: usize,
    repeated_writes: usize,
    gaps: usize,
    forgotten: usize,
    given_up: usize,
    complete: usize,
}

impl Tally {
    fn add(&mut self, more: Tally) {
        self.runs += more.runs;
        self.resumed += more.resumed;
        self.repeated_starts += more.repeated_starts;
        self.repeated_writes += more.repeated_writes;
        self.gaps += more.gaps;
        self.forgotten += more.forgotten;
        self.given_up += more.given_up;
        self.complete += more.complete;
    }

    fn of(reports: &[Report], server: &Server) -> Self {
        let failures = |is: fn(&Error) -> bool| {
            reports.iter().filter(|report| report.outcome.as_ref().is_err_and(is)).count()
        };
        let events = reports.iter().flat_map(|report| &report.seen.events).flatten();
        Tally {
            runs: 1,
            resumed: server.resumed,
            repeated_starts: server.repeated_starts,
            repeated_writes: server.repeated_writes(),
            gaps: events.filter(|event| matches!(event, Event::Gap(_))).count(),
            forgotten: failures(|error| matches!(error, Error::Lost(SessionLost::Forgotten { .. }))),
            given_up: failures(|error| matches!(error, Error::Lost(SessionLost::ReconnectTimedOut { .. }))),
            complete: reports.iter().filter(|report| report.outcome.is_ok()).count(),
        }
    }

    /// Tells whether everything happened often enough.
    fn is_rich(self) -> bool {
        let often = [self.resumed, self.complete];
        let seldom = [self.repeated_starts, self.repeated_writes, self.gaps, self.forgotten, self.given_up];
        often.into_iter().all(|count| count > self.runs / 2)
            && seldom.into_iter().all(|count| count > self.runs / 100)
    }
}

/// Runs one seed.
fn run(seed: u64) -> Run {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(live(seed))));
    outcome.unwrap_or_else(|panic| {
        println!("seed {seed} fails");
        panic::resume_unwind(panic)
    })
}

async fn live(seed: u64) -> Run {
    let mut random = Random::new(seed);
    let fate = Fate::new(&mut random);
    let dialect = fate.dialect;
    let may_give_up = fate.dead_at.is_some() || random.chance(4);
    let world = Shared::new(random.fork(), fate);
    let turning = tokio::spawn(world.clone().turn());
    let options = options(&mut random, may_give_up);
    let Some(client) = connect(&world, &options, may_give_up).await else {
        return Run { digest: world.lock().digest, tally: Tally::default() };
    };
    let session = client.session_id().to_owned();
    let conditions = tokio::spawn(watch_conditions(client.connection_states()));
    let (done, others) = watch::channel(false);
    let (mut quick, mut stalled) = (Vec::new(), Vec::new());
    for _ in 0..random.between(1, 5) {
        let story = Story::new(&client, random.fork(), dialect, others.clone());
        let users = if story.role == Role::Stall { &mut stalled } else { &mut quick };
        users.push((story.role, tokio::spawn(story.play())));
    }
    // A stalled consumer blocks no other.
    let mut reports = join(quick, &world).await;
    done.send_replace(true);
    reports.extend(join(stalled, &world).await);
    settle(&world, &client, &reports).await;
    let ended = timeout(DEADLINE, async {
        if random.chance(50) {
            return client.end().await;
        }
        client.close().await;
        Ok(())
    });
    let ended = ended.await.expect("a client can be left");
    turning.abort();
    let saw_recovery = conditions.await.unwrap();
    let check = Check { world: &world.lock(), session: &session, dialect, may_give_up };
    if let Err(error) = ended {
        assert!(
            !matches!(error, Error::Lost(SessionLost::Forgotten { .. })),
            "a session that is gone has ended"
        );
        check.failure(&error);
    }
    for report in &reports {
        check.report(report);
    }
    check.starts();
    let resumed = check.world.server.resumed;
    assert!(saw_recovery || resumed == 0, "{resumed} resumes and nobody was told of a recovery");
    Run { digest: check.world.digest, tally: Tally::of(&reports, &check.world.server) }
}

fn options(random: &mut Random, may_give_up: bool) -> Options {
    let is_alert = random.chance(50);
    Options::default()
        .reconnect_timeout(if may_give_up {
            random.millis(2_000, 60_000)
        } else {
            Duration::from_secs(3_600)
        })
        .keep_alive_interval(if is_alert {
            Duration::from_secs(2)
        } else {
            Options::default().keep_alive_interval
        })
        .keep_alive_timeout(if is_alert {
            Duration::from_secs(2)
        } else {
            Options::default().keep_alive_timeout
        })
}

/// Connects; the first connection is not repaired, so it may take several tries.
async fn connect(world: &Shared, options: &Options, may_fail: bool) -> Option<Client> {
    for _ in 0..40 {
        match Client::connect_with(world.target(), options.clone()).await {
            Ok(client) => return Some(client),
            Err(Error::Unreachable { .. } | Error::TimedOut { .. }) => {
                sleep(Duration::from_secs(2)).await;
            }
            Err(other) => panic!("a connection that fails is no connection, and no {other:?}"),
        }
    }
    assert!(may_fail, "a healthy server can be reached");
    None
}

/// Waits for the users, and returns what they saw.
async fn join(users: Vec<(Role, JoinHandle<Report>)>, world: &Shared) -> Vec<Report> {
    let mut reports = Vec::new();
    let mut hanging = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    for (role, mut user) in users {
        match timeout_at(deadline, &mut user).await {
            Ok(Ok(report)) => reports.push(report),
            Ok(Err(failure)) => panic::resume_unwind(failure.into_panic()),
            Err(_) => hanging.push(role),
        }
    }
    assert!(hanging.is_empty(), "these hang: {hanging:?}; {}", world.lock().server.describe());
    reports
}

/// Waits until the processes that were left alone are over.
async fn settle(world: &Shared, client: &Client, reports: &[Report]) {
    let is_settled = || {
        let world = world.lock();
        let left = reports.iter().filter(|report| report.role.leaves());
        matches!(client.connection_state(), ConnectionState::Lost(_))
            || left
                .filter_map(|report| world.server.process(report.seen.process.as_ref()?))
                .all(|process| process.log.is_closed())
    };
    for _ in 0..DEADLINE.as_secs() {
        if is_settled() {
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("a process whose handles were dropped does not end; {}", world.lock().server.describe());
}

/// Follows the conditions to the end; tells whether a recovery was among them.
async fn watch_conditions(mut conditions: watch::Receiver<ConnectionState>) -> bool {
    let mut saw_recovery = false;
    loop {
        match &*conditions.borrow_and_update() {
            ConnectionState::Reconnecting { .. } => saw_recovery = true,
            ConnectionState::Lost(_) => return saw_recovery,
            _ => {}
        }
        if conditions.changed().await.is_err() {
            return saw_recovery;
        }
    }
}
