//! `remex serve`: listeners, logs, signals, and the orderly end.

mod base;
mod greeting;
mod passed;

use std::{
    io::{self, Read},
    net::SocketAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use remex_rpc::{Inherited, ListenAddress, Listener};
use remex_server::{Auth, Config, Limits, Server};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
};

use crate::{
    failure::{Failure, Kind},
    runtime,
    text::duration,
};
use greeting::{Greeting, Token};

/// Sent by Linux to who writes beyond the limit on the size of files.
const SIGXFSZ: i32 = 25;

/// Flags of `remex serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Where to listen: `stdio`, `ws://IP:PORT` (port 0 picks a free one), `unix:///path`, or `systemd` for the sockets
    /// that it passes; repeatable
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:0")]
    listen: Vec<String>,

    /// How WebSocket clients prove who they are; needed on every address that is not loopback
    #[arg(long, value_name = "METHOD")]
    ws_auth: Option<AuthMethod>,

    /// SHA-256 of the capability token, 64 hexadecimal digits
    #[arg(long, value_name = "HEX", conflicts_with = "ws_token_file")]
    ws_token_sha256: Option<String>,

    /// File that holds the capability token itself
    #[arg(long, value_name = "PATH")]
    ws_token_file: Option<PathBuf>,

    /// How many starts, lists, file or HTTP requests of one connection run at once; the others wait
    #[arg(long, value_name = "N", default_value = "256")]
    concurrent_requests: NonZeroUsize,

    /// End when standard input closes, for servers that a parent program starts
    #[arg(long)]
    exit_on_stdin_close: bool,

    /// How long processes get between TERM and KILL when the server ends, such as `500ms` or `5s`
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    shutdown_grace: Duration,

    /// The longest a session may ask to live without a connection, such as `24h`, or `forever`
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = lifetime)]
    max_detach_ttl: Lifetime,

    /// End when there was no connection and nothing running for this long, such as `10m`; what has ended counts until
    /// its output is forgotten, a day after its end
    #[arg(long, value_name = "TIME", value_parser = duration)]
    exit_when_idle: Option<Duration>,

    /// How long a client may read nothing while answers wait for it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration, hide = true)]
    stall_timeout: Duration,

    /// Leave the starter's tree and terminal, so that their end is not this server's
    #[arg(long, hide = true)]
    background: Option<Background>,

    /// What to log on stderr: a level (`error` … `trace`) or a filter such as `remex_server=debug`
    #[arg(long, value_name = "FILTER", env = "REMEX_LOG", default_value = "warn")]
    log: String,

    #[command(flatten)]
    base: base::BaseFlags,
}

const EXAMPLES: &str = "\
Examples:
  On a free port of loopback; the first line printed is its URL:
    remex serve
  For programs of the same user:
    remex serve --listen unix://$HOME/remex.sock
  For one client on stdin and stdout, such as ssh:
    remex serve --listen stdio
  For other machines, with a token:
    remex serve --listen ws://0.0.0.0:0 --ws-auth capability-token --ws-token-file token.txt

SIGTERM and SIGINT end the server in order:
no new work, processes ended, clients told; a second one skips the grace.

HTTP requests for clients go through the proxies in http_proxy, https_proxy, all_proxy and no_proxy,
and trust the roots of the host, or those in SSL_CERT_FILE and SSL_CERT_DIR.
CODEX_HOME is where clients are told that the user's configuration of Codex is.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AuthMethod {
    /// `Authorization: Bearer TOKEN` on the upgrade
    CapabilityToken,
}

/// The two steps of a server into the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Background {
    /// Start another one and go: who started us is not its parent.
    Fork,
    /// Be that other one, in a session of its own.
    Lead,
}

#[derive(Clone, Copy, Debug)]
enum Lifetime {
    UpTo(Duration),
    Forever,
}

/// What to serve, where, and until when.
struct Plan {
    addresses: Vec<ListenAddress>,
    inherited: Vec<Inherited>,
    config: Config,
    exit_on_stdin_close: bool,
    exit_when_idle: Option<Duration>,
    greeting: Greeting,
}

