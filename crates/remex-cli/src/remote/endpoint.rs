//! The server that a command uses: in this process, the user's local server, or the one selected with `--on`.
//!
//! Start at [`Endpoint`].

mod remedy;

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use remex::environments::{self, Configured, Source, Warning, configured, token};
use remex_base::lock;
use remex_client::{
    Client, ConnectionState, Error, ErrorKind, Options, Prompts, SessionLost, Target, TraceContext,
    environment::{Definitions, Id, LocalInclusion},
    process::ProcessInfo,
};

use crate::{
    remote::{
        agent_link::{self, LentAgent},
        local_server, reconnect, ssh, user_server,
    },
    render::{
        failure::{Failure, Kind},
        finding::short,
        print, similar, text,
    },
};

/// How often to reconnect to the user's server if it exits just as this client connects, and the pause in between.
const RECONNECT_TRIES: u32 = 10;
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// The maximum pause between checks of the user's server while a lost connection is being re-established.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// If connecting takes longer than this, a hint explains how to share ssh logins.
const SLOW_LOGIN: Duration = Duration::from_secs(2);

/// The exit status of a remote shell that does not find the command.
const NO_SUCH_COMMAND: &str = "exit code 127";

/// The hint for an unreadable token file.
const NO_TOKEN_FILE: &str = "check the path, or create a file that contains only the token";

/// The client name that this program sends to servers.
pub(crate) const CLIENT_NAME: &str = "remex-cli";

/// The server that a command uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// The name of an environment, or an address.
    pub(crate) word: String,
    pub(crate) by: SelectedBy,
}

/// What selected a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectedBy {
    /// An argument, such as `--on build` or `build:path`.
    Argument,
    /// REMEX_ON, for a command that could ignore it with `--here`.
    Variable,
    /// REMEX_ON, for `:path`.
    VariableForPath,
    /// `remex env default`.
    Default,
}

impl SelectedBy {
    /// Adds to a failure where the name or address comes from, unless it was typed.
    fn explain(self, failure: Failure) -> Failure {
        match self {
            Self::Argument | Self::Default => failure,
            Self::Variable => failure.in_variable("REMEX_ON", "unset REMEX_ON, or ignore it with `--here`"),
            Self::VariableForPath => failure.in_variable("REMEX_ON", "unset REMEX_ON, or write `ENV:path`"),
        }
    }
}

/// Returns the environment that REMEX_ON or the default selects for all commands.
pub(crate) fn selected() -> Result<Option<Selected>, Failure> {
    if let Some(word) = std::env::var_os("REMEX_ON").filter(|word| !word.is_empty()) {
        let word = word.to_string_lossy().into_owned();
        return Ok(Some(Selected { word, by: SelectedBy::Variable }));
    }
    let default = default_environment()?;
    Ok(default.map(|id| Selected { word: id.to_string(), by: SelectedBy::Default }))
}

/// Returns the default environment of the environments file, unless it is this machine.
///
/// `REMEX_URL` and similar variables define an environment, but do not make it the default for commands.
pub(crate) fn default_environment() -> Result<Option<Id>, Failure> {
    let configured = configured_environments()?;
    let is_file = matches!(configured.source, Source::File(_));
    Ok(configured.definitions.default.filter(|id| is_file && *id != Id::local()))
}

/// The server of a command without `--on`, or with `--on local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultEndpoint {
    /// A server in this process.
    InProcess,
    /// The user's local server, started on demand.
    UserServer,
    /// The user's local server, if it is running.
    RunningUserServer,
}

/// A server, and how to connect to it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// Its name for messages.
    pub(crate) name: String,
    pub(crate) kind: EndpointKind,
    pub(crate) target: Target,
    /// How long to try to reconnect, if the environment sets it.
    reconnect: Option<Duration>,
    options: Options,
    /// The name of the link to the agent that logins forward.
    agent_link: Option<String>,
}

/// The source of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenFrom {
    Environment,
    /// The token of the environment is not read.
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointKind {
    /// A server in this process.
    InProcess,
    /// The user's local server.
    UserServer,
    /// Any other server.
    Remote,
}

