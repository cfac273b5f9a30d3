//! Drives an interactive program on a terminal: waits for its prompt, types, and changes the size of the window.
//!
//! ```sh
//! cargo run -p remex --example terminal
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use anyhow::ensure;
use remex::Local;
use remex_client::{
    Client, Command, Process,
    process::{OnDrop, TerminalSize, Until, WaitOutcome},
};
use tokio::{
    io::{AsyncWriteExt as _, copy, stdout},
    time::timeout,
};

/// Generous: every step usually takes milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::connect(Local::here()?.target()).await?;
    let shell = Command::new("/bin/sh").arg("-i").env("PS1", "ready> ").terminal(TerminalSize::default());
    let shell = shell.on_drop(OnDrop::Terminate).start(&client).await?;
    // Any number of consumers may follow a process; each receives all output.
    let mut screen = shell.terminal();
    let watching = tokio::spawn(async move { copy(&mut screen, &mut stdout()).await });

    let mut keys = shell.stdin().expect("a terminal accepts input");
    appears(&shell, "ready> $").await?;
    keys.write_all(b"stty size\n").await?;
    appears(&shell, "24 80\r\n").await?;
    shell.resize(TerminalSize::new(50, 132)?).await?;
    keys.write_all(b"stty size\n").await?;
    appears(&shell, "50 132\r\n").await?;

    // A wait searches all output from the beginning; this is the third prompt.
    appears(&shell, "(?s)(ready> .*){2}ready> $").await?;
    keys.write_all(b"exit\n").await?;
    let exit = timeout(TIME_LIMIT, shell.wait()).await??;
    watching.await??;
    println!("the shell has ended with exit code {}", exit.code);
    client.end().await?;
    Ok(())
}

/// Waits until the terminal output matches an expression.
async fn appears(process: &Process, pattern: &str) -> anyhow::Result<()> {
    let waited = timeout(TIME_LIMIT, process.wait_for(&Until::Output(pattern.to_owned()))).await??;
    ensure!(matches!(waited, WaitOutcome::Matched(_)), "`{pattern}` did not appear: {waited:?}");
    Ok(())
}
