//! Starts a program that takes a while to be ready, waits for it, talks to it, and ends it gently.
//!
//! ```sh
//! cargo run -p remex --example serve_and_wait
//! ```

#![allow(clippy::print_stdout, reason = "it talks to a person")]

use std::time::Duration;

use anyhow::bail;
use remex::Local;
use remex_client::{
    Client,
    process::{Input, OnDrop, Until, WaitOutcome},
};
use tokio::{io::AsyncWriteExt as _, time::timeout};

/// Nothing here takes longer unless it is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers each line, and says good-bye when it is asked to end.
const SERVICE: &str = "
    trap 'echo good-bye; exit 0' TERM
    echo starting
    sleep 0.2
    echo ready: process $$
    while read line; do echo \"you said: $line\"; done
";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // A server in this process. `Target::parse("ws://host:4000")?` leads to one elsewhere; the rest stays as it is.
    let client = Client::connect(Local::here()?.target()).await?;
    let service = client.shell(SERVICE).input(Input::Piped).on_drop(OnDrop::Terminate).start().await?;

    // The bytes that match are returned, so what the service tells about itself can be taken from there.
    let ready = Until::Output(r"ready: process [0-9]+\n".to_owned());
    match timeout(PATIENCE, service.wait_for(&ready)).await?? {
        WaitOutcome::Matched { bytes, .. } => print!("it is {}", String::from_utf8_lossy(&bytes)),
        other => bail!("the service did not get ready: {other:?}"),
    }

    // Dropping it would close the input, and the service would end.
    let mut stdin = service.stdin().expect("the input is piped");
    stdin.write_all(b"hello\n").await?;
    let answer = Until::Output("you said: .*\n".to_owned());
    if let WaitOutcome::Matched { bytes, .. } = timeout(PATIENCE, service.wait_for(&answer)).await?? {
        print!("it answers: {}", String::from_utf8_lossy(&bytes));
    }

    // It is asked to end; if it does not within its time, it is ended with everything it has started.
    service.terminate(Duration::from_secs(10)).await?;
    let output = service.communicate(b"").await?;
    print!("all it said:\n{}", String::from_utf8_lossy(&output.stdout));
    println!("exit code {}", output.exit.code);
    client.end().await?;
    Ok(())
}
