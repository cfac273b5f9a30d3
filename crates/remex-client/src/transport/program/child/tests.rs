//! Shell scripts as programs that exit, ignore signals, flood standard error, or fail to start.

use std::{fs, os::fd::OwnedFd, panic, time::Instant};

use remex_rpc::{FrameReader, Framing, Incoming};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, mkfifoat},
    process::{Pid, getpgrp},
};
use tokio::io::AsyncWriteExt;

use super::{stderr::TAIL_LEN, *};
use crate::{
    Target,
    transport::{
        dial::dial,
        link::{Link, Transport},
    },
};

/// Prints its pid and those of a `sleep` in its group, of a shell in another group, and of a `sleep` of that shell. All
/// of them ignore the end of the input and SIGTERM.
const STUBBORN: &str = "
    trap '' TERM
    echo $$
    sleep 1000 &
    echo $!
    setsid sh -c 'echo $$; sleep 1000 & echo $!; wait' &
    wait
    sleep 1000";

fn shell(script: &str) -> Program {
    Program::new("sh").args(["-c", script])
}

async fn link(script: &str) -> Link {
    dial(&Target::Program(shell(script)), Prompts::Refuse).await.unwrap()
}

/// Reads a line; `None` at the end.
async fn line(link: &mut Link) -> Option<String> {
    let Transport::Wire { reader, .. } = &mut link.transport else { panic!("not a wire") };
    match reader.next().await {
        Incoming::Message(line) => Some(String::from_utf8(line.to_vec()).unwrap()),
        Incoming::End => None,
        other => panic!("{other:?}"),
    }
}

/// Reads the pids that a script prints, and opens a pidfd for each.
async fn processes(link: &mut Link, count: usize) -> Vec<OwnedFd> {
    let mut processes = Vec::new();
    for _ in 0..count {
        let pid = line(link).await.unwrap().parse().unwrap();
        processes.push(pidfd::open(Pid::from_raw(pid).unwrap()).unwrap());
    }
    processes
}

/// Waits until all processes have exited; fails after `within`.
#[track_caller]
fn assert_ended(processes: &[OwnedFd], within: Duration) {
    let deadline = Instant::now() + within;
    for (index, process) in processes.iter().enumerate() {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap();
        let mut polled = [PollFd::new(process, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&left)), Ok(1), "process {index} lives");
    }
}

/// Closes the wire and waits for the end of the program.
async fn end(link: Link) {
    let Link { transport, child, .. } = link;
    drop(transport);
    child.unwrap().end().await;
}

const DEADLINE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_program_runs_with_the_given_environment_and_directory() {
    let directory = tempfile::tempdir().unwrap();
    let cwd = directory.path().canonicalize().unwrap();
    let mut program =
        shell("read line; echo \"$line $GREETING\"; pwd; ps=$(cat /proc/$$/stat); echo \"${ps##*) }\"");
    program.env.insert("GREETING".to_owned(), "there".to_owned());
    program.cwd = Some(cwd.clone());
    let mut link = dial(&Target::Program(program), Prompts::Refuse).await.unwrap();
    let Transport::Wire { writer, .. } = &mut link.transport else { panic!("not a wire") };
    writer.write_all(b"hello\n").await.unwrap();
    assert_eq!(line(&mut link).await.unwrap(), "hello there");
    assert_eq!(line(&mut link).await.unwrap(), cwd.to_str().unwrap());
    let stat = line(&mut link).await.unwrap();
    assert_ne!(stat.split(' ').nth(2).unwrap(), getpgrp().as_raw_pid().to_string());
    assert_eq!(line(&mut link).await, None);
    end(link).await;
}

#[tokio::test]
async fn a_program_exits_by_itself_at_the_end_of_its_input() {
    let directory = tempfile::tempdir().unwrap();
    let farewell = directory.path().join("farewell");
    let script = format!("trap 'exit 1' TERM; echo $$; cat; echo bye > {}", farewell.display());
    let mut link = link(&script).await;
    let processes = processes(&mut link, 1).await;
    end(link).await;
    assert_ended(&processes, Duration::ZERO);
    assert_eq!(fs::read_to_string(farewell).unwrap(), "bye\n");
}

