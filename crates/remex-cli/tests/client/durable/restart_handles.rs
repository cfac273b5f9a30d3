//! `process/restart` in the Rust client: a handle from before gets the rest, a new one the new process, and neither
//! anything of the other.

use std::time::Duration;

use remex_client::{
    Client, Command, Options, Process, Session,
    process::{Event, ProcessRef, Restarted, Retain, Termination},
};

use super::{host::DurableHost, in_time};

/// Numbers up to this have about 2.7 MB, more than is on its way to a client that does not read.
const LAST: u64 = 400_000;

/// What a process prints that ends with a signal.
fn printed(pid: Option<u32>) -> String {
    let numbers: String = (1..=LAST).map(|number| format!("{number}\n")).collect();
    format!("{}\n{numbers}{}\n", pid.unwrap(), pid.unwrap())
}

async fn connect(host: &DurableHost) -> Client {
    let session = Session::Create("handles".to_owned());
    let options = Options::default().session(session).detach_ttl(Duration::from_secs(3600));
    host.connect(options).await
}

async fn start(client: &Client, durable: bool) -> Process {
    let script = format!("echo $$; seq 1 {LAST}; echo $$; exec sleep 1000");
    let keep = Retain::default().bytes(16 << 20);
    let command = Command::shell(script).id("p").restartable().durable(durable).retain(keep);
    let process = in_time("a start", command.start(client)).await.unwrap();
    all_printed(&process.reference(), process.pid()).await;
    process
}

/// Waits until a process has printed everything, without a look at it.
async fn all_printed(process: &ProcessRef, pid: Option<u32>) {
    let expected = printed(pid).len() as u64;
    let printed = async {
        while process.info().await.unwrap().is_none_or(|info| info.produced.stdout < expected) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time("the output", printed).await;
}

async fn restart(process: &Process) -> Restarted {
    let restarted = in_time("a restart", process.reference().restart(Termination::Kill)).await.unwrap();
    assert_ne!(restarted.pid, process.pid());
    restarted
}

async fn stdout(process: Process) -> String {
    let output = in_time("all output", process.wait_with_output()).await.unwrap();
    assert_eq!(output.exit.signal.as_deref(), Some("SIGKILL"));
    String::from_utf8(output.stdout.to_vec()).unwrap()
}

/// Ends the process and reads all it has printed.
async fn ended(process: Process, pid: Option<u32>) {
    all_printed(&process.reference(), pid).await;
    process.kill().await.unwrap();
    assert_output(&stdout(process).await, pid);
}

fn assert_output(output: &str, pid: Option<u32>) {
    let expected = printed(pid);
    let same = output.bytes().zip(expected.bytes()).take_while(|(left, right)| left == right).count();
    assert_eq!((output.len(), same), (expected.len(), expected.len()), "bytes, and those that are its own");
}

#[tokio::test]
async fn each_handle_gets_only_its_own_incarnation() {
    let host = DurableHost::start();
    for durable in [true, false] {
        let client = connect(&host).await;
        let old = start(&client, durable).await;
        let again = restart(&old).await;
        // Most of what the old one has printed is still to come.
        let new = in_time("a handle", client.process("p")).await.unwrap();
        let third = restart(&new).await;
        let newest = in_time("a handle", client.process("p")).await.unwrap();
        assert_eq!(client.process("p").await.unwrap().id(), newest.id());
        let pid = old.pid();
        assert_output(&stdout(old).await, pid);
        assert!(printed(again.pid).starts_with(&stdout(new).await), "what it printed until it was killed");
        ended(newest, third.pid).await;
        client.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_handle_on_the_old_process_blocks_nothing() {
    let host = DurableHost::start();
    let client = connect(&host).await;
    let old = start(&client, true).await;
    let again = restart(&old).await;
    let new = in_time("a handle", client.process("p")).await.unwrap();
    drop(old);
    ended(new, again.pid).await;
}

#[tokio::test]
async fn a_dropped_handle_on_the_new_process_leaves_remaining_output_to_the_old_one() {
    let host = DurableHost::start();
    let client = connect(&host).await;
    let old = start(&client, true).await;
    let again = restart(&old).await;
    drop(in_time("a handle", client.process("p")).await.unwrap());
    let pid = old.pid();
    assert_output(&stdout(old).await, pid);
    let new = in_time("a handle", client.process("p")).await.unwrap();
    ended(new, again.pid).await;
}

#[tokio::test]
async fn a_disconnect_ends_the_old_handle_with_its_cause_and_loses_nothing_of_the_new_process() {
    let mut host = DurableHost::start();
    let client = connect(&host).await;
    let old = start(&client, true).await;
    let again = restart(&old).await;
    let new = in_time("a handle", client.process("p")).await.unwrap();
    host.kill();
    host.launch();
    let mut events = old.events();
    let error = loop {
        match in_time("the end of the events", events.next()).await {
            Ok(Some(Event::Output(_))) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(error.is_restarted(), "{error}");
    ended(new, again.pid).await;
}

#[tokio::test]
async fn a_handle_gets_nothing_of_a_process_between_two_restarts() {
    let host = DurableHost::start();
    for followed in [false, true] {
        let client = connect(&host).await;
        let old = start(&client, false).await;
        let between = restart(&old).await;
        if followed {
            drop(in_time("a handle", client.process("p")).await.unwrap());
        }
        all_printed(&between.process, between.pid).await;
        let again = in_time("a restart", between.process.restart(Termination::Kill)).await.unwrap();
        let newest = in_time("a handle", client.process("p")).await.unwrap();
        let pid = old.pid();
        assert_output(&stdout(old).await, pid);
        ended(newest, again.pid).await;
        client.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_new_handle_gets_nothing_of_a_process_before_a_restart_that_had_none() {
    let host = DurableHost::start();
    for ended_before in [false, true] {
        let client = connect(&host).await;
        let old = start(&client, false).await;
        let reference = old.reference();
        drop(old);
        if ended_before {
            reference.terminate(Termination::Kill).await.unwrap();
            in_time("the end", reference.wait()).await.unwrap();
            drop(in_time("a handle", client.process("p")).await.unwrap());
        }
        let again = in_time("a restart", reference.restart(Termination::Kill)).await.unwrap();
        let new = in_time("a handle", client.process("p")).await.unwrap();
        ended(new, again.pid).await;
        client.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_handle_on_a_closed_process_and_one_after_its_restart_are_independent() {
    let host = DurableHost::start();
    let client = connect(&host).await;
    let first = start(&client, false).await;
    let reference = first.reference();
    first.kill().await.unwrap();
    in_time("the end", first.wait()).await.unwrap();
    drop(first);
    let old = in_time("a handle on what has ended", client.process("p")).await.unwrap();
    let again = in_time("a restart", reference.restart(Termination::Kill)).await.unwrap();
    let new = in_time("a handle", client.process("p")).await.unwrap();
    ended(new, again.pid).await;
    // Its output was read back before the restart, or is gone.
    match in_time("the state of the old one", old.wait_with_output()).await {
        Ok(output) => assert_eq!(output.exit.signal.as_deref(), Some("SIGKILL")),
        Err(error) => assert!(error.is_restarted(), "{error}"),
    }
}
