//! `remex mcp`: tools for models, over the Model Context Protocol.

use std::{
    convert::Infallible,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use remex::environments::server_token;
use remex_client::{
    Client, Options, Prompts,
    environment::{Id, LocalInclusion},
    process::{Inherit, Secrets},
};
use remex_mcp::{
    Allow, Environment, Tools,
    http::{Http, Token},
    serve_stdio,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use super::{
    Outcome,
    launch::{confine, own_env},
};
use crate::{
    args::{
        mcp::{Allowed, Flags},
        sandbox::Confine,
    },
    remote::{
        endpoint::{DefaultEndpoint, Endpoint, configured_environments, default_endpoint},
        local_server,
    },
    render::{
        failure::{Failure, Kind},
        print,
    },
};

/// The name of this machine.
const LOCAL: &str = "local";

/// How often the token file is read.
const TOKEN_CHECK: Duration = Duration::from_secs(1);

/// How often an unusable token file is reported.
const COMPLAINT_PERIOD: Duration = Duration::from_secs(60);

/// Printed when this is started on a terminal.
const FOR_PEOPLE: &str = "\
this is a server for agents: an MCP client starts it and speaks JSON with it; there is nothing to type here
  hint: add it to an agent, for example with `claude mcp add remex -- remex mcp` (docs/agents.md has the lines for others); \
Ctrl-C ends it";

pub(crate) async fn run(flags: &Flags) -> Outcome {
    // Before a model uses it, with paths as they are.
    confine::sandbox(&flags.confine, |path| Ok(path.into()))?;
    let tools = Tools::new(environments(flags)?, allow(&flags.allow));
    let serving = async {
        match flags.listen {
            None => Box::pin(serve_stdio(tools.clone())).await.map_err(|error| {
                let hint =
                    "start it from an MCP client, such as `npx @modelcontextprotocol/inspector remex mcp`";
                Failure::new("cannot serve on stdin and stdout", hint).because(error)
            }),
            Some(_) => serve_http(flags, tools.clone()).await,
        }
    };
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| Failure::io("wait for SIGTERM", &error))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|error| Failure::io("wait for SIGINT", &error))?;
    if flags.listen.is_none() && std::io::stdin().is_terminal() {
        print::note(FOR_PEOPLE);
    }
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        // Before connections end, so that calls are not taken for cancelled.
        tools.begin_close();
    };
    tokio::select! {
        served = serving => served?,
        () = signalled => tools.close().await,
    }
    Ok(0)
}

async fn serve_http(flags: &Flags, tools: Tools) -> Result<(), Failure> {
    let (Some(address), Some(path)) = (flags.listen, &flags.token_file) else { return Ok(()) };
    let token = read_token(path)?;
    #[cfg(target_os = "linux")]
    let _hidden = hide_token(path);
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::io(&format!("listen on {address}"), &error).with_hint("choose another address")
    })?;
    let http = Http::new(listener, &token).hosts(flags.host.iter().cloned());
    #[cfg(target_os = "linux")]
    let http = http.check_peers(remex_server::check_unconfined);
    let address = http.address().map_err(|error| Failure::io("find the address", &error))?;
    print::out(format!("http://{address}{}\n", remex_mcp::http::PATH))?;
    let token = http.token();
    tokio::select! {
        never = http.serve(tools) => match never {},
        never = follow_token(path.clone(), token) => match never {},
    }
}

/// Hides the token file from every sandbox of this user, also those of servers, until the record is dropped.
#[cfg(target_os = "linux")]
fn hide_token(path: &Path) -> remex_server::CredentialRecord {
    let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    remex_server::CredentialRecord::keep(&remex::config_from_env().own_directories, &[file])
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let token = server_token(path).map_err(|error| {
        Failure::bare(Kind::Usage, format!("cannot use the token file `{}`", path.display()))
            .because(error.message)
            .with_hint(error.hint.as_deref().unwrap_or("create a file that contains only the token"))
    })?;
    if token.is_empty() {
        let what = format!("the token file `{}` is empty", path.display());
        return Err(Failure::usage(what, "write a long random token to it"));
    }
    Ok(token)
}

