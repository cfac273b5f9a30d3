//! Processes with a sandbox: confined as they ask, or refused.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Output, Server, Watched, start_params, with};

/// A directory to work in, and one beside it.
struct Workspace {
    directory: TempDir,
}

impl Workspace {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        fs::create_dir_all(directory.path().join("w/.git")).expect("a directory can be made");
        fs::write(directory.path().join("w/.git/config"), "config").expect("a file can be written");
        fs::create_dir(directory.path().join("out")).expect("a directory can be made");
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.directory.path()).expect("the directory exists").join(name)
    }

    /// Everything can be read, `w` written except for `.git`, and there is no network.
    fn sandbox(&self) -> Value {
        let special = |value: Value| json!({"type": "special", "value": value});
        let skipped = json!({"path": special(json!({"kind": "project_roots", "subpath": ".git"})), "access": "read",
            "missing_path_behavior": "skip"});
        let entries = json!([
            {"path": special(json!({"kind": "root"})), "access": "read"},
            {"path": special(json!({"kind": "project_roots"})), "access": "write"},
            skipped,
        ]);
        self.restricted(&entries, "restricted")
    }

    fn restricted(&self, entries: &Value, network: &str) -> Value {
        let uri = format!("file://{}", self.path("w").display());
        json!({"permissions": {"type": "managed", "network": network,
            "file_system": {"type": "restricted", "entries": entries}},
            "windowsSandboxLevel": "disabled", "cwd": uri, "workspaceRoots": [uri]})
    }

    fn start(&self, client: &Client, process_id: &str, script: &str, more: Value) -> Value {
        let confined =
            json!({"sandbox": self.sandbox(), "cwd": format!("file://{}", self.path("w").display())});
        client.start(process_id, &["/bin/sh", "-c", script], with(confined, more))
    }

    fn run(&self, client: &Client, process_id: &str, script: &str) -> Output {
        self.start(client, process_id, script, json!({}));
        client.collect(process_id)
    }
}

/// Returns the processes in the pid namespace of a process of this host.
fn inhabitants(pid: &Value) -> Vec<Watched> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid")).expect("the process runs");
    let entries = fs::read_dir("/proc").expect("processes can be listed").filter_map(Result::ok);
    let there =
        entries.filter(|entry| fs::read_link(entry.path().join("ns/pid")).is_ok_and(|other| other == link));
    // Some are short-lived.
    there
        .filter_map(|entry| Watched::find(Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?))
        .collect()
}

#[test]
fn a_confined_process_writes_only_where_it_may() {
    let (server, workspace) = (Server::start(), Workspace::new());
    let client = server.client();
    let started = workspace.start(&client, "in", "echo in > inside; cat inside .git/config", json!({}));
    assert_eq!(started["sandboxType"], "linuxSeccomp");
    let output = client.collect("in");
    assert_eq!((output.text(), output.exit_code()), ("in\nconfig".to_owned(), 0));
    assert_eq!(output.exited["sandboxDenied"], false);
    for (process, script) in
        [("out", "echo x > ../out/file"), ("git", "echo x > .git/config"), ("etc", "echo x > /etc/file")]
    {
        let output = workspace.run(&client, process, script);
        assert_ne!(output.exit_code(), 0, "{script}");
        assert_eq!(output.exited["sandboxDenied"], true, "{script}: {}", output.text());
        let read = client.call("process/read", json!({"processId": process})).unwrap();
        assert_eq!(read["sandboxDenied"], true);
    }
    let output = workspace.run(&client, "own fault", "echo sorry; exit 3");
    assert_eq!((output.exit_code(), &output.exited["sandboxDenied"]), (3, &json!(false)));
    assert_eq!(fs::read_to_string(workspace.path("w/.git/config")).unwrap(), "config");
    assert_eq!(fs::read_dir(workspace.path("out")).unwrap().count(), 0);
}

