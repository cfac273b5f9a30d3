//! The tokens and keys that the settings of `remex serve` name.

use std::{io, path::Path, sync::Arc, time::Duration};

use remex::server_config::Auth;
use remex_base::quote::shell_word;
use remex_server::{
    Scopes, TokenGrant,
    token::{ClaimPolicy, CredentialError, CredentialFiles, CredentialPaths, parse_digest},
};

use crate::{
    args::serve::{AuthMethod, Flags},
    render::failure::Failure,
};

/// The accepted bearer credentials.
#[derive(Default)]
pub(super) struct Bearer {
    pub(super) tokens: Vec<TokenGrant>,
    pub(super) files: Option<Arc<CredentialFiles>>,
}

/// Overrides the settings with the flags, and refuses flags that have no effect together.
pub(super) fn override_settings(flags: &Flags, auth: &mut Auth) -> Result<(), Failure> {
    check(flags)?;
    match flags.ws_auth {
        None => Ok(()),
        Some(AuthMethod::CapabilityToken) => override_tokens(flags, auth),
        Some(AuthMethod::SignedBearerToken) => override_keys(flags, auth),
    }
}

fn check(flags: &Flags) -> Result<(), Failure> {
    let has_token = flags.ws_token_sha256.is_some() || flags.ws_token_file.is_some();
    if has_token && flags.ws_auth != Some(AuthMethod::CapabilityToken) {
        let flag = if flags.ws_token_file.is_some() { "--ws-token-file" } else { "--ws-token-sha256" };
        return Err(Failure::usage(
            format!("`{flag}` has no effect without `--ws-auth capability-token`"),
            "add `--ws-auth capability-token`",
        ));
    }
    let signed = [
        ("--ws-shared-secret-file", flags.ws_shared_secret_file.is_some()),
        ("--ws-jwks-file", flags.ws_jwks_file.is_some()),
        ("--ws-issuer", flags.ws_issuer.is_some()),
        ("--ws-audience", flags.ws_audience.is_some()),
        ("--ws-max-clock-skew-seconds", flags.ws_max_clock_skew_seconds.is_some()),
    ];
    match signed.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) if flags.ws_auth != Some(AuthMethod::SignedBearerToken) => Err(Failure::usage(
            format!("`{flag}` has no effect without `--ws-auth signed-bearer-token`"),
            "add `--ws-auth signed-bearer-token`",
        )),
        _ => Ok(()),
    }
}

fn override_tokens(flags: &Flags, auth: &mut Auth) -> Result<(), Failure> {
    match (&flags.ws_token_sha256, &flags.ws_token_file) {
        (Some(hex), _) => {
            let sha256 = parse_digest(hex).ok_or_else(|| {
                Failure::usage(
                    format!("`--ws-token-sha256 {hex}` is not a SHA-256 digest"),
                    "give 64 hexadecimal digits",
                )
            })?;
            (auth.token_sha256, auth.token_file) = (vec![sha256], None);
        }
        (None, Some(path)) => (auth.token_sha256, auth.token_file) = (Vec::new(), Some(path.clone())),
        (None, None) if auth.token_file.is_none() && auth.token_sha256.is_empty() => {
            return Err(Failure::usage(
                "`--ws-auth capability-token` needs the token",
                "add `--ws-token-file PATH` or `--ws-token-sha256 HEX`",
            ));
        }
        (None, None) => {}
    }
    Ok(())
}

fn override_keys(flags: &Flags, auth: &mut Auth) -> Result<(), Failure> {
    let jwt = &mut auth.jwt;
    if flags.ws_shared_secret_file.is_some() || flags.ws_jwks_file.is_some() {
        jwt.secret_file.clone_from(&flags.ws_shared_secret_file);
        jwt.jwks_file.clone_from(&flags.ws_jwks_file);
    }
    if jwt.secret_file.is_none() && jwt.jwks_file.is_none() {
        return Err(Failure::usage(
            "`--ws-auth signed-bearer-token` needs a key",
            "add `--ws-shared-secret-file PATH` or `--ws-jwks-file PATH`",
        ));
    }
    if flags.ws_issuer.is_some() {
        jwt.issuer.clone_from(&flags.ws_issuer);
    }
    if flags.ws_audience.is_some() {
        jwt.audience.clone_from(&flags.ws_audience);
    }
    if let Some(seconds) = flags.ws_max_clock_skew_seconds {
        jwt.max_clock_skew = Duration::from_secs(seconds);
    }
    Ok(())
}

/// When credential files are read.
#[derive(Clone, Copy)]
pub(super) enum Load<'a> {
    /// At the start of the server.
    First,
    /// While it runs, with the files in use so far.
    Again(Option<&'a CredentialFiles>),
}

/// Reads the files that the settings name.
pub(super) fn load(auth: &Auth, load: Load<'_>) -> Result<Bearer, Failure> {
    let tokens = auth.token_sha256.iter().map(|sha256| {
        let name = TokenGrant::default_name(sha256);
        TokenGrant { name, sha256: *sha256, scopes: Scopes::all(), expires_at: None }
    });
    let mut bearer = Bearer { tokens: tokens.collect(), files: None };
    let jwt = &auth.jwt;
    if auth.token_file.is_some() || jwt.secret_file.is_some() || jwt.jwks_file.is_some() {
        let paths = CredentialPaths {
            tokens: auth.token_file.clone(),
            shared_secret: jwt.secret_file.clone(),
            jwks: jwt.jwks_file.clone(),
            policy: ClaimPolicy {
                issuer: jwt.issuer.clone(),
                audience: jwt.audience.clone(),
                max_clock_skew: jwt.max_clock_skew,
            },
        };
        let files = match load {
            Load::First => CredentialFiles::load(paths),
            Load::Again(known) => CredentialFiles::load_again(paths, known),
        };
        let files = files.map_err(|error| failure(&error, auth.token_file.as_deref()))?;
        bearer.files = Some(Arc::new(files));
    }
    Ok(bearer)
}

fn failure(error: &CredentialError, token_file: Option<&Path>) -> Failure {
    match error {
        CredentialError::Unreadable { path, error: cause } if token_file == Some(path) => {
            let shown = path.display().to_string();
            let hint = match cause.kind() {
                io::ErrorKind::NotFound => {
                    let file = shell_word(&shown);
                    format!("make one with `(umask 077 && remex token new > {file})`, or check the path")
                }
                _ => "check the path and its permissions".to_owned(),
            };
            Failure::usage(format!("cannot read the token file `{shown}`"), hint).because(cause.to_string())
        }
        CredentialError::Unreadable { .. } | CredentialError::Writable(_) => {
            Failure::usage(error.to_string(), error.hint())
        }
        CredentialError::Tokens { .. } | CredentialError::Key { .. } => {
            Failure::new(error.to_string(), error.hint())
        }
    }
}
