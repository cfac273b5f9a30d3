//! `remex mcp` by hand, and in a sandbox.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use serde_json::{Value, json};

use crate::{
    home::Home,
    screen::Screen,
    support::{InTime as _, Patient},
};

/// `remex mcp` with a client that has shaken hands.
struct Served {
    child: Child,
    input: ChildStdin,
    output: BufReader<Patient<ChildStdout>>,
    next_id: u64,
}

impl Served {
    fn start(home: &Home, arguments: &[&str]) -> Self {
        let mut command = home.remex(&[&["mcp"], arguments].concat());
        let mut child = command
            .current_dir(home.path("work"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(Patient::new(child.stdout.take().unwrap()));
        let mut served = Self { child, input, output, next_id: 1 };
        let client = json!({"name": "test", "version": "1"});
        served.request(
            "initialize",
            &json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}),
        );
        served.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        served
    }

    /// Calls a tool, and returns whether it succeeded and what it says.
    fn tool(&mut self, name: &str, arguments: &Value) -> (bool, String) {
        let result = self.request("tools/call", &json!({"name": name, "arguments": arguments}));
        let text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
        (result["isError"] != true, text)
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it ended before it answered {method}");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    fn end(mut self) {
        drop(self.input);
        assert_eq!(self.child.ended().code(), Some(0));
    }
}

/// A user with directories `work`, where `remex mcp` runs, and `other`.
fn user() -> Home {
    let home = Home::new();
    for name in ["work", "other"] {
        fs::create_dir(home.path(name)).unwrap();
        fs::write(home.path(name).join("notes.txt"), "remember the milk\n").unwrap();
    }
    home
}

#[test]
fn commands_and_files_of_a_model_are_confined_to_the_workspace() {
    let home = user();
    let mut served = Served::start(&home, &["--sandbox", "workspace-write"]);
    let other = home.path("other").display().to_string();

    let (ok, text) = served.tool("run_command", &json!({"command": "echo new > made && cat made"}));
    assert!(ok && text.contains("new"), "{text}");
    let (ok, text) = served.tool("write_file", &json!({"path": "written", "content": "new\n"}));
    assert!(ok, "{text}");
    let (ok, text) = served.tool("read_file", &json!({"path": format!("{other}/notes.txt")}));
    assert!(ok && text.contains("milk"), "{text}");

    // Another working directory is no other workspace.
    let command = json!({"command": "echo new > made", "cwd": other});
    let (_, text) = served.tool("run_command", &command);
    assert!(text.contains("Read-only file system") || text.contains("ermission denied"), "{text}");
    for (tool, arguments) in [
        ("write_file", json!({"path": format!("{other}/made"), "content": "new\n"})),
        (
            "edit_file",
            json!({"path": format!("{other}/notes.txt"), "edits": [{"old": "milk", "new": "tea"}]}),
        ),
        ("copy", json!({"from_path": "notes.txt", "to_path": format!("{other}/made")})),
        ("copy", json!({"from_path": ".", "to_path": format!("{other}/made")})),
    ] {
        let (ok, text) = served.tool(tool, &arguments);
        assert!(!ok, "{tool} changed what is outside: {text}");
    }
    // The way out through a link.
    std::os::unix::fs::symlink(&other, home.path("work/link")).unwrap();
    let (ok, text) = served.tool("write_file", &json!({"path": "link/made", "content": "new\n"}));
    assert!(!ok, "{text}");
    served.end();

    assert_eq!(fs::read_to_string(home.path("work/written")).unwrap(), "new\n");
    let left: Vec<_> = fs::read_dir(&other).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    assert_eq!(fs::read_to_string(home.path("other/notes.txt")).unwrap(), "remember the milk\n");
}

#[test]
fn file_tools_respect_a_minimal_sandbox() {
    let home = user();
    let mut served = Served::start(&home, &["--sandbox", "minimal", "--read", "."]);
    let (ok, text) = served.tool("read_file", &json!({"path": "notes.txt"}));
    assert!(ok && text.contains("milk"), "{text}");
    let hidden = home.path("other/notes.txt").display().to_string();
    let (ok, text) = served.tool("read_file", &json!({"path": hidden}));
    assert!(!ok && !text.contains("milk"), "{text}");
    let (_, text) = served.tool("run_command", &json!({"command": format!("cat {hidden}")}));
    assert!(!text.contains("milk"), "{text}");
    let (_, text) = served
        .tool("search_files", &json!({"pattern": "milk", "path": home.path("other").display().to_string()}));
    assert!(!text.contains("remember"), "{text}");
    served.end();
}

#[test]
fn a_confined_model_cannot_control_processes_of_others() {
    let home = user();
    let said = home.say(&["run", "--detach", "--name", "mine", "--", "sleep", "1000"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let mut free = Served::start(&home, &[]);
    let (ok, text) = free.tool("list_processes", &json!({}));
    assert!(ok && text.contains("mine"), "{text}");
    free.end();
    let mut confined = Served::start(&home, &["--sandbox", "read-only"]);
    let (ok, text) = confined.tool("list_processes", &json!({}));
    assert!(ok && !text.contains("mine"), "{text}");
    let (ok, text) = confined.tool("send_input", &json!({"process": "mine", "text": "rm notes.txt\n"}));
    assert!(!ok && text.contains("there is no process `mine`"), "{text}");
    let (ok, text) = confined.tool("stop_process", &json!({"process": "mine"}));
    assert!(!ok, "{text}");
    confined.end();
    assert_eq!(home.say(&["kill", "mine", "--tree"]).code, Some(0));
}

#[test]
fn contradictory_sandbox_flags_are_refused_at_once() {
    let home = user();
    let said = home.say(&["mcp", "--net", "on", "--net", "off"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("`--net` contradict each other"), "{}", said.err);
}

#[test]
fn starting_the_mcp_server_on_a_terminal_explains_its_purpose() {
    let home = user();
    let mut screen = Screen::remex(&home, &["mcp"]);
    screen.wait_for("this is a server for agents");
    // It breaks lines anywhere.
    assert!(screen.raw().contains("claude mcp add remex -- remex mcp"), "{}", screen.raw());
    assert_eq!(screen.end_by("\u{3}"), Some(0));
    // A client that starts it gets only the protocol.
    let said = home.say(&["mcp"]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (Some(0), "", ""));
}

#[test]
fn the_documented_agent_configurations_start_it() {
    let home = user();
    home.add_environment("build", "ws://127.0.0.1:1");
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/agents.md");
    let guide = fs::read_to_string(guide).unwrap();
    let mut blocks = 0;
    for block in guide.split("```json\n").skip(1) {
        let text = block.split("```").next().unwrap();
        let configuration: Value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let servers = configuration.as_object().unwrap().values().next().unwrap();
        let server = &servers["remex"];
        assert_eq!(server["command"], "remex", "{text}");
        let arguments: Vec<_> =
            server["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(arguments.first(), Some(&"mcp"), "{text}");
        Served::start(&home, &arguments[1..]).end();
        blocks += 1;
    }
    assert!(blocks >= 4, "{blocks} agents have lines in docs/agents.md");
    let typed: Vec<_> = guide.lines().filter_map(|line| line.split_once(" -- remex mcp")).collect();
    assert!(typed.len() >= 2, "commands that add it are missing");
    for (_, arguments) in typed {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        Served::start(&home, &arguments).end();
    }
}
