//! Stories, and how our client tells them.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use remex_client::{
    Client, Command, Error, Process,
    fs::{ContentHash, Depth, IfMatch},
    process::{
        Event, Exit, Output, Overflow, Retain, SignalName, State, Stdio, Stream, TerminalSize, Until,
        WaitOutcome,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::data::{Got, Outcome, assert_gives, bytes, sha256};
use crate::support::{PATIENCE, Place};

/// A story as it is described.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Story {
    pub(crate) name: String,
    steps: Vec<Value>,
    faults: Option<bool>,
    /// What the faults of its network follow from.
    #[serde(skip)]
    pub(crate) seed: u64,
}

impl Story {
    /// Tells whether it can be told over a failing network.
    pub(crate) fn bears_faults(&self) -> bool {
        self.faults != Some(false)
    }

    /// Tells it with this client, which then ends its session.
    pub(crate) async fn tell(&self, client: Client, network: Network, web: &str) {
        let place = Place::new();
        let dir = place.path("").to_str().unwrap().trim_end_matches('/').to_owned();
        let teller =
            Teller { client: client.clone(), dir, web: web.to_owned(), network, processes: Mutex::default() };
        Arc::new(teller).tell(self.steps.clone(), None).await;
        client.end().await.unwrap();
    }
}

/// Whoever tells a story.
struct Teller {
    client: Client,
    dir: String,
    web: String,
    network: Network,
    processes: Mutex<BTreeMap<String, Arc<Process>>>,
}

/// Whether connections go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Smooth,
    Faulty,
}

