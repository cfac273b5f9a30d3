//! Starts a service, waits until it is ready, talks to it, and terminates it gracefully.
//!
//! ```sh
//! cargo run -p remex --example serve_and_wait
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use anyhow::bail;
use remex::Local;
use remex_client::{
    Client, Command,
    process::{OnDrop, Stdio, Until, WaitOutcome},
};
use tokio::{io::AsyncWriteExt as _, time::timeout};

/// Generous: every step usually takes milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Answers each line, and prints a farewell on SIGTERM.
const SERVICE: &str = "
    trap 'echo good-bye; exit 0' TERM
    echo starting
    sleep 0.2
    echo ready: process $$
    while read line; do echo \"you said: $line\"; done
";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // A server in this process; use `Target::parse("ws://host:4000")?` for a remote one. The rest is the same.
    let client = Client::connect(Local::here()?.target()).await?;
    let service =
        Command::shell(SERVICE).stdin(Stdio::Piped).on_drop(OnDrop::Terminate).start(&client).await?;

    // The matching bytes are returned, and may contain details such as a port.
    let ready = Until::Output(r"ready: process [0-9]+\n".to_owned());
    match timeout(TIME_LIMIT, service.wait_for(&ready)).await?? {
        WaitOutcome::Matched(found) => print!("it is {}", String::from_utf8_lossy(&found.bytes)),
        other => bail!("the service did not get ready: {other:?}"),
    }

    // Dropping it would close the input, and the service would exit.
    let mut stdin = service.stdin().expect("the input is piped");
    stdin.write_all(b"hello\n").await?;
    let answer = Until::Output("you said: .*\n".to_owned());
    if let WaitOutcome::Matched(found) = timeout(TIME_LIMIT, service.wait_for(&answer)).await?? {
        print!("it answers: {}", String::from_utf8_lossy(&found.bytes));
    }

    // Sends SIGTERM, and kills the service and its descendants if it does not exit in time.
    service.terminate(Duration::from_secs(10)).await?;
    let output = service.communicate(b"").await?;
    print!("all it said:\n{}", String::from_utf8_lossy(&output.stdout));
    println!("exit code {}", output.exit.code);
    client.end().await?;
    Ok(())
}
