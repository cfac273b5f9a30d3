//! Commands that are run again when they end, also while there is no server.

use std::fs;

use remex_client::{ErrorKind, process::Restart};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{
    host::DurableHost,
    restarts::{connect, poll, read_all, resume},
};
use crate::support::{InTime as _, Watched, program, start_params, with};

#[test]
fn a_durable_command_is_restarted_while_its_server_is_dead_and_after_an_upgrade() {
    let mut host = DurableHost::renewable(&[]);
    let (client, session) = connect(&host);
    let runs = host.state().join("../runs");
    let script = format!("echo $$ >> '{}'; echo run; exec sleep 1000", runs.display());
    let restart = json!({"restart": {"policy": "always"}});
    let started = client.start("p", &["/bin/sh", "-c", &script], restart);
    let pids =
        || fs::read_to_string(&runs).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    let end_run = |number: usize| {
        poll("a run", || pids().len() == number);
        let pid = pids()[number - 1].parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    };
    end_run(1);
    poll("the second run", || pids().len() == 2);
    drop(client);
    host.kill();
    end_run(2);
    poll("a run without a server", || pids().len() == 3);
    host.launch();
    host.renew();
    let upgraded = program(&["upgrade", "--state", host.state().to_str().unwrap()]).finished();
    assert!(upgraded.status.success(), "{upgraded:?}");
    end_run(3);
    poll("a run after an upgrade", || pids().len() == 4);
    let client = resume(&host, &session);
    let listed = client.call("process/list", json!({})).unwrap();
    let process = &listed["processes"][0];
    assert_eq!((&process["pid"], &process["argv"][2]), (&started["pid"], &json!(script)), "{listed}");
    let (supervisor, last) = (Watched::printed(&started["pid"].to_string()), Watched::printed(&pids()[3]));
    let ended = json!({"processId": "p", "scope": "tree", "mode": {"graceful": {"timeoutMs": 60_000}}});
    let _ = client.call("process/terminate", ended).unwrap();
    let (output, read) = read_all(&client, "p");
    let output = String::from_utf8(output).unwrap();
    let line = |restart| format!("remex: `/bin/sh` was ended by signal 9; restarting in {restart}\n");
    let expected =
        ["run\n", &line("100ms (1)"), "run\n", &line("200ms (2)"), "run\n", &line("400ms (3)"), "run\n"];
    assert_eq!(output, expected.concat());
    assert_eq!(read["exitCode"], 143, "{read}");
    supervisor.assert_ends();
    last.assert_ends();
}

#[tokio::test]
async fn a_server_without_a_supervisor_refuses_a_restart_policy() {
    let local = remex::Local::here().unwrap();
    let client = remex_client::Client::connect(local.target()).await.unwrap();
    let command = remex_client::Command::new("true").restart(Restart::always());
    let error = command.start(&client).await.unwrap_err();
    assert!(error.to_string().contains("cannot run a command again when it ends"), "{error}");
    let start = json!({"processId": "p", "argv": ["true"], "cwd": "/", "env": {}, "tty": false,
        "restart": {"policy": "always"}});
    let start: remex_proto::process::Start = serde_json::from_value(start).unwrap();
    let error = client.call(start).await.unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::NotSupported), "{error}");
}

#[test]
fn an_unknown_restart_policy_is_refused() {
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    for restart in [
        json!({"policy": "sometimes"}),
        json!({}),
        json!({"policy": "always", "maxRestarts": -1}),
        json!({"policy": "always", "jitterMs": 5}),
    ] {
        let start = with(start_params("p", &["/bin/true"]), json!({"restart": restart}));
        let error = client.call("process/start", start).unwrap_err();
        assert_eq!(error["code"], -32602, "{error}");
    }
}
