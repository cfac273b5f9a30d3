//! Tests a program without a host: a fake server follows scripts, and tells what was asked of it.
//!
//! ```sh
//! cargo run -p remex --example fake_server
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::ensure;
use remex_client::{
    Client, Command, Error,
    testing::{FakeServer, Script},
};

/// The program under test: says whether the work tree is clean, and on which branch it is.
async fn describe(client: &Client) -> Result<String, Error> {
    let git = |words: &[&str]| Command::new("git").args(words.iter().copied());
    let branch = git(&["branch", "--show-current"]).output(client).await?;
    let changes = git(&["status", "--porcelain"]).output(client).await?;
    let branch = String::from_utf8_lossy(&branch.stdout).trim().to_owned();
    let files = String::from_utf8_lossy(&changes.stdout).lines().count();
    Ok(if files == 0 { format!("{branch}: clean") } else { format!("{branch}: {files} changed") })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let server = FakeServer::new()
        .on("git branch --show-current", Script::new().stdout("main\n").exit(0))
        .on("git status --porcelain", Script::new().stdout(" M src/lib.rs\n?? notes\n").exit(0));
    let client = Client::connect(server.target()).await?;
    let description = describe(&client).await?;
    ensure!(description == "main: 2 changed", "{description}");
    ensure!(server.started() == ["git branch --show-current", "git status --porcelain"]);
    println!("the test passes: {description}");
    Ok(())
}
