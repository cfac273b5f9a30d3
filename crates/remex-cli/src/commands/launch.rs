//! Starting a command where a person wants it: the name, the directory, the environment, how long it may be left alone.
//!
//! Start at [`Launch`].

use std::{
    ffi::OsString,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    path::PathBuf,
    time::Duration,
};

use remex_client::{
    Client, ErrorKind, Options, Process,
    process::{Inherit, Input, Overflow, Retain, Secrets, State},
};

use crate::{
    console::{interrupt, terminal},
    remote::{
        endpoint::{CLIENT_NAME, Endpoint, EndpointKind},
        processes::Processes,
        reconnect,
    },
    render::{
        failure::{Failure, Kind},
        text,
    },
};

/// How long a cut may last before a command that somebody waits for is given up, here and there.
const CUT: Duration = Duration::from_secs(300);

/// How much output is kept of what was left running.
const LEFT_BYTES: u64 = 16 << 20;

/// How long that is kept after the end.
const LEFT_FOR: Duration = Duration::from_secs(24 * 3600);

/// How much output is kept of what somebody waits for, beyond what has arrived.
const WAITED_BYTES: u64 = 4 << 20;

/// What to start, and how.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) argv: Vec<OsString>,
    pub(crate) cwd: Option<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) terminal: bool,
    pub(crate) input: Input,
    pub(crate) timeout: Option<Duration>,
    pub(crate) name: Option<String>,
    pub(crate) stay: Stay,
}

/// What becomes of the command without us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It waits for us through a cut, and ends if we do not come back.
    Waited,
    /// It stays until it ends, like a terminal that may be closed and come back to.
    Kept,
    /// It stays until it ends, and nobody waits for its output.
    Left,
}

/// A command that was started, in a session of its own.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) client: Client,
    pub(crate) process: Process,
    /// What to call it.
    pub(crate) name: String,
}

