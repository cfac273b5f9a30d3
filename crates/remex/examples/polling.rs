//! Follows a command by polling, without a stream of events: for programs with their own loop, such as a game or a UI.
//!
//! ```sh
//! cargo run -p remex --example polling
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use remex::Local;
use remex_client::{Client, Command, process::Stdio};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::connect(Local::here()?.target()).await?;
    let command =
        Command::shell("echo ready; read -r answer; echo \"you said: $answer\"").stdin(Stdio::Piped);
    let process = command.start(&client).await?;

    let mut after = 0;
    loop {
        // A turn of the loop: at most 4 KiB, and at most 100 ms.
        let batch = process.read(after, 4096, Duration::from_millis(100)).await?;
        after = batch.last_seq;
        if let Some(gap) = batch.gap {
            println!("[output is missing: events {} to {}]", gap.from_seq, gap.to_seq);
        }
        for chunk in batch.chunks {
            let text = String::from_utf8_lossy(&chunk.bytes);
            print!("{text}");
            if text.contains("ready") {
                process.write(b"yes\n").await?;
            }
        }
        if let Some(exit) = batch.exit {
            println!("exit code {}", exit.code);
        }
        if batch.is_closed {
            break;
        }
    }
    client.end().await?;
    Ok(())
}
