//! Processes: their shell, what they have written before, and finding them again.

use super::*;

#[tokio::test]
async fn omitted_parts_of_long_output_can_be_read() {
    let world = World::new();
    let model = world.model().await;
    let long = json!({"command": "seq 1 100000", "name": "long", "max_output_tokens": 100});
    let (text, _) = model.does("run_command", long).await;
    let line = text.split_once("`first_line` ").expect("it says how to go on").1;
    let line: u64 = line.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    let shown: Vec<u64> = text.lines().map_while(|line| line.parse().ok()).collect();
    let last = *shown.last().unwrap();
    assert!(line <= last + 1 && line + 1 >= last, "{text}");
    let part = json!({"process": "long", "first_line": line, "lines": 3});
    let (text, _) = model.does("read_output", part).await;
    assert!(text.starts_with(&format!("{line}\n{}\n{}\n[", line + 1, line + 2)), "{text}");
    let (text, data) =
        model.does("read_output", json!({"process": "long", "offset": 0, "max_output_tokens": 50})).await;
    let next = data["next_offset"].as_u64().unwrap();
    assert!(text.contains(&format!("continue with `offset` {next};")), "{text}");
    let (text, _) = model.does("read_output", json!({"process": "long", "search": "^99+$"})).await;
    assert!(
        text.starts_with("99: 99\n999: 999\n9999: 9999\n99999: 99999\n[4 lines match of 100000 lines"),
        "{text}"
    );
    let why = model.fails("read_output", json!({"process": "long", "search": "("})).await;
    assert!(why.contains("is not a regular expression"), "{why}");
    let why = model.fails("read_output", json!({"process": "long", "search": "1", "offset": 1})).await;
    assert!(why.contains("exclude each other"), "{why}");
}

#[tokio::test]
async fn commands_run_in_bash_if_available() {
    let world = World::new();
    let model = world.model().await;
    let (text, _) =
        model.does("run_command", json!({"command": "echo ${BASH_VERSION:-none}; cd /; pwd"})).await;
    let has_bash = Path::new("/bin/bash").exists();
    assert_eq!(text.starts_with("none\n"), !has_bash, "{text}");
    let (text, _) = model.does("run_command", json!({"command": "pwd"})).await;
    assert!(!text.starts_with("/\n"), "{text}");
    let tools = model.service.list_all_tools().await.unwrap();
    let run = tools.iter().find(|tool| tool.name == "run_command").unwrap().description.as_ref().unwrap();
    assert!(run.contains("`bash`") && run.contains("`cd`"), "{run}");
    let read = tools.iter().find(|tool| tool.name == "read_output").unwrap().annotations.as_ref().unwrap();
    assert_eq!(read.idempotent_hint, Some(false));
}

#[tokio::test]
async fn processes_are_filtered_and_removed() {
    let world = World::new();
    let model = world.model().await;
    model.does("run_command", json!({"command": "sleep 1000", "name": "runs", "wait_seconds": 0})).await;
    model.does("run_command", json!({"command": "echo done", "name": "ended"})).await;
    for (arguments, names) in [
        (json!({}), vec!["ended", "runs"]),
        (json!({"running": true}), vec!["runs"]),
        (json!({"running": false}), vec!["ended"]),
        (json!({"filter": "sleep"}), vec!["runs"]),
        (json!({"filter": "nothing"}), vec![]),
    ] {
        let (_, data) = model.does("list_processes", arguments.clone()).await;
        let mut found: Vec<_> = data["processes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["process"].as_str().unwrap())
            .collect();
        found.sort_unstable();
        assert_eq!(found, names, "{arguments}");
    }
    let (text, _) = model.does("stop_process", json!({"process": "ended", "remove": true})).await;
    assert!(text.ends_with("; it was removed]"), "{text}");
    model.does("stop_process", json!({"process": "runs", "remove": true, "grace_seconds": 0})).await;
    let (text, _) = model.does("list_processes", json!({})).await;
    assert_eq!(text, "there are no processes");
}

#[tokio::test]
async fn a_process_of_another_environment_is_found_by_its_name() {
    let (near, far) = (World::new(), World::new());
    let environments = vec![
        environment("near", near.local.target(), near.directory.path()),
        environment("far", far.local.target(), far.directory.path()),
    ];
    let model = Model::of(Tools::new(environments, Allow::everything())).await;
    let start =
        json!({"command": "cat", "name": "away", "environment": "far", "input": "pipe", "wait_seconds": 0});
    model.does("run_command", start).await;
    let sent = json!({"process": "away", "text": "hello\n", "end_input": true, "wait_seconds": 10});
    let (text, data) = model.does("send_input", sent).await;
    assert!(text.starts_with("hello\n"), "{text}");
    assert_eq!(data["environment"], "far");
    let why = model.fails("read_output", json!({"process": "away", "environment": "near"})).await;
    assert!(why.contains("there is no process `away`"), "{why}");
}

#[tokio::test]
async fn a_match_at_the_exit_is_reported_with_it() {
    let world = World::new();
    let model = world.model().await;
    let command =
        json!({"command": "echo ready; exit 3", "name": "both", "wait_seconds": 10, "input": "pipe"});
    model.does("run_command", command).await;
    let again = json!({"process": "both", "from_start": true, "wait_for": "ready"});
    let (text, data) = model.does("read_output", again).await;
    assert_eq!(text, "ready\n[`both` ended with exit code 3; the awaited text was written]");
    assert_eq!(
        (&data["running"], &data["returned"], &data["exit_code"]),
        (&json!(false), &json!("matched"), &json!(3))
    );
}