/// Longer than anything runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Serves until a signal, the end of stdio, the end of the parent, or the end of all work.
///
/// Ends the program with `exit_code` where the host has no room for the threads of the runtime.
pub(crate) fn run(flags: &Flags, exit_code: u8) -> Result<(), Failure> {
    let (passed, named): (Vec<_>, Vec<_>) = flags.listen.iter().partition(|url| *url == "systemd");
    let addresses = named.iter().map(|url| ListenAddress::from_str(url)).collect::<Result<Vec<_>, _>>();
    let addresses = addresses.map_err(|error| Failure::sentence(Kind::Usage, &error.to_string()))?;
    match flags.background {
        None => {}
        Some(Background::Fork) => return Ok(fork()?),
        Some(Background::Lead) => {
            rustix::process::setsid().context("cannot leave the terminal's session")?;
        }
    }
    start_log(&flags.log)?;
    flags.base.check()?;
    remex_server::raise_file_limit();
    remex_server::return_large_blocks();
    let inherited = if passed.is_empty() { Vec::new() } else { passed::take()? };
    let plan = plan(flags, addresses, inherited)?;
    let runtime = runtime::build(
        Builder::new_multi_thread()
            .enable_all()
            // They read and write standard streams that are files or terminals. Once there, they stay: the runtime
            // panics where it cannot have another one.
            .max_blocking_threads(16)
            .thread_keep_alive(FOREVER)
            // A flood keeps workers busy; new bytes of others must not wait for 61 turns of it.
            .event_interval(4)
            .thread_name("remex-worker"),
        exit_code,
    )?;
    let result = runtime.block_on(serve(plan));
    // A thread that still reads stdin must not hold up the end.
    runtime.shutdown_background();
    Ok(result?)
}

/// Starts this server once more, as nobody's child.
fn fork() -> anyhow::Result<()> {
    let args = std::env::args_os()
        .skip(1)
        .map(|arg| if arg == "--background=fork" { "--background=lead".into() } else { arg });
    let program = std::env::current_exe().context("cannot find this program")?;
    std::process::Command::new(program).args(args).spawn().context("cannot start the server")?;
    Ok(())
}

async fn serve(plan: Plan) -> anyhow::Result<()> {
    let server = Server::new(plan.config)?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    // Whoever listens to it does not die of it: a write beyond the limit is then an error like others.
    let _file_too_large = signal(SignalKind::from_raw(SIGXFSZ)).context("cannot wait for SIGXFSZ")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let has_stdio = plan.greeting.has_stdio;
    let watches_stdin = plan.exit_on_stdin_close && !has_stdio;
    let stdin = if watches_stdin { Some(stdin_closed()?) } else { None };
    let mut serving = JoinSet::new();
    for listener in listeners(&plan.addresses, plan.inherited).await? {
        plan.greeting.say(listener.address()).context("cannot print the address")?;
        serving.spawn(Arc::clone(&server).serve(listener));
    }
    if has_stdio {
        let (reader, writer) = remex_rpc::stdio();
        serving.spawn(Arc::clone(&server).serve_stdio(reader, writer));
    }
    tokio::select! {
        // Listeners serve for ever, so this is stdio alone having ended.
        () = async { while serving.join_next().await.is_some() {} } => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = ended(stdin) => {}
        () = idle(&server, plan.exit_when_idle) => {}
        () = server.give_memory_back() => {}
    }
    tokio::select! {
        () = server.shut_down() => {}
        () = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            server.hurry();
            std::future::pending::<()>().await;
        } => {}
    }
    serving.shutdown().await;
    Ok(())
}

async fn listeners(addresses: &[ListenAddress], inherited: Vec<Inherited>) -> anyhow::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for address in addresses.iter().filter(|address| **address != ListenAddress::Stdio) {
        listeners.push(Listener::bind(address).await?);
    }
    for socket in inherited {
        listeners.push(Listener::adopt(socket).context("cannot listen on a socket from systemd")?);
    }
    Ok(listeners)
}

/// Waits until there was nothing to do for that long, if that is to be the end.
async fn idle(server: &Server, time: Option<Duration>) {
    match time {
        Some(time) => server.idle(time).await,
        None => std::future::pending().await,
    }
}

/// Waits until standard input ends, if that is to be the end.
async fn ended(stdin: Option<oneshot::Receiver<()>>) {
    match stdin {
        Some(closed) => _ = closed.await,
        None => std::future::pending().await,
    }
}

/// Returns what is told when standard input ends.
fn stdin_closed() -> anyhow::Result<oneshot::Receiver<()>> {
    let (closed, waiting) = oneshot::channel();
    // A thread of its own: a blocking read cannot be cancelled, and the runtime must not wait for it.
    std::thread::Builder::new()
        .name("remex-stdin".to_owned())
        .spawn(move || {
            let mut buffer = [0; 4096];
            while matches!(io::stdin().read(&mut buffer), Ok(len) if len > 0) {}
            let _ = closed.send(());
        })
        .map_err(|error| {
            anyhow!(
                "cannot start the thread that waits for the end of standard input: {error}; {}",
                runtime::HINT
            )
        })?;
    Ok(waiting)
}

