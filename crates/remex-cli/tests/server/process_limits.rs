//! Limits of processes, and what the host enforces them with.

use std::{fs, path::PathBuf, process::Command, time::Instant};

use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};

use crate::support::{
    Client, Limits, Need, Output, PATIENCE, Server, finish, program, skip, start_params, with,
};

/// Runs a script with these limits until it is closed.
fn run(client: &Client, process_id: &str, script: &str, limits: &Value, more: Value) -> Output {
    let more = with(json!({"limits": limits}), more);
    client.start(process_id, &["/bin/sh", "-c", script], more);
    client.collect(process_id)
}

/// Returns what a process printed on its terminal, or else on its standard output, with plain line ends.
fn printed(output: &Output) -> String {
    let bytes = if output.pty.is_empty() { &output.stdout } else { &output.pty };
    String::from_utf8_lossy(bytes).replace('\r', "")
}

/// Both kinds of standard streams.
fn kinds() -> [(&'static str, Value); 2] {
    [("pipes", json!({})), ("terminal", json!({"tty": true}))]
}

#[test]
fn exceeding_cpu_time_sends_sigxcpu_and_then_sigkill() {
    let server = Server::start();
    let client = server.client();
    let limits = json!({"cpuSeconds": 1});
    for (kind, more) in kinds() {
        let output = run(&client, kind, "while :; do :; done", &limits, more);
        let ended = (output.exit_code(), &output.exited["signal"], &output.exited["cause"]);
        assert_eq!(ended, (152, &json!("SIGXCPU"), &json!("signal")), "{kind}");
    }
    let handled = "trap 'echo caught' XCPU; while :; do :; done";
    let output = run(&client, "handled", handled, &limits, json!({}));
    assert!(output.text().starts_with("caught\n"), "{}", output.text());
    assert_eq!((output.exit_code(), &output.exited["signal"]), (137, &json!("SIGKILL")));
    assert_eq!(output.exited["cause"], "signal");
}

#[test]
fn each_limit_applies_to_the_process_and_its_descendants() {
    let server = Server::start();
    let client = server.client();
    let limits = json!({"cpuSeconds": 7, "memoryBytes": 1 << 30, "openFiles": 33, "fileBytes": 1 << 20});
    // The shell counts memory in KiB and files in blocks of 512 bytes.
    let shown = "7\n1048576\n33\n2048\n";
    let script = "ulimit -t; ulimit -v; ulimit -n; ulimit -f";
    let soft_and_hard = format!("{script}; ulimit -H -v; ulimit -H -n; ulimit -H -f");
    let output = run(&client, "own", &soft_and_hard, &limits, json!({}));
    assert_eq!(output.text(), format!("{shown}1048576\n33\n2048\n"));
    let of_descendant = format!("(setsid sh -c '{script}')");
    assert_eq!(run(&client, "descendant", &of_descendant, &limits, json!({})).text(), shown);
    let on_terminal = run(&client, "terminal", script, &limits, json!({"tty": true}));
    assert_eq!(printed(&on_terminal), shown);
    // Without limits, a process has those of the server.
    let own = client.shell("none", script);
    assert!(own["pid"].is_u64());
    assert_ne!(client.collect("none").text(), shown);
}

#[test]
fn exceeding_a_limit_fails_inside_the_process() {
    let server = Server::start();
    let client = server.client();
    let memory = json!({"memoryBytes": 64 << 20});
    // `tail` keeps a line without an end in memory.
    let output = run(&client, "memory", "head -c 256M /dev/zero | tail -n 1", &memory, json!({}));
    assert_ne!(output.exit_code(), 0);
    let errors = String::from_utf8(output.stderr).expect("text");
    assert!(errors.contains("memory exhausted"), "{errors}");

    let files = "exec 3</dev/null 4</dev/null 5</dev/null 6</dev/null; echo unreachable";
    let output = run(&client, "files", files, &json!({"openFiles": 6}), json!({}));
    assert_ne!(output.exit_code(), 0);
    assert_eq!(output.text(), "");

    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("large");
    let write = format!("exec dd if=/dev/zero of={} bs=4096 count=4", file.display());
    let output = run(&client, "size", &write, &json!({"fileBytes": 8192}), json!({}));
    let ended = (output.exit_code(), &output.exited["signal"], &output.exited["cause"]);
    assert_eq!(ended, (153, &json!("SIGXFSZ"), &json!("signal")));
    assert_eq!(fs::metadata(file).expect("it was begun").len(), 8192);
}

#[test]
fn a_process_limit_works_for_ordinary_users_and_is_refused_for_root() {
    let limits = json!({"processes": 1});
    if geteuid().is_root() {
        let server = Server::serve(&["--cgroup", "none"]);
        let client = server.client();
        let params = with(start_params("p", &["/bin/true"]), json!({"limits": limits}));
        let error = client.call("process/start", params).unwrap_err();
        assert_eq!(error["data"]["kind"], "notSupported", "{error}");
        let message = error["message"].as_str().expect("a text");
        assert!(
            message.starts_with("cannot limit the number of processes: the kernel exempts root"),
            "{message}"
        );
        let info = client.call("environment/info", json!({})).expect("information");
        assert_eq!(info["processLimits"]["processes"], "unavailable");
        // Nothing was started, and the id is free.
        assert_eq!(run(&client, "p", "echo ok", &json!({}), json!({})).text(), "ok\n");
    }
    let server = if geteuid().is_root() { Limits::processes(4096).serve(&[]) } else { Server::start() };
    let client = server.client();
    let info = client.call("environment/info", json!({})).expect("information");
    assert_eq!(info["processLimits"]["processes"], "rlimit", "{info}");
    let output = run(&client, "p", "echo begun; /bin/true; echo unreachable", &limits, json!({}));
    assert_eq!(output.text(), "begun\n");
    let errors = String::from_utf8(output.stderr).expect("text").to_lowercase();
    assert!(errors.contains("fork"), "{errors}");
}

#[test]
fn an_invalid_limit_is_refused_by_name() {
    let server = Server::start();
    let client = server.client();
    for (limits, part) in [
        (json!({"memory": 1}), "unknown member `memory` of `limits`; known: `cpuSeconds`, `memoryBytes`"),
        (
            json!({"openFiles": 0}),
            "`limits.openFiles` must be a whole number from 1 to 18446744073709551615, not 0",
        ),
        (json!({"processes": -1}), "`limits.processes` must be a whole number from 1"),
        (json!({"fileBytes": 1.5}), "`limits.fileBytes` must be a whole number from 1"),
        (json!({"memoryBytes": 4096}), "too small for any program to start"),
        (json!({"memoryBytes": 1e30}), "`limits.memoryBytes` must be a whole number from 1"),
        (json!({"cpuSeconds": "10"}), "`limits.cpuSeconds` must be a whole number from 1"),
        (json!([]), "limits"),
    ] {
        let params = with(start_params("p", &["/bin/true"]), json!({"limits": limits}));
        let error = client.call("process/start", params).unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32602), &json!("invalidParams")),
            "{error}"
        );
        assert!(error["message"].as_str().is_some_and(|message| message.contains(part)), "{error}");
    }
    let nothing = json!({"limits": {"openFiles": null}});
    client.start("null", &["/bin/true"], nothing);
    assert_eq!(client.collect("null").exit_code(), 0);
    client.start("absent", &["/bin/true"], json!({"limits": null}));
    assert_eq!(client.collect("absent").exit_code(), 0);
}

