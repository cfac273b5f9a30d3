//! The real client: installed once, then run as often as there are stories to tell.

use std::{
    ffi::OsString,
    fs::{self, File},
    process::{Child, Command, Stdio},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    model::Model,
    remote::Remote,
    support::{self, PATIENCE, Watched},
};

/// How long the client waits for output of a process that runs on: its minimum.
const SHORT_MS: u64 = 250;
/// How long the client waits for a process that is about to end: its maximum.
const LONG_MS: u64 = 30_000;

/// Returns where programs are found.
pub(crate) fn path() -> OsString {
    std::env::var_os("PATH").expect("there is a PATH")
}

/// How the client is set up.
pub(crate) struct Setup<'a> {
    /// Where its server is.
    pub(crate) url: &'a str,
    /// What its configuration says besides.
    pub(crate) config: &'a str,
    /// What the model may do, in the client's words.
    pub(crate) sandbox: &'a str,
    /// What it presents to its server, if anything; then the server is in a file and not in a variable.
    pub(crate) token: Option<&'a str>,
}

impl<'a> Setup<'a> {
    /// Connected to this server, with nothing special, and free to change the project and nothing else.
    pub(crate) fn of(remote: &'a Remote) -> Self {
        Self { url: remote.url(), config: "", sandbox: "workspace-write", token: None }
    }
}

/// The client at work on a task. It asks the model what to do next, and the test answers.
pub(crate) struct Client {
    child: Child,
    watched: Watched,
    model: Model,
    /// How many tools the model has called.
    calls: usize,
    /// What the client has sent last: the conversation so far.
    conversation: Value,
    place: TempDir,
}

impl Client {
    /// Starts the client in the workspace of a server, and waits until it asks what to do.
    pub(crate) fn start(remote: &Remote) -> Self {
        Self::set_up(remote, &Setup::of(remote))
    }

    /// Starts the client as [`Self::start`] does, set up in another way.
    pub(crate) fn set_up(remote: &Remote, setup: &Setup<'_>) -> Self {
        let place = tempfile::tempdir().expect("a directory can be made");
        let (home, settings) = (place.path().join("home"), place.path().join("settings"));
        for directory in [&home, &settings] {
            fs::create_dir(directory).expect("a directory can be made");
        }
        let model = Model::listen();
        let config = CONFIG.replace("MODEL_URL", &model.url()) + setup.config;
        fs::write(settings.join("config.toml"), config).expect("a file can be written");

        if let Some(token) = setup.token {
            let environments = format!(
                "default = \"remote\"\n[[environments]]\nid = \"remote\"\nurl = \"{}\"\nauth_bearer_token = \"{token}\"\n",
                setup.url
            );
            fs::write(settings.join("environments.toml"), environments).expect("a file can be written");
        }
        let log = |name| File::create(place.path().join(name)).expect("a file can be made");
        let child = Command::new(support::codex_program())
            .args(["exec", "--json", "--skip-git-repo-check", "--sandbox", setup.sandbox, "a task"])
            .env_clear()
            .env("PATH", path())
            .env("HOME", home)
            .env("CODEX_HOME", settings)
            .env("CODEX_EXEC_SERVER_URL", setup.url)
            .current_dir(remote.workspace())
            .stdin(Stdio::null())
            .stdout(log("stdout"))
            .stderr(log("stderr"))
            .spawn()
            .expect("the client starts");
        let watched = Watched::new(Pid::from_child(&child));
        let mut client = Self { child, watched, model, calls: 0, conversation: Value::Null, place };
        client.listen();
        client
    }

    /// Returns what the client has told the model.
    pub(crate) fn conversation(&self) -> &Value {
        &self.conversation
    }

    /// Runs a command as the model would, with further arguments, and returns what the model is told.
    pub(crate) fn run(&mut self, command: &str, arguments: Value) -> Reply {
        let arguments = support::with(json!({"cmd": command}), arguments);
        self.call("exec_command", &arguments)
    }

    /// Calls a tool and returns its reply.
    fn call(&mut self, tool: &str, arguments: &Value) -> Reply {
        self.begin(tool, arguments);
        self.reply()
    }

    /// Calls a tool and does not wait for its reply.
    fn begin(&mut self, tool: &str, arguments: &Value) {
        self.say(json!({"type": "function_call", "name": tool, "arguments": arguments.to_string()}));
    }

    /// Calls a tool of a tool server, which the client offers in a namespace, and returns its reply.
    pub(crate) fn call_in(&mut self, namespace: &str, tool: &str, arguments: &Value) -> Reply {
        self.say(json!({
            "type": "function_call", "namespace": namespace, "name": tool, "arguments": arguments.to_string(),
        }));
        self.reply()
    }

    /// Applies a patch and returns the reply.
    pub(crate) fn patch(&mut self, lines: &[&str]) -> Reply {
        let patch = ["*** Begin Patch", &lines.join("\n"), "*** End Patch", ""].join("\n");
        self.say(json!({"type": "custom_tool_call", "name": "apply_patch", "input": patch}));
        self.reply()
    }