/// Reads the token file every second; errors are reported once a minute, and the previous token stays valid.
async fn follow_token(path: PathBuf, token: Token) -> Infallible {
    let mut said = None::<Instant>;
    loop {
        tokio::time::sleep(TOKEN_CHECK).await;
        let reading = path.clone();
        // The file system may hang, and others must be served meanwhile.
        let read =
            tokio::task::spawn_blocking(move || read_token(&reading).map_err(|failure| failure.message()));
        match read.await {
            Ok(Ok(text)) => {
                said = None;
                token.replace(&text);
            }
            Ok(Err(why)) if said.is_none_or(|at| at.elapsed() >= COMPLAINT_PERIOD) => {
                said = Some(Instant::now());
                print::note(format!("{why}; the previous token stays valid"));
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

fn allow(groups: &[Allowed]) -> Allow {
    if groups.is_empty() {
        return Allow::everything();
    }
    let mut allow = Allow::nothing();
    allow.commands = groups.contains(&Allowed::Commands);
    allow.read_files = groups.contains(&Allowed::ReadFiles);
    allow.write_files = groups.contains(&Allowed::WriteFiles);
    allow
}

/// Returns the environments that a model may use, the default one first.
fn environments(flags: &Flags) -> Result<Vec<Environment>, Failure> {
    let mut names: Vec<String> = flags.on.iter().filter(|word| !word.is_empty()).cloned().collect();
    if names.is_empty() {
        let configured = configured_environments()?;
        let definitions = &configured.definitions;
        names.extend(definitions.default.iter().map(Id::to_string));
        let has_local = definitions.local == LocalInclusion::Included && local_server::check().is_ok();
        names.extend(has_local.then(|| LOCAL.to_owned()));
        names.extend(definitions.environments.iter().map(|definition| definition.id.to_string()));
        if names.is_empty() {
            local_server::check()?;
            names.push(LOCAL.to_owned());
        }
    }
    let mut environments: Vec<Environment> = Vec::new();
    for name in names {
        if environments.iter().any(|known| known.name() == name) {
            continue;
        }
        let environment = if name == LOCAL { this_machine(flags)? } else { remote(&name)? };
        environments.push(confined(environment, &flags.confine));
    }
    Ok(environments)
}

/// Confines the commands and file requests of an environment, if flags request it.
fn confined(environment: Environment, flags: &Confine) -> Environment {
    if flags.sandbox.is_none() && flags.net.is_empty() {
        return environment;
    }
    let flags = flags.clone();
    environment.confine(move |absolute| {
        let path = |path: &str| {
            let absolute = absolute(path).map_err(|why| Failure::bare(Kind::Usage, why))?;
            Ok(absolute.into_os_string())
        };
        confine::sandbox(&flags, path).map_err(|failure| failure.message())
    })
}

fn remote(name: &str) -> Result<Environment, Failure> {
    let endpoint = Endpoint::named(name)?;
    Ok(Environment::new(name, move |options| {
        let endpoint = endpoint.clone();
        async move { connect(&endpoint, options).await.map_err(|failure| failure.message()) }
    }))
}

/// Returns this machine; commands have the environment of this program.
fn this_machine(flags: &Flags) -> Result<Environment, Failure> {
    let directory = std::env::current_dir().map_err(|error| {
        Failure::io("determine the current directory", &error).with_hint("change to an existing directory")
    })?;
    let otherwise = if flags.ephemeral { DefaultEndpoint::InProcess } else { DefaultEndpoint::UserServer };
    let environment = Environment::new(LOCAL, move |options| async move {
        let found = default_endpoint(otherwise).await.map_err(|failure| failure.message())?;
        let endpoint = found.ok_or("there is no server on this machine")?;
        connect(&endpoint, options).await.map_err(|failure| failure.message())
    });
    let is_ephemeral = flags.ephemeral;
    let environment = environment.directory(directory).prepare(move |command| {
        if is_ephemeral {
            return command.inherit(Inherit::All).secrets(Secrets::Inherited);
        }
        // A long-running server may have an outdated environment.
        own_env()
            .into_iter()
            .fold(command.inherit(Inherit::None), |command, (name, value)| command.env(name, value))
    });
    Ok(environment)
}

async fn connect(endpoint: &Endpoint, wanted: Options) -> Result<Client, Failure> {
    endpoint
        .connect(|options| {
            options.name = wanted.name;
            options.detach_ttl = wanted.detach_ttl;
            options.reconnect_timeout = wanted.reconnect_timeout;
            // Standard input belongs to the protocol.
            options.prompts = Prompts::Refuse;
        })
        .await
}
