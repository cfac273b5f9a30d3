//! The settings of a server: the configuration file, and the flags that override it.
//!
//! Start at [`effective`].

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use remex::server_config::{Error, ServerConfig, User};
use remex_base::certificate::CertificateName;
use remex_server::{Auth, CertificatePolicy, Limits, Scopes, StartPolicy, UserGrant};

use super::{bearer, cannot};
use crate::{
    args::serve::{Flags, Lifetime, Starts},
    render::failure::{Failure, Kind},
};

/// Returns the file that `--config` names, if it names one.
///
/// A value with `=` that is no file is for the server that `remex exec-server` replaces.
pub(super) fn file(flags: &Flags) -> Result<Option<&Path>, Failure> {
    let is_file = |value: &&String| !value.contains('=') || Path::new(value).exists();
    let mut files = flags.config.iter().filter(is_file).map(Path::new);
    let file = files.next();
    if let Some(second) = files.next() {
        return Err(Failure::usage(format!("cannot use `--config {}`", second.display()), "give one file")
            .because("there is another configuration file"));
    }
    if flags.config.iter().any(|value| !is_file(&value)) {
        tracing::info!(flag = "--config", "flag has no effect here");
    }
    Ok(file)
}

/// Returns the settings of the file, with those that flags override.
pub(super) fn effective(flags: &Flags) -> Result<ServerConfig, Failure> {
    let mut config = match file(flags)? {
        None => ServerConfig::default(),
        Some(path) => ServerConfig::read(path).map_err(|error| unusable(&error))?,
    };
    if !flags.listen.is_empty() {
        config.listen.clone_from(&flags.listen);
    }
    if let Some(log) = &flags.log {
        config.log.clone_from(log);
    }
    if flags.exit_when_idle.is_some() {
        config.exit_when_idle = flags.exit_when_idle;
    }
    if flags.tls_cert.is_some() {
        config.tls.cert.clone_from(&flags.tls_cert);
        config.tls.key.clone_from(&flags.tls_key);
        config.tls.client_ca.clone_from(&flags.tls_client_ca);
    }
    if let Some(path) = &flags.audit {
        config.audit.file = Some(path.clone());
    }
    config.audit.required |= flags.audit_required;
    if flags.metrics_listen.is_some() {
        config.metrics.listen = flags.metrics_listen;
    }
    config.metrics.open |= flags.metrics_open;
    if let Some(word) = &flags.cgroup {
        config.cgroup = remex::server_config::cgroup_use(word).map_err(|reason| {
            Failure::usage(format!("cannot use `--cgroup {word}`"), "give an absolute path, `auto` or `none`")
                .because(reason)
        })?;
    }
    if let Some(starts) = flags.starts {
        config.starts = match starts {
            Starts::Any => StartPolicy::Any,
            Starts::Confined => StartPolicy::Confined,
            Starts::None => StartPolicy::None,
        };
    }
    if flags.state.is_some() {
        config.state.clone_from(&flags.state);
    }
    override_sandbox(flags, &mut config)?;
    override_auth(flags, &mut config)?;
    override_limits(flags, &mut config.limits);
    config.make_absolute().map_err(cannot("find the working directory"))?;
    Ok(config)
}

fn override_sandbox(flags: &Flags, config: &mut ServerConfig) -> Result<(), Failure> {
    if flags.sandbox.is_some() {
        config.sandbox.clone_from(&flags.sandbox);
    }
    if !flags.workspace.is_empty() {
        let absolute = |path: &PathBuf| {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            absolute.to_string_lossy().into_owned()
        };
        config.workspace = flags.workspace.iter().map(absolute).collect();
    }
    if let Some(relative) = config.workspace.iter().find(|path| !Path::new(path).is_absolute()) {
        return Err(Failure::usage(
            format!("the workspace `{relative}` is not an absolute path"),
            "name it from the root",
        ));
    }
    Ok(())
}

fn unusable(error: &Error) -> Failure {
    match error {
        Error::Unreadable { .. } => {
            Failure::bare(Kind::Usage, error.to_string()).with_hint_if_known(error.hint().map(str::to_owned))
        }
        Error::Invalid(errors) => {
            let hint =
                |line| format!("correct line {line}; `remex serve --print-config` prints a valid file");
            let errors = errors.0.iter();
            let errors =
                errors.map(|error| (error.message(), Some(error.hint().unwrap_or_else(|| hint(error.line)))));
            Failure::in_file(Kind::Usage, errors)
        }
    }
}