fn plan(flags: &Flags, addresses: Vec<ListenAddress>, inherited: Vec<Inherited>) -> Result<Plan, Failure> {
    let auth = auth(flags)?;
    for address in &addresses {
        if let ListenAddress::WebSocket(socket) = address {
            check_exposure(socket, &auth)?;
        }
    }
    for socket in &inherited {
        if let Inherited::Tcp(socket) = socket {
            check_exposure(&socket.local_addr().context("cannot use a socket from systemd")?, &auth)?;
        }
    }
    let token = match (&auth, &flags.ws_token_file) {
        (Auth::Open, _) => Token::Nothing,
        (Auth::Token(_), Some(path)) => Token::File(path.clone()),
        (Auth::Token(_), None) => Token::Secret,
    };
    let has_stdio = addresses.contains(&ListenAddress::Stdio);
    Ok(Plan {
        addresses,
        inherited,
        config: config(flags, auth),
        exit_on_stdin_close: flags.exit_on_stdin_close,
        exit_when_idle: flags.exit_when_idle,
        greeting: Greeting { has_stdio, token },
    })
}

fn config(flags: &Flags, auth: Auth) -> Config {
    let at_once = flags.concurrent_requests.get();
    let defaults = Limits::default();
    let limits = Limits {
        concurrent_requests: at_once,
        file_requests: defaults.file_requests.min(at_once),
        http_requests: defaults.http_requests.min(at_once),
        shutdown_grace: flags.shutdown_grace,
        stalled_writer: flags.stall_timeout,
        detach_ttl_max: match flags.max_detach_ttl {
            Lifetime::UpTo(time) => Some(time),
            Lifetime::Forever => None,
        },
        ..defaults
    };
    let mut config = Config { limits, auth, ..remex::surroundings() };
    config.host_env.retain(|(name, _)| !passed::VARIABLES.iter().any(|variable| name == variable));
    config
}

/// Refuses to open a port to the network without authentication.
fn check_exposure(socket: &SocketAddr, auth: &Auth) -> Result<(), Failure> {
    if *auth == Auth::Open && !socket.ip().is_loopback() {
        return Err(Failure::usage(
            format!(
                "cannot listen on ws://{socket} without authentication: everybody who reaches it could run commands here"
            ),
            "add `--ws-auth capability-token --ws-token-file PATH`, or listen on 127.0.0.1",
        ));
    }
    Ok(())
}

fn auth(flags: &Flags) -> Result<Auth, Failure> {
    let given = (&flags.ws_token_sha256, &flags.ws_token_file);
    match (flags.ws_auth, given) {
        (None, (None, None)) => Ok(Auth::Open),
        (None, _) => Err(Failure::usage(
            "a token without `--ws-auth capability-token` would protect nothing",
            "add that flag",
        )),
        (Some(AuthMethod::CapabilityToken), (Some(hex), _)) => Ok(Auth::Token(digest(hex)?)),
        (Some(AuthMethod::CapabilityToken), (None, Some(path))) => Ok(Auth::for_token(&token(path)?)),
        (Some(AuthMethod::CapabilityToken), (None, None)) => Err(Failure::usage(
            "`--ws-auth capability-token` needs the token",
            "add `--ws-token-file PATH` or `--ws-token-sha256 HEX`",
        )),
    }
}

fn digest(hex: &str) -> Result<[u8; 32], Failure> {
    let wrong = || {
        Failure::usage(
            format!("`--ws-token-sha256 {hex}` is not a SHA-256 digest"),
            "give 64 hexadecimal digits",
        )
    };
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(digest)
}

fn token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let shown = path.display();
        let todo = match error.kind() {
            io::ErrorKind::NotFound => {
                let file = crate::text::quoted(&shown.to_string());
                format!("make one with `(umask 077 && head -c 32 /dev/urandom | base64 > {file})`, or check the path")
            }
            _ => "check the path and its permissions".to_owned(),
        };
        anyhow!("cannot read the token file `{shown}`: {error}; {todo}")
    })?;
    let token = text.trim();
    if token.is_empty() {
        bail!("the token file `{}` is empty; put the token into it", path.display());
    }
    Ok(token.to_owned())
}

fn start_log(filter: &str) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter).map_err(|error| {
        Failure::usage(format!("`--log {filter}` is not a filter: {error}"), "use a level such as `info`")
    })?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false).init();
    Ok(())
}

fn lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "forever" { Ok(Lifetime::Forever) } else { duration(text).map(Lifetime::UpTo) }
}