impl Launch<'_> {
    pub(crate) async fn start(self) -> Result<Launched, Failure> {
        let (client, name) = interrupt::during(self.connect()).await?;
        match interrupt::during(self.start_in(&client, &name)).await {
            Ok(process) => Ok(Launched { client, process, name }),
            Err(failure) => {
                // What may have been started by then ends with it.
                reconnect::end(client).await;
                Err(failure)
            }
        }
    }

    /// Connects under the name that was asked for, or one that nobody has.
    async fn connect(&self) -> Result<(Client, String), Failure> {
        if let Some(name) = &self.name {
            return Ok((self.connect_as(name).await?, name.clone()));
        }
        loop {
            let name = name_for(&self.argv);
            match self.dial(&name).await {
                Ok(client) => return Ok((client, name)),
                Err(failure) if failure.refusal() == Some(ErrorKind::SessionNameTaken) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn connect_as(&self, name: &str) -> Result<Client, Failure> {
        let connected = self.dial(name).await;
        let Err(failure) = connected else { return connected };
        if failure.refusal() != Some(ErrorKind::SessionNameTaken) {
            return Err(failure);
        }
        self.make_room(name).await?;
        self.dial(name).await
    }

    async fn dial(&self, name: &str) -> Result<Client, Failure> {
        let kept = self.stay != Stay::Waited;
        let adapt = |options: &mut Options| {
            options.session_name = (kept || self.name.is_some()).then(|| name.to_owned());
            options.detach_ttl = Some(if kept { Duration::MAX } else { CUT });
            options.reconnect_timeout = CUT;
        };
        self.endpoint.connect(adapt).await
    }

    /// Ends the session that has the name if nothing in it runs any more.
    async fn make_room(&self, name: &str) -> Result<(), Failure> {
        let client = self.endpoint.connect(|_| {}).await?;
        let sessions = client.list_sessions().await?;
        let Some(holder) = sessions.into_iter().find(|session| session.name.as_deref() == Some(name)) else {
            return Ok(client.end().await?);
        };
        let processes = Processes::list(&client).await?;
        let runs = |state| !matches!(state, State::Closed);
        let busy = holder.attached
            || processes
                .rows
                .iter()
                .any(|row| row.entry.session_id == holder.session_id && runs(row.entry.state));
        if busy {
            let _ = client.end().await;
            return Err(Failure::new(
                format!("cannot start `{name}`: something of that name runs already"),
                format!(
                    "choose another `--name`, look at it with `remex attach {name}`, or end it with `remex kill --tree {name}`"
                ),
            ));
        }
        client.end_session(holder.session_id).await?;
        Ok(client.end().await?)
    }

    async fn start_in(&self, client: &Client, name: &str) -> Result<Process, Failure> {
        if self.stay == Stay::Left && client.welcome().detach_ttl_ms == Some(0) {
            return Err(cannot_leave(&self.endpoint.name));
        }
        if self.stay != Stay::Waited {
            tidy(client).await?;
        }
        let (program, args) = self
            .argv
            .split_first()
            .ok_or_else(|| Failure::usage("there is no command to run", "add it after `--`"))?;
        let mut command = client.command(program).args(args).id(name);
        command = match self.endpoint.kind {
            EndpointKind::InProcess => command.inherit(Inherit::All).secrets(Secrets::Inherited),
            // A server that was started long ago has the environment of then.
            EndpointKind::UserServer => own_env()
                .into_iter()
                .fold(command.inherit(Inherit::None), |command, (name, value)| command.env(name, value)),
            EndpointKind::Remote => command,
        };
        if self.terminal {
            let (rows, cols) = terminal::size();
            let term = std::env::var("TERM").ok().filter(|term| !term.is_empty());
            command = command.terminal(rows, cols).env("TERM", term.as_deref().unwrap_or("xterm-256color"));
        }
        for (variable, value) in &self.env {
            command = command.env(variable, value);
        }
        if let Some(directory) = self.directory(client)? {
            command = command.cwd(directory);
        }
        if let Some(limit) = self.timeout {
            command = command.timeout(limit);
        }
        command.input(self.input).retain(self.retain()).start().await.map_err(|error| {
            let failure = Failure::from(error);
            match program.to_str() {
                Some(line) if failure.kind() == Kind::ProgramNotFound && is_line(line, args) => {
                    failure.hint(format!(
                        "it is not run through a shell: remove the quotes, or use `sh -c {}`",
                        text::quoted(line)
                    ))
                }
                _ => failure,
            }
        })
    }

    fn retain(&self) -> Retain {
        match self.stay {
            Stay::Waited => Retain { bytes: Some(WAITED_BYTES), after_close: None, overflow: Overflow::Hold },
            Stay::Kept | Stay::Left => Retain {
                bytes: Some(LEFT_BYTES),
                after_close: Some(LEFT_FOR),
                overflow: if self.stay == Stay::Left { Overflow::Evict } else { Overflow::Hold },
            },
        }
    }

    /// Returns the directory to run in; `None` for the server's own.
    fn directory(&self, client: &Client) -> Result<Option<OsString>, Failure> {
        if self.endpoint.kind == EndpointKind::Remote {
            let there = self.cwd.as_deref().map(|path| Endpoint::path_there(client, path)).transpose()?;
            return Ok(there.map(OsString::from));
        }
        let here = std::env::current_dir().map_err(|error| {
            Failure::io("tell the current directory", &error).hint("change to a directory that is there")
        })?;
        let directory = self.cwd.as_ref().map_or_else(|| here.clone(), |path| here.join(at_home(path)));
        Ok(Some(directory.into_os_string()))
    }
}

/// Ends sessions of earlier runs of this program in which nothing is remembered any more.
async fn tidy(client: &Client) -> Result<(), Failure> {
    for session in client.list_sessions().await? {
        if session.processes == 0 && !session.attached && session.client_name == CLIENT_NAME {
            // Somebody else may be tidying up, too.
            let _ = client.end_session(session.session_id).await;
        }
    }
    Ok(())
}

/// Puts the home in the place of `~`, as the other places do.
fn at_home(path: &str) -> PathBuf {
    let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    match (path.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home,
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}

/// Tells whether a whole command line was given as the name of the program.
fn is_line(program: &str, args: &[OsString]) -> bool {
    args.is_empty() && program.contains(char::is_whitespace)
}

/// Says that a place ends what was started when the connection ends.
pub(crate) fn cannot_leave(endpoint: &str) -> Failure {
    Failure::of(
        Kind::Failed,
        format!("cannot leave anything running on {endpoint}: it ends everything with its connection"),
        "let its program be `remex proxy` instead of `remex serve --listen stdio`, or connect to a socket",
    )
}

fn own_env() -> Vec<(String, String)> {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text).collect()
}

/// Makes a name that is easy to type: the program's, and six letters, of which the first few will do.
fn name_for(argv: &[OsString]) -> String {
    const MOST: usize = 20;
    let program = argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    let stem = program.rsplit('/').next().unwrap_or_default();
    let stem: String = stem
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(*letter))
        .take(MOST)
        .collect();
    let stem = if stem.is_empty() { "run".to_owned() } else { stem };
    let random = RandomState::new().build_hasher().finish();
    format!("{stem}-{:06x}", random & 0xff_ffff)
}