#[test]
fn a_limit_above_the_servers_own_is_refused() {
    let server = Limits::descriptors(300).serve(&[]);
    let client = server.client();
    let params = |count: u64| {
        with(start_params("p", &["/bin/sh", "-c", "ulimit -n"]), json!({"limits": {"openFiles": count}}))
    };
    let error = client.call("process/start", params(301)).unwrap_err();
    assert_eq!(error["data"]["kind"], "limitExceeded", "{error}");
    assert_eq!(
        error["message"],
        "the limit on open files (`openFiles`) is 301, but remex itself has a hard limit of 300"
    );
    client.call("process/start", params(300)).expect("what the server has");
    assert_eq!(client.collect("p").text(), "300\n");
}

#[test]
fn a_repeated_start_with_limits_returns_the_first_process() {
    let server = Server::start();
    let client = server.client();
    let params = with(
        start_params("p", &["/bin/sh", "-c", "ulimit -n"]),
        json!({"limits": {"openFiles": 40}, "startId": "once"}),
    );
    let first = client.call("process/start", params.clone()).expect("a start");
    let second = client.call("process/start", params).expect("the same start");
    assert_eq!((&first["pid"], &second["replayed"]), (&second["pid"], &json!(true)));
    assert_eq!(client.collect("p").text(), "40\n");
}

