//! `remex serve`: listeners, logs, signals, and a graceful shutdown.

mod bearer;
mod exposure;
mod greeting;
pub(super) mod handover;
mod keeper_scope;
mod log;
mod private;
mod rebind;
mod reload;
mod settings;
mod systemd;

use std::{
    ffi::OsStr,
    io::{self, Read as _},
    path::{Path, PathBuf},
    str::FromStr as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use remex::server_config::{ServerConfig, sandbox_floor};
use remex_rpc::{
    AddressError, Inherited, ListenAddress, Listener,
    tls::{ServerFiles, ServerTls, TlsError},
};
use remex_server::{AuditConfig, Auth, Config, MetricsAccess, Server, StateConfig};
use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
};

use crate::{
    args::serve::{Background, Flags},
    commands::{
        orphans::{self, OrphanReaper},
        runtime, validity,
    },
    remote::local_server,
    render::{
        failure::{Failure, Kind},
        finding::Verdict,
        print,
    },
};
use greeting::{ClientCertificates, Greeting, Tls, Token};
use handover::{HandedOver, Handover};
pub(crate) use log::EscapedLines;
use log::Log;
use reload::{Reloader, SetLog};

/// The address that stands for the sockets that systemd passes.
const SYSTEMD: &str = "systemd";

/// Sent by Linux to a process that exceeds the file size limit.
const SIGXFSZ: i32 = 25;

/// What to serve, and for how long.
struct Plan {
    addresses: Vec<ListenAddress>,
    inherited: Vec<Inherited>,
    server: Config,
    tls: Option<Arc<ServerTls>>,
    /// The settings in effect.
    config: ServerConfig,
    greeting: Greeting,
    /// The sockets and descriptors of the previous program, if this one replaces it.
    handed_over: Option<HandedOver>,
}

