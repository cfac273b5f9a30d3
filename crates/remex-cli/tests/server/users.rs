//! `user` of `process/start`: processes that run as another user of the host.
//!
//! Only a server that runs as root can do that. Where the tests do not run as root, those that need it return at once.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::Command,
};

use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::support::{
    Client, Guarded, InTime as _, Need, Server, Watched, has, program, start_params, token_of, with,
};

/// The account that every host has for what may do nothing.
const NOBODY: &str = "nobody";

/// A line of `/etc/passwd`.
#[derive(Clone, Debug)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

fn accounts() -> Vec<Account> {
    let users = fs::read_to_string("/etc/passwd").expect("a host has accounts");
    let account = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let &[name, _, uid, gid, _, home, shell] = fields.as_slice() else { return None };
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        Some(Account { name: name.into(), uid, gid, home: home.into(), shell: shell.into() })
    };
    users.lines().filter_map(account).collect()
}

fn nobody() -> Account {
    accounts().into_iter().find(|account| account.name == NOBODY).expect("every host has nobody")
}

/// Returns an account that is not root's and can enter its own home.
fn at_home() -> Account {
    let can_enter = |account: &Account| {
        let is_open = |path: &Path| {
            fs::metadata(path)
                .is_ok_and(|found| found.is_dir() && found.permissions().mode() & 0o005 == 0o005)
        };
        account.uid != 0 && account.home != "/" && Path::new(&account.home).ancestors().all(is_open)
    };
    accounts().into_iter().find(can_enter).expect("some account has an open home, such as `daemon`")
}

fn is_root() -> bool {
    geteuid().is_root()
}

/// Runs a script as a user until it is closed, and returns what it printed.
fn run(client: &Client, id: &str, user: &str, script: &str, more: Value) -> String {
    client.start(id, &["/bin/sh", "-c", script], with(json!({"user": user}), more));
    let output = client.collect(id);
    let bytes = if output.pty.is_empty() { output.stdout } else { output.pty };
    String::from_utf8_lossy(&bytes).replace('\r', "")
}

/// Asks for a start that must be refused, and returns the error.
fn refused(client: &Client, user: &str, more: Value) -> Value {
    let params = with(start_params("refused", &["true"]), with(json!({"user": user}), more));
    client.call("process/start", params).expect_err("the server refuses it")
}

fn text<'a>(error: &'a Value, pointer: &str) -> &'a str {
    error.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer} of {error}"))
}

#[test]
fn a_process_has_the_ids_and_groups_of_the_account() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let server = Server::start();
    let client = server.connect();
    let begun = client.initialize();
    assert_eq!(begun["environmentInfo"]["capabilities"]["processUser"], true, "{begun}");
    let nobody = nobody();
    let groups = Command::new("id").args(["-G", NOBODY]).output().expect("`id` is there").stdout;
    let expected = format!("{}\n{}\n{}", nobody.uid, nobody.gid, String::from_utf8_lossy(&groups));
    let by_number = nobody.uid.to_string();
    for (id, user) in [("name", NOBODY), ("number", &*by_number)] {
        for tty in [false, true] {
            let id = format!("{id} {tty}");
            assert_eq!(run(&client, &id, user, "id -u; id -g; id -G", json!({"tty": tty})), expected);
            let list = client.call("process/list", json!({})).unwrap();
            let entry = list["processes"].as_array().unwrap().iter().find(|entry| entry["processId"] == *id);
            assert_eq!(entry.unwrap()["user"], user, "{list}");
        }
    }
}

#[test]
fn the_environment_describes_the_account_unless_the_request_overrides_it() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let server = Server::start();
    let client = server.client();
    let Account { name, home, shell, .. } = at_home();
    let script = "printf '%s\\n' \"$HOME\" \"$USER\" \"$LOGNAME\" \"$SHELL\" \"$PWD\"";
    let policy = |set: Value| json!({"inherit": "all", "ignoreDefaultExcludes": false, "exclude": [], "set": set, "includeOnly": []});
    for (id, more) in [("alone", json!({})), ("inherited", json!({"envPolicy": policy(json!({}))}))] {
        let printed = run(&client, id, &name, script, more);
        assert_eq!(printed, format!("{home}\n{name}\n{name}\n{shell}\n/\n"), "{id}");
    }
    let own =
        json!({"env": {"HOME": "/tmp", "PATH": "/usr/bin:/bin"}, "envPolicy": policy(json!({"USER": "me"}))});
    assert_eq!(run(&client, "own", &name, script, own), format!("/tmp\nme\n{name}\n{shell}\n/\n"));
}

