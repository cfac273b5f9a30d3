//! What a model can do: the tools, their descriptions and their names.
//!
//! Start at [`Tools`].

mod again;
mod command;
mod copy;
mod edit;
mod files;
mod listing;
mod patch;
mod search;

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remex_base::lock;
use remex_client::process::ProcessRef;
use rmcp::{
    handler::server::{common::schema_for_empty_input, tool::schema_for_input},
    model::{JsonObject, Tool, ToolAnnotations},
};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::{
    answer::{Answer, ToolError, ToolResult},
    call::{Call, Cancellations},
    environment::Environment,
    output::OutputPosition,
};

/// How long the end of a connection may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// How many positions in the output of processes are remembered.
const MAX_POSITIONS: usize = 10_000;

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
    positions: StdMutex<HashMap<Key, Arc<Mutex<OutputPosition>>>>,
    is_closing: AtomicBool,
}

/// Environment, session and process.
type Key = (String, String, String);

/// What `list_environments` returns.
#[derive(Debug, Serialize)]
struct ListedEnvironments {
    /// The first one is the default.
    environments: Vec<String>,
}

/// One tool: its permissions, description, effect and arguments.
struct ToolSpec {
    kind: Kind,
    name: &'static str,
    title: &'static str,
    description: &'static str,
    needs: fn(Allow) -> bool,
    effect: Effect,
    input: fn() -> Arc<JsonObject>,
}

/// Which tool it is: a call of each has an arm in [`Tools::call`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ListEnvironments,
    RunCommand,
    ReadOutput,
    SendInput,
    StopProcess,
    ListProcesses,
    ReadFile,
    WriteFile,
    EditFile,
    ApplyPatch,
    ListDirectory,
    SearchFiles,
    Copy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    ReadOnly,
    /// Changes nothing, but returns each piece of output only once.
    Consumes,
    /// May change or remove existing data; repeating the call has no further effect.
    Idempotent,
    /// May do anything.
    Anything,
}

fn input<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    plain(&schema_for_input::<T>().expect("parameters are objects"))
}

/// Removes what only Rust knows, what every model knows, and what takes room without saying anything.
fn plain(schema: &JsonObject) -> Arc<JsonObject> {
    fn clean(value: &mut Value, is_schema: bool) {
        let Value::Object(object) = value else { return };
        if !is_schema {
            object.values_mut().for_each(|property| clean(property, true));
            return;
        }
        for word in ["$schema", "title", "format", "default", "minimum"] {
            object.remove(word);
        }
        // An argument that may be left out need not be null; `null` is accepted all the same.
        if let Some(Value::Array(types)) = object.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                object.insert("type".to_owned(), only);
            }
        }
        for (word, value) in object.iter_mut() {
            match (word.as_str(), value) {
                ("properties", value) => clean(value, false),
                ("items", value) => clean(value, true),
                ("anyOf" | "oneOf", Value::Array(values)) => {
                    values.iter_mut().for_each(|value| clean(value, true));
                }
                _ => {}
            }
        }
    }
    let mut schema = Value::Object(schema.clone());
    clean(&mut schema, true);
    if let Value::Object(schema) = &mut schema {
        // That of the type, which the description of the tool says as well.
        schema.remove("description");
    }
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => unreachable!("it was an object"),
    }
}

