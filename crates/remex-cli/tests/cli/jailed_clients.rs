//! Processes in a sandbox and the servers of their user: neither uses the other.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use tempfile::TempDir;

use crate::{
    home::{Home, Said},
    support::{Finished, PATIENCE, Server},
};

/// What a server says to a client in a sandbox over a unix socket.
const REFUSAL: &str = "a process in a remex sandbox may not use a server of its own host";

/// A place beside the user's home, which no sandbox of these tests may write.
struct Outside {
    directory: TempDir,
}

impl Outside {
    fn new() -> Self {
        Self { directory: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// What would be there if a sandboxed process had got something to run outside.
    fn marker(&self) -> PathBuf {
        self.directory.path().join("marker")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

const TOKEN: &str = "8zWcPqk3TtYbN5rLx0VgJm7sHdEaUf2R";

/// Writes a token that only its user can read.
fn write_token(path: &Path) {
    fs::write(path, format!("{TOKEN}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a script in a sandbox with the network of the host.
fn confined(home: &Home, profile: &str, script: &str) -> Said {
    home.say(&["run", "--sandbox", profile, "--net", "on", "--", "sh", "-c", script])
}

/// A script in a sandbox that continues on request.
struct WaitingJail {
    running: Server,
}

impl WaitingJail {
    fn start(home: &Home, script: &str) -> Self {
        let script = format!("echo ready; read go; {script}");
        let mut command =
            home.remex(&["run", "--sandbox", "read-only", "--net", "on", "--", "sh", "-c", &script]);
        command.stdin(Stdio::piped());
        let running = Server::launch(command, 1);
        assert_eq!(running.address(), "ready");
        Self { running }
    }

    fn go(mut self) -> Finished {
        self.running.take_stdin().write_all(b"\n").unwrap();
        self.running.wait()
    }
}

#[test]
fn a_sandbox_cannot_be_escaped_through_the_local_server() {
    let (home, outside) = (Home::new(), Outside::new());
    let marker = outside.marker();
    let script = format!("remex run --here --detach -- touch {}", text(&marker));
    for profile in ["read-only", "workspace-write"] {
        let said = confined(&home, profile, &script);
        assert_ne!(said.code, Some(0), "without a server, {profile}: {said:?}");
    }
    assert_eq!(home.say(&["run", "--detach", "--", "sleep", "1000"]).code, Some(0));
    for profile in ["read-only", "workspace-write"] {
        let said = confined(&home, profile, &script);
        assert_ne!(said.code, Some(0), "{profile}: {said:?}");
        assert!(said.err.contains("cannot connect to your local remex server"), "{profile}: {said:?}");
    }
    assert!(!marker.exists());
}

#[test]
fn a_running_sandbox_cannot_see_a_server_that_starts_later() {
    let (home, outside) = (Home::new(), Outside::new());
    let marker = outside.marker();
    let runtime = home.own_socket().parent().unwrap().to_owned();
    let script = format!(
        "remex run --here --detach -- touch {}; test $? != 0 && ! ls {}",
        text(&marker),
        text(&runtime)
    );
    // Neither the directory of the server nor that of its state is there when the sandbox begins.
    assert!(!runtime.exists());
    let jail = WaitingJail::start(&home, &script);
    assert_eq!(home.say(&["run", "--detach", "--", "sleep", "1000"]).code, Some(0));
    // Another one, whose socket is not covered when a server begins again on the same path.
    let second = WaitingJail::start(&home, &script);
    let finished = jail.go();
    assert_eq!(finished.code(), Some(0), "{finished:?}");
    assert_eq!(home.say(&["server", "stop", "--force"]).code, Some(0));
    assert_eq!(home.say(&["run", "--detach", "--", "sleep", "1000"]).code, Some(0));
    let finished = second.go();
    assert_eq!(finished.code(), Some(0), "{finished:?}");
    assert!(!marker.exists());
}

#[test]
fn a_server_on_any_unix_socket_refuses_sandboxed_clients() {
    let (home, outside) = (Home::new(), Outside::new());
    let marker = outside.marker();
    let address = format!("unix://{}", text(&outside.path("any.sock")));
    let serve = || {
        let mut serve = home.remex(&["serve", "--listen", &address]);
        serve.stdin(Stdio::null());
        Server::launch(serve, 1)
    };
    let server = serve();
    let script = format!("remex run --on {address} -- touch {}", text(&marker));
    let jail = WaitingJail::start(&home, &script);
    let said = confined(&home, "read-only", &script);
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains(REFUSAL), "{said:?}");
    server.stderr_line("login refused");
    // Another file at the same path, for a sandbox that began before.
    server.stop();
    let _server = serve();
    let finished = jail.go();
    assert_ne!(finished.code(), Some(0), "{finished:?}");
    assert!(finished.stderr.contains(REFUSAL), "{finished:?}");
    assert!(!marker.exists());
    let said = home.say(&["run", "--on", &address, "--", "touch", text(&marker)]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(marker.exists());
}

#[test]
fn a_process_with_isolated_pids_may_use_a_server() {
    let (home, outside) = (Home::new(), Outside::new());
    let address = format!("unix://{}", text(&outside.path("any.sock")));
    let mut serve = home.remex(&["serve", "--listen", &address]);
    serve.stdin(Stdio::null());
    let server = Server::launch(serve, 1);
    let client = server.client();
    let program = env!("CARGO_BIN_EXE_remex");
    client.start(
        "p",
        &[program, "run", "--on", &address, "--", "echo", "hello"],
        serde_json::json!({"isolatePids": true, "env": {"HOME": text(&home.path("")), "PATH": "/usr/bin:/bin"}}),
    );
    let output = client.collect("p");
    assert_eq!((output.text(), output.exit_code()), ("hello\n".to_owned(), 0));
}

#[test]
fn a_server_on_loopback_refuses_sandboxed_clients() {
    let (home, outside) = (Home::new(), Outside::new());
    let (marker, tokens) = (outside.marker(), outside.path("tokens"));
    write_token(&tokens);
    // That of the server is hidden from the sandbox.
    let known = home.path("known-token");
    write_token(&known);
    for with_token in [false, true] {
        let mut args = vec!["serve", "--listen", "ws://127.0.0.1:0"];
        if with_token {
            args.extend(["--ws-auth", "capability-token", "--ws-token-file", text(&tokens)]);
        }
        let mut serve = home.remex(&args);
        serve.stdin(Stdio::null());
        let server = Server::launch(serve, 1);
        let address = server.address().to_owned();
        let token = if with_token { format!("--token-file {}", text(&known)) } else { String::new() };
        let run = format!("remex run --on {address} {token} -- touch {}", text(&marker));
        let jail = WaitingJail::start(&home, &run);
        // While a sandbox with network exists, others of the same user still get in.
        let words: Vec<_> = run.split_whitespace().skip(1).collect();
        let said = home.say(&words);
        assert_eq!(said.code, Some(0), "{said:?}");
        fs::remove_file(&marker).unwrap();
        let finished = jail.go();
        assert_ne!(finished.code(), Some(0), "{finished:?}");
        assert!(finished.stderr.contains("status 403"), "{finished:?}");
        let line = server.stderr_line("login refused");
        assert!(line.contains(REFUSAL), "{line}");
        assert!(!marker.exists());
    }
}

/// Starts a server on loopback that asks for the token in a file.
fn with_token(home: &Home, tokens: &Path) -> Server {
    write_token(tokens);
    let mut serve = home.remex(&["serve", "--listen", "ws://127.0.0.1:0"]);
    serve.args(["--ws-auth", "capability-token", "--ws-token-file", text(tokens)]).stdin(Stdio::null());
    Server::launch(serve, 1)
}

/// Returns a script that sends the head of a request with the token to a port of this host, through descriptor 3.
fn request(address: &str, what: &str, headers: &[&str]) -> String {
    let port = address.rsplit(':').next().unwrap().trim_end_matches("/mcp");
    let token = format!("authorization: Bearer {TOKEN}");
    let lines = [&format!("{what} HTTP/1.1"), "host: 127.0.0.1", &token];
    let lines: String = lines.iter().chain(headers).map(|line| format!("{line}\\r\\n")).collect();
    format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{lines}\\r\\n' >&3")
}

#[test]
fn a_sandboxed_client_with_a_token_that_closes_at_once_is_refused() {
    let (home, outside) = (Home::new(), Outside::new());
    let server = with_token(&home, &outside.path("tokens"));
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    let upgrade = ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", key];
    let send = request(server.address(), "GET /", &upgrade);
    let script = format!("{send}; exec 3>&-; echo sent; sleep 1000");
    let args = ["run", "--sandbox", "read-only", "--net", "on", "--", "bash", "-c", &script];
    let mut run = home.remex(&args);
    run.stdin(Stdio::null());
    let jail = Server::launch(run, 1);
    assert_eq!(jail.address(), "sent");
    let line = server.stderr_line("login");
    assert!(line.contains("login refused") && line.contains("sandbox"), "{line}");
}

#[test]
fn the_mcp_server_refuses_sandboxed_clients() {
    let (home, outside) = (Home::new(), Outside::new());
    let tokens = outside.path("tokens");
    write_token(&tokens);
    let mut mcp = home.remex(&["mcp", "--listen", "127.0.0.1:0", "--token-file", text(&tokens)]);
    mcp.stdin(Stdio::null());
    let server = Server::launch(mcp, 1);
    let send = request(server.address(), "POST /mcp", &["content-length: 0"]);
    let script = format!("{send}; read -r status <&3; echo \"$status\"");
    let said = home.say(&["run", "--sandbox", "read-only", "--net", "on", "--", "bash", "-c", &script]);
    assert!(said.out.contains("403"), "{said:?}");
    // An unconfined client gets as far as the request, which has no body.
    let said = home.say(&["run", "--", "bash", "-c", &script]);
    assert!(said.out.starts_with("HTTP/1.1 4") && !said.out.contains("403"), "{said:?}");
}

#[test]
fn nothing_is_sent_to_a_sandboxed_server_that_impersonates_the_local_one() {
    let (attacked, home) = (Home::new(), Home::new());
    let runtime = attacked.own_socket().parent().unwrap().to_owned();
    fs::DirBuilder::new().mode(0o700).create(&runtime).unwrap();
    let address = format!("unix://{}", text(&attacked.own_socket()));
    // Started by a server that does not know this directory to be one of remex.
    let mut fake = home.remex(&[
        "run",
        "--sandbox",
        "minimal",
        "--net",
        "on",
        "--read",
        "/",
        "--write",
        text(&runtime),
        "--",
        "remex",
        "serve",
        "--listen",
        &address,
    ]);
    fake.stdin(Stdio::null());
    let fake = Server::launch(fake, 1);
    assert_eq!(fake.address(), address);
    for args in [&["run", "--detach", "--", "true"][..], &["run", "--on", &address, "--", "true"]] {
        let said = attacked.say(args);
        assert_ne!(said.code, Some(0), "{args:?}: {said:?}");
        assert!(said.err.contains("which listens there, is in a remex sandbox"), "{args:?}: {said:?}");
    }
}

#[test]
fn server_socket_paths_cannot_be_taken_over_from_a_sandbox() {
    let home = Home::new();
    let user = rustix::process::geteuid().as_raw();
    let usual = format!("/tmp/remex-{user}");
    let runtime = home.own_socket().parent().unwrap().to_owned();
    for place in [&*usual, text(&runtime)] {
        let script = format!("touch {place}/own.sock || mv {place} {place}-away || rmdir {place}");
        let parent = text(Path::new(place).parent().unwrap()).to_owned();
        let said = home.say(&[
            "run",
            "--sandbox",
            "workspace-write",
            "--write",
            &parent,
            "--net",
            "on",
            "--",
            "sh",
            "-c",
            &script,
        ]);
        assert_ne!(said.code, Some(0), "{place}: {said:?}");
    }
}

#[test]
fn server_state_is_hidden_from_a_sandbox() {
    let home = Home::new();
    let said = home.say(&[
        "run",
        "--detach",
        "--name",
        "spoken",
        "--",
        "sh",
        "-c",
        "echo a-secret-word; sleep 1000",
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let states = home.own_states();
    let [state] = &states[..] else { panic!("one state: {states:?}") };
    assert!(found_in(state), "the command line is in the state");
    let directory = state.parent().unwrap().parent().unwrap();
    for profile in ["read-only", "workspace-write"] {
        for net in ["off", "on"] {
            let script = format!("grep -r a-secret-word {0}; ls {0}", text(directory));
            let said = home.say(&["run", "--sandbox", profile, "--net", net, "--", "sh", "-c", &script]);
            assert_eq!((said.code == Some(0), said.out.as_str()), (false, ""), "{profile}, {net}: {said:?}");
        }
    }
    // Another server of the same user, and its file requests.
    let mut serve = home.remex(&["serve", "--sandbox", "read-only", "--listen", "ws://127.0.0.1:0"]);
    serve.stdin(Stdio::null());
    let server = Server::launch(serve, 1);
    let path = format!("[{}]:{}", server.address(), text(directory));
    let said = home.say(&["ls", &path]);
    assert_ne!(said.code, Some(0), "{said:?}");
    let said =
        home.say(&["run", "--on", server.address(), "--", "grep", "-r", "a-secret-word", text(directory)]);
    assert_eq!((said.code == Some(0), said.out.as_str()), (false, ""), "{said:?}");
}

#[test]
fn a_rotated_token_is_hidden_from_a_running_sandbox() {
    let (home, outside) = (Home::new(), Outside::new());
    let secrets = outside.path("secrets");
    fs::create_dir(&secrets).unwrap();
    let tokens = secrets.join("tokens");
    write_token(&tokens);
    let address = format!("unix://{}", text(&outside.path("any.sock")));
    let mut serve = home.remex(&[
        "serve",
        "--listen",
        &address,
        "--listen",
        "ws://127.0.0.1:0",
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        text(&tokens),
    ]);
    serve.stdin(Stdio::null());
    let _server = Server::launch(serve, 2);
    let script = format!("echo ready; read go; cat {}; ls {}", text(&tokens), text(&secrets));
    let mut run = home.remex(&["run", "--on", &address, "--sandbox", "read-only", "--", "sh", "-c", &script]);
    run.stdin(Stdio::piped());
    let jail = WaitingJail { running: Server::launch(run, 1) };
    fs::write(secrets.join("next"), "Rotated5rLx0VgJm7sHdEaUf2R8zWcPqk3T\n").unwrap();
    fs::rename(secrets.join("next"), &tokens).unwrap();
    let finished = jail.go();
    assert_ne!(finished.code(), Some(0), "{finished:?}");
    assert_eq!(finished.stdout, "", "{finished:?}");
}

#[test]
fn credentials_of_other_servers_are_hidden_from_a_sandbox() {
    let (home, outside) = (Home::new(), Outside::new());
    let (project, secrets) = (outside.path("project"), outside.path("secrets"));
    for (directory, mode) in [(outside.path(""), 0o755), (project.clone(), 0o755), (secrets.clone(), 0o700)] {
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
    }
    let (served, asked) = (project.join("tokens"), secrets.join("mcp-token"));
    write_token(&served);
    write_token(&asked);
    fs::write(project.join("README"), "about the project").unwrap();
    // Neither is the server of the sandbox, which has none.
    let launch = |args: &[&str]| {
        let mut command = home.remex(args);
        command.stdin(Stdio::null());
        Server::launch(command, 1)
    };
    let listen =
        ["serve", "--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file"];
    let serving = launch(&[&listen[..], &[text(&served)]].concat());
    let asking = launch(&["mcp", "--listen", "127.0.0.1:0", "--token-file", text(&asked)]);
    let look = |path: &Path| {
        let args = ["run", "--sandbox", "read-only", "--net", "off", "--", "cat", text(path)];
        home.say(&args).out
    };
    for path in [&served, &asked] {
        assert_eq!(look(path), "", "{}", path.display());
    }
    assert_eq!(look(&project.join("README")), "about the project", "what else is there is seen");
    // Whatever ends them.
    for mut server in [serving, asking] {
        server.signal(rustix::process::Signal::KILL);
        server.wait();
    }
    for path in [&served, &asked] {
        let start = Instant::now();
        // What a server leaves behind ends a moment later.
        while look(path).is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} stays hidden", path.display());
        }
    }
}

#[test]
fn credentials_replaceable_from_a_sandbox_are_refused() {
    let (home, outside) = (Home::new(), Outside::new());
    let tokens = outside.path("tokens");
    write_token(&tokens);
    let workspace = outside.path("");
    let said = home.say(&[
        "serve",
        "--sandbox",
        "workspace-write",
        "--workspace",
        text(&workspace),
        "--listen",
        "ws://127.0.0.1:0",
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        text(&tokens),
    ]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("cannot trust the token file"), "{said:?}");
    assert!(said.err.contains("sandboxed processes may replace it"), "{said:?}");
}

/// Returns whether the word is in a file of a directory, or below.
fn found_in(directory: &Path) -> bool {
    fs::read_dir(directory).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return found_in(&path);
        }
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        is_file && fs::read(path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("a-secret-word"))
    })
}