    /// Runs a command that does not end by itself, until it has said `text`.
    pub(crate) fn run_until(&mut self, text: &str, command: &str, arguments: Value) -> Running {
        let reply = self.run(command, support::with(json!({"yield_time_ms": SHORT_MS}), arguments));
        let mut running = Running { session: reply.session(), output: reply.output().to_owned() };
        self.wait_for(text, &mut running);
        running
    }

    /// Types into a running command, until it has said `text`.
    pub(crate) fn type_until(&mut self, text: &str, running: &mut Running, typed: &str) {
        running.add(&self.call("write_stdin", &running.input(typed, SHORT_MS)));
        self.wait_for(text, running);
    }

    fn wait_for(&mut self, text: &str, running: &mut Running) {
        // The first wait is nearly always long enough; the client makes further ones last five seconds.
        for _ in 0..10 {
            if running.output.ends_with(text) {
                return;
            }
            running.add(&self.call("write_stdin", &running.input("", SHORT_MS)));
        }
        panic!("it does not say `{text}`, but: {}", running.output);
    }

    /// Types into a running command and begins to wait for its end.
    pub(crate) fn begin_waiting(&mut self, running: &Running, typed: &str) {
        self.begin("write_stdin", &running.input(typed, LONG_MS));
    }

    /// Waits for the end of a running command, and returns its exit code and all that it has said.
    pub(crate) fn ended(&mut self, running: Running) -> (Option<i32>, String) {
        let reply = self.reply();
        (reply.exit_code(), running.output + reply.output())
    }

    fn say(&mut self, mut call: Value) {
        self.calls += 1;
        call["call_id"] = json!(format!("call-{}", self.calls));
        self.model.say(&call);
    }

    /// Waits for the reply of the tool that was called last.
    fn reply(&mut self) -> Reply {
        self.listen();
        let id = format!("call-{}", self.calls);
        let items = self.conversation["input"].as_array().expect("a conversation is a list");
        let output = items
            .iter()
            .filter(|item| item["call_id"] == *id)
            .find_map(|item| item.get("output"))
            .unwrap_or_else(|| panic!("no output of {id} in {items:?}"));
        match output {
            Value::String(text) => Reply(text.clone()),
            parts => {
                let parts = parts.as_array().expect("an output is a text or a list of them");
                let texts: Vec<_> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
                Reply(texts.join("\n"))
            }
        }
    }

    /// Waits until the client asks the model.
    fn listen(&mut self) {
        let patience = Timespec::try_from(PATIENCE).expect("a minute is not too long");
        self.conversation = loop {
            let mut events =
                [PollFd::new(&self.model, PollFlags::IN), PollFd::new(&self.watched, PollFlags::IN)];
            poll(&mut events, Some(&patience)).expect("a socket and a process can be polled");
            assert!(!events[0].revents().is_empty(), "the client does not ask the model");
            if let Some(conversation) = self.model.hear() {
                break conversation;
            }
        };
    }

    /// Says that all is done, and waits for the client to end.
    pub(crate) fn finish(mut self) {
        self.model.say(&json!({
            "type": "message", "role": "assistant", "id": "message",
            "content": [{"type": "output_text", "text": "done"}],
        }));
        self.watched.assert_ends();
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "the client failed: {status}");
    }
}

impl Drop for Client {
    #[allow(clippy::print_stderr, reason = "what the client said explains why a test failed")]
    fn drop(&mut self) {
        self.watched.signal(Signal::KILL);
        let _ = self.child.wait();
        if thread::panicking() {
            let said = |name| fs::read_to_string(self.place.path().join(name)).unwrap_or_default();
            eprintln!("the client said:\n{}{}", said("stdout"), said("stderr"));
        }
    }
}

/// What the client is told about its model, and what it must not do: talk to anybody but us.
const CONFIG: &str = r#"
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
apps = false
plugins = false

[model_providers.scripted]
name = "scripted"
base_url = "MODEL_URL"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false
"#;

/// What a tool has told the model.
#[derive(Debug)]
pub(crate) struct Reply(String);

impl Reply {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Returns the exit code of a command that has ended.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        self.line("Process exited with code ")
    }

    /// Returns the number by which the model reaches a command that still runs.
    fn session(&self) -> u32 {
        self.line("Process running with session ID ").unwrap_or_else(|| panic!("it does not run: {self:?}"))
    }

    /// Returns the output of a command.
    pub(crate) fn output(&self) -> &str {
        let (_, output) = self.0.split_once("\nOutput:\n").unwrap_or_else(|| panic!("no output: {self:?}"));
        output
    }

    fn line<T: std::str::FromStr>(&self, beginning: &str) -> Option<T> {
        let (head, _) = self.0.split_once("\nOutput:\n")?;
        head.lines().find_map(|line| line.strip_prefix(beginning)?.parse().ok())
    }
}

/// A command that runs on, and all that it has said so far.
pub(crate) struct Running {
    session: u32,
    output: String,
}

impl Running {
    fn add(&mut self, reply: &Reply) {
        assert_eq!(reply.session(), self.session, "it runs on");
        self.output.push_str(reply.output());
    }

    fn input(&self, typed: &str, wait_ms: u64) -> Value {
        json!({"session_id": self.session, "chars": typed, "yield_time_ms": wait_ms})
    }
}
