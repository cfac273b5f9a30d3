//! Shows a person what a command prints while a language model waits for it, and hands the model the result as JSON.
//!
//! ```sh
//! cargo run -p remex --example agent_live
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::{
    io::{Write as _, stdout},
    time::Duration,
};

use remex::Local;
use remex_client::{
    Client, Command,
    agent::{Agent, ControlSequences, Limits, LiveStep, Progress, Step, StepEvent, Window, Write},
    process::{Exit, Stdio},
};

/// A build as people know it: colours, a progress bar, and a question in between.
const BUILD: &str = r#"
printf '\033[1mbuilding\033[0m\n'
for percent in 25 50 75 100; do printf '\r%s %%' $percent; done
printf '\nupload it? '
read answer
echo "you said $answer"
"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::connect(Local::here()?.target()).await?;
    // The model has no terminal: it gets lines as they were last, without colours.
    let limits = Limits::default().control_sequences(ControlSequences::Remove).live_bytes(256 << 10);
    let agent = Agent::new(limits);

    let command = Command::shell(BUILD).stdin(Stdio::Piped);
    let window = Window::default().yield_after(Duration::from_secs(1));
    let mut step = watch(agent.exec_command_live(&client, &command, window).await?).await?;
    if step.progress == Progress::Running {
        let window = Window::default().yield_after(Duration::from_secs(30));
        step = watch(agent.write_stdin_live(step.handle, Write::BytesAndEnd(b"yes\n"), window)?).await?;
    }
    anyhow::ensure!(step.progress.exit().is_some_and(Exit::success), "the build failed");
    Ok(())
}

/// Shows a step while it waits, and then its result as the model gets it.
async fn watch(mut live: LiveStep) -> anyhow::Result<Step> {
    while let Some(event) = live.next().await? {
        match event {
            StepEvent::Begin { handle, .. } => println!("--- process {handle}"),
            StepEvent::Delta(delta) => {
                if delta.omitted_bytes > 0 {
                    println!("[{} bytes were too fast]", delta.omitted_bytes);
                }
                print!("{}", delta.text);
                stdout().flush()?;
            }
            StepEvent::End(step) => {
                println!("\n--- the model gets {}", serde_json::to_string(&step.output)?);
                return Ok(step);
            }
            _ => {}
        }
    }
    anyhow::bail!("a step ends with its result")
}