/// Finds the server of a command without `--on`.
pub(crate) async fn default_endpoint(otherwise: DefaultEndpoint) -> Result<Option<Endpoint>, Failure> {
    match otherwise {
        DefaultEndpoint::InProcess => Endpoint::in_process().map(Some),
        DefaultEndpoint::UserServer => Ok(Some(Endpoint::user_server(user_server::ensure_running().await?))),
        DefaultEndpoint::RunningUserServer => Ok(user_server::running().await?.map(Endpoint::user_server)),
    }
}

impl Endpoint {
    /// Creates a server in this process; must be called within a runtime.
    pub(crate) fn in_process() -> Result<Self, Failure> {
        Ok(Self {
            name: "local".to_owned(),
            kind: EndpointKind::InProcess,
            target: local_server::in_process()?,
            reconnect: None,
            options: options(),
            agent_link: None,
        })
    }

    /// Returns the user's local server.
    pub(crate) fn user_server(socket: user_server::Socket) -> Self {
        Self {
            name: "local".to_owned(),
            kind: EndpointKind::UserServer,
            target: Target::unix(socket.path),
            reconnect: None,
            options: options(),
            agent_link: None,
        }
    }

    /// Finds the selected server; the token may come from a file.
    pub(crate) fn selected(selected: &Selected, token_file: Option<&Path>) -> Result<Self, Failure> {
        let Selected { word, by } = selected;
        let Some(path) = token_file else { return Self::named_with(word, *by, TokenFrom::Environment) };
        let token = token(path).map_err(|error| {
            Failure::bare(Kind::Usage, format!("cannot use the token file `{}`", path.display()))
                .because(error.message)
                .with_hint(error.hint.as_deref().unwrap_or(NO_TOKEN_FILE))
        })?;
        if token.is_empty() {
            let what = format!("the token file `{}` is empty", path.display());
            return Err(Failure::usage(what, "write the token to it"));
        }
        let mut endpoint = Self::named_with(word, *by, TokenFrom::Elsewhere)?;
        let Target::WebSocket(socket) = &mut endpoint.target else {
            return Err(Failure::usage(format!("`{word}` does not use a token"), "omit `--token-file`")
                .because("only `ws://` and `wss://` addresses do"));
        };
        socket.bearer = Some(token);
        Ok(endpoint)
    }

    /// Finds an environment by name, or parses an address.
    pub(crate) fn named(word: &str) -> Result<Self, Failure> {
        Self::named_with(word, SelectedBy::Argument, TokenFrom::Environment)
    }

    fn named_with(word: &str, by: SelectedBy, token: TokenFrom) -> Result<Self, Failure> {
        if word.contains("://") || word.starts_with('/') {
            let target = ssh::target(word).map_err(|failure| by.explain(failure))?;
            return Ok(Self {
                name: target.to_string(),
                kind: EndpointKind::Remote,
                target,
                reconnect: None,
                options: options(),
                agent_link: None,
            });
        }
        let environments = configured_environments()?;
        let id = Id::new(word).map_err(|_| {
            let what = format!("`{word}` is neither the name of an environment nor an address");
            let hint = if let Some(corrected) = ssh::with_slashes(word) {
                format!("write `{corrected}`")
            } else if word.contains(':') {
                format!("write `ws://{word}` for a server, or a name from `remex env list`")
            } else {
                format!(
                    "write `ssh://{word}` for an ssh host (`[ssh://{word}]:path` for a file there), \
                     `ws://host:port` for a server, or a name from `remex env list`"
                )
            };
            by.explain(Failure::usage(what, hint))
        })?;
        let token_error = environments.token_error(&id);
        print_warnings(environments.warnings.iter().filter(|warning| match warning {
            // It is reported as an error below.
            Warning::Token(mistake) => Some(mistake) != token_error,
            _ => true,
        }));
        if let Some(token_error) = token_error.filter(|_| token == TokenFrom::Environment) {
            let hint = token_error.hint().unwrap_or_else(|| {
                format!(
                    "write the token to that file, or choose another one with `remex env set {id} --token-file \
                     PATH`"
                )
            });
            return Err(Failure::new(token_error.message(), hint));
        }
        if id == Id::local() && environments.definitions.local == LocalInclusion::Included {
            return Self::in_process();
        }
        let Some(definition) = environments.definitions.find(&id) else {
            return Err(by.explain(unknown(word, &environments)));
        };
        let usual = options();
        // A program starts at once; the handshake through it takes the time.
        let of_program =
            definition.connect_timeout.filter(|_| matches!(definition.target, Target::Program(_)));
        Ok(Self {
            name: word.to_owned(),
            kind: EndpointKind::Remote,
            target: definition.target.clone(),
            reconnect: definition.reconnect_timeout,
            options: usual
                .clone()
                .connect_timeout(definition.connect_timeout.unwrap_or(usual.connect_timeout))
                .handshake_timeout(
                    definition.initialize_timeout.or(of_program).unwrap_or(usual.handshake_timeout),
                ),
            agent_link: None,
        })
    }

