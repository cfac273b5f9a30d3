//! The loop of an agent: receives tool calls, and returns texts that fit the context of a model.
//!
//! A script stands in for a real model.
//!
//! ```sh
//! cargo run -p remex --example agent
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use remex::Local;
use remex_client::{
    Client, Command, Error,
    agent::{Agent, Limits, Progress, Step, Window, Write},
    process::Stdio,
};

/// The tool calls of a model; a real one sends them as JSON, and refers to processes by number.
enum Call {
    /// Runs a command line, and returns after this time at the latest.
    Exec(&'static str, Duration),
    /// Writes to a running process, or only waits for it.
    Write(&'static str, &'static str),
    /// Returns the whole output of a process again.
    Output(&'static str),
}

/// Longer than any of the commands takes.
const TIME_LIMIT: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::connect(Local::here()?.target()).await?;
    let agent = Agent::new(Limits::default());
    for call in [
        Call::Exec("seq 1000", TIME_LIMIT),
        Call::Exec("echo 'who is there?'; read name; echo \"hello, $name\"", Duration::from_millis(500)),
        Call::Write("2", "world\n"),
        Call::Output("1"),
        Call::Write("3", "is anybody there?\n"),
    ] {
        // An error is a valid answer: the model reads it and corrects its call.
        let answer = answer(&agent, &client, call).await.unwrap_or_else(|error| format!("error: {error}"));
        println!("--- {answer}");
    }
    // Dropping the agent kills all running processes.
    Ok(())
}

async fn answer(agent: &Agent, client: &Client, call: Call) -> Result<String, Error> {
    let window = |time_limit| Window::default().yield_after(time_limit).max_output_bytes(200);
    match call {
        Call::Exec(line, time_limit) => {
            let command = Command::shell(line).stdin(Stdio::Piped);
            agent.exec_command(client, &command, window(time_limit)).await.map(describe)
        }
        Call::Write(process, text) => {
            let write = if text.is_empty() { Write::Nothing } else { Write::Bytes(text.as_bytes()) };
            agent.write_stdin(process.parse()?, write, window(TIME_LIMIT)).await.map(describe)
        }
        Call::Output(process) => {
            let all = agent.output(process.parse()?, 1 << 20).await?;
            let lines = all.output.text.lines().count();
            Ok(format!(
                "process {process} has said {lines} lines, {} bytes of them are gone",
                all.evicted_bytes
            ))
        }
    }
}

/// Formats a step for the model.
fn describe(step: Step) -> String {
    let Step { handle, output, progress, .. } = step;
    let state = match progress {
        Progress::Running => "goes on; write to it, or wait for it".to_owned(),
        Progress::Exited(_) => "has exited, but something in the background holds its output open".to_owned(),
        Progress::Ended(exit) => format!("has ended with exit code {}", exit.code),
        Progress::Lost(error) => format!("is lost: {error}"),
        other => format!("is in a state that this program does not know: {other:?}"),
    };
    format!("process {handle} {state}\n{}", output.text)
}
