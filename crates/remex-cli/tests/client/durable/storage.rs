//! What happens to logs and starts when descriptors, space and the clock are against them.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::process::test_kill_process;
use serde_json::{Value, json};

use super::{
    host::DurableHost,
    restarts::{connect, poll, read_all, resume},
    space::on_a_small_disk,
};
use crate::support::{Client, Watched, program};

/// Starts a process with a start id, and waits until it has closed.
fn finished(client: &Client, id: &str, argv: &[&str]) {
    assert_eq!(start(client, id, argv)["replayed"], false);
    client.event(id, "process/closed");
}

fn start(client: &Client, id: &str, argv: &[&str]) -> Value {
    client.start(id, argv, json!({"startId": format!("start of {id}"), "output": {"retainMs": 3_600_000}}))
}

fn logs_in(state: &Path) -> Vec<PathBuf> {
    fs::read_dir(state.join("processes")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Writes a file until the disk is full.
fn fill(path: &Path) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    for size in [64 << 10, 4 << 10, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
}

#[test]
fn a_replaced_keeper_needs_no_descriptor_for_a_closed_process() {
    let mut host = DurableHost::renewable_with_files(128);
    let (client, session) = connect(&host);
    client.start("running", &["/bin/sh", "-c", "echo $$; read line; exit 3"], json!({"pipeStdin": true}));
    let child = Watched::printed(&client.wait_for_output("running", "\n"));
    let ids: Vec<_> = (0..150).map(|number| format!("p{number}")).collect();
    for id in &ids {
        finished(&client, id, &["echo", id]);
    }
    drop(client);
    host.kill();
    host.renew();
    host.launch();
    assert_eq!(host.replaced_keepers(), 1, "{}", host.said());
    assert!(!child.ended_within(Duration::ZERO), "it runs on: {}", host.said());
    let client = resume(&host, &session);
    client.call("process/closeStdin", json!({"processId": "running"})).unwrap();
    assert_eq!(read_all(&client, "running").1["exitCode"], 3);
    for id in &ids {
        assert_eq!(read_all(&client, id).0, format!("{id}\n").into_bytes());
    }
    finished(&client, "new", &["true"]);
}

#[test]
fn logs_that_were_read_cost_the_server_no_descriptors() {
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    let ids: Vec<_> = (0..100).map(|number| format!("p{number}")).collect();
    let before = host.open_files();
    for id in &ids {
        finished(&client, id, &["head", "-c", "200000", "/dev/zero"]);
    }
    for id in &ids {
        let (output, read) = read_all(&client, id);
        assert_eq!(output.len(), 200_000);
        let after = json!({"processId": id, "afterSeq": read["nextSeq"].as_u64().unwrap() - 1});
        client.call("process/read", after).unwrap();
    }
    let open = host.open_files();
    assert!(open < before + 50, "{open} open files, {before} before");
}

#[test]
fn a_start_is_remembered_when_its_log_is_deleted_on_a_full_disk() {
    let host = on_a_small_disk();
    let state = host.state_of_server();
    let (client, session) = connect(&host);
    let argv = ["head", "-c", "1500000", "/dev/zero"];
    for id in ["a", "b"] {
        finished(&client, id, &argv);
    }
    let filling = state.join("filling");
    for (number, id) in ["a", "b"].iter().enumerate() {
        fill(&filling);
        let before = fs::metadata(&filling).unwrap().len();
        client.call("process/forget", json!({"processId": id})).unwrap();
        let deleted = || {
            let whole = logs_in(&state).into_iter().filter(|log| log.extension().is_none());
            whole.count() == 1 - number
        };
        poll("its log to be deleted", deleted);
        poll("its space", || {
            fill(&filling);
            fs::metadata(&filling).unwrap().len() > before + 1_000_000
        });
    }
    fs::remove_file(&filling).unwrap();
    host.upgrade();
    client.wait_end();
    let client = resume(&host, &session);
    for id in ["a", "b"] {
        assert_eq!(start(&client, id, &argv)["replayed"], true, "{id} has run already");
    }
}

#[test]
fn a_start_saved_after_a_torn_line_is_known_to_the_next_server() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    let forgotten = |client: &Client, id: &str| {
        let logs = logs_in(&host.state()).len();
        finished(client, id, &["true"]);
        client.call("process/forget", json!({"processId": id})).unwrap();
        poll("its log to be deleted", || logs_in(&host.state()).len() == logs);
    };
    forgotten(&client, "a");
    let starts = host.state().join(format!("sessions/{session}.starts"));
    let file = fs::OpenOptions::new().append(true).open(starts).unwrap();
    file.set_len(file.metadata().unwrap().len() - 5).unwrap();
    forgotten(&client, "b");
    host.kill();
    host.launch();
    let client = resume(&host, &session);
    assert_eq!(start(&client, "b", &["true"])["replayed"], true, "it has run already");
}

#[test]
fn a_start_that_could_not_be_saved_is_found_by_the_next_server() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    finished(&client, "p", &["true"]);
    // Nothing can be appended to that.
    let starts = host.state().join(format!("sessions/{session}.starts"));
    fs::create_dir(&starts).unwrap();
    client.call("process/forget", json!({"processId": "p"})).unwrap();
    poll("its log to be set aside", || logs_in(&host.state())[0].extension().is_some());
    fs::remove_dir(&starts).unwrap();
    for _ in 0..2 {
        host.kill();
        host.launch();
        let client = resume(&host, &session);
        assert_eq!(start(&client, "p", &["true"])["replayed"], true, "it has run already");
        poll("its start to be saved", || logs_in(&host.state()).is_empty());
    }
}

