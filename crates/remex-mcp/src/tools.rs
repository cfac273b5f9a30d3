//! What a model can do: the tools, their descriptions and their names.
//!
//! Start at [`Tools`].

mod command;
mod files;
mod search;

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc, Mutex as StdMutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remex_client::process::ProcessRef;
use rmcp::{
    handler::server::{
        common::schema_for_empty_input,
        tool::{schema_for_input, schema_for_output},
    },
    model::{JsonObject, Tool, ToolAnnotations},
};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::{
    answer::{Answer, Answered, Problem},
    call::{Call, Cancellations},
    environment::Environment,
    output::{Followed, Report},
};

/// How long the end of a connection may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// How many processes the position in whose output is remembered.
const MAX_FOLLOWED: usize = 10_000;

/// Which tools a model gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allow {
    /// Commands: run, write to, read, stop, list.
    pub commands: bool,
    /// Reading, listing and searching files.
    pub read_files: bool,
    /// Writing, editing and copying files.
    pub write_files: bool,
}

impl Allow {
    /// All tools.
    pub fn everything() -> Self {
        Self { commands: true, read_files: true, write_files: true }
    }

    /// No tools but the list of environments.
    pub fn nothing() -> Self {
        Self { commands: false, read_files: false, write_files: false }
    }
}

/// The tools of one program, on some environments; clones share them.
#[derive(Debug, Clone)]
pub struct Tools {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cancellations: Arc<Cancellations>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The first one is the default.
    pub(crate) environments: Vec<Environment>,
    allow: Allow,
    /// Where the model is in the output of its processes; locked only for lookups.
    followed: StdMutex<HashMap<Key, Arc<Mutex<Followed>>>>,
    is_closing: AtomicBool,
}

/// Environment, session and process.
type Key = (String, String, String);

/// What `list_environments` returns.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedEnvironments {
    /// The first one is the default.
    environments: Vec<String>,
}

/// One tool: what it needs, what it is, and what it does to the world.
struct Described {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    needs: fn(Allow) -> bool,
    effect: Effect,
    input: fn() -> Arc<JsonObject>,
    output: fn() -> Arc<JsonObject>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    ReadOnly,
    /// May change or remove what is there; doing it again changes nothing more.
    Idempotent,
    /// May do anything.
    Anything,
}

fn input<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    plain(&schema_for_input::<T>().expect("parameters are objects"))
}

fn output<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    plain(&schema_for_output::<T>())
}

/// Removes what only Rust knows: validators of other languages complain about formats such as `uint64`.
fn plain(schema: &JsonObject) -> Arc<JsonObject> {
    fn clean(value: &mut Value) {
        match value {
            Value::Object(object) => {
                let is_number = |format: &Value| {
                    format
                        .as_str()
                        .is_some_and(|format| format.starts_with("uint") || format.starts_with("int"))
                };
                if object.get("format").is_some_and(is_number) {
                    object.remove("format");
                }
                object.values_mut().for_each(clean);
            }
            Value::Array(values) => values.iter_mut().for_each(clean),
            _ => {}
        }
    }
    let mut schema = Value::Object(schema.clone());
    clean(&mut schema);
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => unreachable!("it was an object"),
    }
}