/// Practically infinite.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Serves until a signal, the end of stdio, the exit of the parent, or the idle timeout.
///
/// Exits with `exit_code` if the threads of the runtime cannot be created.
pub(crate) fn run(flags: &Flags, exit_code: u8) -> Result<(), Failure> {
    let flags = &flags.clone().with_absolute_config();
    let config = settings::effective(flags)?;
    if flags.print_config {
        return print::out(config.to_toml());
    }
    addresses(&config)?;
    // From now on, asking for a reload or a replacement waits until there is something to reload or replace.
    let can_reload = settings::file(flags)?.is_some() || config.audit.file.is_some();
    let early =
        [rustix::process::Signal::USR2, rustix::process::Signal::HUP].map(rustix::process::Signal::as_raw);
    remex_process::defer_signals(if can_reload { &early } else { &early[..1] });
    let mut handed_over = handover::take()?;
    match flags.background {
        // It has left the terminal before.
        _ if handed_over.is_some() => {}
        None => {}
        Some(Background::Fork) => return fork(),
        Some(Background::Lead) => {
            rustix::process::setsid()
                .map_err(|error| cannot("leave the terminal's session")(error.into()))?;
        }
    }
    let is_activated = config.listen.iter().any(|url| url == SYSTEMD);
    let inherited = match &mut handed_over {
        Some(handed_over) => handed_over.take_activated(),
        None if is_activated => systemd::take()?,
        None => Vec::new(),
    };
    let Log { set_filter, spans } = log::start(&config.log)?;
    flags.base.check()?;
    remex_process::raise_file_limit();
    remex_process::return_large_blocks();
    remex_process::spare_address_space();
    let mut plan = plan(config, settings::file(flags)?, inherited)?;
    plan.handed_over = handed_over;
    plan.server.set_parent = spans.set_parent();
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
    let result = runtime.block_on(serve(plan, flags, set_filter));
    spans.shut_down();
    let result = match result {
        Ok(Some(handover)) => return Err(handover.exec()),
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
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

async fn serve(mut plan: Plan, flags: &Flags, set_log: SetLog) -> Result<Option<Handover>, Failure> {
    let mut handover = Handover::new()?;
    let (files, floor) = (plan.server.auth.files.clone(), plan.server.sandbox.clone());
    let mut background = JoinSet::new();
    match OrphanReaper::new() {
        Ok(orphans) => _ = background.spawn(orphans.run()),
        Err(error) => tracing::warn!(%error, "{}", orphans::UNFOUND),
    }
    let server = Server::new(plan.server).map_err(|error| Failure::new(error.message(), error.hint()))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot("wait for SIGTERM"))?;
    // A handler keeps the signal from killing the server: exceeding the limit is then an ordinary write error.
    let _file_too_large = signal(SignalKind::from_raw(SIGXFSZ)).map_err(cannot("wait for SIGXFSZ"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot("wait for SIGINT"))?;
    let mut upgrade = signal(SignalKind::user_defined2()).map_err(cannot("wait for SIGUSR2"))?;
    // Without a file there is nothing to reload, and SIGHUP ends the program as usual.
    let can_reload = settings::file(flags)?.is_some() || plan.config.audit.file.is_some();
    let mut hangup = if can_reload {
        Some(signal(SignalKind::hangup()).map_err(cannot("wait for SIGHUP"))?)
    } else {
        None
    };
    remex_process::replay_deferred_signals();
    let has_stdio = plan.greeting.has_stdio;
    let watches_stdin = flags.exit_on_stdin_close && !has_stdio;
    let stdin = if watches_stdin { Some(stdin_closed()?) } else { None };
    let mut serving = JoinSet::new();
    let mut bound = Vec::new();
    let is_replacement = plan.handed_over.is_some();
    let inherited = std::mem::take(&mut plan.inherited);
    for (url, listener) in listeners(&plan.addresses, plan.handed_over.as_ref(), inherited).await? {
        let passed = handover.add(&url, &listener)?;
        if let ListenAddress::Unix(path) = listener.address() {
            settings::share_socket(&plan.config, path)?;
        }
        bound.push(listener.address().clone());
        if !is_replacement {
            plan.greeting.say(listener.address()).map_err(cannot("print the address"))?;
        }
        match (listener.address(), &plan.tls) {
            (ListenAddress::SecureWebSocket(_), Some(tls)) => {
                serving.spawn(Arc::clone(&server).serve_tls(listener, Arc::clone(tls)));
            }
            (ListenAddress::Unix(_), _) if url != SYSTEMD => {
                serving.spawn(rebind::serve(Arc::clone(&server), listener, passed));
            }
            _ => {
                serving.spawn(Arc::clone(&server).serve(listener));
            }
        }
    }
    if let Some(address) = plan.config.metrics.listen {
        let bound = Listener::bind(&ListenAddress::WebSocket(address)).await;
        let listener = bound.map_err(|error| Failure::new(error.message(), error.hint()))?;
        if let ListenAddress::WebSocket(address) = listener.address() {
            Greeting::say_metrics(*address);
        }
        serving.spawn(Arc::clone(&server).serve_metrics(listener));
    }
    if has_stdio {
        let (reader, writer) = remex_rpc::stdio();
        serving.spawn(Arc::clone(&server).serve_stdio(reader, writer));
    }
    let exit_when_idle = plan.config.exit_when_idle;
    let reloader = Arc::new(Mutex::new(Reloader {
        flags: flags.clone(),
        server: Arc::clone(&server),
        tls: plan.tls,
        addresses: bound,
        set_log,
        floor,
        config: plan.config,
        files,
    }));
    handover.say_serving(&server);
    let mut is_upgrade = false;
    tokio::select! {
        // Listeners serve forever, so this means that stdio has ended.
        () = async { while serving.join_next().await.is_some() {} } => {}
        () = handover::wanted(&mut upgrade, &handover, &server) => is_upgrade = true,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = ended(stdin) => {}
        () = idle(&server, exit_when_idle) => {}
        () = server.return_freed_memory() => {}
        () = reloads(&mut hangup, &server, &reloader) => {}
    }
    // From now on, who connects is refused, or waits for the next program.
    let handover = is_upgrade.then_some(handover);
    let ending = async { if is_upgrade { server.hand_over().await } else { server.shut_down().await } };
    tokio::select! {
        () = ending => {}
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
    Ok(handover)
}

/// Reloads the configuration at each SIGHUP; never ends.
async fn reloads(hangup: &mut Option<Signal>, server: &Server, reloader: &Arc<Mutex<Reloader>>) {
    let Some(hangup) = hangup else { return std::future::pending().await };
    while hangup.recv().await.is_some() {
        reload::reload(server, reloader).await;
    }
    std::future::pending::<()>().await;
}

/// Returns the listeners, each with the URL that asked for it.
async fn listeners(
    addresses: &[ListenAddress],
    handed_over: Option<&HandedOver>,
    inherited: Vec<Inherited>,
) -> Result<Vec<(String, Listener)>, Failure> {
    let mut listeners = Vec::new();
    for address in addresses.iter().filter(|address| **address != ListenAddress::Stdio) {
        let url = address.to_string();
        let taken = handed_over.and_then(|handed_over| handed_over.find(&url));
        let listener = match taken.map(|socket| Listener::take_over(socket, address)) {
            Some(Ok(listener)) => listener,
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot("go on with a listening socket")(error));
            }
            // Rebinds a socket whose file was removed.
            Some(Err(_)) | None => {
                let bound = Listener::bind(address).await;
                bound.map_err(|error| Failure::new(error.message(), error.hint()))?
            }
        };
        listeners.push((url, listener));
    }
    for socket in inherited {
        let listener = Listener::adopt(socket).map_err(cannot("listen on a socket from systemd"))?;
        listeners.push((SYSTEMD.to_owned(), listener));
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

fn plan(config: ServerConfig, file: Option<&Path>, inherited: Vec<Inherited>) -> Result<Plan, Failure> {
    let addresses = addresses(&config)?;
    exposure::check(&config, &addresses)?;
    for socket in &inherited {
        if let Inherited::Tcp(socket) = socket {
            let socket = socket.local_addr().map_err(cannot("use a socket from systemd"))?;
            exposure::check_socket(&config, "ws", &socket)?;
        }
    }
    let auth = settings::auth(&config, bearer::Load::First)?;
    let token = match &config.auth.token_file {
        _ if !auth.requires_bearer() => Token::Nothing,
        Some(path) => Token::File(path.clone()),
        None => Token::Secret,
    };
    let has_stdio = addresses.contains(&ListenAddress::Stdio);
    let tls = tls(&config)?;
    let clients = match config.tls.client_ca {
        Some(_) => ClientCertificates::Required,
        None => ClientCertificates::NotAsked,
    };
    let greeting = Greeting {
        has_stdio,
        token,
        tls: tls.as_deref().map(|tls| Tls::of(tls, clients)),
        state: config.state.clone(),
    };
    Ok(Plan {
        addresses,
        inherited,
        server: server_config(&config, file, auth)?,
        tls,
        config,
        greeting,
        handed_over: None,
    })
}

/// Returns where to listen, apart from the sockets that systemd passes.
fn addresses(config: &ServerConfig) -> Result<Vec<ListenAddress>, Failure> {
    let named = config.listen.iter().filter(|url| *url != SYSTEMD);
    let addresses = named.map(|url| ListenAddress::from_str(url)).collect::<Result<_, _>>();
    addresses.map_err(|error: AddressError| {
        let hint = match error {
            AddressError::Unsupported(_) => {
                "use `ws://IP:PORT`, `wss://IP:PORT`, `unix:///path`, `stdio` or `systemd`"
            }
            _ => error.hint(),
        };
        Failure::usage(error.message(), hint)
    })
}

fn server_config(config: &ServerConfig, file: Option<&Path>, auth: Auth) -> Result<Config, Failure> {
    let metrics = if config.metrics.open { MetricsAccess::Open } else { MetricsAccess::Authenticated };
    let audit = audit_config(config);
    let (limits, cgroup) = (config.limits.clone(), config.cgroup.clone());
    let workspace = config.workspace.iter().map(PathBuf::from).collect();
    let sandbox = sandbox_floor(config.sandbox.as_deref(), workspace)
        .map_err(|error| Failure::usage(error.to_string(), error.hint()))?;
    private::check(config, file, &sandbox)?;
    let credentials = private::files(config, file);
    let state = config.state.clone().map(state_config).transpose()?;
    let mut server = Config {
        limits,
        auth,
        metrics,
        audit,
        cgroup,
        sandbox,
        starts: config.starts,
        credentials,
        state,
        supervisor: local_server::supervisor(),
        ..remex::config_from_env()
    };
    server.host_env.retain(|(name, _)| !is_private(name));
    Ok(server)
}

/// Returns what makes a server durable: this program is its keeper, too.
fn state_config(dir: PathBuf) -> Result<StateConfig, Failure> {
    let program = std::env::current_exe().map_err(cannot("find this program"))?;
    let keeper = vec![program.into(), "keeper".into()];
    Ok(StateConfig { dir, keeper, launcher: keeper_scope::launcher() })
}

fn audit_config(config: &ServerConfig) -> Option<AuditConfig> {
    config.audit.file.clone().map(|path| AuditConfig {
        path,
        max_bytes: config.audit.max_bytes,
        keep: config.audit.keep,
        is_required: config.audit.required,
    })
}

/// Returns whether a variable is for the server and not for its processes.
fn is_private(name: &OsStr) -> bool {
    // These headers usually contain the API key of a collector.
    let is_secret = |name: &str| name.starts_with("OTEL_EXPORTER_OTLP_") && name.ends_with("HEADERS");
    systemd::VARIABLES.iter().chain([&handover::VARIABLE]).any(|variable| name == *variable)
        || name.to_str().is_some_and(is_secret)
}

fn tls(config: &ServerConfig) -> Result<Option<Arc<ServerTls>>, Failure> {
    let (Some(certificate), Some(key)) = (&config.tls.cert, &config.tls.key) else { return Ok(None) };
    let (certificate, key) = (certificate.clone(), key.clone());
    for path in [Some(&certificate), config.tls.client_ca.as_ref()].into_iter().flatten() {
        if let Some((verdict, what)) = validity::outdated(path) {
            let effect = if verdict == Verdict::Failed { ", so connections fail" } else { "" };
            print::note(format!("`{}` {what}{effect}; {}", path.display(), validity::REMEDY));
        }
    }
    let files = ServerFiles { certificate, key, client_ca: config.tls.client_ca.clone() };
    let tls = ServerTls::load(files).map_err(|error| {
        let kind = if matches!(error, TlsError::Unreadable { .. } | TlsError::Writable(_)) {
            Kind::Usage
        } else {
            Kind::Failed
        };
        Failure::of(kind, error.message(), error.hint())
    })?;
    Ok(Some(Arc::new(tls)))
}