impl Teller {
    /// Does these steps in order; those inside a repetition know its round.
    fn tell(
        self: Arc<Self>,
        steps: Vec<Value>,
        round: Option<u64>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            for step in steps {
                let step = self.fill_in(&step, round);
                let told = self.step(&step, round).await;
                match (&step["fails"], told) {
                    (Value::Null, told) => {
                        let outcome = told.unwrap_or_else(|error| panic!("{error}: {step:.300}"));
                        assert_gives(&outcome, &step["gives"], &step);
                    }
                    (_, Ok(outcome)) => panic!("{outcome:.300?} instead of an error: {step:.300}"),
                    (fails, Err(error)) => {
                        let kind = error.kind().map(|kind| json!(kind));
                        assert!(
                            fails["kind"].is_null() || kind.as_ref() == Some(&fails["kind"]),
                            "{error:?}: {step}"
                        );
                    }
                }
            }
        })
    }

    /// Does several lists of steps at the same time.
    async fn tell_together(self: &Arc<Self>, lists: impl IntoIterator<Item = (Vec<Value>, Option<u64>)>) {
        let mut told = JoinSet::new();
        for (steps, round) in lists {
            told.spawn(Arc::clone(self).tell(steps, round));
        }
        told.join_all().await;
    }

    /// Replaces what stands for something else; the steps of a repetition get theirs in their rounds.
    fn fill_in(&self, value: &Value, round: Option<u64>) -> Value {
        match value {
            Value::String(text) => {
                let mut text = text.replace("${DIR}", &self.dir).replace("${WEB}", &self.web);
                if let Some(round) = round {
                    text = text.replace("${N}", &round.to_string());
                }
                text.into()
            }
            Value::Array(values) => values.iter().map(|value| self.fill_in(value, round)).collect(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), self.fill_in(value, round))).collect()
            }
            other => other.clone(),
        }
    }

    async fn step(self: &Arc<Self>, step: &Value, round: Option<u64>) -> Result<Outcome, Error> {
        let names = step.as_object().unwrap().keys().map(String::as_str);
        let mut names = names.filter(|name| !["gives", "fails"].contains(name));
        let (Some(name), None) = (names.next(), names.next()) else { panic!("{step} is not one step") };
        let about = &step[name];
        match name {
            "together" => {
                let lists = about.as_array().unwrap().iter();
                self.tell_together(lists.map(|list| (array(list), round))).await;
                Ok(Outcome::new())
            }
            "repeat" => {
                let rounds = (1..=about["times"].as_u64().unwrap()).map(Some);
                if about["together"] == true {
                    self.tell_together(rounds.map(|round| (array(&about["steps"]), round))).await;
                } else {
                    for round in rounds {
                        Arc::clone(self).tell(array(&about["steps"]), round).await;
                    }
                }
                Ok(Outcome::new())
            }
            "start" | "run" | "attach" | "list" => self.start_or_find(name, about).await,
            "http" => self.http(about).await,
            _ if about["of"].is_string() => self.process_step(name, about).await,
            _ => self.file_step(name, about, round).await,
        }
    }

    fn process(&self, name: &Value) -> Arc<Process> {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(processes.get(text(name)).unwrap_or_else(|| panic!("nothing is known as {name}")))
    }

    fn remember(&self, name: &Value, process: Process) {
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.insert(text(name).to_owned(), Arc::new(process));
    }

    fn command(&self, about: &Value) -> Command {
        let mut command = match about["argv"].as_array() {
            Some(argv) => Command::new(text(&argv[0])).args(argv[1..].iter().map(text)),
            None => Command::shell(text(&about["shell"])),
        };
        command = command.cwd(about["cwd"].as_str().unwrap_or(&self.dir));
        for (name, value) in about["env"].as_object().into_iter().flatten() {
            command = command.env(name, text(value));
        }
        if about["input"] == "pipe" || about.get("stdin").is_some() {
            command = command.stdin(Stdio::Piped);
        }
        if let Some(size) = about.get("tty") {
            command = command.terminal(terminal_size(size));
        }
        if let Some(limit) = about.get("timeoutMs") {
            command = command.timeout(milliseconds(limit));
        }
        let mut retain = Retain::default();
        if let Some(bytes) = about["retainBytes"].as_u64() {
            retain = retain.bytes(bytes);
        }
        match (about["overflow"].as_str(), self.network) {
            (Some("evict"), _) => retain = retain.overflow(Overflow::Evict),
            (Some("hold"), _) | (None, Network::Faulty) => {
                retain = retain.overflow(Overflow::Hold).after_close(PATIENCE);
            }
            (None, Network::Smooth) => {}
            (Some(other), _) => panic!("`{other}` is no way to handle an overflow"),
        }
        command.retain(retain)
    }

    async fn start_or_find(&self, name: &str, about: &Value) -> Result<Outcome, Error> {
        match name {
            "start" => self.remember(&about["as"], self.command(about).start(&self.client).await?),
            "attach" => {
                let id = self.process(&about["of"]).id().to_owned();
                self.remember(&about["as"], self.client.process(id).await?);
            }
            "list" => {
                let listed = self.client.processes().await?;
                let ours = listed.iter().filter(|process| process.session_id == self.client.session_id());
                let running = ours.filter(|process| process.state == State::Running).count();
                return Ok([("running", running.into())].into());
            }
            _ => {
                let process = self.command(about).start(&self.client).await?;
                let stdin = about.get("stdin").map(bytes).unwrap_or_default();
                let Output { stdout, stderr, exit, .. } = process.communicate(&stdin).await?;
                let mut outcome = exited(&exit);
                outcome.extend([("stdout", Got::Data(stdout)), ("stderr", Got::Data(stderr))]);
                return Ok(outcome);
            }
        }
        Ok(Outcome::new())
    }

    async fn process_step(&self, name: &str, about: &Value) -> Result<Outcome, Error> {
        let process = self.process(&about["of"]);
        match name {
            "write" => process.write(&bytes(&about["data"])).await?,
            "closeInput" => process.close_stdin().await?,
            "output" => return output(&process).await,
            "lines" => {
                let (mut lines, mut said) = (process.lines(), Vec::new());
                while let Some(line) = lines.next().await? {
                    said.push(json!([line.stream, line.text]));
                }
                return Ok([("lines", said.into())].into());
            }
            "exit" => return Ok(exited(&process.wait().await?)),
            "waitFor" => {
                return Ok(waited(
                    process.wait_for(&Until::Output(text(&about["pattern"]).to_owned())).await?,
                ));
            }
            "waitForSilence" => {
                return Ok(waited(process.wait_for(&Until::Idle(milliseconds(&about["ms"]))).await?));
            }
            "signal" => process.signal(text(&about["name"]).parse::<SignalName>().unwrap()).await?,
            "terminate" => process.terminate(milliseconds(&about["graceMs"])).await?,
            "kill" => process.kill().await?,
            "resize" => process.resize(terminal_size(about)).await?,
            "snapshot" => {
                let snapshot = process.snapshot(about["maxBytes"].as_u64().unwrap()).await?;
                let stdout = snapshot.stdout.to_vec();
                return Ok([
                    ("stdoutStarts", Got::Start(stdout.clone())),
                    ("stdoutEnds", Got::End(stdout)),
                    ("truncated", snapshot.truncated.into()),
                ]
                .into());
            }
            other => panic!("`{other}` is no step"),
        }
        Ok(Outcome::new())
    }

    async fn file_step(
        self: &Arc<Self>,
        name: &str,
        about: &Value,
        round: Option<u64>,
    ) -> Result<Outcome, Error> {
        let fs = self.client.fs();
        let of = |member: &str| about[member].as_str().unwrap_or_else(|| panic!("no {member}: {about}"));
        match name {
            "writeFile" if about.get("ifHash").is_some() => {
                let believed = IfMatch::Content(ContentHash(sha256(&bytes(&about["ifHash"]))));
                fs.write(of("path"), bytes(&about["data"])).if_match(believed).atomic().await?;
            }
            "writeFile" => drop(fs.write(of("path"), bytes(&about["data"])).await?),
            "readFile" => return Ok([("data", Got::Data(fs.read(of("path")).await?.to_vec()))].into()),
            "metadata" => {
                let metadata = fs.metadata(of("path")).await?;
                let mode = metadata.mode.map(|mode| format!("{:o}", mode & 0o7777));
                return Ok([
                    ("kind", json!(metadata.kind).into()),
                    ("size", metadata.size.into()),
                    ("mode", mode.into()),
                ]
                .into());
            }
            "makeDirectory" => fs.create_dir_all(of("path")).await?,
            "listDirectory" => {
                let entries = fs.read_dir(of("path")).await?.into_iter();
                let mut names: Vec<String> = entries.map(|entry| entry.file_name).collect();
                names.sort();
                return Ok([("names", names.into())].into());
            }
            "copy" => fs.copy(of("from"), of("to")).recursive().await?,
            "rename" => fs.rename(of("from"), of("to")).await?,
            "link" => fs.symlink(of("target"), of("path")).await?,
            "remove" => fs.remove(of("path")).recursive().missing_ok().await?,
            "hash" => return Ok([("of", Got::Hash(fs.hash(of("path")).await?.hash.0))].into()),
            "upload" => {
                fs.upload(&bytes(&about["data"])[..], of("path")).await?;
            }
            "download" => {
                let mut data = Vec::new();
                fs.download(of("path"), &mut data).await?;
                return Ok([("data", Got::Data(data))].into());
            }
            "uploadTree" | "downloadTree" => {
                let report = match name {
                    "uploadTree" => fs.upload_tree(of("from"), of("to")).await?,
                    _ => fs.download_tree(of("from"), of("to")).await?,
                };
                assert!(report.is_complete(), "{:?}", report.failures);
                return Ok([("files", report.files.into()), ("unchanged", report.unchanged.into())].into());
            }
            "watch" => {
                let mut watch = fs.watch(of("path"), Depth::Everything).await?;
                Arc::clone(self).tell(array(&about["while"]), round).await;
                loop {
                    let changes = watch.next().await?;
                    let is_told =
                        changes.changes.iter().any(|change| change.path.to_string().ends_with(of("until")));
                    // A client that may have missed something is told so.
                    if is_told || changes.overflow {
                        break;
                    }
                }
            }
            other => panic!("`{other}` is no step"),
        }
        Ok(Outcome::new())
    }

    async fn http(&self, about: &Value) -> Result<Outcome, Error> {
        let mut request = self.client.http().request(text(&about["method"]), text(&about["url"]));
        if let Some(body) = about.get("body") {
            request = request.body(bytes(body));
        }
        let (status, method, body) = if about["stream"] == true {
            let mut answer = request.stream().await?;
            let mut body = Vec::new();
            while let Some(chunk) = answer.body.chunk().await? {
                body.extend_from_slice(&chunk);
            }
            (answer.status, answer.header("x-method").map(str::to_owned), body)
        } else {
            let answer = request.send().await?;
            (answer.status, answer.header("x-method").map(str::to_owned), answer.body.to_vec())
        };
        Ok([("status", status.into()), ("method", method.into()), ("body", Got::Data(body))].into())
    }
}

