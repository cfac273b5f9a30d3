//! `remex serve`: listeners, logs, signals, and a graceful shutdown.

mod bearer;
mod greeting;
mod systemd;

use std::{
    io::{self, Read as _},
    net::SocketAddr,
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use remex_rpc::{
    Inherited, ListenAddress, Listener,
    tls::{ServerFiles, ServerTls},
};
use remex_server::{AuditConfig, Auth, Config, Limits, MetricsAccess, Scopes, Server, UserGrant};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
};

use crate::{
    args::serve::{Background, Flags, Lifetime},
    commands::runtime,
    render::failure::{Failure, Kind},
};
use greeting::{Greeting, Token};

/// Sent by Linux to a process that exceeds the file size limit.
const SIGXFSZ: i32 = 25;

/// What to serve, and for how long.
struct Plan {
    addresses: Vec<ListenAddress>,
    inherited: Vec<Inherited>,
    config: Config,
    tls: Option<Arc<ServerTls>>,
    metrics_listen: Option<SocketAddr>,
    exit_on_stdin_close: bool,
    exit_when_idle: Option<Duration>,
    greeting: Greeting,
}

/// Practically infinite.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Serves until a signal, the end of stdio, the exit of the parent, or the idle timeout.
///
/// Exits with `exit_code` if the threads of the runtime cannot be created.
pub(crate) fn run(flags: &Flags, exit_code: u8) -> Result<(), Failure> {
    let (passed, named): (Vec<_>, Vec<_>) = flags.listen.iter().partition(|url| *url == "systemd");
    let addresses = named.iter().map(|url| ListenAddress::from_str(url)).collect::<Result<Vec<_>, _>>();
    let addresses = addresses.map_err(|error| Failure::usage(error.message(), error.hint()))?;
    match flags.background {
        None => {}
        Some(Background::Fork) => return fork(),
        Some(Background::Lead) => {
            rustix::process::setsid()
                .map_err(|error| cannot("leave the terminal's session")(error.into()))?;
        }
    }
    start_log(&flags.log)?;
    flags.base.check()?;
    remex_server::raise_file_limit();
    remex_server::return_large_blocks();
    let inherited = if passed.is_empty() { Vec::new() } else { systemd::take()? };
    let plan = plan(flags, addresses, inherited)?;
    let runtime = runtime::build(
        Builder::new_multi_thread()
            .enable_all()
            // These threads read and write standard streams that are files or terminals. They are kept alive, because the
            // runtime panics if it cannot create another one.
            .max_blocking_threads(16)
            .thread_keep_alive(FOREVER)
            // Under load, I/O events of other connections must not wait for 61 polls of a busy one.
            .event_interval(4)
            .thread_name("remex-worker"),
        exit_code,
    )?;
    let result = runtime.block_on(serve(plan));
    // A thread blocked reading stdin must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Starts this server again as an orphan.
fn fork() -> Result<(), Failure> {
    let args = std::env::args_os()
        .skip(1)
        .map(|arg| if arg == "--background=fork" { "--background=lead".into() } else { arg });
    let program = std::env::current_exe().map_err(cannot("find this program"))?;
    std::process::Command::new(program).args(args).spawn().map_err(cannot("start the server"))?;
    Ok(())
}

async fn serve(plan: Plan) -> Result<(), Failure> {
    let server = Server::new(plan.config).map_err(|error| Failure::new(error.message(), error.hint()))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot("wait for SIGTERM"))?;
    // A handler keeps the signal from killing the server: exceeding the limit is then an ordinary write error.
    let _file_too_large = signal(SignalKind::from_raw(SIGXFSZ)).map_err(cannot("wait for SIGXFSZ"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot("wait for SIGINT"))?;
    let has_stdio = plan.greeting.has_stdio;
    let watches_stdin = plan.exit_on_stdin_close && !has_stdio;
    let stdin = if watches_stdin { Some(stdin_closed()?) } else { None };
    let mut serving = JoinSet::new();
    for listener in listeners(&plan.addresses, plan.inherited).await? {
        plan.greeting.say(listener.address()).map_err(cannot("print the address"))?;
        match (listener.address(), &plan.tls) {
            (ListenAddress::SecureWebSocket(_), Some(tls)) => {
                serving.spawn(Arc::clone(&server).serve_tls(listener, Arc::clone(tls)));
            }
            _ => {
                serving.spawn(Arc::clone(&server).serve(listener));
            }
        }
    }
    if let Some(address) = plan.metrics_listen {
        let bound = Listener::bind(&ListenAddress::WebSocket(address)).await;
        let listener = bound.map_err(|error| Failure::new(error.message(), error.hint()))?;
        tracing::info!(address = %listener.address(), "serving metrics");
        serving.spawn(Arc::clone(&server).serve_metrics(listener));
    }
    if has_stdio {
        let (reader, writer) = remex_rpc::stdio();
        serving.spawn(Arc::clone(&server).serve_stdio(reader, writer));
    }
    tokio::select! {
        // Listeners serve forever, so this means that stdio has ended.
        () = async { while serving.join_next().await.is_some() {} } => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = ended(stdin) => {}
        () = idle(&server, plan.exit_when_idle) => {}
        () = server.return_freed_memory() => {}
    }
    tokio::select! {
        () = server.shut_down() => {}
        () = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            server.skip_grace_periods();
            std::future::pending::<()>().await;
        } => {}
    }
    serving.shutdown().await;
    Ok(())
}

