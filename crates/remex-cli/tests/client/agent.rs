//! A model's tool calls, on the real program.

use std::{fs, time::Duration};

use remex_client::{
    Client, Command, Target,
    agent::{
        Agent, ControlSequences, Handle, Limits, Progress, RetainedOutput, Step, StepEvent, Window, Write,
    },
    process::Stdio,
    process::TerminalSize,
};
use tokio::time::timeout;

use crate::support::{PATIENCE, Server, Watched};

/// A server, a client and an agent whose steps may be as short as they like, or very long.
struct Stage {
    client: Client,
    agent: Agent,
    _server: Server,
}

impl Stage {
    async fn new() -> Self {
        Self::with(|limits| limits).await
    }

    async fn with(change: impl FnOnce(Limits) -> Limits) -> Self {
        let server = Server::unix(&[]);
        let client = Client::connect(Target::parse(server.address()).unwrap()).await.unwrap();
        let limits = Limits::default().yield_min(Duration::ZERO).yield_max(PATIENCE);
        Self { client, agent: Agent::new(change(limits)), _server: server }
    }

    /// Runs a command to its end in one step.
    async fn run(&self, command: Command) -> Step {
        self.agent.exec_command(&self.client, &command, window(PATIENCE)).await.unwrap()
    }

    /// Starts a command that goes on, and steps until its output contains `expected`; returns all of that, too.
    async fn start(&self, command: Command, expected: &str) -> (Handle, String) {
        let first = self.agent.exec_command(&self.client, &command, window(Duration::ZERO)).await.unwrap();
        let more = self.step_until(first, expected).await;
        (more.handle, more.output.text)
    }

    /// Writes, and steps until the output contains `expected`; returns all of it.
    async fn write_until(&self, handle: Handle, bytes: &[u8], expected: &str) -> String {
        let first =
            self.agent.write_stdin(handle, Write::Bytes(bytes), window(Duration::ZERO)).await.unwrap();
        self.step_until(first, expected).await.output.text
    }

    /// Makes further steps until the output contains `expected`, and returns them as one.
    async fn step_until(&self, first: Step, expected: &str) -> Step {
        let mut step = first;
        let steps = async {
            while !step.output.text.contains(expected) {
                let window = window(Duration::from_millis(50));
                let next = self.agent.write_stdin(step.handle, Write::Nothing, window).await.unwrap();
                step.output.text += &next.output.text;
            }
        };
        let is_over = timeout(PATIENCE, steps).await.is_ok();
        assert!(is_over, "no `{expected}` in {step:?}");
        step
    }

    /// Writes, and waits for the end.
    async fn write_to_end(&self, handle: Handle, write: Write<'_>) -> Step {
        self.agent.write_stdin(handle, write, window(PATIENCE)).await.unwrap()
    }
}

fn window(yield_after: Duration) -> Window {
    Window::default().yield_after(yield_after)
}

fn on_terminal(command: Command) -> Command {
    command.terminal(TerminalSize::default())
}

fn code(step: &Step) -> Option<i32> {
    match &step.progress {
        Progress::Ended(exit) => Some(exit.code),
        _ => None,
    }
}

#[tokio::test]
async fn a_command_runs_to_its_end() {
    let stage = Stage::new().await;
    let step = stage.run(Command::shell("echo out; echo err >&2; exit 3")).await;
    assert_eq!(code(&step), Some(3));
    let mut lines: Vec<_> = step.output.text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err", "out"]);
}

#[tokio::test]
async fn a_shell_on_a_terminal_is_used_line_by_line() {
    let stage = Stage::new().await;
    let shell = Command::new("/bin/sh").arg("-i").env("PS1", "ready> ");
    let (handle, _) = stage.start(on_terminal(shell), "ready> ").await;
    stage.write_until(handle, b"name=world\n", "ready> ").await;
    stage.write_until(handle, b"echo \"hello, $name\"\n", "\nhello, world\n").await;
    // Said by what is interrupted: a shell that is about to fork may miss the interrupt.
    stage.write_until(handle, b"sh -c 'echo sleeping; exec sleep 1000'\n", "\nsleeping\n").await;
    stage.agent.interrupt(handle).await.unwrap();
    let interrupted = stage.agent.write_stdin(handle, Write::Nothing, window(Duration::ZERO)).await.unwrap();
    stage.step_until(interrupted, "ready> ").await;
    stage.write_until(handle, b"echo $((6 * 7))\n", "\n42\n").await;
    assert_eq!(code(&stage.write_to_end(handle, Write::Bytes(b"exit 5\n")).await), Some(5));
}

#[tokio::test]
async fn a_program_on_pipes_responds_until_end_of_input() {
    let stage = Stage::new().await;
    let (handle, _) = stage.start(Command::new("cat").stdin(Stdio::Piped), "").await;
    assert_eq!(stage.write_until(handle, b"hello\n", "hello\n").await, "hello\n");
    let step = stage.write_to_end(handle, Write::BytesAndEnd("grüße\n".as_bytes())).await;
    assert_eq!((step.output.text.as_str(), step.accepted_bytes, code(&step)), ("grüße\n", 8, Some(0)));
}

