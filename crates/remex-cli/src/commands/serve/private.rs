//! The files with which one could connect and run anything, or learn what others do: nothing confined may see or replace
//! them.

use std::path::{Path, PathBuf};

use remex::server_config::ServerConfig;
use remex_server::{AuditConfig, SandboxFloor};

use super::audit_config;
use crate::render::failure::Failure;

/// Returns the credentials, the configuration and the records of a server, as absolute paths.
pub(super) fn files(config: &ServerConfig, file: Option<&Path>) -> Vec<PathBuf> {
    let records = audit_config(config);
    let records = records.iter().flat_map(AuditConfig::files);
    let files = trusted(config, file).into_iter().map(|(_, path)| path).chain(records);
    files.map(|path| std::path::absolute(&path).unwrap_or(path)).collect()
}

/// Refuses configuration and credential files that a confined process could replace.
pub(super) fn check(config: &ServerConfig, file: Option<&Path>, floor: &SandboxFloor) -> Result<(), Failure> {
    let records = config.audit.file.clone().map(|path| ("the audit file", path));
    for (what, path) in trusted(config, file).into_iter().chain(records) {
        if floor.lets_write(&path) {
            let what = format!("cannot trust {what} `{}`", path.display());
            let hint = "move it out of the workspace and of everything that `--sandbox` lets be written";
            return Err(Failure::usage(what, hint).because("sandboxed processes may replace it"));
        }
    }
    Ok(())
}

/// Returns the files that the server reads, each with its name.
fn trusted(config: &ServerConfig, file: Option<&Path>) -> Vec<(&'static str, PathBuf)> {
    let (tls, auth) = (&config.tls, &config.auth);
    // A floor is one of the usual ones, or a file.
    let profile = config.sandbox.as_deref().filter(|word| SandboxFloor::preset(word).is_none());
    let named = [
        ("the token file", auth.token_file.as_deref()),
        ("the shared secret", auth.jwt.secret_file.as_deref()),
        ("the key set", auth.jwt.jwks_file.as_deref()),
        ("the CA certificates", tls.client_ca.as_deref()),
        ("the certificate", tls.cert.as_deref()),
        ("the private key", tls.key.as_deref()),
        ("the profile", profile.map(Path::new)),
        ("the configuration", file),
    ];
    named.into_iter().filter_map(|(what, path)| Some((what, path?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> ServerConfig {
        let mut config = ServerConfig::default();
        config.tls.cert = Some("/c/cert.pem".into());
        config.tls.key = Some("/c/key.pem".into());
        config.tls.client_ca = Some("/c/ca.pem".into());
        config.auth.token_file = Some("/c/tokens".into());
        config.auth.jwt.secret_file = Some("/c/secret".into());
        config.auth.jwt.jwks_file = Some("/c/jwks.json".into());
        config.sandbox = Some("/c/profile.toml".to_owned());
        config.audit.file = Some("/log/audit".into());
        config.audit.keep = 2;
        config
    }

    #[test]
    fn configuration_credentials_and_audit_files_are_private() {
        let mut config = full();
        let private = files(&config, Some(Path::new("/c/server.toml")));
        for name in [
            "/c/cert.pem",
            "/c/key.pem",
            "/c/ca.pem",
            "/c/tokens",
            "/c/secret",
            "/c/jwks.json",
            "/c/profile.toml",
            "/c/server.toml",
            "/log/audit",
            "/log/audit.1",
            "/log/audit.2",
        ] {
            assert!(private.iter().any(|path| path == Path::new(name)), "{name}: {private:?}");
        }
        config.audit.keep = usize::MAX;
        assert!(files(&config, None).len() < 2_000);
        config.sandbox = Some("read-only".to_owned());
        assert!(files(&config, None).iter().all(|path| !path.ends_with("read-only")));
    }

    #[test]
    fn files_replaceable_from_a_sandbox_are_not_trusted() {
        let floor =
            |workspace: &str| SandboxFloor { workspace: vec![workspace.into()], ..SandboxFloor::default() };
        let config = full();
        let refusal = |floor: &SandboxFloor| {
            check(&config, Some(Path::new("/etc/server.toml")), floor).map_err(|failure| failure.message())
        };
        assert_eq!(refusal(&floor("/w")), Ok(()));
        let said = refusal(&floor("/etc")).unwrap_err();
        assert!(said.contains("the configuration `/etc/server.toml`"), "{said}");
        assert!(refusal(&floor("/c")).is_err());
        assert!(refusal(&floor("/log")).is_err());
    }
}
