//! What comes with a login through ssh: its variables, and the agent that it forwards.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::Command,
    thread,
    time::Instant,
};

use crate::{
    home::{Home, Said, said},
    screen::Screen,
    ssh_host::SshHost,
    support::{InTime as _, PATIENCE},
};

/// What an agent is asked for its keys, and its answer that it has none.
const IDENTITIES_WANTED: u8 = 11;
const NO_IDENTITIES: [u8; 9] = [0, 0, 0, 5, 12, 0, 0, 0, 0];

/// Starts an agent without keys, and returns where it listens.
fn agent(home: &Home) -> PathBuf {
    let path = home.path("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer(stream.unwrap()));
        }
    });
    path
}

fn answer(mut stream: UnixStream) {
    let mut len = [0; 4];
    while stream.read_exact(&mut len).is_ok() {
        let mut request = vec![0; u32::from_be_bytes(len) as usize];
        stream.read_exact(&mut request).unwrap();
        let failure = [0, 0, 0, 1, 5];
        let answer = if request[0] == IDENTITIES_WANTED { &NO_IDENTITIES[..] } else { &failure };
        stream.write_all(answer).unwrap();
    }
}

fn with_agent(far: &SshHost, args: &[&str]) -> Said {
    let mut command: Command = far.near.remex(args);
    said(&command.env("SSH_AUTH_SOCK", far.near.path("agent.sock")).finished())
}

/// Lets ssh use the agent of its user, which the tests of logins forbid.
fn use_agent(far: &SshHost) {
    let path = far.near.path("ssh_config");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(path, config.replace("IdentityAgent none", "")).unwrap();
}

#[test]
fn processes_get_the_variables_of_their_own_login() {
    let Some(far) = SshHost::start() else { return };
    let print = "echo \"$SSH_CONNECTION\"; echo \"$SSH_CLIENT\"";
    let say = || far.near.say(&["run", "--on", "far", "--", "sh", "-c", print]);
    // The first login starts the server.
    let (first, second) = (say(), say());
    for said in [&first, &second] {
        assert_eq!((said.code, said.out.lines().count()), (Some(0), 2), "{said:?}");
        assert!(said.out.starts_with("127.0.0.1 "), "{said:?}");
    }
    assert_ne!(first.out, second.out, "the second process has the variables of the first login");
    // What the user sets stays.
    let set =
        ["run", "--on", "far", "--env", "SSH_CONNECTION=mine", "--", "sh", "-c", "echo $SSH_CONNECTION"];
    assert_eq!(far.near.say(&set).out, "mine\n");
}

#[test]
fn an_ssh_agent_is_forwarded_only_on_request_and_while_in_use() {
    let Some(far) = SshHost::start() else { return };
    let _ = agent(&far.near);
    use_agent(&far);
    let look = ["sh", "-c", "echo ${SSH_AUTH_SOCK-none}; ssh-add -l"];
    let without = with_agent(&far, &[&["run", "--on", "far", "--"], &look[..]].concat());
    assert_eq!(without.out, "none\n", "{without:?}");

    let forwarded = with_agent(&far, &[&["run", "-A", "--on", "far", "--"], &look[..]].concat());
    assert!(forwarded.out.contains("The agent has no identities."), "{forwarded:?}");
    let link = forwarded.out.lines().next().unwrap();
    assert!(link.contains("/.local/state/remex/agents/"), "{forwarded:?}");
    assert!(fs::symlink_metadata(link).is_err(), "the link is still there");

    // It is the agent of that process, not of the server.
    let after = with_agent(&far, &[&["run", "--on", "far", "--"], &look[..]].concat());
    assert_eq!(after.out, "none\n", "{after:?}");
}

#[test]
fn attach_forwards_an_ssh_agent_to_a_process_started_with_one() {
    let Some(far) = SshHost::start() else { return };
    let socket = agent(&far.near).display().to_string();
    use_agent(&far);
    let with_agent = |args: &[&str]| {
        let variable = format!("SSH_AUTH_SOCK={socket}");
        Screen::open(&far.near, "env", &[&[variable.as_str(), env!("CARGO_BIN_EXE_remex")], args].concat())
    };
    let leave = |mut screen: Screen| {
        screen.keys("\r~.");
        screen.wait_for("detached; `work` keeps running");
        assert_eq!(screen.end(), Some(0));
    };
    let has_agent = |screen: &Screen, number: u32| {
        screen.keys(&format!("printf '\\033[H\\033[2J'; ssh-add -l; echo look''ed-{number}\r"));
        let shown = screen.wait_for(&format!("looked-{number}"));
        shown.contains("The agent has no identities.")
    };
    let screen = with_agent(&["shell", "-A", "--on", "far", "--name", "work"]);
    assert!(has_agent(&screen, 1), "{}", screen.raw());
    leave(screen);
    let screen = Screen::remex(&far.near, &["attach", "--on", "far", "work"]);
    assert!(!has_agent(&screen, 2), "{}", screen.raw());
    leave(screen);
    for round in [3, 5] {
        let screen = with_agent(&["attach", "-A", "--on", "far", "work"]);
        assert!(has_agent(&screen, round), "{}", screen.raw());
        // Also after the next login.
        far.cut();
        screen.wait_for("reconnected after");
        assert!(has_agent(&screen, round + 1), "{}", screen.raw());
        leave(screen);
    }
    // The last login may still be ending.
    let deadline = Instant::now() + PATIENCE;
    while fs::read_dir(far.home.path(".local/state/remex/agents")).unwrap().count() > 0 {
        assert!(Instant::now() < deadline, "waited for the end of the last link");
        thread::yield_now();
    }

    assert_eq!(
        far.near.say(&["run", "--detach", "--on", "far", "--name", "other", "--", "sleep", "1000"]).code,
        Some(0)
    );
    let mut command = far.near.remex(&["attach", "-A", "--on", "far", "other"]);
    let refused = said(&command.env("SSH_AUTH_SOCK", &socket).finished());
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("it was started without `-A`, so it looks for no agent"), "{refused:?}");
}

#[test]
fn a_failed_agent_forwarding_states_the_cause() {
    let home = Home::new();
    home.add_environment("box", "ws://127.0.0.1:1");
    let said = home.say(&["run", "-A", "--on", "box", "true"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains("cannot forward your ssh agent: ws://127.0.0.1:1")
            && said.err.contains("does not use ssh"),
        "{said:?}"
    );
    let said = home.say(&["run", "-A", "--on", "ssh://far.example", "true"]);
    assert!(said.err.contains("SSH_AUTH_SOCK is not set"), "{said:?}");
    let said = home.say(&["run", "-A", "--detach", "--on", "ssh://far.example", "true"]);
    assert!(said.err.contains("cannot be used with"), "{said:?}");
    // On this machine, commands use it anyway.
    let mut command = home.remex(&["run", "-A", "--", "sh", "-c", "echo $SSH_AUTH_SOCK"]);
    assert_eq!(said_by(&mut command), "/run/agent\n");
}

fn said_by(command: &mut Command) -> String {
    said(&command.env("SSH_AUTH_SOCK", "/run/agent").finished()).out
}