#[tokio::test]
async fn a_program_that_ignores_the_end_of_input_gets_sigterm_before_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let farewell = directory.path().join("farewell");
    let script = format!("trap 'echo bye > {}; exit' TERM; echo $$; sleep 1000 & wait", farewell.display());
    let mut link = link(&script).await;
    let processes = processes(&mut link, 1).await;
    end(link).await;
    assert_ended(&processes, Duration::ZERO);
    assert_eq!(fs::read_to_string(farewell).unwrap(), "bye\n");
}

#[tokio::test]
async fn a_program_that_ignores_everything_is_killed_with_its_tree() {
    let mut link = link(STUBBORN).await;
    let processes = processes(&mut link, 4).await;
    end(link).await;
    assert_ended(&processes, Duration::ZERO);
}

#[tokio::test]
async fn descendants_in_the_group_of_a_program_are_ended_too() {
    let mut link =
        link("trap '' TERM; sleep 1000 & echo $!; trap - TERM; sleep 1000 & echo $!; read line").await;
    let processes = processes(&mut link, 2).await;
    end(link).await;
    assert_ended(&processes, Duration::ZERO);
}

#[tokio::test]
async fn descendants_end_when_the_program_exits() {
    let script = "trap '' TERM; sleep 1000 & echo $!; trap - TERM; sleep 1000 & echo $!; read line";
    let mut link = link(script).await;
    let processes = processes(&mut link, 2).await;
    let Transport::Wire { writer, .. } = &mut link.transport else { panic!("not a wire") };
    writer.write_all(b"end\n").await.unwrap();
    // The wire is still open on this side, and unread.
    assert_ended(&processes, DEADLINE);
    end(link).await;
}

#[tokio::test]
async fn a_task_that_panics_takes_its_program_with_it() {
    let mut link = link(STUBBORN).await;
    let processes = processes(&mut link, 4).await;
    let task = tokio::spawn(async move {
        let _held = link;
        panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(task.await.unwrap_err().is_panic());
    assert_ended(&processes, DEADLINE);
}

#[test]
fn a_program_is_ended_without_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (link, processes) = runtime.block_on(async {
        let mut link = link(STUBBORN).await;
        let processes = processes(&mut link, 4).await;
        (link, processes)
    });
    drop(runtime);
    drop(link);
    assert_ended(&processes, DEADLINE);
}

#[tokio::test]
async fn dropping_a_runtime_ends_the_programs_of_its_tasks() {
    let processes = tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut link = runtime.block_on(link("echo $$; exec cat"));
        let processes = runtime.block_on(processes(&mut link, 1));
        runtime.spawn(async move {
            let _held = link;
            std::future::pending::<()>().await;
        });
        processes
    });
    assert_ended(&processes.await.unwrap(), DEADLINE);
}

#[tokio::test]
async fn the_stderr_of_a_program_that_exits_early_is_in_the_error() {
    let mut link = link("echo no such host >&2; exit 3").await;
    assert_eq!(
        link.child.as_mut().unwrap().exit_error().await,
        Error::ProgramEnded {
            program: "`sh -c 'echo no such host >&2; exit 3'`".to_owned(),
            status: "exit code 3".to_owned(),
            stderr: "no such host\n".to_owned(),
            hint: None,
        }
    );
    end(link).await;
}

#[tokio::test]
async fn the_signal_that_killed_a_program_is_in_the_error() {
    let mut link = link("kill -KILL $$").await;
    let error = link.child.as_mut().unwrap().exit_error().await;
    assert!(matches!(&error, Error::ProgramEnded { status, .. } if status == "signal SIGKILL"), "{error}");
}

#[tokio::test]
async fn a_program_that_closes_its_output_is_distinguished_from_one_that_exited() {
    let mut link = link("echo what is this >&2; exec >&-; read line").await;
    let error = link.child.as_mut().unwrap().exit_error().await;
    let Error::Unreachable { target, reason, hint, .. } = &error else { panic!("{error}") };
    assert_eq!(target, "`sh -c 'echo what is this >&2; exec >&-; read line'`");
    assert_eq!(reason, "it closed its output without a response; it printed: what is this");
    assert!(hint.as_ref().unwrap().ends_with("such as `remex serve --listen stdio`"), "{hint:?}");
    end(link).await;
}

#[tokio::test]
async fn a_program_that_floods_standard_error_is_not_blocked_and_the_end_is_kept() {
    let script = "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo done; echo >&2 the end; exit 1";
    let mut link = link(script).await;
    assert_eq!(line(&mut link).await.unwrap(), "done");
    let error = link.child.as_mut().unwrap().exit_error().await;
    let Error::ProgramEnded { stderr, .. } = &error else { panic!("{error}") };
    assert_eq!(stderr, &format!("{}the end\n", "x".repeat(TAIL_LEN - "the end\n".len())));
}