#[test]
fn the_working_directory_is_entered_as_the_user_and_defaults_to_its_home() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let server = Server::start();
    let client = server.client();
    let account = at_home();
    let mut params = with(start_params("home", &["pwd"]), json!({"user": account.name}));
    params.as_object_mut().unwrap().remove("cwd");
    client.call("process/start", params.clone()).unwrap();
    assert_eq!(client.collect("home").text(), format!("{}\n", account.home));
    let list = client.call("process/list", json!({})).unwrap();
    assert_eq!(list["processes"][0]["cwd"], format!("file://{}", account.home), "{list}");
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let error = refused(&client, &account.name, json!({"cwd": closed.path()}));
    assert_eq!(error["data"]["kind"], "badCwd", "{error}");
    assert!(text(&error, "/data/hint").contains(&format!("uid {}", account.uid)), "{error}");
    // Without a user, it must be named.
    params.as_object_mut().unwrap().remove("user");
    assert_eq!(client.refusal("process/start", params), (-32602, "missing field `cwd`".to_owned()));
}

#[test]
fn the_terminal_belongs_to_the_user() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let server = Server::start();
    let client = server.client();
    let script = "stat -c %u $(tty); echo heard > /dev/tty; test -t 0 && echo terminal";
    let printed = run(&client, "p", NOBODY, script, json!({"tty": true}));
    assert_eq!(printed, format!("{}\nheard\nterminal\n", nobody().uid));
    let streams = "echo out > /dev/stdout && echo err > /dev/stderr";
    assert_eq!(run(&client, "q", NOBODY, streams, json!({})), "out\n");
}

#[test]
fn files_belong_to_the_user_and_limits_still_apply() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let server = Server::start();
    let client = server.client();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let more = json!({"cwd": directory.path(), "limits": {"openFiles": 33}});
    let script = "echo x > file; cat /etc/shadow 2> /dev/null || echo closed; ulimit -n";
    assert_eq!(run(&client, "p", NOBODY, script, more), "closed\n33\n");
    let (file, nobody) = (fs::metadata(directory.path().join("file")).unwrap(), nobody());
    assert_eq!((file.uid(), file.gid()), (nobody.uid, nobody.gid));
}

#[test]
fn processes_of_another_user_can_be_signalled_and_killed() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let server = Server::start();
    let client = server.client();
    let script =
        "trap 'echo caught' USR1; setsid sleep 1000 & echo child $!; echo ready; while :; do wait; done";
    client.start("p", &["/bin/sh", "-c", script], json!({"user": NOBODY}));
    let printed = client.wait_for_output("p", "ready");
    let child = printed.lines().find_map(|line| line.strip_prefix("child ")).expect("it is printed");
    let child = Watched::printed(child);
    client.call("process/signal", json!({"processId": "p", "signal": "SIGUSR1"})).unwrap();
    client.wait_for_output("p", "caught");
    client.call("process/terminate", json!({"processId": "p", "scope": "tree"})).unwrap();
    assert_eq!(client.collect("p").exited["signal"], "SIGKILL");
    child.assert_ends();
}

#[test]
fn a_user_that_does_not_exist_is_named() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let server = Server::start();
    let client = server.client();
    for user in ["no-such-user", "4294967294", "", "-h"] {
        let error = refused(&client, user, json!({}));
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32602), &json!("invalidParams")),
            "{error}"
        );
        assert_eq!(text(&error, "/message"), format!("there is no user `{user}` on this host"));
    }
    let error = refused(&client, &"x".repeat(10_000), json!({}));
    assert!(text(&error, "/message").starts_with("user has 10000 bytes"), "{error}");
    // Such a start has left nothing behind.
    assert_eq!(client.call("process/list", json!({})).unwrap()["processes"], json!([]));
}

