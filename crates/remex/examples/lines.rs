//! Prints the lines of a command as they come, each with its stream, and ends the command after a time.
//!
//! ```sh
//! cargo run -p remex --example lines
//! cargo run -p remex --example lines -- make test
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::{env, time::Duration};

use remex::Local;
use remex_client::{
    Client, Command,
    process::{ExitCause, OnDrop},
};

const TIME_LIMIT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::connect(Local::here()?.target()).await?;
    let mut words = env::args().skip(1);
    let command = match words.next() {
        Some(program) => Command::new(program).args(words),
        None => Command::shell("echo one; echo two >&2; printf three; exec sleep 1000"),
    };
    // The server keeps the time, so the limit holds even if this program loses its connection.
    let process = command.timeout(TIME_LIMIT).on_drop(OnDrop::Terminate).start(&client).await?;
    let mut lines = process.lines();
    while let Some(line) = lines.next().await? {
        println!("{}: {}", line.stream.name(), line.text);
    }
    let exit = process.wait().await?;
    match exit.cause {
        Some(ExitCause::Timeout) => println!("ended after {TIME_LIMIT:?}"),
        _ => println!("exit code {}", exit.code),
    }
    client.end().await?;
    Ok(())
}
