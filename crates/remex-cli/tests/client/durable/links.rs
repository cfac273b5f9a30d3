//! What a keeper that lives does to processes when messages or connections of its server go wrong: nothing.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use remex_client::{
    Command, Options,
    process::{Process, Sandbox, Stdio, Termination, Until},
};
use rustix::process::test_kill_process;

use super::{host::DurableHost, in_time, restarts::poll};

fn lasting() -> Options {
    Options::default().detach_ttl(Duration::from_secs(3600))
}

/// Writes a line to `cat` and waits for its echo.
async fn echo(process: &Process, line: &str) {
    in_time("a write", process.write(format!("{line}\n").as_bytes())).await.unwrap();
    in_time("an echo", process.wait_for(&Until::Output(line.to_owned()))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_the_keeper_link_ends_no_process_and_is_transparent_to_clients() {
    let host = DurableHost::with(&["--log", "info"]);
    let client = host.connect(lasting()).await;
    let durable = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let ephemeral = Command::new("cat").stdin(Stdio::Piped).durable(false).start(&client).await.unwrap();
    for round in 0..3 {
        for process in [&durable, &ephemeral] {
            echo(process, &format!("before {round}")).await;
        }
        poll("the link", || host.cut_link());
        for process in [&durable, &ephemeral] {
            echo(process, &format!("after {round}")).await;
        }
        let new = Command::new("echo").arg("new").start(&client).await.unwrap();
        let output = in_time("output", new.wait_with_output()).await.unwrap();
        assert_eq!((output.stdout.as_slice(), output.exit.code), (&b"new\n"[..], 0));
    }
    assert!(test_kill_process(host.keeper()).is_ok(), "the keeper is the same");
    assert!(!host.said().contains("the keeper is gone"), "{}", host.said());
    for process in [durable, ephemeral] {
        in_time("the end of input", process.close_stdin()).await.unwrap();
        let output = in_time("output", process.wait_with_output()).await.unwrap();
        let expected: String = (0..3).map(|round| format!("before {round}\nafter {round}\n")).collect();
        assert_eq!((output.stdout, output.exit.code), (expected.into_bytes(), 0));
    }
    client.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nondurable_processes_end_with_a_server_that_lost_its_keeper_link() {
    let mut host = DurableHost::start();
    let client = host.connect(lasting()).await;
    let durable = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let ephemeral = Command::new("sleep").arg("1000").durable(false).start(&client).await.unwrap();
    echo(&durable, "before").await;
    let listed = client.processes().await.unwrap();
    let pid_of = |id: &str| {
        let pid = listed.iter().find(|process| process.process_id == id).unwrap().pid.unwrap();
        rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    };
    let (kept, ended) = (pid_of(durable.id()), pid_of(ephemeral.id()));
    poll("the link", || host.cut_link());
    host.kill();
    poll("the end of what is not durable", || test_kill_process(ended).is_err());
    assert!(test_kill_process(kept).is_ok(), "{}", host.said());
    host.launch();
    echo(&durable, "after").await;
    in_time("a kill", durable.reference().terminate_tree(Termination::Kill)).await.unwrap();
    client.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relative_paths_on_the_command_line_and_in_the_configuration_work_with_a_keeper() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    for name in ["token", "secret"] {
        fs::write(place.join(name), format!("{name}-0123456789abcdef0123456789abcdef\n")).unwrap();
        fs::set_permissions(place.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    fs::write(place.join("server.toml"), "[auth.jwt]\nsecret_file = 'secret'\n[audit]\nfile = 'audit'\n")
        .unwrap();
    let flags = [
        (&["--ws-auth", "capability-token", "--ws-token-file", "token", "--audit", "audit"][..], "token-"),
        (&["--config", "server.toml"], "secret-"),
    ];
    for (flags, hidden) in flags {
        let (place, flags) = (place.clone(), flags.to_vec());
        let launched = place.clone();
        let host = DurableHost::launched(move |mut command, _| {
            command.args(&flags).current_dir(&launched);
            command
        });
        let client = host.connect(lasting()).await;
        let bystander = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
        echo(&bystander, "before").await;
        let script = "cat audit token secret server.toml; echo ran";
        let command = Command::shell(script).cwd(&place).sandbox(Sandbox::read_only());
        let confined =
            command.start(&client).await.unwrap_or_else(|error| panic!("{error}: {}", host.said()));
        let output = in_time("output", confined.wait_with_output()).await.unwrap();
        let (stdout, said) = (String::from_utf8(output.stdout).unwrap(), host.said());
        assert!(stdout.ends_with("ran\n") && !stdout.contains("\"method\""), "{stdout}: {said}");
        assert!(!stdout.contains(hidden), "{stdout}");
        echo(&bystander, "after").await;
        in_time("a kill", bystander.reference().terminate_tree(Termination::Kill)).await.unwrap();
        client.end().await.unwrap();
        assert!(place.join("audit").exists(), "it is where the server was started");
    }
}