/// Why the tests of cgroups cannot run.
const NO_CGROUP: &str = "no cgroup with the controllers `memory` and `pids` can be made";

/// A cgroup with the controllers `memory` and `pids`, if the host lets us create one; removed when dropped.
struct CgroupDirectory(PathBuf);

impl CgroupDirectory {
    fn new(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").expect("Linux lists its mounts");
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(path))
        })?;
        let path = root.join(format!("remex-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let created = Self(path);
        let controllers = fs::read_to_string(created.0.join("cgroup.controllers")).ok()?;
        let has = |wanted| controllers.split_whitespace().any(|name| name == wanted);
        (has("memory") && has("pids")).then_some(created)
    }

    fn arg(&self) -> &str {
        self.0.to_str().expect("such paths are UTF-8")
    }

    /// Returns how many cgroups of processes are in it.
    fn children(&self) -> usize {
        fs::read_dir(&self.0).expect("it is there").flatten().filter(|entry| entry.path().is_dir()).count()
    }

    fn wait_until_empty(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.children() > 0 {
            assert!(Instant::now() < deadline, "cgroups of ended processes stay in `{}`", self.arg());
            std::thread::yield_now();
        }
    }
}

impl Drop for CgroupDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_cgroup_limits_memory_and_processes_of_the_whole_tree() {
    let Some(cgroup) = CgroupDirectory::new("bounds") else {
        // This host offers none, and the server says what it does instead.
        let server = Server::serve(&["--cgroup", "auto"]);
        let client = server.client();
        let limits = client.call("environment/info", json!({})).expect("information")["processLimits"].take();
        assert_eq!(limits["memoryBytes"], "rlimit", "{limits}");
        let why = limits["withoutCgroup"].as_str().expect("a reason");
        assert!(why.contains("is not delegated to it") || why.contains("no cgroup file system"), "{why}");
        let output = run(&client, "p", "ulimit -v", &json!({"memoryBytes": 1 << 30}), json!({}));
        assert_eq!(output.text(), "1048576\n");
        return skip(Need::Cgroups, NO_CGROUP);
    };
    let server = Server::serve(&["--cgroup", cgroup.arg()]);
    let client = server.client();
    let limits = client.call("environment/info", json!({})).expect("information")["processLimits"].take();
    let by_cgroup = json!({
        "cpuSeconds": "rlimit", "memoryBytes": "cgroup", "openFiles": "rlimit", "processes": "cgroup",
        "fileBytes": "rlimit", "withoutCgroup": null,
    });
    assert_eq!(limits, by_cgroup);

    let memory = json!({"memoryBytes": 32 << 20});
    for (kind, more) in kinds() {
        // The descendant that needs too much takes the whole tree with it.
        let script = "echo begun; (head -c 512M /dev/zero | tail -n 1); echo unreachable";
        let output = run(&client, kind, script, &memory, more);
        assert_eq!(printed(&output), "begun\n", "{kind}");
        let ended = (output.exit_code(), &output.exited["signal"], &output.exited["cause"]);
        assert_eq!(ended, (137, &json!("SIGKILL"), &json!("outOfMemory")), "{kind}");
    }
    // Killed within its limit, it did not run out of memory, whatever happened to others.
    let output = run(&client, "killed", "kill -KILL $$", &memory, json!({}));
    assert_eq!(output.exited["cause"], "signal");