    /// Makes a path on the remote host absolute: relative to the working directory of the server, `~` is the home directory.
    pub(crate) fn remote_absolute(client: &Client, path: &str) -> Result<String, Failure> {
        let info = client.welcome().environment_info.as_ref();
        let (base, rest) = match path.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                (info.and_then(|info| info.user_home_dir.as_ref()), rest.trim_start_matches('/'))
            }
            _ => (info.and_then(|info| info.cwd.as_ref()), path),
        };
        if rest.starts_with('/') {
            return Ok(rest.to_owned());
        }
        let base = base.ok_or_else(|| {
            Failure::usage(format!("cannot resolve `{path}`"), "give an absolute path")
                .because("the server does not report its working directory")
        })?;
        let base = base.native().ok().and_then(|base| base.to_str()).ok_or_else(|| {
            Failure::usage(format!("cannot resolve `{path}`"), "give an absolute path")
                .because("the working directory of the server is not UTF-8")
        })?;
        let joined = Path::new(base).join(rest);
        Ok(joined.display().to_string())
    }

    /// Waits until a lost connection to the user's server is known to be permanent, and returns the reason.
    pub(crate) async fn server_gone(kind: EndpointKind, client: &Client) -> Failure {
        let mut conditions = client.connection_states();
        let is_disconnected =
            |condition: &ConnectionState| matches!(condition, ConnectionState::Reconnecting { .. });
        let mut pause = RECONNECT_PAUSE;
        while kind == EndpointKind::UserServer && conditions.wait_for(is_disconnected).await.is_ok() {
            match user_server::find().await {
                Ok(user_server::ServerStatus::Died | user_server::ServerStatus::Nothing)
                    if user_server::Socket::default_path().has_left_sessions() =>
                {
                    if let Err(failure) = user_server::ensure_running().await {
                        return failure;
                    }
                }
                Ok(user_server::ServerStatus::Died) => {
                    return user_server_lost(user_server::explain_stale_socket());
                }
                Ok(user_server::ServerStatus::Nothing) => {
                    return user_server_lost(
                        "your local remex server was stopped, and its processes were ended",
                    );
                }
                // It is exiting, a new one is already running, or the connection was lost for another reason.
                Ok(user_server::ServerStatus::Running(_)) | Err(_) => {
                    tokio::time::sleep(pause).await;
                    // A hanging server does not accept: each attempt takes a slot in its backlog.
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
        }
        std::future::pending().await
    }

    /// Explains a session that was lost because the user's server was replaced.
    pub(crate) fn explain(kind: EndpointKind, failure: Failure) -> Failure {
        match failure.loss() {
            Some(SessionLost::Forgotten { .. }) if kind == EndpointKind::UserServer => user_server_lost(
                "your local remex server is a new one: the one before died or was stopped, and the processes that it ran were \
                 ended",
            ),
            _ => failure,
        }
    }

    /// Lets every login forward the ssh agent; on this machine, commands use it anyway.
    pub(crate) fn forward_agent(&mut self) -> Result<(), Failure> {
        if self.kind == EndpointKind::Remote {
            self.agent_link = Some(agent_link::forward(&mut self.target)?);
        }
        Ok(())
    }

    /// Returns where commands on the host find the agent that is forwarded.
    pub(crate) fn agent_socket(&self, client: &Client) -> Result<Option<String>, Failure> {
        let link = self.agent_link.as_deref().map(agent_link::path);
        link.map(|path| Self::remote_absolute(client, &path)).transpose()
    }

    /// Returns the label of a command that looks for the agent that is forwarded.
    pub(crate) fn agent_label(&self) -> Option<(&'static str, &str)> {
        self.agent_link.as_deref().map(|name| (agent_link::LABEL, name))
    }

    /// Lets a process of an earlier client use the agent that is forwarded; `None` if there is none to lend.
    pub(crate) async fn lend_agent(
        &self,
        client: &Client,
        process: &ProcessInfo,
    ) -> Result<Option<LentAgent>, Failure> {
        let Some(own) = &self.agent_link else { return Ok(None) };
        let refused = || format!("cannot forward your ssh agent to `{}`", text::plain(&process.process_id));
        let link = process.labels.get(agent_link::LABEL).and_then(|name| agent_link::name(name).ok());
        let Some(link) = link else {
            let hint = "omit `-A`; `remex run -A` and `remex shell -A` start what can use it";
            return Err(Failure::usage(refused(), hint)
                .because("it was started without `-A`, so it looks for no agent"));
        };
        let path = Self::remote_absolute(client, &agent_link::path(&link))?;
        LentAgent::lend(client, path, own).await.map_err(|error| Failure::from(error).context(&refused()))
    }

    /// Returns how long to try to reconnect: set by a flag, or the environment, or the default.
    pub(crate) fn reconnect_window(&self, flag: Option<Duration>) -> Duration {
        self.asked_window(flag).unwrap_or(reconnect::DEFAULT_WINDOW)
    }

    /// Returns how long to try to reconnect, if a flag or the environment sets it.
    pub(crate) fn asked_window(&self, flag: Option<Duration>) -> Option<Duration> {
        flag.or(self.reconnect)
    }

    /// Connects; the session ends with its last process unless `adapt` changes that.
    pub(crate) async fn connect(&self, adapt: impl FnOnce(&mut Options)) -> Result<Client, Failure> {
        match self.dial(adapt).await {
            Err(error @ Error::TimedOut { .. }) if self.kind == EndpointKind::UserServer => {
                Err(user_server::not_answering(&user_server::Socket::default_path(), error).await)
            }
            connected => connected.map_err(|error| self.failure(error)),
        }
    }

    /// After a slow login, suggests sharing ssh logins to users at a terminal.
    fn advise(&self, took: Duration) {
        static ADVISED: AtomicBool = AtomicBool::new(false);
        if took < SLOW_LOGIN || !io::stderr().is_terminal() {
            return;
        }
        let Target::Program(program) = &self.target else { return };
        let Some(login) = program.ssh_login() else { return };
        if !ssh::shares_logins(&login) && !ADVISED.swap(true, Ordering::Relaxed) {
            print::note(format!(
                "connecting took {}; ssh can reuse one login: put `ControlMaster auto`, `ControlPath ~/.ssh/%C` and \
                 `ControlPersist 10m` for this host into ~/.ssh/config",
                short(took)
            ));
        }
    }

    /// Explains why connecting failed, with hints for the kind of endpoint.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        if let Error::TimedOut { what, after } = &error {
            return self.too_slow(what, *after);
        }
        if let Some(remedy) = remedy::remedy(&self.name, &error) {
            return Failure::from(error).with_hint(remedy);
        }
        let Error::ProgramEnded { status, .. } = &error else { return error.into() };
        if status == "signal SIGINT" {
            return Failure::signalled(128 + 2);
        }
        let login = match &self.target {
            Target::Program(program) => program.ssh_login(),
            _ => None,
        };
        if login.is_none() {
            return error.into();
        }
        match status.as_str() {
            NO_SUCH_COMMAND => {
                let hint = match Id::new(self.name.as_str()) {
                    Ok(id) => format!("install remex there with `remex env set {id} --install`"),
                    Err(_) => {
                        "install remex there with `remex env add NAME ssh://… --install`, and use NAME \
                               from then on"
                            .to_owned()
                    }
                };
                Failure::from(error).with_hint(hint)
            }
            _ => error.into(),
        }
    }

    /// Explains a connect timeout, and how to raise it.
    fn too_slow(&self, what: &str, after: Duration) -> Failure {
        let is_connecting = what == "connecting";
        let why = if is_connecting { "it" } else { what };
        let check = match &self.target {
            Target::Program(program) => format!("check that {program} connects to a remex server"),
            _ if is_connecting => "check the address, and that the host is up".to_owned(),
            _ => "the address accepts connections but does not respond; check that it is a remex server"
                .to_owned(),
        };
        let is_limit_of_environment = is_connecting || matches!(self.target, Target::Program(_));
        let hint = match Id::new(self.name.as_str()) {
            Ok(id) if is_limit_of_environment && !id.is_reserved() => {
                format!("{check}; `remex env set {id} --connect-timeout 30s` allows more time")
            }
            _ => check,
        };
        Failure::of(Kind::Unreachable, format!("cannot connect to `{}`", text::plain(&self.name)), hint)
            .because(format!("{why} took longer than {after:?}"))
    }

    /// Connects, and returns the original error.
    pub(crate) async fn dial(&self, adapt: impl FnOnce(&mut Options)) -> Result<Client, Error> {
        let mut options = self.options.clone();
        adapt(&mut options);
        let mut tries = 0;
        loop {
            let begun = Instant::now();
            let connected = Client::connect_with(self.target.clone(), options.clone()).await;
            if connected.is_ok() && options.prompts == Prompts::Allow {
                self.advise(begun.elapsed());
            }
            match connected {
                Err(error)
                    if self.kind == EndpointKind::UserServer
                        && tries < RECONNECT_TRIES
                        && is_leaving(&error) =>
                {
                    tries += 1;
                    // The server is exiting; the next attempt starts a new one.
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                    if user_server::ensure_running().await.is_err() {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
    }
}

fn user_server_lost(what: &str) -> Failure {
    Failure::of(Kind::Unreachable, what, "start your processes again with `remex run --detach -- COMMAND`")
}

/// Reads the environments, and prints warnings.
pub(crate) fn environments() -> Result<Configured, Failure> {
    let configured = configured_environments()?;
    print_warnings(&configured.warnings);
    Ok(configured)
}

/// Returns whether an environment with that name exists.
pub(crate) fn is_environment(word: &str) -> bool {
    let (Ok(id), Ok(configured)) = (Id::new(word), configured_environments()) else { return false };
    configured.definitions.find(&id).is_some()
}

pub(crate) fn configured_environments() -> Result<Configured, Failure> {
    configured(|name| std::env::var_os(name)).map_err(|error| unusable(Kind::Usage, &error))
}

/// Explains why the environments cannot be used; several errors in the file are printed one by one.
pub(crate) fn unusable(kind: Kind, error: &environments::Error) -> Failure {
    match error {
        environments::Error::Invalid(errors) => {
            let hint = |line| format!("correct line {line}, or see `remex env --help`");
            let errors = errors.0.iter();
            let errors =
                errors.map(|error| (error.message(), Some(error.hint().unwrap_or_else(|| hint(error.line)))));
            Failure::in_file(kind, errors)
        }
        _ => Failure::bare(kind, error.message()).with_hint_if_known(error.hint()),
    }
}

/// Prints warnings, each one once.
fn print_warnings<'a>(warnings: impl IntoIterator<Item = &'a Warning>) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = lock(&TOLD);
    for warning in warnings.into_iter().map(Warning::to_string) {
        if !told.contains(&warning) {
            print::note(&warning);
            told.insert(warning);
        }
    }
}

/// Returns whether the server is exiting after its idle timeout.
fn is_leaving(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. } | Error::Protocol { .. })
        || error.kind() == Some(ErrorKind::ShuttingDown)
}