const TOOLS: &[Described] = &[
    Described {
        name: "list_environments",
        title: "List environments",
        description: "List the machines that the other tools can use, by name. The first one is the default.",
        needs: |_| true,
        effect: Effect::ReadOnly,
        input: schema_for_empty_input,
        output: output::<ListedEnvironments>,
    },
    Described {
        name: "run_command",
        title: "Run a command",
        description: "Run a shell command. Returns its output when it ends, or after `wait_seconds` while it goes on \
                      running: then use its name with `read_output`, `send_input` and `stop_process`. Processes keep \
                      running when the connection or this conversation ends, and are found again with `list_processes`. \
                      Long output is shortened in the middle; it says how much is left out.",
        needs: |allow| allow.commands,
        effect: Effect::Anything,
        input: input::<command::RunCommand>,
        output: output::<Report>,
    },
    Described {
        name: "read_output",
        title: "Read the output of a process",
        description: "Return what a process has written since the last call, and whether it still runs. Waits for its end, \
                      or for a text (`wait_for`), or for silence (`silence_seconds`), up to `wait_seconds`.",
        needs: |allow| allow.commands,
        effect: Effect::ReadOnly,
        input: input::<command::ReadOutput>,
        output: output::<Report>,
    },
    Described {
        name: "send_input",
        title: "Write to a process",
        description: "Write text to the input of a process that was started with `input` `pipe` or `terminal`, and return \
                      what it writes then.",
        needs: |allow| allow.commands,
        effect: Effect::Anything,
        input: input::<command::SendInput>,
        output: output::<Report>,
    },
    Described {
        name: "stop_process",
        title: "Stop a process",
        description: "End a process and everything that it started, or send it a signal. Returns its last output.",
        needs: |allow| allow.commands,
        effect: Effect::Anything,
        input: input::<command::StopProcess>,
        output: output::<Report>,
    },
    Described {
        name: "list_processes",
        title: "List processes",
        description: "List processes by name, with their commands and whether they still run: those of this conversation, \
                      of earlier ones and of people.",
        needs: |allow| allow.commands,
        effect: Effect::ReadOnly,
        input: input::<command::ListProcesses>,
        output: output::<command::ListedProcesses>,
    },
    Described {
        name: "read_file",
        title: "Read a file",
        description: "Return the lines of a text file, and the hash of its content for `if_match`.",
        needs: |allow| allow.read_files,
        effect: Effect::ReadOnly,
        input: input::<files::ReadFile>,
        output: output::<files::FileText>,
    },
    Described {
        name: "write_file",
        title: "Write a file",
        description: "Write a whole file, in one step that readers see completely or not at all. Creates missing \
                      directories. With `if_match`, only if nobody else has changed it.",
        needs: |allow| allow.write_files,
        effect: Effect::Idempotent,
        input: input::<files::WriteFile>,
        output: output::<files::WrittenFile>,
    },
    Described {
        name: "edit_file",
        title: "Edit a file",
        description: "Replace exact pieces of text in a file. All edits are made, or none. Fails if somebody else changes \
                      the file at the same time.",
        needs: |allow| allow.write_files && allow.read_files,
        effect: Effect::Anything,
        input: input::<files::EditFile>,
        output: output::<files::WrittenFile>,
    },
    Described {
        name: "list_directory",
        title: "List a directory",
        description: "List the entries of a directory, and with `depth` those of the directories below it.",
        needs: |allow| allow.read_files,
        effect: Effect::ReadOnly,
        input: input::<files::ListDirectory>,
        output: output::<files::Listing>,
    },
    Described {
        name: "search_files",
        title: "Search files",
        description: "Find lines in files with a regular expression (`pattern`), or files by name (`glob` alone). Leaves out \
                      binary files and what `.gitignore` excludes, and says so.",
        needs: |allow| allow.read_files,
        effect: Effect::ReadOnly,
        input: input::<search::SearchFiles>,
        output: output::<search::Found>,
    },
    Described {
        name: "copy",
        title: "Copy files",
        description: "Copy a file or a directory, within an environment or from one to another. What is there already and \
                      the same is skipped.",
        needs: |allow| allow.write_files && allow.read_files,
        effect: Effect::Idempotent,
        input: input::<files::Copy>,
        output: output::<files::Copied>,
    },
];

impl Tools {
    /// Creates the tools that are allowed, on these environments; the first one is the default.
    ///
    /// # Panics
    ///
    /// If there is no environment.
    pub fn new(environments: Vec<Environment>, allow: Allow) -> Self {
        assert!(!environments.is_empty(), "a model needs an environment");
        let followed = StdMutex::default();
        let shared = Shared { environments, allow, followed, is_closing: AtomicBool::new(false) };
        Self { shared: Arc::new(shared), cancellations: Arc::default() }
    }

