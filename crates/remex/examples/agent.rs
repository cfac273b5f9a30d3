//! The loop of an agent: tool calls come in, texts that fit a model's context go out.
//!
//! A scripted model takes the place of a real one.
//!
//! ```sh
//! cargo run -p remex --example agent
//! ```

#![allow(clippy::print_stdout, reason = "it talks to a person")]

use std::time::Duration;

use remex::Local;
use remex_client::{
    Client, Error,
    agent::{Agent, Limits, Progress, Step, Window, Write},
    process::Input,
};

/// What a model can ask for; a real one says it in JSON, and processes are numbers to it.
enum Call {
    /// Runs a command line, and comes back after this time at the latest.
    Exec(&'static str, Duration),
    /// Types into a process that goes on, or only waits for it.
    Write(&'static str, &'static str),
    /// Looks again at everything that a process has said.
    Output(&'static str),
}

/// Longer than any of the commands needs to end.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::connect(Local::here()?.target()).await?;
    let agent = Agent::new(Limits::default());
    for call in [
        Call::Exec("seq 1000", PATIENCE),
        Call::Exec("echo 'who is there?'; read name; echo \"hello, $name\"", Duration::from_millis(500)),
        Call::Write("2", "world\n"),
        Call::Output("1"),
        Call::Write("3", "is anybody there?\n"),
    ] {
        // A mistake is an answer too: the model reads it, and does better.
        let answer = answer(&agent, &client, call).await.unwrap_or_else(|error| format!("error: {error}"));
        println!("--- {answer}");
    }
    // Whatever still runs ends with the agent.
    Ok(())
}

async fn answer(agent: &Agent, client: &Client, call: Call) -> Result<String, Error> {
    let window = |patience| Window { yield_after: Some(patience), max_output_bytes: Some(200) };
    match call {
        Call::Exec(line, patience) => {
            let command = client.shell(line).input(Input::Piped);
            agent.exec_command(command, window(patience)).await.map(told)
        }
        Call::Write(process, text) => {
            let write = if text.is_empty() { Write::Nothing } else { Write::Bytes(text.as_bytes()) };
            agent.write_stdin(process.parse()?, write, window(PATIENCE)).await.map(told)
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

/// Returns what the model reads of a step.
fn told(step: Step) -> String {
    let Step { handle, output, progress, .. } = step;
    let state = match progress {
        Progress::Running => "goes on; write to it, or wait for it".to_owned(),
        Progress::Ended(exit) => format!("has ended with exit code {}", exit.code),
        Progress::Lost(error) => format!("is lost: {error}"),
    };
    format!("process {handle} {state}\n{}", output.text)
}
