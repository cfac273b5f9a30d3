//! What a durable server says about what it keeps.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use remex_client::{
    Client, Command, Options, Target, WebSocket,
    process::{Overflow, Retain, Stdio},
};
use remex_proto::environment::State;
use rustix::process::{Signal, kill_process};

use super::{host::DurableHost, in_time};

const TOKEN: &str = "rmx_status_0123456789abcdefghijklmnopqrstuvwxyz";
const OTHER: &str = "rmx_others_0123456789abcdefghijklmnopqrstuvwxyz";

async fn state(client: &Client) -> State {
    in_time("the state", client.durable_state()).await.unwrap().expect("the server is durable")
}

/// Asks until the state is as wanted.
async fn state_with(client: &Client, what: &str, holds: impl Fn(&State) -> bool) -> State {
    let asking = async {
        loop {
            let state = state(client).await;
            if holds(&state) {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time(what, asking).await
}

fn counts(state: &State) -> (Option<u64>, Option<u64>) {
    (state.running_processes, state.ended_processes)
}

#[tokio::test]
async fn a_durable_server_reports_its_state() {
    let mut host = DurableHost::start();
    let options = || {
        Options::default()
            .session(remex_client::Session::Create("kept".to_owned()))
            .detach_ttl(Duration::from_secs(3600))
    };
    let client = host.connect(options()).await;
    let empty = state(&client).await;
    assert_eq!(empty.directory.as_ref().unwrap().native().unwrap(), host.state());
    assert_eq!(
        (counts(&empty), empty.used_bytes, empty.quota_bytes),
        ((Some(0), Some(0)), Some(0), Some(64 << 30))
    );
    let keeper = empty.keeper.unwrap();
    assert_eq!(i32::try_from(keeper.pid).unwrap(), host.keeper().as_raw_nonzero().get());
    assert_eq!((keeper.version.as_deref(), keeper.responds), (Some(env!("CARGO_PKG_VERSION")), true));

    let _running = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let _not_durable = Command::new("cat").stdin(Stdio::Piped).durable(false).start(&client).await.unwrap();
    let retain = Retain::default().after_close(Duration::from_secs(3600));
    let ended = Command::new("head").arg("-c").arg("1000000").arg("/dev/zero").retain(retain);
    in_time("the output", ended.output(&client)).await.unwrap();
    let is_used = |state: &State| counts(state) == (Some(1), Some(1));
    let used = state_with(&client, "one that runs and one that ended", is_used).await;
    assert!((1_000_000..8_000_000).contains(&used.used_bytes.unwrap()), "{used:?}");

    host.kill();
    host.launch();
    let next = host.connect(Options::default()).await;
    let found = state_with(&next, "the same for the next server", is_used).await;
    assert_eq!(found.keeper.map(|keeper| keeper.pid), Some(keeper.pid));
}

#[tokio::test]
async fn a_suspended_keeper_is_reported_and_delays_only_the_status_request() {
    let host = DurableHost::start();
    let client = host.connect(Options::default()).await;
    kill_process(host.keeper(), Signal::STOP).unwrap();
    let silent = state(&client).await;
    let keeper = silent.keeper.as_ref().unwrap();
    assert_eq!((keeper.responds, keeper.version.as_deref()), (false, None));
    assert_eq!((counts(&silent), silent.used_bytes), ((None, None), None));
    assert!(silent.directory.is_some() && silent.quota_bytes.is_some(), "the server knows these itself");
    kill_process(host.keeper(), Signal::CONT).unwrap();
    let responds = |state: &State| state.keeper.as_ref().is_some_and(|keeper| keeper.responds);
    state_with(&client, "an answer of the keeper", responds).await;
}

#[tokio::test]
async fn without_the_metrics_scope_only_the_existence_of_a_state_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    fs::write(&tokens, format!("{TOKEN} name=all\n{OTHER} name=few scope=processes,files:read,http\n"))
        .unwrap();
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    let host = DurableHost::with(&[
        "--listen",
        "ws://127.0.0.1:0",
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        tokens.to_str().unwrap(),
    ]);
    let connect = async |token: &str| {
        let target = Target::WebSocket(WebSocket::new(host.other_address()).bearer(token));
        in_time("a connection", Client::connect(target)).await.unwrap()
    };
    assert!(state(&connect(TOKEN).await).await.directory.is_some());
    assert_eq!(state(&connect(OTHER).await).await, State::default());
}

#[tokio::test]
async fn a_reloaded_quota_unblocks_a_process_waiting_for_space() {
    let limits = |size: &str| format!("[limits]\nsession_disk_bytes = \"{size}\"\ndisk_bytes = \"{size}\"\n");
    let host = DurableHost::with_config(&limits("2MiB"));
    let client = host.connect(Options::default()).await;
    assert_eq!(state(&client).await.quota_bytes, Some(2 << 20));
    let retain = Retain::default().bytes(64 << 20).overflow(Overflow::Hold);
    let command = Command::new("head").arg("-c").arg("20000000").arg("/dev/zero").retain(retain);
    let process = command.start(&client).await.unwrap();
    // Its output is not read, so it waits for space.
    state_with(&client, "a used quota", |state| state.used_bytes > Some(1 << 20)).await;
    host.reload(&limits("64MiB"));
    let larger = |state: &State| state.quota_bytes == Some(64 << 20) && counts(state).0 == Some(0);
    let state = state_with(&client, "the end of the process", larger).await;
    assert!(state.used_bytes > Some(20_000_000), "{state:?}");
    let output = in_time("the output", process.wait_with_output()).await.unwrap();
    assert_eq!(output.stdout.len(), 20_000_000);
}