const TOOLS: &[ToolSpec] = &[
    ToolSpec {
        kind: Kind::ListEnvironments,
        name: "list_environments",
        title: "List environments",
        description: "List the machines to work on; the first one is the default `environment`.",
        needs: |_| true,
        effect: Effect::ReadOnly,
        input: empty_input,
    },
    ToolSpec {
        kind: Kind::RunCommand,
        name: "run_command",
        title: "Run a command",
        description: "Run a command line in `bash`, or `sh` where there is none. Each call has a new shell: `cd` does not \
                      persist, so use `cwd`. After `wait_seconds` it goes on in the background, also when \
                      this conversation ends: use its name with `read_output`, `send_input` and `stop_process`.",
        needs: |allow| allow.commands,
        effect: Effect::Anything,
        input: input::<command::RunCommand>,
    },
    ToolSpec {
        kind: Kind::ReadOutput,
        name: "read_output",
        title: "Read the output of a process",
        description: "Return what a process has written since the last call. Waits for its end, text (`wait_for`) or \
                      silence (`silence_seconds`), up to `wait_seconds`. Or return a part of all output by \
                      `first_line`, `offset` or `search`.",
        needs: |allow| allow.commands,
        effect: Effect::Consumes,
        input: input::<command::ReadOutput>,
    },
    ToolSpec {
        kind: Kind::SendInput,
        name: "send_input",
        title: "Write to a process",
        description: "Write text to a process with `input` `pipe` or `terminal`, and return what it writes then.",
        needs: |allow| allow.commands,
        effect: Effect::Anything,
        input: input::<command::SendInput>,
    },
    ToolSpec {
        kind: Kind::StopProcess,
        name: "stop_process",
        title: "Stop a process",
        description: "End a process with everything that it started, or send it a signal. Returns its last output.",
        needs: |allow| allow.commands,
        effect: Effect::Anything,
        input: input::<command::StopProcess>,
    },
    ToolSpec {
        kind: Kind::ListProcesses,
        name: "list_processes",
        title: "List processes",
        description: "List processes by name: those of this conversation, of earlier ones and of people.",
        needs: |allow| allow.commands,
        effect: Effect::ReadOnly,
        input: input::<listing::ListProcesses>,
    },
    ToolSpec {
        kind: Kind::ReadFile,
        name: "read_file",
        title: "Read a file",
        description: "Return numbered lines of a text file, and the hash for `if_match`; or an image.",
        needs: |allow| allow.read_files,
        effect: Effect::ReadOnly,
        input: input::<files::ReadFile>,
    },
    ToolSpec {
        kind: Kind::WriteFile,
        name: "write_file",
        title: "Write a file",
        description: "Write a whole file in one step. Creates missing directories.",
        needs: |allow| allow.write_files,
        effect: Effect::Idempotent,
        input: input::<files::WriteFile>,
    },
    ToolSpec {
        kind: Kind::EditFile,
        name: "edit_file",
        title: "Edit a file",
        description: "Replace exact pieces of text in a file: all edits, or none.",
        needs: |allow| allow.write_files && allow.read_files,
        effect: Effect::Anything,
        input: input::<edit::EditFile>,
    },
    ToolSpec {
        kind: Kind::ApplyPatch,
        name: "apply_patch",
        title: "Apply a patch",
        description: "Change, add and delete several files with one patch. Nothing is changed unless all of it fits.",
        needs: |allow| allow.write_files && allow.read_files,
        effect: Effect::Anything,
        input: input::<patch::ApplyPatch>,
    },
    ToolSpec {
        kind: Kind::ListDirectory,
        name: "list_directory",
        title: "List a directory",
        description: "List a directory, and with `depth` those below it.",
        needs: |allow| allow.read_files,
        effect: Effect::ReadOnly,
        input: input::<files::ListDirectory>,
    },
    ToolSpec {
        kind: Kind::SearchFiles,
        name: "search_files",
        title: "Search files",
        description: "Find lines in files (`pattern`), or files by name (`glob` alone). Leaves out binary files and what \
                      `.gitignore` excludes, and says so.",
        needs: |allow| allow.read_files,
        effect: Effect::ReadOnly,
        input: input::<search::SearchFiles>,
    },
    ToolSpec {
        kind: Kind::Copy,
        name: "copy",
        title: "Copy files",
        description: "Copy a file or directory, also to another environment.",
        needs: |allow| allow.write_files && allow.read_files,
        effect: Effect::Idempotent,
        input: input::<copy::Copy>,
    },
];

fn empty_input() -> Arc<JsonObject> {
    plain(&schema_for_empty_input())
}

