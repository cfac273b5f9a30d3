//! Watches where there is no thread left for them, of directories that hang, and beside files that hang.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
};

use serde_json::json;

use crate::support::{HungFs, Interrupts, Limits, Place, Server, start_params};

/// Enough for the server itself and some processes.
const PROCESSES: u64 = 80;

#[test]
fn a_watch_at_the_process_limit_is_refused_and_works_once_there_is_room() {
    let (server, place): (Server, _) = (Limits::processes(PROCESSES).serve(&[]), Place::new());
    fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).expect("our own directory");
    let client = server.client();
    let look = || client.call("fs/getMetadata", json!({"path": place.uri("")}));
    let mut sleepers = Vec::new();
    loop {
        // A thread for files is there when it is full.
        look().expect("files can be looked at");
        let id = format!("sleeper {}", sleepers.len());
        match client.call("process/start", start_params(&id, &["/bin/sleep", "1000"])) {
            Ok(_) => sleepers.push(id),
            Err(error) if error["data"]["kind"] == "tooManyProcesses" => break,
            Err(error) => panic!("a start fails for another reason: {error}"),
        }
        assert!(sleepers.len() < 200, "the limit on processes does not bind");
    }
    let watch = json!({"watchId": 7, "path": place.uri("")});
    for _ in 0..4 {
        let refused = client.call("fs/watch", watch.clone()).expect_err("there is no room for a thread");
        assert_eq!(refused["data"]["kind"], "limitExceeded", "{refused}");
        look().expect("everything else goes on");
    }
    for id in &sleepers[..2] {
        client.call("process/terminate", json!({"processId": id})).expect("a process can be killed");
        client.event(id, "process/closed");
    }
    client.call("fs/watch", watch).expect("there is room again");
    place.write("new", "x");
    client.wait("the change", |seen| {
        seen.notifications().any(|note| note["method"] == "fs/changed").then_some(())
    });
}

#[test]
fn a_hanging_directory_blocks_no_other_watch() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    // Dropped first, because the server cannot end before its calls do.
    let mut mounts = Vec::new();
    for patience in 0..5 {
        // The kernel lets one process at a time look for names in a directory, so each has its own.
        let Some(hung) = HungFs::mount(Interrupts::Ignored) else { return };
        let path = hung.root().join(format!("fickle-{patience}"));
        client.send("fs/watch", json!({"watchId": patience, "path": path}));
        hung.wait_until_hanging(1);
        mounts.push(hung);
    }
    let other = server.client();
    other
        .call("fs/watch", json!({"watchId": 0, "path": place.uri("")}))
        .expect("the directory can be watched");
    place.write("new", "x");
    other.wait("the change", |seen| {
        seen.notifications().any(|note| note["method"] == "fs/changed").then_some(())
    });
}

#[test]
fn watches_continue_while_all_file_workers_hang() {
    let (server, place) = (Server::start(), Place::new());
    let Some(hung) = HungFs::mount(Interrupts::Ignored) else { return };
    let client = server.client();
    let watch = |id: u64| client.call("fs/watch", json!({"watchId": id, "path": place.uri("")}));
    watch(1).expect("the directory can be watched");
    for number in 0..64 {
        client.send("fs/getMetadata", json!({"path": hung.path(&number.to_string())}));
    }
    hung.wait_until_hanging(1);
    watch(2).expect("a healthy directory can still be watched");
    let config = json!({"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []});
    client.call("environmentConfig/read", config).expect("configuration can still be read");
    // A new directory is looked into before it is told.
    place.make(&["new"]);
    for id in [1, 2] {
        client.wait("the change", |seen| {
            let mut told = seen.notifications().filter(|note| note["method"] == "fs/changed");
            told.any(|note| note["params"]["watchId"] == id).then_some(())
        });
    }
}