    /// Returns the same tools for another client.
    pub(crate) fn for_client(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), cancellations: Arc::default() }
    }

    /// Declares that this program ends: from now on, the end of a connection cancels no call.
    pub fn begin_close(&self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.shared.is_closing.load(Ordering::Relaxed)
    }

    /// Disconnects from all environments; processes keep running.
    pub async fn close(&self) {
        self.begin_close();
        for environment in &self.shared.environments {
            // One that does not respond must not hold up the end.
            let _ = tokio::time::timeout(CLOSE_PATIENCE, environment.close()).await;
        }
    }

    /// Returns the descriptions of the allowed tools.
    pub(crate) fn list(&self) -> Vec<Tool> {
        let allowed = TOOLS.iter().filter(|tool| (tool.needs)(self.shared.allow));
        allowed.map(Described::tool).collect()
    }

    /// Calls a tool; `None` if there is no such tool.
    pub(crate) async fn call(&self, name: &str, arguments: JsonObject, call: &Call) -> Option<Answer> {
        let tool = TOOLS.iter().find(|tool| tool.name == name)?;
        if !(tool.needs)(self.shared.allow) {
            return None;
        }
        Some(match tool.name {
            "list_environments" => Ok(self.list_environments()),
            "run_command" => with(arguments, |params| self.run_command(params, call)).await,
            "read_output" => with(arguments, |params| self.read_output(params, call)).await,
            "send_input" => with(arguments, |params| self.send_input(params, call)).await,
            "stop_process" => with(arguments, |params| self.stop_process(params, call)).await,
            "list_processes" => with(arguments, |params| self.list_processes(params)).await,
            "read_file" => with(arguments, |params| self.read_file(params)).await,
            "write_file" => with(arguments, |params| self.write_file(params)).await,
            "edit_file" => with(arguments, |params| self.edit_file(params)).await,
            "list_directory" => with(arguments, |params| self.list_directory(params)).await,
            "search_files" => with(arguments, |params| self.search_files(params, call)).await,
            _ => Box::pin(with(arguments, |params| self.copy(params, call))).await,
        })
    }

    fn list_environments(&self) -> Answered {
        let names = self.shared.environments.iter().map(|environment| environment.name().to_owned());
        let environments: Vec<_> = names.collect();
        let (default, others) = environments.split_first().expect("there is one, see `Tools::new`");
        let text =
            others.iter().fold(format!("{default} (default)"), |text, other| format!("{text}\n{other}"));
        Answered::new(text, &ListedEnvironments { environments })
    }

    /// Returns the environment with this name, or the default one.
    fn environment(&self, name: Option<&str>) -> Result<&Environment, Problem> {
        let environments = &self.shared.environments;
        let Some(name) = name else { return Ok(&environments[0]) };
        environments.iter().find(|environment| environment.name() == name).ok_or_else(|| {
            let names: Vec<_> = environments.iter().map(Environment::name).collect();
            Problem::new(format!("there is no environment `{name}`"))
                .with_hint(format!("choose one of: {}", names.join(", ")))
        })
    }

    /// Returns where the model is in the output of a process.
    fn followed(&self, environment: &str, process: &ProcessRef) -> Arc<Mutex<Followed>> {
        let mut followed = self.shared.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if followed.len() >= MAX_FOLLOWED {
            followed.retain(|_, followed| Arc::strong_count(followed) > 1);
        }
        Arc::clone(followed.entry(key(environment, process)).or_default())
    }

    fn forget(&self, environment: &str, process: &ProcessRef) {
        let mut followed = self.shared.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.remove(&key(environment, process));
    }
}

fn key(environment: &str, process: &ProcessRef) -> Key {
    (environment.to_owned(), process.session_id().to_owned(), process.process_id().to_owned())
}

/// Decodes the arguments of a call and makes it.
async fn with<P: DeserializeOwned, F: Future<Output = Answer>>(
    arguments: JsonObject,
    tool: impl FnOnce(P) -> F,
) -> Answer {
    let params = serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        Problem::new(format!("the arguments are wrong: {error}"))
            .with_hint("see the input schema of the tool")
    })?;
    tool(params).await
}

impl Described {
    fn tool(&self) -> Tool {
        let is_read_only = self.effect == Effect::ReadOnly;
        let annotations = ToolAnnotations::with_title(self.title)
            .read_only(is_read_only)
            .destructive(!is_read_only)
            .idempotent(self.effect != Effect::Anything)
            // A command can reach anything; files are on known machines.
            .open_world(self.effect == Effect::Anything && self.name != "edit_file");
        Tool::new(Cow::Borrowed(self.name), Cow::Borrowed(self.description), (self.input)())
            .with_raw_output_schema((self.output)())
            .with_annotations(annotations)
    }
}
