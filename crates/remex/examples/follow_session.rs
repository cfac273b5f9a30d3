//! Shows everything that another client does, without disturbing it.
//!
//! ```sh
//! cargo run -p remex --example follow_session
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use remex::Local;
use remex_client::{Client, Command, Options, Session, process::Event, session::ObserveFrom};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let server = Local::here()?;
    // Some program works in a session with a name.
    let worker =
        Client::connect_with(server.target(), Options::default().session(Session::Named("build".to_owned())))
            .await?;

    // This one looks on.
    let viewer = Client::connect(server.target()).await?;
    let mut events = viewer.observe("build", ObserveFrom::Start).await?;

    Command::shell("echo compiling").id("compile").start(&worker).await?.wait().await?;
    Command::shell("echo testing; exit 1").id("test").start(&worker).await?;

    let mut open = 2;
    while open > 0 {
        let event = events.next().await?;
        match event.event? {
            Event::Output(chunk) => {
                print!("[{}] {}", event.process_id, String::from_utf8_lossy(&chunk.bytes));
            }
            Event::Exited { exit, .. } => println!("[{}] exit code {}", event.process_id, exit.code),
            Event::Closed(_) => open -= 1,
            _ => {}
        }
    }
    for process in worker.processes().await? {
        println!("{}: {}", process.process_id, process.argv.join(" "));
    }
    worker.end().await?;
    Ok(())
}