impl Tools {
    /// Creates the tools that are allowed, on these environments; the first one is the default.
    ///
    /// # Panics
    ///
    /// If there is no environment.
    pub fn new(environments: Vec<Environment>, allow: Allow) -> Self {
        assert!(!environments.is_empty(), "a model needs an environment");
        let positions = StdMutex::default();
        let shared = Shared { environments, allow, positions, is_closing: AtomicBool::new(false) };
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
            // An unresponsive environment must not delay the exit.
            let _ = tokio::time::timeout(CLOSE_PATIENCE, environment.close()).await;
        }
    }

    /// Returns the descriptions of the allowed tools.
    pub(crate) fn list(&self) -> Vec<Tool> {
        let allowed = TOOLS.iter().filter(|tool| (tool.needs)(self.shared.allow));
        allowed.map(ToolSpec::tool).collect()
    }

    /// Calls a tool; `None` if there is no such tool.
    pub(crate) async fn call(&self, name: &str, arguments: JsonObject, call: &Call) -> Option<Answer> {
        let tool = TOOLS.iter().find(|tool| tool.name == name)?;
        if !(tool.needs)(self.shared.allow) {
            return None;
        }
        Some(match tool.kind {
            Kind::ListEnvironments => Ok(self.list_environments()),
            Kind::RunCommand => Box::pin(with(arguments, |params| self.run_command(params, call))).await,
            Kind::ReadOutput => with(arguments, |params| self.read_output(params, call)).await,
            Kind::SendInput => with(arguments, |params| self.send_input(params, call)).await,
            Kind::StopProcess => with(arguments, |params| self.stop_process(params, call)).await,
            Kind::ListProcesses => with(arguments, |params| self.list_processes(params)).await,
            Kind::ReadFile => with(arguments, |params| self.read_file(params)).await,
            Kind::WriteFile => with(arguments, |params| self.write_file(params)).await,
            Kind::EditFile => with(arguments, |params| self.edit_file(params)).await,
            Kind::ApplyPatch => with(arguments, |params| self.apply_patch(params)).await,
            Kind::ListDirectory => with(arguments, |params| self.list_directory(params)).await,
            Kind::SearchFiles => Box::pin(with(arguments, |params| self.search_files(params, call))).await,
            Kind::Copy => Box::pin(with(arguments, |params| self.copy(params, call))).await,
        })
    }

    fn list_environments(&self) -> ToolResult {
        let names = self.shared.environments.iter().map(|environment| environment.name().to_owned());
        let environments: Vec<_> = names.collect();
        let (default, others) = environments.split_first().expect("there is one, see `Tools::new`");
        let text =
            others.iter().fold(format!("{default} (default)"), |text, other| format!("{text}\n{other}"));
        ToolResult::new(text, &ListedEnvironments { environments })
    }

    /// Returns the environment with this name, or the default one.
    fn environment(&self, name: Option<&str>) -> Result<&Environment, ToolError> {
        let environments = &self.shared.environments;
        let Some(name) = name else { return Ok(&environments[0]) };
        environments.iter().find(|environment| environment.name() == name).ok_or_else(|| {
            let names: Vec<_> = environments.iter().map(Environment::name).collect();
            ToolError::new(format!("there is no environment `{name}`"))
                .with_hint(format!("choose one of: {}", names.join(", ")))
        })
    }

    /// Returns where the model is in the output of a process.
    fn position(&self, environment: &str, process: &ProcessRef) -> Arc<Mutex<OutputPosition>> {
        let mut positions = lock(&self.shared.positions);
        if positions.len() >= MAX_POSITIONS {
            positions.retain(|_, position| Arc::strong_count(position) > 1);
        }
        let new = || Arc::new(Mutex::new(OutputPosition::new(process.clone())));
        Arc::clone(positions.entry(key(environment, process)).or_insert_with(new))
    }

    fn forget(&self, environment: &str, process: &ProcessRef) {
        lock(&self.shared.positions).remove(&key(environment, process));
    }
}

fn key(environment: &str, process: &ProcessRef) -> Key {
    (environment.to_owned(), process.session_id().to_owned(), process.process_id().to_owned())
}

/// Decodes the arguments of a call and makes it.
async fn with<P: DeserializeOwned, F: Future<Output = Answer>>(
    mut arguments: JsonObject,
    tool: impl FnOnce(P) -> F,
) -> Answer {
    // Strict schemas require every argument, and allow null.
    arguments.retain(|_, value| !value.is_null());
    match serde_json::from_value(Value::Object(arguments.clone())) {
        Ok(params) => tool(params).await,
        Err(error) => Err(misfit::<P>(&arguments, &error.to_string())),
    }
}

/// Names the argument that does not fit: the one without which there would be another error, or none.
fn misfit<P: DeserializeOwned>(arguments: &JsonObject, error: &str) -> ToolError {
    let culprit = arguments.keys().find(|name| {
        let mut others = arguments.clone();
        others.remove(name.as_str());
        serde_json::from_value::<P>(Value::Object(others))
            .err()
            .is_none_or(|other| other.to_string() != error)
    });
    let message = match culprit {
        Some(name) if !error.contains(&format!("`{name}`")) => {
            format!("the argument `{name}` is wrong: {error}")
        }
        _ => format!("the arguments are wrong: {error}"),
    };
    ToolError::new(message).with_hint("see the input schema of the tool")
}

impl ToolSpec {
    fn tool(&self) -> Tool {
        let is_read_only = matches!(self.effect, Effect::ReadOnly | Effect::Consumes);
        let annotations = ToolAnnotations::with_title(self.title)
            .read_only(is_read_only)
            .destructive(!is_read_only)
            .idempotent(matches!(self.effect, Effect::ReadOnly | Effect::Idempotent))
            // A command can reach anything; files are on known machines.
            .open_world(
                self.effect == Effect::Anything && !matches!(self.kind, Kind::EditFile | Kind::ApplyPatch),
            );
        Tool::new(Cow::Borrowed(self.name), Cow::Borrowed(self.description), (self.input)())
            .with_annotations(annotations)
    }
}
