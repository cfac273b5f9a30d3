//! What the users of one client do in a run, and what they see.
//!
//! Start at [`Story`].

use std::{future::poll_fn, task::Poll, time::Duration};

use remex_client::{
    Client, Command, Error, Process,
    process::{Event, OnDrop, Overflow, Retain, SignalName, Stdio, Until, WaitOutcome},
};
use remex_proto::environment;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::watch,
    time::{sleep, timeout},
};

use crate::{process::MARKER, random::Random, server::Dialect};

/// What one user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Follows all events.
    Follow,
    /// Follows with waits that are given up and taken up again.
    FollowImpatiently,
    /// Reads both streams at the same time.
    Read,
    /// Runs to the end.
    Output,
    /// Writes and reads at the same time.
    Communicate,
    /// Writes, drops the writer, and reads what comes back.
    WriteAndDrop,
    /// Waits for the exit, then reads what is retained.
    WaitThenFollow,
    /// Waits for a text in the output, then for the exit.
    WaitForText,
    /// Takes a little and nothing more until all others are done.
    Stall,
    /// Drops every handle, and the process keeps running.
    Leave,
    /// Drops every handle, and the process ends.
    DropAndEnd,
    /// Ends a process that would never end.
    Kill,
    /// Follows what may be evicted.
    FollowEvicting,
    /// Several consumers of one process.
    FollowTwice,
    /// Asks something simple again and again.
    Ask,
    /// Writes while there are more questions than may be open at once.
    WriteInACrowd,
    /// Gives up a start that takes long.
    StartImpatiently,
    /// Drops every handle, and comes back for more.
    ComeBack,
    /// Sends signals, none of which may arrive twice.
    Signal,
}

const ROLES: [Role; 19] = [
    Role::Follow,
    Role::FollowImpatiently,
    Role::Read,
    Role::Output,
    Role::Communicate,
    Role::WriteAndDrop,
    Role::WaitThenFollow,
    Role::WaitForText,
    Role::Stall,
    Role::Leave,
    Role::DropAndEnd,
    Role::Kill,
    Role::FollowEvicting,
    Role::FollowTwice,
    Role::Ask,
    Role::WriteInACrowd,
    Role::StartImpatiently,
    Role::ComeBack,
    Role::Signal,
];

impl Role {
    /// Tells whether it ends while its process goes on.
    pub(crate) fn leaves(self) -> bool {
        matches!(self, Role::Leave | Role::DropAndEnd | Role::StartImpatiently)
    }
}

/// What a user saw of one process; what is missing at the end is because of an error.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) process: Option<String>,
    pub(crate) events: Vec<Vec<Event>>,
    pub(crate) stdout: Option<Vec<u8>>,
    pub(crate) stderr: Option<Vec<u8>>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) written: Vec<u8>,
    /// Signals that arrived, and those of which nobody knows.
    pub(crate) signals: (usize, usize),
}

/// What came of one user's work.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) role: Role,
    pub(crate) seen: Seen,
    pub(crate) outcome: Result<(), Error>,
}

/// One user.
pub(crate) struct Story {
    pub(crate) role: Role,
    client: Client,
    random: Random,
    dialect: Dialect,
    seen: Seen,
    /// Turns true when all other tasks are done.
    others: watch::Receiver<bool>,
}

impl Story {
    pub(crate) fn new(
        client: &Client,
        mut random: Random,
        dialect: Dialect,
        others: watch::Receiver<bool>,
    ) -> Self {
        let role = loop {
            let role = ROLES[random.below(ROLES.len())];
            // A foreign server keeps what fits, and cannot close the input.
            let needs_more =
                matches!(role, Role::Stall | Role::FollowEvicting | Role::WriteAndDrop | Role::WriteInACrowd);
            if dialect == Dialect::Remex || !needs_more {
                break role;
            }
        };
        Story { role, client: client.clone(), random, dialect, seen: Seen::default(), others }
    }

    pub(crate) async fn play(mut self) -> Report {
        let delay = self.random.millis(0, 3_000);
        sleep(delay).await;
        let outcome = self.act().await;
        Report { role: self.role, seen: self.seen, outcome }
    }

