//! Who gets in while others try to keep everybody out: half-open connections, wrong tokens, many connections; and who
//! does not: other users, other origins, other names of the host.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    ATTACKER, Client, Need, PATIENCE, Server, answer_so_far, connect_from, exchange, has, program,
    raise_file_limit, request, status_from, upgrade, write_private,
};

/// Connections of an attack.
const ATTACK: usize = 3000;

/// Checks that a good client is served.
fn assert_serves(server: &Server) {
    assert_eq!(exchange(server.address(), request("GET", "/readyz", &[])).expect("an answer").status, 200);
    server.client().call("process/list", json!({})).expect("requests are answered");
}

fn with_config(config: &str) -> (TempDir, Server) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.toml");
    fs::write(&path, config).unwrap();
    let server = Server::serve(&["--config", path.to_str().unwrap()]);
    (directory, server)
}

#[test]
fn thousands_of_half_open_connections_from_one_address_do_not_lock_out_others() {
    raise_file_limit();
    let server = Server::start();
    let mut held = Vec::new();
    let mut slowest = Duration::ZERO;
    for number in 0..ATTACK {
        held.push(connect_from(ATTACKER, &server));
        if number % 500 == 499 {
            let started = Instant::now();
            assert_serves(&server);
            slowest = slowest.max(started.elapsed());
        }
    }
    assert!(slowest < PATIENCE / 6, "a good client waited {slowest:?}");
    // On a slow machine, the first have timed out before the last came.
    let answers: Vec<_> = held.iter_mut().map(answer_so_far).collect();
    let count = |answer: &str| answers.iter().filter(|found| *found == answer).count();
    assert!(count("") <= 256, "{} connections of one address are half-open", count(""));
    assert!(count("HTTP/1.1 429") > 0, "{answers:?}");
    assert_eq!(count("") + count("HTTP/1.1 429") + count("HTTP/1.1 408"), ATTACK, "{answers:?}");
    assert_serves(&server);
}

#[test]
fn endless_request_heads_time_out_and_lock_out_no_one() {
    let server = Server::start();
    let mut slow: Vec<_> = (0..200).map(|_| connect_from(ATTACKER, &server)).collect();
    for stream in &mut slow {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").unwrap();
    }
    assert_serves(&server);
    // One byte at a time does not buy time: the whole head has ten seconds.
    let started = Instant::now();
    let first = &mut slow[0];
    while answer_so_far(first).is_empty() {
        assert!(started.elapsed() < PATIENCE, "the head does not time out");
        let _ = first.write_all(b"a");
        // The pace of the attack, not a wait for something.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_serves(&server);
}

#[test]
fn half_open_connections_make_room_for_other_addresses() {
    let (_directory, server) = with_config("[limits]\nhalf_open = 8\nhalf_open_per_address = 8\n");
    let mut held: Vec<_> = (0..8).map(|_| connect_from(ATTACKER, &server)).collect();
    assert_eq!(status_from(ATTACKER, &server, ""), "429");
    assert_serves(&server);
    let mut byte = [0];
    assert_eq!(held[0].read(&mut byte).unwrap_or(0), 0, "the oldest of the attacker made room");
}

const RIGHT: &str = "c41e8a905d7b23f6e2a98b0c6d5f7314";

#[test]
fn wrong_tokens_from_one_address_are_delayed_without_delaying_others() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, RIGHT).unwrap();
    let flags = ["--ws-auth", "capability-token", "--ws-token-file", token.to_str().unwrap()];
    let server = Server::serve(&flags);
    let wrong = upgrade("/", &["Authorization: Bearer wrong"]);
    let started = Instant::now();
    for _ in 0..4 {
        assert_eq!(status_from(ATTACKER, &server, &wrong), "401");
    }
    assert!(started.elapsed() >= Duration::from_millis(100 + 200 + 400 + 800), "each waits twice as long");

    // Three more at once wait for 1.6 s, 3.2 s and 6.4 s; the last one is still waiting when others are answered.
    let mut waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = connect_from(ATTACKER, &server);
            stream.write_all(wrong.as_bytes()).unwrap();
            stream
        })
        .collect();
    assert_eq!(exchange(server.address(), &wrong).expect("an answer").status, 401);
    let bearer = format!("Bearer {RIGHT}");
    Client::connect_with_token(server.address(), RIGHT).initialize();
    assert!(
        waiting.iter_mut().any(|stream| answer_so_far(stream).is_empty()),
        "good clients do not wait for bad ones"
    );
    // A right token is not delayed, also from there.
    let right = upgrade("/", &[&format!("Authorization: {bearer}")]);
    let mut stream = connect_from(ATTACKER, &server);
    stream.write_all(right.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
}