#[test]
fn a_confined_process_has_no_network() {
    let (server, workspace) = (Server::unix(&[]), Workspace::new());
    let client = server.client();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{}", port.local_addr().unwrap().port());
    for (process, network, is_reached) in [("off", "restricted", false), ("on", "enabled", true)] {
        let entries = json!([{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]);
        let sandbox = workspace.restricted(&entries, network);
        client.start(process, &["bash", "-c", &script], json!({"sandbox": sandbox}));
        let output = client.collect(process);
        assert_eq!(output.exit_code() == 0, is_reached, "{}", output.text());
        assert_eq!(output.exited["sandboxDenied"], !is_reached);
    }
}

#[test]
fn a_server_reachable_by_confined_processes_gives_them_no_network() {
    let (server, workspace) = (Server::start(), Workspace::new());
    let client = server.client();
    let entries = json!([{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]);
    let sandbox = json!({"sandbox": workspace.restricted(&entries, "enabled")});
    let error = client.call("process/start", with(start_params("p", &["true"]), sandbox)).unwrap_err();
    assert_eq!(error["data"]["kind"], "sandboxUnavailable", "{error}");
    let hint = error["data"]["hint"].as_str().unwrap();
    assert!(hint.starts_with("a confined process with network could connect to this server"), "{hint}");
}

#[test]
fn a_sandbox_without_restrictions_is_not_confined() {
    let (server, workspace) = (Server::start(), Workspace::new());
    let client = server.client();
    for permissions in [
        json!({"type": "disabled"}),
        json!({"type": "external", "network": "enabled"}),
        json!({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}),
    ] {
        let sandbox = json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
        let file = workspace.path("out/file");
        let name = permissions.to_string();
        let started = client.start(&name, &["touch", file.to_str().unwrap()], json!({"sandbox": sandbox}));
        assert_eq!(started["sandboxType"], "none", "{permissions}");
        assert_eq!(client.collect(&name).exit_code(), 0);
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn an_unenforceable_sandbox_is_refused_with_the_reason_and_nothing_runs() {
    let (server, workspace) = (Server::start(), Workspace::new());
    let client = server.client();
    let marker = workspace.path("w/marker");
    let touch = with(
        start_params("p", &["touch", marker.to_str().unwrap()]),
        json!({"cwd": format!("file://{}", workspace.path("w").display())}),
    );
    let at = |path: &Path| json!({"type": "path", "path": format!("file://{}", path.display())});
    let root = json!({"type": "special", "value": {"kind": "root"}});
    let writable = json!({"path": at(&workspace.path("w")), "access": "write"});
    // A missing file in a missing directory of a writable one could be created.
    let creatable = json!([writable, {"path": at(&workspace.path("w/none/secret")), "access": "deny"}]);
    let unknown =
        json!([writable, {"path": {"type": "special", "value": {"kind": "unknown"}}, "access": "deny"}]);
    let everywhere = json!([{"path": root, "access": "read"},
        {"path": {"type": "glob_pattern", "pattern": "/**/*.surely-not-there"}, "access": "deny"}]);
    for (entries, reason) in [
        (creatable, "so a process could create it; create the directory above it"),
        (unknown, "its path is unknown"),
        (everywhere, "the patterns of the profile concern"),
    ] {
        let sandbox = json!({"sandbox": workspace.restricted(&entries, "restricted")});
        let error = client.call("process/start", with(touch.clone(), sandbox)).unwrap_err();
        assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32602), &json!("sandboxUnavailable")));
        assert_eq!(error["message"], "sandbox intent cannot be enforced on this executor");
        let hint = error["data"]["hint"].as_str().unwrap();
        assert!(
            hint.contains(reason) || reason.contains("patterns") && hint.contains("cannot look for"),
            "{hint}"
        );
    }
    let managed = json!({"sandbox": workspace.restricted(&json!([writable]), "enabled"),
        "enforceManagedNetwork": true});
    let error = client.call("process/start", with(touch.clone(), managed)).unwrap_err();
    assert_eq!(error["data"]["kind"], "sandboxUnavailable", "{error}");
    assert!(!marker.exists(), "a refused start runs nothing");
    client.call("process/start", touch).expect("the id is free");
}

#[test]
fn terminals_resizes_and_signals_work_in_confinement() {
    let (server, workspace) = (Server::start(), Workspace::new());
    let client = server.client();
    let script =
        "trap 'stty size' WINCH; trap 'echo hangup; exit 4' HUP; echo ready; while :; do sleep 0.02; done";
    workspace.start(&client, "p", script, json!({"tty": true}));
    client.wait_for_output("p", "ready");
    client.call("process/resize", json!({"processId": "p", "rows": 40, "cols": 100})).unwrap();
    client.wait_for_output("p", "40 100\r\n");
    client.call("process/signal", json!({"processId": "p", "signal": "SIGHUP"})).unwrap();
    let output = client.collect("p");
    assert!(String::from_utf8_lossy(&output.pty).contains("hangup"));
    assert_eq!((output.exit_code(), &output.exited["cause"]), (4, &json!("exit")));
}

/// Ignores what it can, and has neither parent nor session nor tag.
const FUGITIVE: &str = "(setsid prlimit --locks=5 sh -c 'trap \"\" TERM HUP INT; echo ready; sleep 1000; sleep 1000' \
                        >fugitive 2>&1 </dev/null &); until grep -q ready fugitive; do sleep 0.01; done";

#[test]
fn terminate_kills_a_whole_hostile_tree() {
    let (server, workspace) = (Server::start(), Workspace::new());
    let client = server.client();
    for (process, mode) in [("force", json!("force")), ("graceful", json!({"graceful": {"timeoutMs": 100}}))]
    {
        let script = format!("{FUGITIVE}; echo up; trap '' TERM; while :; do sleep 0.1; done");
        let started = workspace.start(&client, process, &script, json!({}));
        client.wait_for_output(process, "up");
        let tree = inhabitants(&started["pid"]);
        assert!(tree.len() >= 3, "the first process, the command, and the fugitive");
        let ended = client.call("process/terminate", json!({"processId": process, "mode": mode})).unwrap();
        assert_eq!(ended, json!({"running": true}));
        assert_eq!(client.collect(process).exited["cause"], "terminated");
        tree.iter().for_each(Watched::assert_ends);
    }
}

#[test]
fn ending_a_session_or_the_server_leaves_no_process_behind() {
    let (server, workspace) = (Server::start(), Workspace::new());
    let client = server.connect();
    let session = client.initialize();
    let script = format!("{FUGITIVE}; echo up");
    let in_session = workspace.start(&client, "p", &format!("{script}; sleep 1000"), json!({}));
    client.wait_for_output("p", "up");
    let tree = inhabitants(&in_session["pid"]);
    client.call("session/end", json!({"sessionId": session["sessionId"]})).unwrap();
    tree.iter().for_each(Watched::assert_ends);

    let other = server.client();
    // The command ends, and what it has started runs on.
    let after_exit =
        workspace.start(&other, "q", &format!("{script}; read line"), json!({"pipeStdin": true}));
    other.wait_for_output("q", "up");
    let tree = inhabitants(&after_exit["pid"]);
    other.call("process/closeStdin", json!({"processId": "q"})).unwrap();
    other.collect("q");
    let left: Vec<_> = tree.iter().filter(|process| !process.ended_within(Duration::ZERO)).collect();
    assert!(left.len() >= 2, "the first process and the fugitive outlive the command");
    server.signal(Signal::KILL);
    tree.iter().for_each(Watched::assert_ends);
}

#[test]
fn pid_isolation_is_available_on_its_own() {
    let (server, workspace) = (Server::start(), Workspace::new());
    let client = server.client();
    let file = workspace.path("out/file");
    let script = format!("echo $$; touch {}; set -- /proc/[0-9]*; echo $#", file.display());
    let started = client.start("p", &["/bin/sh", "-c", &script], json!({"isolatePids": true}));
    assert_eq!(started["sandboxType"], "none");
    assert_eq!(client.collect("p").text(), "2\n2\n");
    assert!(file.exists());
}

#[test]
fn the_server_is_out_of_reach() {
    let (server, workspace) = (Server::unix(&[]), Workspace::new());
    let client = server.client();
    let socket = Path::new(server.address().trim_start_matches("unix://"));
    assert!(socket.exists());
    let entries = json!([{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]);
    let script = format!(
        "test -S {0} && echo seen; ls -l {0}; kill -0 {1} && echo reached",
        socket.display(),
        server.pid()
    );
    client.start(
        "p",
        &["/bin/sh", "-c", &script],
        json!({"sandbox": workspace.restricted(&entries, "enabled")}),
    );
    let text = client.collect("p").text();
    assert!(!text.contains("seen") && !text.contains("reached"), "{text}");
}