    async fn act(&mut self) -> Result<(), Error> {
        match self.role {
            Role::Follow | Role::FollowEvicting => {
                let process = self.start_saying().await?;
                self.follow(&process).await
            }
            Role::FollowImpatiently => {
                let process = self.start_saying().await?;
                self.follow_impatiently(&process).await
            }
            Role::FollowTwice => self.follow_twice().await,
            Role::Read => self.read().await,
            Role::Output => self.output().await,
            Role::Communicate => self.communicate().await,
            Role::WriteAndDrop => {
                let process = self.start_echo(usize::MAX).await?;
                self.write_and_drop(&process).await
            }
            Role::WriteInACrowd => self.write_in_a_crowd().await,
            Role::StartImpatiently => self.start_impatiently().await,
            Role::ComeBack => self.come_back().await,
            Role::Signal => self.signal().await,
            Role::WaitThenFollow => {
                let process = self.start_saying().await?;
                self.seen.exit_code = Some(process.wait().await?.code);
                self.follow(&process).await
            }
            Role::WaitForText => self.wait_for_text().await,
            Role::Stall => self.stall().await,
            Role::Leave => self.start_saying().await.map(drop),
            Role::DropAndEnd | Role::Kill => self.end().await,
            Role::Ask => {
                for _ in 0..20 {
                    self.client.call(environment::GetStatus {}).await?;
                    sleep(self.random.millis(0, 1_500)).await;
                }
                Ok(())
            }
        }
    }

    /// Starts a process that says something.
    async fn start_saying(&mut self) -> Result<Process, Error> {
        let bytes = match self.random.below(20) {
            0 => self.random.between(50_000, 600_000),
            1..8 => self.random.between(4_000, 40_000),
            _ => self.random.below(4_000),
        };
        let bytes = bytes.min(if self.dialect == Dialect::Base { 300_000 } else { usize::MAX });
        let pause = self.random.below(600);
        let mut command = Command::new("say")
            .arg(self.random.below(1 << 30).to_string())
            .arg(bytes.to_string())
            .arg(pause.to_string());
        let overflow = if self.role == Role::FollowEvicting { Overflow::Evict } else { Overflow::Pause };
        let retains_little = self.dialect == Dialect::Remex && self.random.chance(50);
        let mut retain = Retain::default().overflow(overflow);
        retain.bytes = retains_little.then(|| self.random.between(1_024, 32_768) as u64);
        command = command.retain(retain);
        let process = command.start(&self.client).await?;
        self.seen.process = Some(process.id().to_owned());
        Ok(process)
    }

    async fn follow(&mut self, process: &Process) -> Result<(), Error> {
        let mut events = process.events();
        self.seen.events.push(Vec::new());
        while let Some(event) = events.next().await? {
            self.seen.events.last_mut().unwrap().push(event);
        }
        Ok(())
    }

    async fn follow_impatiently(&mut self, process: &Process) -> Result<(), Error> {
        let mut events = process.events();
        self.seen.events.push(Vec::new());
        loop {
            let patience = self.random.millis(0, 2_000);
            match timeout(patience, events.next()).await {
                Err(_) => {}
                Ok(Ok(Some(event))) => self.seen.events[0].push(event),
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
            }
        }
    }

    async fn follow_twice(&mut self) -> Result<(), Error> {
        let process = self.start_saying().await?;
        let pauses = [self.random.millis(0, 50), self.random.millis(0, 3_000)];
        let follow = async |pause: Duration, late: Duration, seen: &mut Vec<Event>| {
            sleep(late).await;
            let mut events = process.events();
            while let Some(event) = events.next().await? {
                seen.push(event);
                if !pause.is_zero() && seen.len().is_multiple_of(16) {
                    sleep(pause).await;
                }
            }
            Ok::<_, Error>(())
        };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let outcome = tokio::join!(
            biased;
            follow(Duration::ZERO, Duration::ZERO, &mut first),
            follow(pauses[0], pauses[1], &mut second),
        );
        self.seen.events = vec![first, second];
        outcome.0.and(outcome.1)
    }