fn unknown(word: &str, environments: &Configured) -> Failure {
    let Definitions { environments, local, .. } = &environments.definitions;
    let local = (*local == LocalInclusion::Included).then_some("local");
    let names: Vec<_> =
        local.into_iter().chain(environments.iter().map(|definition| definition.id.as_str())).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    if let Some(meant) = similar::nearest(word, names) {
        return Failure::of(
            Kind::NotFound,
            format!("unknown environment `{word}`; did you mean `{meant}`?"),
            format!("known: {known}; add another with `remex env add {word} ssh://user@host`"),
        );
    }
    Failure::of(
        Kind::NotFound,
        format!("unknown environment `{word}`; known: {known}"),
        format!(
            "add it with `remex env add {word} ssh://user@host` or `remex env add {word} ws://host:port`, or see \
             `remex env list`"
        ),
    )
}

fn options() -> Options {
    Options::default().name(CLIENT_NAME).prompts(Prompts::Allow).trace(trace_from_env())
}

/// Returns the trace that the caller of this program is part of; one that is not valid is ignored, as is usual.
fn trace_from_env() -> Option<TraceContext> {
    let state = std::env::var("TRACESTATE").ok();
    TraceContext::parse(&std::env::var("TRACEPARENT").ok()?, state.as_deref()).ok()
}
