//! A keeper that gets a systemd unit of its own, with a `systemd-run` that only notes what it is asked for.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command as Program,
    time::Duration,
};

use remex_client::{Command, Options, process::Stdio};
use tempfile::TempDir;

use super::{host::DurableHost, in_time};

/// Runs a server as if systemd had started it in a unit of the user.
const AS_A_UNIT: &str = "mount -t tmpfs none /run && mkdir -p /run/systemd/system && \
     mount --bind \"$FAKE/cgroup\" /proc/$$/cgroup && PATH=\"$FAKE:$PATH\" exec \"$@\"";

const MEMBERSHIP: &str = "0::/user.slice/user-7.slice/user@7.service/app.slice/remex.service\n";

/// Notes its arguments, and executes what follows them.
const SYSTEMD_RUN: &str = "#!/bin/sh
printf '%s\\n' \"$@\" > \"$FAKE/arguments\"
while [ \"$1\" != -- ]; do shift; done
shift
exec \"$@\"
";

/// What the real one says to a user without permission.
const REFUSING: &str = "#!/bin/sh
echo 'Failed to start transient scope unit: Interactive authentication required.' >&2
exit 1
";

/// A directory with a `systemd-run`, and the server that finds it.
fn unit(systemd_run: &str) -> (TempDir, DurableHost) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("cgroup"), MEMBERSHIP).unwrap();
    let program = directory.path().join("systemd-run");
    fs::write(&program, systemd_run).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let fake = directory.path().to_owned();
    let host = DurableHost::launched(move |command, _| wrapped(&command, &fake));
    (directory, host)
}

fn wrapped(command: &Program, fake: &Path) -> Program {
    let mut wrapped = Program::new("unshare");
    wrapped
        .args(["-r", "-m", "sh", "-c", AS_A_UNIT, "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    wrapped.env("FAKE", PathBuf::from(fake)).env("no_proxy", "*");
    wrapped
}

/// Kills the server; its successor must find the same process, with its input.
async fn assert_survives(host: &mut DurableHost) {
    let options = Options::default()
        .session(remex_client::Session::Create("unit".to_owned()))
        .detach_ttl(Duration::from_secs(3600));
    let client = host.connect(options).await;
    let process = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    host.kill();
    host.launch();
    in_time("a write", process.write(b"still here")).await.unwrap();
    in_time("the end of input", process.close_stdin()).await.unwrap();
    let output = in_time("the output", process.wait_with_output()).await.unwrap();
    assert_eq!(output.stdout, b"still here");
}

#[tokio::test]
async fn the_keeper_of_a_unit_gets_its_own_scope() {
    let (directory, mut host) = unit(SYSTEMD_RUN);
    let arguments = fs::read_to_string(directory.path().join("arguments")).unwrap();
    let arguments: Vec<_> = arguments.lines().collect();
    for wanted in ["--user", "--scope", "--collect", "--quiet", "--no-ask-password", "--slice=app.slice"] {
        assert!(arguments.contains(&wanted), "{wanted} is not in {arguments:?}");
    }
    let keeper = arguments.iter().position(|argument| *argument == "--").unwrap() + 2;
    assert_eq!(arguments[keeper..], ["keeper", host.state().to_str().unwrap()]);
    assert_survives(&mut host).await;
}

#[tokio::test]
async fn without_permission_the_keeper_runs_in_the_unit_and_a_warning_is_logged() {
    let (_directory, mut host) = unit(REFUSING);
    let said = host.said();
    assert!(said.contains("the keeper cannot get a unit of its own"), "{said}");
    assert!(
        said.contains("Interactive authentication required") && said.contains("KillMode=process"),
        "{said}"
    );
    assert_survives(&mut host).await;
}