    async fn read(&mut self) -> Result<(), Error> {
        let process = self.start_saying().await?;
        let (mut stdout, mut stderr) = (process.stdout(), process.stderr());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let read = tokio::join!(biased; stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
        self.seen.stdout = Some(out);
        self.seen.stderr = Some(err);
        read.0.and(read.1).map(drop).map_err(unwrap_io)
    }

    async fn output(&mut self) -> Result<(), Error> {
        let id = format!("output-{}", self.random.word());
        self.seen.process = Some(id.clone());
        let (seed, bytes) = (self.random.below(1 << 30), self.random.below(20_000));
        let command = Command::new("say").arg(seed.to_string()).arg(bytes.to_string()).arg("200");
        let output = command.id(id).output(&self.client).await?;
        self.seen.stdout = Some(output.stdout);
        self.seen.stderr = Some(output.stderr);
        self.seen.exit_code = Some(output.exit.code);
        Ok(())
    }

    async fn start_echo(&mut self, limit: usize) -> Result<Process, Error> {
        let process =
            Command::new("echo").arg(limit.to_string()).stdin(Stdio::Piped).start(&self.client).await?;
        self.seen.process = Some(process.id().to_owned());
        Ok(process)
    }

    async fn communicate(&mut self) -> Result<(), Error> {
        let len = self.random.below(60_000);
        let input = self.random.letters(len);
        let limit = if self.dialect == Dialect::Base { len } else { usize::MAX };
        let process = self.start_echo(limit).await?;
        self.seen.written.clone_from(&input);
        let output = process.communicate(&input).await?;
        assert!(output.stdout == input, "an echo says what it hears");
        self.seen.stdout = Some(output.stdout);
        self.seen.exit_code = Some(output.exit.code);
        Ok(())
    }

    async fn write_and_drop(&mut self, process: &Process) -> Result<(), Error> {
        let mut stdin = process.stdin().expect("it is asked for once");
        let mut events = process.events();
        for _ in 0..self.random.between(0, 12) {
            let len = self.random.below(4_000);
            let piece = self.random.letters(len);
            self.seen.written.extend_from_slice(&piece);
            stdin.write_all(&piece).await.map_err(unwrap_io)?;
            if self.random.chance(20) {
                stdin.flush().await.map_err(unwrap_io)?;
            }
            if self.random.chance(30) {
                sleep(self.random.millis(0, 500)).await;
            }
        }
        drop(stdin);
        self.seen.events.push(Vec::new());
        while let Some(event) = events.next().await? {
            self.seen.events[0].push(event);
        }
        Ok(())
    }

    async fn write_in_a_crowd(&mut self) -> Result<(), Error> {
        let process = self.start_echo(usize::MAX).await?;
        let client = self.client.clone();
        let crowd: Vec<_> = (0..600).map(|_| client.call(environment::GetStatus {})).collect();
        let crowd = async {
            let mut crowd: Vec<_> = crowd.into_iter().map(Box::pin).collect();
            poll_fn(|context| {
                crowd.retain_mut(|call| call.as_mut().poll(context).is_pending());
                if crowd.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        };
        tokio::join!(biased; crowd, self.write_and_drop(&process)).1
    }

    async fn start_impatiently(&mut self) -> Result<(), Error> {
        let id = format!("impatient-{}", self.random.word());
        self.seen.process = Some(id.clone());
        let command = Command::new("hang").id(id).on_drop(OnDrop::Terminate);
        match timeout(self.random.millis(0, 600), command.start(&self.client)).await {
            Ok(started) => started.map(drop),
            Err(_) => Ok(()),
        }
    }

    async fn come_back(&mut self) -> Result<(), Error> {
        let process = self.start_saying().await?;
        let id = process.id().to_owned();
        drop(process);
        sleep(self.random.millis(0, 3_000)).await;
        let process = self.client.process(id).await?;
        self.follow(&process).await
    }

    async fn signal(&mut self) -> Result<(), Error> {
        let process = Command::new("hang").start(&self.client).await?;
        self.seen.process = Some(process.id().to_owned());
        for _ in 0..10 {
            match process.signal(SignalName::Usr1).await {
                Ok(()) => self.seen.signals.0 += 1,
                Err(Error::Interrupted { .. }) => self.seen.signals.1 += 1,
                Err(error) => return Err(error),
            }
            sleep(self.random.millis(0, 500)).await;
        }
        process.terminate(Duration::ZERO).await?;
        self.seen.exit_code = Some(process.wait().await?.code);
        Ok(())
    }

    async fn wait_for_text(&mut self) -> Result<(), Error> {
        let process = self.start_saying().await?;
        match process.wait_for(&Until::Output("READY-[0-9]+2".to_owned())).await? {
            WaitOutcome::Matched(found) => assert_eq!(found.bytes, MARKER.as_bytes()),
            other => panic!("the text was there, but the wait ended with {other:?}"),
        }
        self.seen.exit_code = Some(process.wait().await?.code);
        Ok(())
    }

    async fn stall(&mut self) -> Result<(), Error> {
        let process = self.start_saying().await?;
        let mut events = process.events();
        self.seen.events.push(Vec::new());
        for _ in 0..self.random.below(4) {
            self.seen.events[0].extend(events.next().await?);
        }
        let _ = self.others.wait_for(|done| *done).await;
        while let Some(event) = events.next().await? {
            self.seen.events[0].push(event);
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<(), Error> {
        let command = Command::new("hang");
        let on_drop = if self.role == Role::Kill { OnDrop::Leave } else { OnDrop::Terminate };
        let process = command.on_drop(on_drop).start(&self.client).await?;
        self.seen.process = Some(process.id().to_owned());
        sleep(self.random.millis(0, 2_000)).await;
        if self.role == Role::Kill {
            process.kill().await?;
            self.seen.exit_code = Some(process.wait().await?.code);
        }
        Ok(())
    }
}

/// Returns the client's own error of a failed read or write.
fn unwrap_io(error: std::io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => panic!("an error that is not the client's: {error}"),
    }
}