#[tokio::test]
async fn a_program_that_floods_standard_error_is_ended_in_time() {
    let mut link = link("trap '' TERM PIPE; echo $$; exec cat /dev/zero >&2").await;
    let processes = processes(&mut link, 1).await;
    end(link).await;
    assert_ended(&processes, Duration::ZERO);
}

#[tokio::test]
async fn a_program_that_does_not_start_states_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "").unwrap();
    let plain = plain.to_str().unwrap();
    let program = |name: &str| Program::new(name);
    let missing = directory.path().join("missing");
    for (program, expected) in [
        (program("remex-no-such"), "program `remex-no-such` not found in the PATH; install it, ".to_owned()),
        (program("/no/such"), "program `/no/such` or its interpreter not found".to_owned()),
        (program(plain), format!("permission denied to run `{plain}`; make it executable")),
        (
            shell("true").cwd(&missing),
            format!("the working directory `{}` does not exist; create it, ", missing.display()),
        ),
    ] {
        let target = Target::Program(program.clone());
        let error = dial(&target, Prompts::Refuse).await.unwrap_err();
        let Error::Unreachable { target, reason, hint, .. } = &error else { panic!("{error}") };
        assert_eq!(target, &program.to_string());
        let said = format!("{reason}; {}", hint.as_ref().unwrap());
        assert!(said.starts_with(&expected), "{said}");
    }
}

#[tokio::test]
async fn a_cancelled_start_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let held = pipe::OpenOptions::new().open_receiver(&fifo).unwrap();
    let program = shell(&format!("exec cat > {}", fifo.display()));
    // Starts at the first poll, and is cancelled before the program runs.
    let given_up = timeout(Duration::ZERO, start(&program, Prompts::Refuse)).await;
    drop(given_up);
    let mut reader = FrameReader::new(Box::new(held), Framing::Lines, 100);
    let last = timeout(DEADLINE, reader.next()).await.expect("the program closes the FIFO");
    assert!(matches!(last, Incoming::End), "{last:?}");
}

#[test]
fn the_environment_of_a_program_is_never_shown() {
    let mut program = shell("true");
    program.env.insert("TOKEN".to_owned(), "s3cret".to_owned());
    let shown = format!("{program:?} {:?}", Target::Program(program.clone()));
    assert!(shown.contains("TOKEN") && !shown.contains("s3cret"), "{shown}");
}

/// Returns prompts, and the sender of their state.
fn prompt() -> (Prompt, watch::Sender<ProgramState>) {
    let (state_sender, state) = watch::channel(ProgramState::default());
    (Prompt { target: "`way`".to_owned(), login_command: "`way`".to_owned(), state }, state_sender)
}

#[tokio::test(start_paused = true)]
async fn the_handshake_timeout_is_suspended_while_the_user_answers() {
    const LIMIT: Duration = Duration::from_secs(10);
    let begun = tokio::time::Instant::now();
    let (quiet, _news) = prompt();
    let too_late = Error::TimedOut { what: "the handshake", after: LIMIT };
    assert_eq!((quiet.handshake_overdue(LIMIT).await, begun.elapsed()), (too_late, LIMIT));

    let begun = tokio::time::Instant::now();
    let (asking, state_sender) = prompt();
    state_sender.send_modify(|state| state.prompt = PromptState::Asking);
    let too_late = Error::TimedOut { what: "the handshake", after: PROMPT_TIMEOUT };
    assert_eq!((asking.handshake_overdue(LIMIT).await, begun.elapsed()), (too_late, PROMPT_TIMEOUT));

    let begun = tokio::time::Instant::now();
    let (refused, state_sender) = prompt();
    state_sender.send_modify(|state| state.prompt = PromptState::Refused(PromptRefusal::Background));
    let reason = "it prompts on the terminal, and this process is in the background";
    let hint = "run `way` once at a terminal and answer the prompt";
    let expected = Error::PromptRefused {
        program: "`way`".to_owned(),
        reason: reason.to_owned(),
        hint: hint.to_owned(),
    };
    assert_eq!(refused.handshake_overdue(LIMIT).await, expected);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}
