//! What a model's tool calls see, on a server and a clock that the tests move by hand.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod clock;
mod ends;
mod events;
mod json;
mod live;
mod plain;
mod server;
mod windows;
mod writing;

use std::{sync::Arc, time::Duration};

use clock::Manual;
use remex_client::{
    Client, Command, Error,
    agent::{Agent, Handle, Limits, Progress, Step, TruncatedText, Window, Write},
    process::Exit,
    process::TerminalSize,
};
use server::{Process, Server};
use tokio::task::{JoinHandle, yield_now};

const SECOND: Duration = Duration::from_secs(1);

/// A client with its server, an agent with its clock.
struct Stage {
    client: Client,
    server: Server,
    agent: Agent,
    clock: Manual,
}

impl Stage {
    async fn new(limits: Limits) -> Self {
        let (client, server) = Server::connect().await;
        let clock = Manual::new();
        let agent = Agent::with_clock(limits, Arc::new(clock.clone()));
        Self { client, server, agent, clock }
    }

    fn command(&self) -> Command {
        Command::new("prog")
    }

    fn terminal(&self) -> Command {
        self.command().terminal(TerminalSize::default())
    }

    /// Executes a command with the usual window, and returns when its process runs and its step waits.
    async fn exec(&mut self, command: Command) -> (JoinHandle<Result<Step, Error>>, Process) {
        let (agent, client) = (self.agent.clone(), self.client.clone());
        let step = tokio::spawn(async move { agent.exec_command(&client, &command, window(SECOND)).await });
        let process = self.server.start().await;
        self.clock.asleep().await;
        (step, process)
    }

    /// Executes a command whose step is over when its time is.
    async fn exec_and_yield(&mut self, command: Command) -> (Handle, Process) {
        let (step, process) = self.exec(command).await;
        self.clock.advance(SECOND);
        (step.await.unwrap().unwrap().handle, process)
    }

    /// Executes a command that ends.
    async fn exec_and_end(&mut self) -> Handle {
        let (step, mut process) = self.exec(self.command()).await;
        self.server.end(&mut process, 0).await;
        step.await.unwrap().unwrap().handle
    }

    /// Begins a step, and returns when it waits.
    async fn step(&self, handle: Handle, write: Write<'static>) -> JoinHandle<Result<Step, Error>> {
        let agent = self.agent.clone();
        let step = tokio::spawn(async move { agent.write_stdin(handle, write, window(SECOND)).await });
        self.clock.asleep().await;
        step
    }

    /// Makes a step whose time passes.
    async fn step_and_yield(&self, handle: Handle) -> Step {
        let step = self.step(handle, Write::Nothing).await;
        self.clock.advance(SECOND);
        step.await.unwrap().unwrap()
    }

    /// Makes a step that the end of the process ends.
    async fn step_to_end(&self, handle: Handle) -> Step {
        self.agent.write_stdin(handle, Write::Nothing, window(SECOND)).await.unwrap()
    }

    /// Waits until so much output has not been seen.
    async fn unseen(&self, bytes: u64) {
        while self.agent.list().iter().map(|listed| listed.unseen_bytes).sum::<u64>() != bytes {
            yield_now().await;
        }
    }

    /// Waits until this many processes have not ended.
    async fn running(&self, number: usize) {
        while self.agent.list().iter().filter(|listed| !listed.progress.is_final()).count() != number {
            yield_now().await;
        }
    }
}

fn window(yield_after: Duration) -> Window {
    Window::default().yield_after(yield_after)
}

/// Returns output of which nothing is left out.
fn whole(text: &str) -> TruncatedText {
    TruncatedText::whole(text)
}

/// Returns output of which a known amount is left out.
fn truncated(text: &str, omitted_bytes: u64, total_bytes: u64) -> TruncatedText {
    let mut truncated = TruncatedText::whole(text);
    (truncated.omitted_bytes, truncated.total_bytes) = (omitted_bytes, total_bytes);
    truncated
}

fn ended(code: i32) -> Progress {
    Progress::Ended(Exit::new(code))
}