async fn listeners(addresses: &[ListenAddress], inherited: Vec<Inherited>) -> Result<Vec<Listener>, Failure> {
    let mut listeners = Vec::new();
    for address in addresses.iter().filter(|address| **address != ListenAddress::Stdio) {
        let bound = Listener::bind(address).await;
        listeners.push(bound.map_err(|error| Failure::new(error.message(), error.hint()))?);
    }
    for socket in inherited {
        listeners.push(Listener::adopt(socket).map_err(cannot("listen on a socket from systemd"))?);
    }
    Ok(listeners)
}

/// Returns a function that converts an I/O error to a failure.
fn cannot(action: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::bare(Kind::Failed, format!("cannot {action}")).because(error.to_string())
}

/// Waits for the idle timeout, if there is one.
async fn idle(server: &Server, time: Option<Duration>) {
    match time {
        Some(time) => server.wait_until_idle(time).await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of standard input, if the server exits with it.
async fn ended(stdin: Option<oneshot::Receiver<()>>) {
    match stdin {
        Some(closed) => _ = closed.await,
        None => std::future::pending().await,
    }
}

/// Returns a receiver that is notified at the end of standard input.
fn stdin_closed() -> Result<oneshot::Receiver<()>, Failure> {
    let (closed, waiting) = oneshot::channel();
    // A dedicated thread: a blocking read cannot be cancelled, and the runtime must not wait for it.
    std::thread::Builder::new()
        .name("remex-stdin".to_owned())
        .spawn(move || {
            let mut buffer = [0; 4096];
            while matches!(io::stdin().read(&mut buffer), Ok(len) if len > 0) {}
            let _ = closed.send(());
        })
        .map_err(|error| Failure::no_thread("waits for the end of standard input", &error))?;
    Ok(waiting)
}

fn plan(flags: &Flags, addresses: Vec<ListenAddress>, inherited: Vec<Inherited>) -> Result<Plan, Failure> {
    let auth = auth(flags)?;
    let tls = tls(flags)?;
    for address in &addresses {
        match address {
            ListenAddress::WebSocket(socket) => check_exposure(socket, &auth)?,
            ListenAddress::SecureWebSocket(socket) if flags.tls_client_ca.is_none() => {
                check_exposure(socket, &auth)?;
            }
            _ => {}
        }
        if matches!(address, ListenAddress::SecureWebSocket(_)) && tls.is_none() {
            return Err(Failure::usage(
                format!("cannot listen on {address} without a certificate"),
                "add `--tls-cert PATH --tls-key PATH`",
            ));
        }
    }
    for socket in &inherited {
        if let Inherited::Tcp(socket) = socket {
            check_exposure(&socket.local_addr().map_err(cannot("use a socket from systemd"))?, &auth)?;
        }
    }
    let token = match &flags.ws_token_file {
        _ if !auth.requires_bearer() => Token::Nothing,
        Some(path) => Token::File(path.clone()),
        None => Token::Secret,
    };
    let has_stdio = addresses.contains(&ListenAddress::Stdio);
    Ok(Plan {
        addresses,
        inherited,
        config: config(flags, auth),
        tls,
        metrics_listen: flags.metrics_listen,
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
    let metrics = if flags.metrics_open { MetricsAccess::Open } else { MetricsAccess::Authenticated };
    let audit = flags
        .audit
        .clone()
        .map(|path| AuditConfig { is_required: flags.audit_required, ..AuditConfig::new(path) });
    let mut config = Config { limits, auth, metrics, audit, ..remex::config_from_env() };
    config.host_env.retain(|(name, _)| !systemd::VARIABLES.iter().any(|variable| name == variable));
    config
}

/// Refuses to open a port to the network without authentication.
fn check_exposure(socket: &SocketAddr, auth: &Auth) -> Result<(), Failure> {
    if !auth.requires_bearer() && !socket.ip().is_loopback() {
        return Err(Failure::usage(
            format!("cannot listen on ws://{socket} without authentication"),
            "add `--ws-auth capability-token --ws-token-file PATH`, or listen on 127.0.0.1",
        )
        .because("anyone who can reach it could run commands here"));
    }
    Ok(())
}

fn auth(flags: &Flags) -> Result<Auth, Failure> {
    let users: Result<_, _> = flags.allow_user.iter().map(|name| user(name)).collect();
    let bearer = bearer::load(flags)?;
    Ok(Auth {
        tokens: bearer.tokens,
        files: bearer.files,
        users: users?,
        origins: flags.allow_origin.clone().into(),
        hosts: flags.allow_host.clone(),
        ..Auth::default()
    })
}

/// Returns the grant for a user of this host, given by name or number.
fn user(name: &str) -> Result<UserGrant, Failure> {
    let uid = match name.parse() {
        Ok(uid) => Some(uid),
        Err(_) => uid_of(name)?,
    };
    let uid = uid.ok_or_else(|| {
        Failure::usage(format!("no user `{name}` on this host"), "check the name, or give the user id")
    })?;
    Ok(UserGrant { uid, name: name.to_owned(), scopes: Scopes::all() })
}

/// Looks a user up; `getent` also knows the users of directory services.
fn uid_of(name: &str) -> Result<Option<u32>, Failure> {
    let output = std::process::Command::new("getent").args(["passwd", "--", name]).output();
    let entries = match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(_) => std::fs::read_to_string("/etc/passwd").map_err(cannot("read /etc/passwd"))?,
    };
    let mut fields = entries.lines().map(|line| line.split(':').collect::<Vec<_>>());
    Ok(fields.find(|fields| fields.first() == Some(&name)).and_then(|fields| fields.get(2)?.parse().ok()))
}

fn tls(flags: &Flags) -> Result<Option<Arc<ServerTls>>, Failure> {
    let (Some(certificate), Some(key)) = (&flags.tls_cert, &flags.tls_key) else { return Ok(None) };
    let (certificate, key) = (certificate.clone(), key.clone());
    let files = ServerFiles { certificate, key, client_ca: flags.tls_client_ca.clone() };
    let tls = ServerTls::load(files).map_err(|error| {
        Failure::new(error.to_string(), "check the files of `--tls-cert`, `--tls-key` and `--tls-client-ca`")
    })?;
    Ok(Some(Arc::new(tls)))
}

fn start_log(filter: &str) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter).map_err(|error| {
        Failure::usage(format!("`--log {filter}` is not a filter"), "use a level such as `info`")
            .because(error.to_string())
    })?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false).init();
    Ok(())
}