#[test]
fn connections_per_identity_are_limited_with_a_clear_error() {
    let (directory, server) = with_config("[limits]\nconnections_per_identity = 2\n");
    let (first, _second) = (server.client(), server.client());
    let refused = exchange(server.address(), upgrade("/", &[])).expect("an answer");
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.body,
        "too many connections with this credential (limit `connections_per_identity`); close some first\n"
    );
    assert_eq!(exchange(server.address(), request("GET", "/readyz", &[])).expect("an answer").status, 200);
    first.call("process/list", json!({})).expect("the others are served");
    drop(directory);

    let directory = tempfile::tempdir().unwrap();
    let (config, socket) = (directory.path().join("server.toml"), directory.path().join("socket"));
    fs::write(
        &config,
        format!("listen = ['unix://{}']\n[limits]\nconnections_per_identity = 1\n", socket.display()),
    )
    .unwrap();
    let unix = Server::serve(&["--config", config.to_str().unwrap()]);
    let _first = unix.client();
    let (_, message) = unix.connect().complaint();
    assert!(message.contains("`connections_per_identity`"), "{message}");
}

#[test]
fn requests_over_the_rate_limit_of_an_identity_wait() {
    let (_directory, server) = with_config("[limits]\nrequests_per_second = 10\n");
    let client = server.client();
    let started = Instant::now();
    let ids: Vec<_> = (0..25).map(|_| client.send("process/list", json!({}))).collect();
    for id in ids {
        client.outcome(&id).expect("nothing is refused");
    }
    // Ten at once, `initialize` among them, and the other sixteen at ten a second.
    assert!(started.elapsed() >= Duration::from_millis(1300), "{:?}", started.elapsed());
}

#[test]
fn a_client_that_never_initializes_is_disconnected() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let config = directory.path().join("server.toml");
    write_private(&config, "[limits]\ninitialize_timeout = '2s'\n");
    let server = Server::serve(&["--config", config.to_str().expect("the path is text")]);
    let [silent, talkative] = [(); 2].map(|()| server.connect());
    let served = server.client();
    let (_, message) = talkative.refusal("process/list", json!({}));
    assert!(message.contains("client must call initialize"), "{message}");
    for client in [silent, talkative] {
        let (code, reason) = client.closed_for("it sent no `initialize`");
        assert_eq!((code, reason.contains("`initialize` within 2s")), (1008, true), "{reason}");
    }
    served.call("process/list", json!({})).expect("the others stay connected");
}

#[test]
fn browsers_are_admitted_from_listed_origins_only() {
    let server = Server::serve(&["--allow-origin", "https://app.example.com"]);
    let status = |request: String| exchange(server.address(), request).expect("an answer").status;
    for origin in ["Origin: https://evil.example", "Origin: null", "Origin: http://app.example.com"] {
        assert_eq!(status(upgrade("/", &[origin])), 403, "{origin}");
        assert_eq!(status(request("GET", "/readyz", &[origin])), 403, "{origin}");
    }
    assert_eq!(status(request("GET", "/readyz", &["Origin: https://app.example.com"])), 200);
    Client::connect_with_headers(server.address(), &[("Origin", "https://app.example.com")]).initialize();
}