fn array(value: &Value) -> Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list")).clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn milliseconds(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap())
}

fn terminal_size(size: &Value) -> TerminalSize {
    let of = |member: &str| u16::try_from(size[member].as_u64().unwrap()).unwrap();
    TerminalSize::new(of("rows"), of("cols")).unwrap()
}

fn exited(exit: &Exit) -> Outcome {
    [("code", exit.code.into()), ("signal", exit.signal.clone().into()), ("cause", json!(exit.cause).into())]
        .into()
}

fn waited(outcome: WaitOutcome) -> Outcome {
    match outcome {
        WaitOutcome::Matched(found) => [("matched", Got::Data(found.bytes.to_vec()))].into(),
        WaitOutcome::Idle => [("silent", true.into())].into(),
        WaitOutcome::Exited(exit) => exited(&exit),
        other => panic!("{other:?}"),
    }
}

/// Takes all output from the beginning, and compares it with what the server has counted.
async fn output(process: &Process) -> Result<Outcome, Error> {
    let mut events = process.events();
    let (mut said, mut lost, mut produced) = (BTreeMap::<&str, Vec<u8>>::new(), 0, None);
    while let Some(event) = events.next().await? {
        match event {
            Event::Output(chunk) => {
                let stream = match chunk.stream {
                    Stream::Stdout => "stdout",
                    Stream::Stderr => "stderr",
                    _ => "terminal",
                };
                said.entry(stream).or_default().extend_from_slice(&chunk.bytes);
            }
            Event::Gap(gap) => lost += gap.bytes.unwrap(),
            Event::Closed(closed) => produced = closed.produced,
            _ => {}
        }
    }
    let arrived: u64 = said.values().map(|bytes| bytes.len() as u64).sum();
    let produced = produced.map(|produced| produced.stdout + produced.stderr + produced.pty);
    let mut take = |stream| Got::Data(said.remove(stream).unwrap_or_default());
    Ok([
        ("stdout", take("stdout")),
        ("stderr", take("stderr")),
        ("terminal", take("terminal")),
        ("lost", lost.into()),
        ("complete", (produced == Some(arrived + lost)).into()),
    ]
    .into())
}
