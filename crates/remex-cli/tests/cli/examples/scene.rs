//! A user's home with everything that examples speak of, and the ways to run one.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::table::{How, Step};
use crate::{
    home::{Home, said},
    screen::Screen,
    support::{Client, InTime as _, PATIENCE, Server, Watched},
};

/// After this much silence something is done again that an example waits for.
const NUDGE: Duration = Duration::from_millis(200);

/// What a process that was left running does after its first words.
const WAITS: &str = "; read answer; echo \"got $answer\"; sleep 1000";

/// Tokens, keys and a configuration, none of which is used anywhere else.
const SECRETS: [(&str, &str); 6] = [
    ("server.toml", "[limits]\nsessions = 100\n"),
    ("token.txt", "5kQ2nVx8LrZ0tHc7YwJb3M\n"),
    ("secret.txt", "Jf8zQ1m0Vt6rXc3LbH9wYd2KsN7pEaGu\n"),
    (
        "key.pem",
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA7wBCSPJp+hMjf6CCEWTDyiYzwDuTjOTIJQWBDGAnO2\n-----END PRIVATE KEY-----\n",
    ),
    (
        "jwks.json",
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#,
    ),
    ("jwt.txt", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE4OTM0NTYwMDB9.AA\n"),
];

/// A home with `notes.txt`, `app.tar`, `site/` and [`SECRETS`]; servers `build` and `gpu` with the same files in homes
/// of their own; and a process `build` on a terminal of the user's own server, or `work` on the server `build`.
pub(super) struct Scene {
    home: Home,
    /// Killed with the scene.
    _servers: Vec<Server>,
}

impl Scene {
    /// Sets it up for an example.
    pub(super) fn new(line: &str) -> Self {
        let home = Home::new();
        furnish(&home.path(""));
        for (name, text) in SECRETS {
            fs::write(home.path(name), text).unwrap();
            fs::set_permissions(home.path(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        let mut servers = Vec::new();
        for name in ["build", "gpu"] {
            let place = home.path("..").join(name);
            fs::create_dir(&place).unwrap();
            furnish(&place);
            let mut command = home.remex(&["serve"]);
            command.env("HOME", &place).env("no_proxy", "*").current_dir(&place).stdin(Stdio::null());
            let server = Server::launch(command, 1);
            home.add_environment(name, server.address());
            servers.push(server);
        }
        let runtime = home.own_socket().parent().unwrap().to_owned();
        fs::create_dir(&runtime).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        let address = format!("unix://{}", home.own_socket().display());
        let mut command = home.remex(&["serve", "--max-detach-ttl", "forever", "--listen", &address]);
        command.stdin(Stdio::null());
        servers.push(Server::launch(command, 1));
        // Nobody waits for what goes on for ever.
        if ["remex logs nightly", "remex kill nightly --tree"].contains(&line) {
            leave_running(&address, "nightly", WAITS);
        }
        if line.ends_with(" lint") {
            leave_running(&address, "lint", WAITS);
        }
        let ends = ["remex wait", "remex rm", "remex prune"].iter().any(|command| line.starts_with(command));
        leave_running(&address, "build", if ends { "" } else { WAITS });
        if ends {
            // What is removed has ended for certain.
            assert_eq!(home.remex(&["wait", "build"]).stdin(Stdio::null()).ended().code(), Some(0));
        }
        if line.starts_with("remex attach --on build") {
            leave_running(servers[0].address(), "work", WAITS);
        }
        Self { home, _servers: servers }
    }

    /// Runs an example; says what was not as it must be.
    pub(super) fn play(&self, line: &str, how: &How) -> Result<(), String> {
        match how {
            How::Ends { code, shows } => self.to_its_end(line, *code, shows),
            How::GoesOn { nudge, shows } => self.until_it_shows(line, nudge, shows),
            How::OnScreen { steps, code } => self.on_screen(line, steps, *code),
            How::Elsewhere(_) => Ok(()),
        }
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        self.home.dress(&mut command);
        // Whatever an example opens in an editor gets one more line.
        command.env("EDITOR", self.home.path("../editor")).env("no_proxy", "*");
        command
    }

    fn to_its_end(&self, line: &str, code: i32, shows: &str) -> Result<(), String> {
        let said = said(&self.shell(line).stdin(Stdio::null()).finished());
        let seen = said.out.contains(shows) || said.err.contains(shows);
        if said.code == Some(code) && seen {
            return Ok(());
        }
        Err(format!("expected exit code {code} and `{shows}`, but {said:?}"))
    }

    /// Runs what would never end by itself.
    fn until_it_shows(&self, line: &str, nudge: &str, shows: &str) -> Result<(), String> {
        let mut command = self.shell(&format!("exec {line}"));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pieces = pieces(&mut child);
        let deadline = Instant::now() + PATIENCE;
        let mut seen = String::new();
        while !seen.contains(shows) {
            match pieces.recv_timeout(NUDGE) {
                Ok(piece) => seen.push_str(&String::from_utf8_lossy(&piece)),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {
                    if !nudge.is_empty() {
                        self.shell(nudge).finished();
                    }
                }
                Err(_) => break,
            }
        }
        let pid = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        child.ended();
        if seen.contains(shows) { Ok(()) } else { Err(format!("expected `{shows}`, but it said `{seen}`")) }
    }

    fn on_screen(&self, line: &str, steps: &[Step], code: i32) -> Result<(), String> {
        let mut screen = Screen::open(&self.home, "sh", &["-c", &format!("exec {line}")]);
        for Step { shows, keys } in steps {
            screen.wait_until(&format!("one of {shows:?} for `{line}`"), |screen| {
                shows.iter().any(|text| screen.contains(text))
            });
            screen.keys(keys);
        }
        if !Watched::printed(&screen.pid().to_string()).ended_within(PATIENCE) {
            return Err("it does not end".to_owned());
        }
        let ended = screen.end();
        if ended == Some(code) { Ok(()) } else { Err(format!("expected exit code {code}, not {ended:?}")) }
    }
}

/// Puts the files of the examples into a directory, and an editor beside it.
fn furnish(place: &Path) {
    fs::create_dir(place.join("site")).unwrap();
    fs::write(place.join("site/index.html"), "<h1>hello</h1>\n").unwrap();
    fs::write(place.join("notes.txt"), "remember the milk\n").unwrap();
    let packed = Command::new("tar").args(["-cf", "app.tar", "site"]).current_dir(place).ended();
    assert!(packed.success());
    let editor = place.join("../editor");
    fs::write(&editor, "#!/bin/sh\necho edited >> \"$1\"\n").unwrap();
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Starts a process in a session of the same name, on a terminal, as if it had been left running.
fn leave_running(address: &str, name: &str, then: &str) {
    let client = Client::connect(address);
    client.initialize_with(
        json!({"clientName": "earlier", "sessionName": name, "detachTtlMs": u64::MAX >> 1, "resumeSessionId": null}),
    );
    let line = format!("echo building; echo 'error: none so far'{then}");
    client.start(name, &["sh", "-c", &line], json!({"tty": true, "rows": 24, "cols": 80}));
    client.wait_for_output(name, "so far");
}

/// Reads both streams of a child in the background.
fn pieces(child: &mut Child) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    let streams: [Box<dyn std::io::Read + Send>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    for mut stream in streams {
        let send = send.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                if send.send(buffer[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
    }
    receive
}
