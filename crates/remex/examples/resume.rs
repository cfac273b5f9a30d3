//! Goes on with a job that an earlier run of the program has started: the job outlives its client.
//!
//! ```sh
//! cargo run -p remex --example resume
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use anyhow::Context as _;
use remex::Local;
use remex_client::{
    Client, Command, Error, ErrorKind, Options, Process, Session, Target,
    process::{Stdio, Until},
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // In this example the server lives here; usually it is elsewhere, and each of these blocks is a run of the program.
    let server = Local::here()?;

    let client = connect(server.target()).await?;
    let job = job(&client).await?;
    job.wait_for(&Until::Output("step 1".to_owned())).await?;
    println!("first run: the job is at work");
    client.close().await;

    let client = connect(server.target()).await?;
    let job = self::job(&client).await?;
    job.write(b"go on\n").await?;
    let output = job.wait_with_output().await?;
    print!("second run: all that the job has said:\n{}", String::from_utf8(output.stdout)?);
    client.end().await?;
    Ok(())
}

/// Resumes the session of the last run, or makes it; it survives an hour without a client.
async fn connect(target: Target) -> anyhow::Result<Client> {
    let options = Options::default()
        .session(Session::Named("nightly".to_owned()))
        .detach_ttl(Duration::from_secs(3600));
    Client::connect_with(target, options).await.context("cannot connect")
}

/// Returns the job if it exists, or starts it.
async fn job(client: &Client) -> Result<Process, Error> {
    match client.process("job").await {
        Err(error) if error.kind() == Some(ErrorKind::UnknownProcess) => {
            println!("starting the job");
            let line = "echo step 1; read -r _; echo step 2";
            Command::shell(line).id("job").stdin(Stdio::Piped).start(client).await
        }
        found => found,
    }
}
