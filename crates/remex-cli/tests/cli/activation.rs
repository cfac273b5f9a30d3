//! How a server begins and ends: what it says to people, sockets from systemd, and an end by itself.

use std::{
    fs,
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixListener},
    process::{Command, Stdio},
};

use serde_json::json;

use crate::{
    home::{Home, said},
    screen::Screen,
    support::{Client, InTime as _, Server, program},
};

/// Returns the program with a socket passed as systemd does it.
fn activated(socket: impl Into<OwnedFd>, flags: &str) -> Command {
    let mut command = Command::new("sh");
    let line = format!(
        "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=own; \
         exec {} serve --listen systemd {flags}",
        env!("CARGO_BIN_EXE_remex")
    );
    command.args(["-c", &line]).stdin(Stdio::from(socket.into()));
    command
}

#[test]
fn a_unix_socket_from_systemd_is_served_and_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("own.sock");
    let socket = UnixListener::bind(&path).unwrap();
    // It may have waited before the server was there.
    let client = Client::connect(&format!("unix://{}", path.display()));
    let server = Server::launch(activated(socket.try_clone().unwrap(), "--exit-when-idle 100ms"), 1);
    assert_eq!(server.address(), format!("unix://{}", path.display()));
    // A client of the oldest dialect takes its session with it.
    client.initialize_with(json!({"clientName": "oldest"}));
    client.start(
        "p",
        &["sh", "-c", "env; ls -l /proc/self/fd"],
        json!({"envPolicy": {
        "inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": [],
    }, "output": {"retainMs": 50}}),
    );
    let said = client.collect("p").text();
    assert!(!said.contains("LISTEN_") && !said.contains("socket:"), "{said}");
    drop(client);
    let mut server = server;
    assert_eq!(server.wait().code(), Some(0), "with nothing to do it ends by itself");
    assert!(path.exists(), "the socket is systemd's");
    // Later connections are served by the next server.
    let late = Client::connect(&format!("unix://{}", path.display()));
    let _next = Server::launch(activated(socket, ""), 1);
    late.initialize();
}

#[test]
fn a_port_from_systemd_needs_authentication_like_any_other() {
    let server = Server::launch(activated(TcpListener::bind("127.0.0.1:0").unwrap(), ""), 1);
    server.client();
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let refused = said(&activated(everywhere, "").finished());
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    assert!(refused.err.contains("without authentication"), "{refused:?}");

    let nothing = said(&program(&["serve", "--listen", "systemd"]).stdin(Stdio::null()).finished());
    assert_eq!(nothing.code, Some(1));
    assert!(nothing.err.contains("no socket was passed to this process"), "{nothing:?}");
}

#[test]
fn an_idle_activated_server_exits() {
    let mut server = Server::serve(&["--exit-when-idle", "50ms"]);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn connections_and_background_processes_keep_an_activated_server_running() {
    let directory = tempfile::tempdir().unwrap();
    let done = directory.path().join("done");
    let mut server = Server::serve(&["--exit-when-idle", "50ms", "--max-detach-ttl", "forever"]);
    let client = server.connect();
    client.initialize_with(json!({"clientName": "left", "detachTtlMs": u64::MAX >> 1}));
    // The connection alone keeps it for longer than that.
    client.start("short", &["sleep", "0.2"], json!({"output": {"retainMs": 50}}));
    assert_eq!(client.collect("short").exit_code(), 0);
    let line = format!("sleep 0.3; echo > {}", done.display());
    client.start("left", &["sh", "-c", &line], json!({"output": {"retainMs": 50}}));
    client.start("gone", &["true"], json!({"output": {"retainMs": 50}}));
    drop(client);
    let finished = server.wait();
    assert_eq!(finished.code(), Some(0), "{finished:?}");
    assert!(done.exists(), "the server ended before what was left running");
}

#[test]
fn the_banner_on_a_terminal_explains_how_to_connect() {
    let home = Home::new();
    let screen = Screen::remex(&home, &["serve"]);
    let shown = screen.wait_for("remex env add NAME ws://127.0.0.1:");
    let url = shown.lines().next().unwrap().trim().to_owned();
    assert!(shown.contains(&format!("remex run --on {url} -- uname -a")), "{shown}");
    assert_eq!(home.say(&["env", "test", &url]).code, Some(0));

    let socket = home.path("a socket");
    let screen = Screen::remex(&home, &["serve", "--listen", &format!("unix://{}", socket.display())]);
    screen.wait_until("the way to a unix socket", |shown| {
        shown.replace('\n', "").contains(&format!("remex run --on 'unix://{}' -- uname -a", socket.display()))
    });

    fs::write(home.path("token.txt"), "5kQ2nVx8LrZ0tHc7YwJb3M").unwrap();
    let guarded = [
        "serve",
        "--listen",
        "ws://0.0.0.0:0",
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        "token.txt",
    ];
    let screen = Screen::remex(&home, &guarded);
    let shown = screen.wait_for("remex run --on there -- uname -a");
    assert!(shown.contains("remex env add there ws://HOST:"), "{shown}");
    assert!(shown.contains("--token-file") && !shown.contains("5kQ2nVx8LrZ0tHc7YwJb3M"), "{shown}");
}

#[test]
fn without_a_terminal_only_the_address_is_printed() {
    let server = Server::start();
    let url = server.address().to_owned();
    let finished = server.stop();
    assert_eq!((finished.stdout.as_str(), finished.stderr), ("", format!("remex is listening on {url}")));
}