#[test]
fn another_user_cannot_be_combined_with_a_jail() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let files = json!({"type": "restricted", "entries": [root]});
    let permissions = json!({"type": "managed", "network": "restricted", "file_system": files});
    let sandbox = json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
    let snapshot = json!({"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}});
    let server = Server::unix(&[]);
    let client = server.client();
    for (member, value) in
        [("sandbox", sandbox.clone()), ("isolatePids", json!(true)), ("shellSnapshot", snapshot)]
    {
        let error = refused(&client, NOBODY, json!({member: value, "argv": ["/bin/bash", "-lc", "true"]}));
        assert_eq!(error["data"]["kind"], "userUnavailable", "{error}");
        assert!(text(&error, "/message").ends_with("cannot be combined"), "{error}");
        assert!(text(&error, "/data/hint").contains("leave out"), "{error}");
    }
    let floor = Server::unix(&["--sandbox", "read-only"]);
    assert_eq!(refused(&floor.client(), NOBODY, json!({}))["data"]["kind"], "userUnavailable");
    let confined = Server::unix(&["--starts", "confined"]);
    let client = confined.connect();
    let begun = client.initialize();
    assert_eq!(begun["environmentInfo"]["capabilities"]["processUser"], false, "{begun}");
    let error = refused(&client, NOBODY, json!({}));
    assert_eq!(error["data"]["kind"], "permissionDenied", "{error}");
    assert_eq!(refused(&client, NOBODY, json!({"sandbox": sandbox}))["data"]["kind"], "userUnavailable");
}

#[test]
fn a_credential_for_confined_processes_gets_no_other_user_and_the_audit_file_names_it() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let tokens = format!(
        "{} name=operator\n{} name=guest scope=processes,sandbox=read-only\n",
        token_of("operator"),
        token_of("guest")
    );
    let (guarded, audit) = Guarded::audited(&tokens);
    let guest = guarded.client(&token_of("guest"));
    let error = refused(&guest, NOBODY, json!({}));
    assert_eq!(error["data"]["kind"], "userUnavailable", "{error}");
    let operator = guarded.client(&token_of("operator"));
    operator.start("p", &["id", "-un"], json!({"user": NOBODY}));
    assert_eq!(operator.collect("p").text(), "nobody\n");
    operator.start("q", &["sleep", "1000"], json!({"user": NOBODY, "restartable": true}));
    operator.call("process/restart", json!({"processId": "q"})).unwrap();
    let restart = audit.line(&json!({"event": "restart", "process": "q", "outcome": "ok"}));
    assert_eq!(
        (&restart["user"], &restart["argv"]),
        (&json!(NOBODY), &json!(["sleep", "1000"])),
        "{restart}"
    );
    let refusal = audit.line(&json!({"method": "process/start", "outcome": "userUnavailable"}));
    let start = audit.line(&json!({"method": "process/start", "outcome": "ok"}));
    assert_eq!((&refusal["user"], &start["user"]), (&json!(NOBODY), &json!(NOBODY)), "{refusal} {start}");
}

#[test]
fn a_server_that_cannot_change_the_user_names_the_missing_privilege() {
    let own = geteuid().as_raw();
    let mut cases = Vec::new();
    if is_root() {
        // Without a map, the server has the number of nobody there.
        if Command::new("unshare").args(["--user", "true"]).ended().success() {
            let mut command = Command::new("unshare");
            command.args(["--user", "--"]);
            cases.push((command, "runs as uid 65534".to_owned()));
        }
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-setuid", "--"]);
        cases.push((command, "root without the capability CAP_SETUID".to_owned()));
    } else {
        cases.push((Command::new("env"), format!("runs as uid {own}")));
    }
    for (mut command, why) in cases {
        command.arg(program(&[]).get_program()).args(["serve", "--listen", "stdio"]);
        let (_server, client) = Server::launch_stdio(command);
        let begun = client.initialize();
        assert_eq!(begun["environmentInfo"]["capabilities"]["processUser"], false, "{begun}");
        let error = refused(&client, NOBODY, json!({}));
        assert_eq!(error["data"]["kind"], "userUnavailable", "{error}");
        assert!(text(&error, "/message").contains(&why), "{error}");
        assert!(text(&error, "/data/hint").contains("leave out `user`"), "{error}");
    }
}

#[test]
fn a_restart_is_refused_if_the_user_no_longer_exists() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let passwd = directory.path().join("passwd");
    let accounts = fs::read_to_string("/etc/passwd").unwrap();
    fs::write(&passwd, format!("{accounts}brief:x:65533:65533::/:/bin/sh\n")).unwrap();
    // The server alone sees these accounts.
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", "mount --bind \"$0\" /etc/passwd && exec \"$@\""]).arg(&passwd);
    if !Command::new("unshare").args(["-m", "true"]).ended().success() {
        return;
    }
    command.arg(program(&[]).get_program()).args(["serve", "--listen", "stdio"]);
    let (_server, client) = Server::launch_stdio(command);
    client.initialize();
    let started = client.start("p", &["sleep", "1000"], json!({"user": "brief", "restartable": true}));
    fs::write(&passwd, &accounts).unwrap();
    let error = client.call("process/restart", json!({"processId": "p"})).unwrap_err();
    assert!(text(&error, "/message").contains("there is no user `brief`"), "{error}");
    let listed = client.call("process/list", json!({})).unwrap();
    let process = &listed["processes"][0];
    assert_eq!((&process["state"], &process["pid"]), (&json!("running"), &started["pid"]));
}