#[tokio::test]
async fn processes_keep_running_between_agent_steps() {
    const BYTES: u64 = 20 << 20;
    let stage = Stage::new().await;
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("done");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let line = format!("head -c {BYTES} /dev/zero | tr '\\0' x; echo done > {}", fifo.display());
    let first =
        stage.agent.exec_command(&stage.client, &Command::shell(line), window(Duration::ZERO)).await.unwrap();
    // More than the server keeps: without a consumer it would not get there.
    let done = timeout(PATIENCE, tokio::task::spawn_blocking(move || fs::read_to_string(fifo)));
    assert_eq!(done.await.unwrap().unwrap().unwrap(), "done\n");
    let last = stage.write_to_end(first.handle, Write::Nothing).await;
    assert_eq!(code(&last), Some(0));
    assert_eq!(first.output.total_bytes + last.output.total_bytes, BYTES);
    assert!(last.output.text.len() <= 40 << 10, "{}", last.output.text.len());

    let RetainedOutput { output, evicted_bytes, .. } = stage.agent.output(first.handle, 1000).await.unwrap();
    assert_eq!(output.total_bytes, BYTES);
    assert!((BYTES - (8 << 20)..BYTES).contains(&evicted_bytes), "{evicted_bytes}");
    assert!(output.omitted_bytes > evicted_bytes && output.text.len() <= 1000, "{output:?}");
}

#[tokio::test]
async fn earlier_output_can_be_read_again() {
    let stage = Stage::new().await;
    let command = Command::shell("seq 500; read line; seq 501 1000").stdin(Stdio::Piped);
    let (handle, first) = stage.start(command, "\n500\n").await;
    let all: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    assert!(all.starts_with(&first));
    assert_eq!(stage.agent.output(handle, 1 << 20).await.unwrap().output.text, first);
    stage.write_to_end(handle, Write::BytesAndEnd(b"go on\n")).await;
    let retained = stage.agent.output(handle, 1 << 20).await.unwrap();
    assert_eq!((retained.output.text, retained.evicted_bytes), (all, 0));
}

#[tokio::test]
async fn a_terminated_process_is_reported_in_the_next_step() {
    let stage = Stage::new().await;
    let line = "trap 'echo bye; exit 7' TERM; echo ready; read x";
    let (handle, _) = stage.start(Command::shell(line).stdin(Stdio::Piped), "ready\n").await;
    stage.agent.terminate(handle, PATIENCE).await.unwrap();
    let step = stage.write_to_end(handle, Write::Nothing).await;
    assert_eq!((step.output.text.as_str(), code(&step)), ("bye\n", Some(7)));
    let (handle, _) = stage.start(Command::new("sleep").arg("1000"), "").await;
    stage.agent.kill(handle).await.unwrap();
    assert_eq!(code(&stage.write_to_end(handle, Write::Nothing).await), Some(137));
}

#[tokio::test]
async fn processes_of_an_agent_end_with_it() {
    let stage = Stage::new().await;
    let (_, pid) = stage.start(Command::shell("echo $$; exec sleep 1000"), "\n").await;
    let sleeper = Watched::printed(&pid);
    drop(stage.agent);
    let ended = tokio::task::spawn_blocking(move || sleeper.ended_within(PATIENCE));
    assert!(ended.await.unwrap());
}

#[tokio::test]
async fn a_background_process_does_not_keep_a_step_open() {
    let stage = Stage::with(|limits| limits.linger(Duration::from_millis(100))).await;
    let step = stage.run(Command::shell("sleep 1000 & echo started")).await;
    assert_eq!((step.output.text.as_str(), code(&step)), ("started\n", Some(0)));

    let stage = Stage::with(Limits::unlimited_linger).await;
    let (handle, _) = stage.start(Command::shell("sleep 1000 & exit 3"), "").await;
    let exited = async {
        while !matches!(&stage.agent.list()[0].progress, Progress::Exited(exit) if exit.code == 3) {
            stage.agent.write_stdin(handle, Write::Nothing, window(Duration::from_millis(10))).await.unwrap();
        }
    };
    timeout(PATIENCE, exited).await.expect("the shell has not exited");
    stage.agent.kill(handle).await.unwrap();
    assert_eq!(code(&stage.write_to_end(handle, Write::Nothing).await), Some(3));
}

#[tokio::test]
async fn a_flood_is_watched_live_and_every_byte_is_accounted_for() {
    const BYTES: u64 = 20 << 20;
    let stage = Stage::new().await;
    let command = Command::shell(format!("head -c {BYTES} /dev/zero | tr '\\0' x"));
    let mut live = stage.agent.exec_command_live(&stage.client, &command, window(PATIENCE)).await.unwrap();
    let (mut shown, mut step) = (0, None);
    let watch = async {
        while let Some(event) = live.next().await.unwrap() {
            match event {
                StepEvent::Delta(delta) => shown += delta.text.len() as u64 + delta.omitted_bytes,
                StepEvent::End(end) => step = Some(end),
                _ => {}
            }
        }
    };
    timeout(PATIENCE, watch).await.expect("the step has not ended");
    let step = step.unwrap();
    assert_eq!((shown, step.output.total_bytes, code(&step)), (BYTES, BYTES, Some(0)));
}

#[tokio::test]
async fn a_terminal_is_read_as_plain_text() {
    let stage = Stage::with(|limits| limits.control_sequences(ControlSequences::Remove)).await;
    let line = r"printf '\033]0;title\007\033[1;31mred\033[0m\n'; for n in 1 2 3; do printf '\r%s %%' $n; done; echo";
    let step = stage.run(on_terminal(Command::shell(line))).await;
    assert_eq!(step.output.text, "red\n3 %\n");
    assert_eq!(stage.agent.output(step.handle, 1000).await.unwrap().output.text, "red\n3 %\n");
}
