//! `remex server stop` for servers other than the user's local one, and what their banner says about it.

use std::{
    fs::{self, OpenOptions},
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
};
use serde_json::Value;

use crate::{
    home::{Home, Said},
    screen::Screen,
    support::{PATIENCE, Server, Watched},
};

fn ok(said: Said) -> String {
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out
}

/// Starts a process that says goodbye when it is asked to end, and waits until it runs.
fn start(home: &Home, url: &str) -> Watched {
    let pipe = home.pipe("ready");
    let script = format!(
        "trap 'echo bye > {}; exit 0' TERM; echo $$ > {}; while :; do sleep 1; done",
        home.path("bye").display(),
        pipe.display()
    );
    ok(home.say(&["run", "--detach", "--name", "work", "--on", url, "--", "sh", "-c", &script]));
    let pid = line_from(&pipe);
    fs::remove_file(pipe).unwrap();
    Watched::printed(&pid)
}

/// Waits for a line from a named pipe.
fn line_from(pipe: &Path) -> String {
    // Opening it otherwise waits for the one who writes, however long that takes.
    let mut reader =
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(pipe).unwrap();
    let patience = Timespec::try_from(PATIENCE).unwrap();
    let ready = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ready, 1, "nobody has written to {}", pipe.display());
    let mut buffer = [0; 64];
    let len = reader.read(&mut buffer).unwrap();
    String::from_utf8(buffer[..len].to_vec()).unwrap()
}

fn is_running(process: &Watched) -> bool {
    !process.ended_within(Duration::ZERO)
}

#[test]
fn the_banner_of_a_durable_server_states_what_keeps_running_and_how_to_end_it() {
    let home = Home::new();
    let state = home.path("state").display().to_string();
    let mut screen = Screen::remex(&home, &["serve", "--state", &state]);
    let shown = screen.wait_for("remex env add NAME ws://127.0.0.1:");
    let shown = screen.wait_until("the way to end everything", |shown| shown.contains("--all")) + &shown;
    let joined = shown.replace('\n', "");
    assert!(joined.contains("Ctrl-C stops it, and its durable processes run on"), "{shown}");
    assert!(!joined.contains("everything it started"), "{shown}");
    let command = format!("remex server stop --state {state} --all");
    assert!(joined.contains(&command), "{shown}");
    let url = shown.split_whitespace().find(|word| word.starts_with("ws://")).unwrap().replace(';', "");

    let process = start(&home, &url);
    screen.keys("\x03");
    assert_eq!(screen.end(), Some(0));
    assert!(is_running(&process), "it is durable");
    let words: Vec<_> = command.split(' ').skip(1).collect();
    let said = ok(home.say(&words));
    assert_eq!(said, format!("ended the durable processes of `{state}`; their output is kept\n"));
    assert!(!is_running(&process), "it has ended when that is said");
    assert_eq!(fs::read_to_string(home.path("bye")).unwrap(), "bye\n", "it was asked first");
    let nothing = home.say(&words);
    assert_eq!(nothing.code, Some(3), "{nothing:?}");
}

#[test]
fn a_server_of_a_state_directory_is_stopped_with_and_without_its_durable_processes() {
    let home = Home::new();
    let state = home.path("state").display().to_string();
    let server = Server::serve(&["--state", &state]);
    let process = start(&home, server.address());
    let stopped = ok(home.say(&["server", "stop", "--state", &state]));
    let first = format!("stopped the server of `{state}` (pid {})\n", server.pid());
    let way = format!("its durable processes run on; `remex server stop --state {state} --all` ends them\n");
    assert_eq!(stopped, first + &way);
    assert!(is_running(&process));
    let again = home.say(&["server", "stop", "--state", &state]);
    assert_eq!(again.code, Some(3), "{again:?}");
    assert!(again.err.contains("--all` ends them"), "{again:?}");

    // The next server has the process, and is stopped together with it.
    let next = Server::serve(&["--state", &state]);
    let listed = ok(home.say(&["ps", "--json", "--on", next.address()]));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["processes"][0]["state"], "running", "{listed}");
    let stopped = ok(home.say(&["server", "stop", "--state", &state, "--all"]));
    assert!(
        stopped.starts_with(&format!("stopped the server of `{state}` (pid {})\n", next.pid())),
        "{stopped}"
    );
    assert!(!is_running(&process));
}

#[test]
fn everything_on_a_remote_server_is_ended_and_if_possible_the_server_too() {
    let home = Home::new();
    let state = home.path("state").display().to_string();
    let refused = home.say(&["server", "stop", "--on", "ws://127.0.0.1:1"]);
    assert_eq!(refused.code, Some(2), "only with `--all`: {refused:?}");

    let server = Server::serve(&["--state", &state]);
    let process = start(&home, server.address());
    let said = ok(home.say(&["server", "stop", "--on", server.address(), "--all"]));
    assert!(said.starts_with("ended `work` (pid"), "{said}");
    let rest = format!("nothing of yours runs on {} any more; the server itself runs on", server.address());
    assert!(said.contains(&rest), "{said}");
    assert!(!is_running(&process));
    assert_eq!(home.say(&["env", "test", server.address()]).code, Some(0), "the server runs on");

    let mut server = Server::unix(&["--state", home.path("other").to_str().unwrap()]);
    let process = start(&home, server.address());
    let said = ok(home.say(&["server", "stop", "--on", server.address(), "--all"]));
    assert!(said.ends_with(&format!(" (pid {})\n", server.pid())), "{said}");
    assert!(!is_running(&process));
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn an_unrelated_process_with_the_pid_in_the_lock_file_is_left_alone() {
    let home = Home::new();
    let state = home.path("state");
    fs::create_dir(&state).unwrap();
    // A server in a container writes the number that it has there.
    let mut bystander = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(state.join("server.lock"), format!("{}\n", bystander.id())).unwrap();
    let lock = fs::File::open(state.join("server.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let said = home.say(&["server", "stop", "--state", state.to_str().unwrap()]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("in a container, on another host"), "{said:?}");
    assert_eq!(bystander.try_wait().unwrap(), None, "it lives");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}