    let processes = json!({"processes": 2});
    let script = "sh -c 'echo one; sh -c true; echo unreachable'; echo unreachable";
    let output = run(&client, "processes", script, &processes, json!({}));
    let errors = String::from_utf8(output.stderr.clone()).expect("text").to_lowercase();
    assert!(output.text().starts_with("one\n") && errors.contains("fork"), "{}: {errors}", output.text());
    cgroup.wait_until_empty();

    // What a command leaves behind keeps its cgroup until the session ends.
    client.start("left", &["/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 &"], json!({"limits": processes}));
    client.collect("left");
    assert_eq!(cgroup.children(), 1);
    server.stop();
    assert_eq!(cgroup.children(), 0);
}

#[test]
fn a_server_creates_child_cgroups_only_if_its_own_is_delegated() {
    let membership = |server: &Server| {
        fs::read_to_string(format!("/proc/{}/cgroup", server.pid())).expect("the server runs")
    };
    let undelegated = Server::start();
    let own = fs::read_to_string("/proc/self/cgroup").expect("we run");
    assert_eq!(membership(&undelegated), own, "the server stays where it was started");

    let Some(cgroup) = CgroupDirectory::new("delegated") else { return skip(Need::Cgroups, NO_CGROUP) };
    // As systemd does for `Delegate=yes`.
    rustix::fs::setxattr(&cgroup.0, "trusted.delegate", b"1", rustix::fs::XattrFlags::empty())
        .expect("we are root");
    let mut command = Command::new("/bin/sh");
    let script = "echo $$ > \"$1/cgroup.procs\" && exec \"$2\" serve";
    command.args(["-c", script, "sh", cgroup.arg()]).arg(program(&[]).get_program());
    let server = Server::launch(command, 1);
    assert!(membership(&server).contains("/remex-server"), "{}", membership(&server));
    let client = server.client();
    let limits = client.call("environment/info", json!({})).expect("information")["processLimits"].take();
    assert_eq!((&limits["memoryBytes"], &limits["processes"]), (&json!("cgroup"), &json!("cgroup")));
    let output = run(&client, "p", "cat /proc/self/cgroup", &json!({"processes": 3}), json!({}));
    assert!(output.text().contains("/remex-child-"), "{}", output.text());
    // Without limits, a process is where the server is.
    let output = run(&client, "plain", "cat /proc/self/cgroup", &json!({}), json!({}));
    assert!(output.text().contains("/remex-server"), "{}", output.text());
    server.stop();
    fs::remove_dir(cgroup.0.join("remex-server")).expect("nothing is left in it");
}

#[test]
fn cgroups_of_a_killed_server_are_removed_by_the_next_one() {
    let Some(cgroup) = CgroupDirectory::new("killed") else {
        // A cgroup that cannot be used is an error if it was asked for.
        let finished = finish(&["serve", "--cgroup", "/nowhere/cgroup"]);
        assert_eq!(finished.code(), Some(1), "{finished:?}");
        let expected = "cannot limit processes by cgroups: cannot find the cgroup `/nowhere/cgroup`";
        assert!(finished.stderr.contains(expected), "{finished:?}");
        return skip(Need::Cgroups, NO_CGROUP);
    };
    let mut server = Server::serve(&["--cgroup", cgroup.arg()]);
    let client = server.client();
    client.start("p", &["/bin/sleep", "1000"], json!({"limits": {"processes": 5}}));
    assert_eq!(cgroup.children(), 1);
    let finished = finish(&["serve", "--cgroup", cgroup.arg()]);
    assert!(finished.stderr.contains("another server uses the cgroup"), "{finished:?}");
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::serve(&["--cgroup", cgroup.arg()]);
    server.stop();
    cgroup.wait_until_empty();
}
