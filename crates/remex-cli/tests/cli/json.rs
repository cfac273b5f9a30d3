//! `--json` of the commands that change something.

use std::fs;

use serde_json::{Value, json};

use crate::{
    background_processes::{UserSession, out},
    files::World,
    home::{Home, Said},
};

/// Reads the only line that a command printed.
fn line(said: Said) -> Value {
    let text = out(said);
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["version"], 1);
    line
}

#[test]
fn run_json_names_the_background_process() {
    let home = Home::new();
    let run = |args: &[&str]| home.say(&[&["run", "--json"], args].concat());
    let started = line(run(&["-d", "--name", "job", "--", "sleep", "1000"]));
    let listed = line(home.say(&["ps", "--json"]));
    let process = &listed["processes"][0];
    for name in ["name", "environment", "processId", "sessionId", "pid"] {
        assert_eq!(started[name], process[name], "{name}");
    }
    assert_eq!((&started["name"], &started["environment"]), (&json!("job"), &json!("local")));
    assert_eq!(run(&["--", "true"]).code, Some(2), "only a process in the background is described");
    let colon = home.say(&["run", "-d", "--name", "a:b", "--", "true"]);
    assert!(colon.code == Some(2) && colon.err.contains("colons"), "{colon:?}");
}

#[test]
fn kill_and_rm_json_list_the_affected_processes() {
    let user = UserSession::open("night");
    user.ready("job", "echo ready; exec sleep 1000");
    let sent = line(user.say(&["kill", "--json", "-s", "CONT", "job"]));
    let process = &sent["processes"][0];
    assert_eq!(
        (&process["name"], &process["action"], &process["signal"]),
        (&json!("job"), &json!("signalled"), &json!("SIGCONT"))
    );
    let ended = line(user.say(&["kill", "--json", "--tree", "job"]));
    let tree = &ended["processes"][0];
    assert_eq!(
        (&tree["action"], &tree["signal"], &tree["pids"]),
        (&json!("ended"), &Value::Null, &process["pids"])
    );
    let nothing = user.say(&["kill", "--json", "job"]);
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(1), "{\"version\":1,\"processes\":[]}\n"));
    let home = Home::new();
    assert_eq!(home.say(&["prune", "--json"]).out, "{\"version\":1,\"removed\":[]}\n");
}

#[test]
fn prune_and_gc_list_what_they_removed() {
    let home = Home::new();
    assert_eq!(
        home.say(&["run", "-d", "--name", "job", "--", "sh", "-c", "echo said; exit 3"]).code,
        Some(0)
    );
    assert_eq!(home.say(&["wait", "job"]).code, Some(3));
    let dry = line(home.say(&["gc", "--dry-run", "--json"]));
    assert_eq!(
        (&dry["dryRun"], &dry["count"], &dry["processes"][0]["processId"]),
        (&json!(true), &json!(1), &json!("job"))
    );
    assert_eq!(dry["freedBytes"], dry["processes"][0]["logBytes"]);
    assert!(dry["freedBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{dry}");
    let pruned = line(home.say(&["prune", "--json"]));
    assert_eq!(
        (&pruned["removed"][0]["name"], &pruned["removed"][0]["exitCode"]),
        (&json!("job"), &json!(3))
    );
    let gc = line(home.say(&["gc", "--json"]));
    assert_eq!((&gc["dryRun"], &gc["count"], &gc["processes"]), (&json!(false), &json!(0), &json!([])));
}

#[test]
fn cp_json_summarizes_the_copy() {
    let world = World::new();
    fs::create_dir(world.here.path("site")).unwrap();
    fs::write(world.here.path("site/index"), "<html>").unwrap();
    world.here.pipe("site/pipe");
    fs::create_dir(world.there.path("copy")).unwrap();
    fs::write(world.there.path("copy/old"), "old").unwrap();
    let copied = world.say(&["cp", "--json", "-v", "--delete", "site/.", "build:copy"]);
    assert_eq!(copied.code, Some(0), "{copied:?}");
    let mut lines: Vec<Value> = copied.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut summary = lines.pop().unwrap();
    assert!(summary["elapsedMs"].take().is_u64());
    let counts = json!({"version": 1, "event": "summary", "dryRun": false, "copied": 1, "copiedBytes": 6, "skipped": 0,
        "excluded": 0, "special": 1, "deleted": 1, "failed": 0, "elapsedMs": null});
    assert_eq!(summary, counts);
    for expected in [
        json!({"version": 1, "event": "copy", "from": "site/index", "to": "build:copy/index"}),
        json!({"version": 1, "event": "special", "from": "site/pipe"}),
        json!({"version": 1, "event": "delete", "to": "build:copy/old"}),
    ] {
        assert!(lines.contains(&expected), "{expected} {lines:?}");
    }
    let failed = world.say(&["cp", "--json", "missing", "site/.", "build:copy"]);
    assert_eq!(failed.code, Some(3));
    let lines: Vec<Value> = failed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["event"], &lines.last().unwrap()["failed"]), (&json!("failed"), &json!(1)));
    assert!(lines[0]["error"].as_str().unwrap().starts_with("cannot copy `missing`: "), "{lines:?}");
}