#[test]
fn processes_can_start_after_the_clock_was_set_back() {
    let mut host = DurableHost::start();
    let (client, session) = connect(&host);
    finished(&client, "p", &["echo", "precious"]);
    let [log] = logs_in(&host.state()).try_into().unwrap();
    host.stop();
    poll("the end of the keeper", || test_kill_process(host.keeper()).is_err());
    // As if it had started in an hour.
    let later = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + Duration::from_secs(3600);
    let name = format!("{:016x}", (later.as_millis() as u64) << 16);
    fs::rename(&log, log.with_file_name(&name)).unwrap();
    host.launch();
    let client = resume(&host, &session);
    for id in ["q", "r"] {
        finished(&client, id, &["true"]);
    }
    let names = logs_in(&host.state()).into_iter().map(|log| log.file_name().unwrap().to_owned());
    assert_eq!(names.min().unwrap(), *name, "new names are greater than all that are there");
    assert_eq!(read_all(&client, "p").0, b"precious\n");
}

#[test]
fn processes_can_start_after_the_prepared_directories_were_deleted() {
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    finished(&client, "first", &["true"]);
    fs::remove_dir_all(host.state().join("spares")).unwrap();
    for number in 0..20 {
        finished(&client, &format!("p{number}"), &["true"]);
    }
}

#[test]
fn a_read_of_a_process_being_forgotten_fails_as_unknown() {
    let host = DurableHost::start();
    let (client, session) = connect(&host);
    let (other, _) = connect(&host);
    for number in 0..30 {
        let id = format!("p{number}");
        finished(&client, &id, &["head", "-c", "300000", "/dev/zero"]);
        let read = json!({"processId": id, "sessionId": session});
        let seek = json!({"processId": id, "sessionId": session, "to": {"tailBytes": 5}});
        let mut asked = Vec::new();
        for number in 0..12 {
            if number == 6 {
                client.send("process/forget", json!({"processId": id}));
            }
            asked.push(other.send("process/read", read.clone()));
            asked.push(other.send("process/seek", seek.clone()));
            asked.push(other.send("process/snapshot", read.clone()));
        }
        for asked in asked {
            match other.outcome(&asked) {
                Err(error) => assert_eq!(error["message"], format!("unknown process id {id}"), "{error}"),
                Ok(answer) => assert!(answer["stdout"] != "", "it had output: {answer}"),
            }
        }
    }
}

#[test]
fn a_lost_log_is_reported_with_its_size_by_every_request() {
    let host = DurableHost::start();
    let (client, _) = connect(&host);
    finished(&client, "p", &["seq", "1", "100000"]);
    let [log] = logs_in(&host.state()).try_into().unwrap();
    for segment in fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()) {
        if segment.extension().is_some_and(|kind| kind == "log") {
            fs::remove_file(segment).unwrap();
        }
    }
    let all: &[&[&str]] = &[
        &[],
        &["--since", "1h"],
        &["--until", "0s"],
        &["--until", "0s", "--tail", "1"],
        &["--since", "1h", "--until", "0s"],
    ];
    for flags in all {
        let output = program(&["logs", "--on", &host.address(), "p"]).args(*flags).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, "remex: [575 KiB of output lost: the log on disk is damaged]\n", "{flags:?}");
        assert!(output.stdout.is_empty());
    }
    let read = client.call("process/read", json!({"processId": "p", "afterSeq": 0})).unwrap();
    assert_eq!((&read["gap"]["bytes"], &read["gap"]["cause"]), (&json!(588_895), &json!("damaged")));
    assert_eq!(read["closed"], true);
    assert_eq!(read["evictedBytes"], 0, "this client was streamed all of it before: {read}");
}
