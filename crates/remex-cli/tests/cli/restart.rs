//! `remex restart`: what runs or has run is started again.

use serde_json::Value;

use crate::{
    background_processes::out,
    home::Home,
    screen::Screen,
    support::{PATIENCE, Server, Watched},
};

/// Waits for the output of a process.
fn logged(home: &Home, name: &str) -> String {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let said = home.say(&["logs", name]).out;
        if said.ends_with('\n') {
            return said;
        }
        assert!(std::time::Instant::now() < deadline, "waited for output of `{name}`");
    }
}

fn listed(home: &Home) -> Value {
    serde_json::from_str(&out(home.say(&["ps", "--all", "--json"]))).unwrap()
}

#[test]
fn a_background_command_is_restarted_with_its_environment_and_secrets() {
    let home = Home::new();
    std::fs::write(home.path("secret"), "s3cret").unwrap();
    let secret = format!("TOKEN={}", home.path("secret").display());
    let script = "echo \"$GREETING ${#TOKEN}\"; exec sleep 1000";
    let run = [
        "run",
        "-d",
        "--name",
        "web",
        "--env",
        "GREETING=hello",
        "--secret",
        &secret,
        "--",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(home.say(&run).code, Some(0));
    assert_eq!(logged(&home, "web"), "hello 6\n");
    let pid = listed(&home)["processes"][0]["pid"].to_string();
    let first = Watched::printed(&pid);
    std::fs::remove_file(home.path("secret")).unwrap();
    assert_eq!(out(home.say(&["restart", "web"])), "web\n");
    first.assert_ends();
    assert_eq!(logged(&home, "web"), "hello 6\n");
    // Also what has ended; there is still one process, with its name.
    assert_eq!(home.say(&["kill", "--tree", "web"]).code, Some(0));
    let restarted: Value =
        serde_json::from_str(&out(home.say(&["restart", "--json", "--grace", "0", "web"]))).unwrap();
    let processes = listed(&home);
    assert_eq!(processes["processes"].as_array().unwrap().len(), 1, "{processes}");
    let (said, process) = (&restarted["processes"][0], &processes["processes"][0]);
    assert_eq!((&said["name"], &said["pid"]), (&process["name"], &process["pid"]), "{restarted}");
    assert_eq!(process["state"], "running", "{processes}");
    assert_eq!(home.say(&["kill", "--tree", "web"]).code, Some(0));
}

#[test]
fn processes_that_cannot_be_restarted_are_named_and_others_left_alone() {
    let home = Home::new();
    assert_eq!(home.say(&["run", "-d", "--name", "web", "--", "sleep", "1000"]).code, Some(0));
    let before = listed(&home)["processes"][0]["pid"].clone();
    let missing = home.say(&["restart", "web", "worker"]);
    assert_eq!(missing.code, Some(3), "{missing:?}");
    assert!(missing.err.contains("nothing was restarted"), "{missing:?}");
    let prefix = home.say(&["restart", "we"]);
    assert!(prefix.code == Some(2) && prefix.err.contains("use the full name to restart it"), "{prefix:?}");
    assert_eq!(listed(&home)["processes"][0]["pid"], before);
    assert_eq!(home.say(&["kill", "--tree", "web"]).code, Some(0));
}

#[test]
fn a_command_whose_client_is_connected_is_left_alone() {
    let home = Home::new();
    let server = Server::start();
    let run =
        ["run", "--on", server.address(), "--name", "web", "--", "sh", "-c", "echo ready; exec sleep 1000"];
    let mut screen = Screen::remex(&home, &run);
    screen.wait_for("ready");
    let refused = home.say(&["restart", "web", "--on", server.address()]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.err.contains("cannot restart `web`: the client that has started it is still"),
        "{refused:?}"
    );
    screen.keys("\x03");
    assert_eq!(screen.end(), Some(130));
}
