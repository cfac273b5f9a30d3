//! Runs one command on many hosts at the same time, and tries again where a host is not up yet.
//!
//! ```sh
//! cargo run -p remex --example fleet                         # twenty servers in this process
//! cargo run -p remex --example fleet -- ws://one:4000 ssh://two
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::{env, time::Duration};

use remex::Local;
use remex_client::{Client, Command, Error, Options, Target, process::Output};
use tokio::{task::JoinSet, time::sleep};

/// How often a command is tried on a host.
const TRIES: u32 = 3;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut hosts = Vec::new();
    for address in env::args().skip(1) {
        hosts.push((address.clone(), Target::parse(&address)?));
    }
    // Only here: the servers must live as long as they are used.
    let mut servers = Vec::new();
    if hosts.is_empty() {
        for number in 1..=20 {
            let server = Local::here()?;
            hosts.push((format!("host {number}"), server.target()));
            servers.push(server);
        }
    }

    // One command, started everywhere.
    let command =
        Command::shell("echo \"load $(cut -d ' ' -f 1 /proc/loadavg)\"").timeout(Duration::from_secs(30));
    let mut runs = JoinSet::new();
    for (name, target) in hosts {
        let command = command.clone();
        runs.spawn(async move { (name, run(target, &command).await) });
    }
    let (mut succeeded, mut failed) = (0, 0);
    while let Some(run) = runs.join_next().await {
        match run? {
            (name, Ok(output)) => {
                succeeded += 1;
                println!("{name}: {}", String::from_utf8_lossy(&output.stdout).trim_end());
            }
            (name, Err(error)) => {
                failed += 1;
                println!("{name}: {error}");
            }
        }
    }
    println!("{succeeded} succeeded, {failed} failed");
    Ok(())
}

/// Runs a command on a host; an error after which it cannot have run is no reason to give up.
async fn run(target: Target, command: &Command) -> Result<Output, Error> {
    // Until the host is up.
    let options = Options::default().connect_retry(Duration::from_secs(10));
    let client = Client::connect_with(target, options).await?;
    let mut tries = 0;
    loop {
        tries += 1;
        match command.output(&client).await {
            Err(error) if tries < TRIES && error.is_retryable() && !error.may_have_happened() => {
                sleep(Duration::from_millis(200)).await;
            }
            outcome => {
                client.end().await?;
                return outcome;
            }
        }
    }
}