fn override_auth(flags: &Flags, config: &mut ServerConfig) -> Result<(), Failure> {
    let auth = &mut config.auth;
    bearer::override_settings(flags, auth)?;
    if !flags.allow_user.is_empty() {
        let user = |name: &String| User { name: name.clone(), scope: Scopes::all() };
        auth.users = flags.allow_user.iter().map(user).collect();
    }
    auth.certificate_common_names |= flags.tls_client_common_names;
    if !flags.allow_origin.is_empty() {
        auth.origins.clone_from(&flags.allow_origin);
    }
    if !flags.allow_host.is_empty() {
        auth.hosts.clone_from(&flags.allow_host);
    }
    Ok(())
}

fn override_limits(flags: &Flags, limits: &mut Limits) {
    if let Some(at_once) = flags.concurrent_requests {
        limits.concurrent_requests = at_once.get();
    }
    limits.file_requests = limits.file_requests.min(limits.concurrent_requests);
    limits.http_requests = limits.http_requests.min(limits.concurrent_requests);
    if let Some(grace) = flags.shutdown_grace {
        limits.shutdown_grace = grace;
    }
    if let Some(time) = flags.stall_timeout {
        limits.stalled_writer = time;
    }
    match flags.max_detach_ttl {
        None => {}
        Some(Lifetime::UpTo(time)) => limits.detach_ttl_max = Some(time),
        Some(Lifetime::Forever) => limits.detach_ttl_max = None,
    }
}

/// Returns the authentication methods, with the tokens and the users that the settings name.
pub(super) fn auth(config: &ServerConfig, load: bearer::Load<'_>) -> Result<Auth, Failure> {
    let settings = &config.auth;
    let users: Result<_, _> = settings.users.iter().map(user).collect();
    let certificates = match &settings.certificates {
        None => CertificatePolicy::Any(settings.certificate_scope.clone()),
        Some(listed) => CertificatePolicy::Only(listed.clone()),
    };
    check_common_names(settings)?;
    let bearer = bearer::load(settings, load)?;
    Ok(Auth {
        owner: settings.owner_scope.clone(),
        users: users?,
        tokens: bearer.tokens,
        files: bearer.files,
        certificates,
        common_names: settings.certificate_common_names,
        origins: settings.origins.clone().into(),
        hosts: settings.hosts.clone(),
    })
}

/// Refuses to list a common name where none counts.
fn check_common_names(settings: &remex::server_config::Auth) -> Result<(), Failure> {
    let listed = settings.certificates.iter().flatten().map(|grant| &grant.name);
    let common = listed.into_iter().find(|name| matches!(name, CertificateName::Common(_)));
    match common {
        Some(name) if !settings.certificate_common_names => Err(Failure::usage(
            format!("`{name}` in `auth.certificates` has no effect"),
            "give the certificate a DNS name and list `dns:NAME`, or set `certificate_common_names = true` in `[auth]`",
        )
        .because("common names do not count")),
        _ => Ok(()),
    }
}

/// Lets other users reach a unix socket if some of them may connect, else its owner only; the server checks who each is.
///
/// A socket that systemd passes stays as systemd made it.
pub(super) fn share_socket(config: &ServerConfig, path: &Path) -> Result<(), Failure> {
    let is_ours = !config.listen.iter().any(|url| url == super::SYSTEMD);
    if !is_ours {
        return Ok(());
    }
    let mode = if config.auth.users.is_empty() { 0o600 } else { 0o666 };
    match fs::set_permissions(path, fs::Permissions::from_mode(mode)) {
        // A removed socket cannot be reached.
        Err(error) if mode == 0o600 && error.kind() == io::ErrorKind::NotFound => Ok(()),
        set => set.map_err(cannot("set the permissions of the socket")),
    }
}

/// Returns the grant for a user of this host, given by name or number.
fn user(user: &User) -> Result<UserGrant, Failure> {
    let name = &user.name;
    let uid = match name.parse() {
        Ok(uid) => Some(uid),
        Err(_) => uid_of(name)?,
    };
    let uid = uid.ok_or_else(|| {
        Failure::usage(format!("no user `{name}` on this host"), "check the name, or give the user id")
    })?;
    Ok(UserGrant { uid, name: name.clone(), scopes: user.scope.clone() })
}

/// Looks a user up; `getent` also knows the users of directory services.
fn uid_of(name: &str) -> Result<Option<u32>, Failure> {
    let mut command = std::process::Command::new("getent");
    command.args(["passwd", "--", name]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let output = remex_process::spawn_own(&mut command).and_then(Child::wait_with_output);
    let entries = match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(_) => fs::read_to_string("/etc/passwd").map_err(cannot("read /etc/passwd"))?,
    };
    let mut fields = entries.lines().map(|line| line.split(':').collect::<Vec<_>>());
    Ok(fields.find(|fields| fields.first() == Some(&name)).and_then(|fields| fields.get(2)?.parse().ok()))
}
