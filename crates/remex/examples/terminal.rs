//! Drives an interactive program on a terminal: waits for its prompt, types, and changes the size of the window.
//!
//! ```sh
//! cargo run -p remex --example terminal
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::{num::NonZeroU16, time::Duration};

use anyhow::ensure;
use remex::Local;
use remex_client::{
    Client, Process,
    process::{OnDrop, Until, WaitOutcome},
};
use tokio::{
    io::{AsyncWriteExt as _, copy, stdout},
    time::timeout,
};

/// Generous: every step usually takes milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(30);

const SMALL: (NonZeroU16, NonZeroU16) = size(24, 80);
const LARGE: (NonZeroU16, NonZeroU16) = size(50, 132);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::connect(Local::here()?.target()).await?;
    let shell = client.command("/bin/sh").arg("-i").env("PS1", "ready> ").terminal(SMALL.0, SMALL.1);
    let shell = shell.on_drop(OnDrop::Terminate).start().await?;
    // Any number of consumers may follow a process; each receives all output.
    let mut screen = shell.terminal();
    let watching = tokio::spawn(async move { copy(&mut screen, &mut stdout()).await });

    let mut keys = shell.stdin().expect("a terminal accepts input");
    appears(&shell, "ready> $").await?;
    keys.write_all(b"stty size\n").await?;
    appears(&shell, "24 80\r\n").await?;
    shell.resize(LARGE.0, LARGE.1).await?;
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
    ensure!(matches!(waited, WaitOutcome::Matched { .. }), "`{pattern}` did not appear: {waited:?}");
    Ok(())
}

const fn size(rows: u16, cols: u16) -> (NonZeroU16, NonZeroU16) {
    match (NonZeroU16::new(rows), NonZeroU16::new(cols)) {
        (Some(rows), Some(cols)) => (rows, cols),
        _ => panic!("a terminal has at least one row and one column"),
    }
}