#[test]
fn a_dns_rebound_name_is_refused() {
    let server = Server::serve(&["--allow-host", "build.example.com"]);
    let status = |host: &str| {
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\n\r\n");
        exchange(server.address(), request).expect("an answer").status
    };
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for host in ["localhost", "LOCALHOST:80", "127.0.0.1:7070", "[::1]", "build.example.com:80", &hostname] {
        assert_eq!(status(host), 200, "{host}");
    }
    for host in ["evil.example", "build.example.com.evil.example", "127.0.0.1.evil.example"] {
        assert_eq!(status(host), 421, "{host}");
    }
}

/// Returns the program as another user runs it; only root can do that.
fn as_another_user(directory: &TempDir, arguments: &[&str]) -> Command {
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The build directory may be closed to other users.
    let (remex, reachable) = (program(&[]).get_program().to_owned(), directory.path().join("remex"));
    if !reachable.exists() {
        // By a program: what another test starts meanwhile would inherit the open file, and keep it busy.
        let copied = Command::new("cp").arg(&remex).arg(&reachable).status().unwrap();
        assert!(copied.success());
    }
    let mut command = Command::new(reachable);
    command.args(arguments).uid(OTHER).gid(OTHER).env_clear();
    command.env("HOME", "/nonexistent").env("PATH", "/usr/bin:/bin").current_dir("/");
    command
}

/// A user without processes of its own.
const OTHER: u32 = 54_321;

#[test]
fn another_local_user_is_admitted_only_if_listed_and_sees_only_its_own_sessions() {
    if !has(Need::Root, rustix::process::geteuid().is_root()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    let ps = |server: &Server| {
        as_another_user(&directory, &["ps", "--all", "--json", "--on", server.address()]).output().unwrap()
    };
    let refused = ps(&server);
    assert!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    let reason = format!("(status 403): user {OTHER} may not use this server\n");
    let way_out = format!("  hint: its owner can start it with `--allow-user {OTHER}`\n");
    assert!(said.contains(&reason) && said.ends_with(&way_out), "{said}");

    let socket = directory.path().join("remex.sock");
    let socket = format!("unix://{}", socket.display());
    let _shared = Server::serve(&["--allow-user", &(OTHER + 1).to_string(), "--listen", &socket]);
    let refused = as_another_user(&directory, &["ps", "--on", &socket]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains(&format!("user {OTHER} may not connect\n")) && said.contains("`--allow-user"),
        "{said}"
    );

    let server = Server::serve(&["--allow-user", &OTHER.to_string()]);
    let owner = server.client();
    owner.shell("secret", "exec sleep 1000");
    let admitted = ps(&server);
    assert!(admitted.status.success(), "{admitted:?}");
    assert!(!String::from_utf8_lossy(&admitted.stdout).contains("secret"), "{admitted:?}");
}

#[test]
fn a_peer_without_kernel_credentials_needs_a_token() {
    // A server in a container sees no process outside, and so no sandbox of another test.
    let container = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut probe = Command::new("unshare");
    let can_unshare = probe.args(container).arg("true").output();
    let is_root = rustix::process::geteuid().is_root();
    if !has(Need::Namespaces, is_root && can_unshare.is_ok_and(|output| output.status.success())) {
        return;
    }
    // In the server's user namespace, the other user has no number.
    let mut command = Command::new("unshare");
    command.args(container).arg(program(&[]).get_program()).arg("serve");
    let server = Server::launch(command, 1);
    server.client().call("process/list", json!({})).expect("the owner is served");
    let directory = tempfile::tempdir().unwrap();
    let other = as_another_user(&directory, &["ps", "--on", server.address()]).output().unwrap();
    assert!(!other.status.success(), "{other:?}");
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(said.contains("(status 401): the server cannot tell which user connects"), "{said}");
    assert!(said.contains("hint: its owner can start it with `--ws-auth capability-token`"), "{said}");
}
