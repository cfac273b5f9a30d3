//! The tokens and keys that the flags of `remex serve` name.

use std::{io, sync::Arc, time::Duration};

use remex_server::{
    Scopes, TokenGrant,
    token::{ClaimPolicy, CredentialError, CredentialFiles, CredentialPaths, parse_digest},
};

use crate::{
    args::serve::{AuthMethod, Flags},
    render::{failure::Failure, text},
};

/// Who may present what.
#[derive(Default)]
pub(super) struct Bearer {
    pub(super) tokens: Vec<TokenGrant>,
    pub(super) files: Option<Arc<CredentialFiles>>,
}

/// Reads the files, and refuses flags that have no effect together.
pub(super) fn load(flags: &Flags) -> Result<Bearer, Failure> {
    check(flags)?;
    match flags.ws_auth {
        None => Ok(Bearer::default()),
        Some(AuthMethod::CapabilityToken) => capability(flags),
        Some(AuthMethod::SignedBearerToken) => signed(flags),
    }
}

fn check(flags: &Flags) -> Result<(), Failure> {
    let has_token = flags.ws_token_sha256.is_some() || flags.ws_token_file.is_some();
    if has_token && flags.ws_auth != Some(AuthMethod::CapabilityToken) {
        return Err(Failure::usage(
            "a token has no effect without `--ws-auth capability-token`",
            "add that flag",
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
            "add that flag",
        )),
        _ => Ok(()),
    }
}

fn capability(flags: &Flags) -> Result<Bearer, Failure> {
    match (&flags.ws_token_sha256, &flags.ws_token_file) {
        (Some(hex), _) => {
            let sha256 = parse_digest(hex).ok_or_else(|| {
                Failure::usage(
                    format!("`--ws-token-sha256 {hex}` is not a SHA-256 digest"),
                    "give 64 hexadecimal digits",
                )
            })?;
            let name = TokenGrant::default_name(&sha256);
            let token = TokenGrant { name, sha256, scopes: Scopes::all(), expires_at: None };
            Ok(Bearer { tokens: vec![token], files: None })
        }
        (None, Some(path)) => {
            let tokens = Some(path.clone());
            files(CredentialPaths { tokens, ..CredentialPaths::default() })
        }
        (None, None) => Err(Failure::usage(
            "`--ws-auth capability-token` needs the token",
            "add `--ws-token-file PATH` or `--ws-token-sha256 HEX`",
        )),
    }
}

fn signed(flags: &Flags) -> Result<Bearer, Failure> {
    if flags.ws_shared_secret_file.is_none() && flags.ws_jwks_file.is_none() {
        return Err(Failure::usage(
            "`--ws-auth signed-bearer-token` needs a key",
            "add `--ws-shared-secret-file PATH` or `--ws-jwks-file PATH`",
        ));
    }
    let defaults = ClaimPolicy::default();
    files(CredentialPaths {
        tokens: None,
        shared_secret: flags.ws_shared_secret_file.clone(),
        jwks: flags.ws_jwks_file.clone(),
        policy: ClaimPolicy {
            issuer: flags.ws_issuer.clone(),
            audience: flags.ws_audience.clone(),
            max_clock_skew: flags
                .ws_max_clock_skew_seconds
                .map_or(defaults.max_clock_skew, Duration::from_secs),
        },
    })
}

fn files(paths: CredentialPaths) -> Result<Bearer, Failure> {
    let is_token_file = paths.tokens.is_some();
    let files = CredentialFiles::load(paths).map_err(|error| failure(&error, is_token_file))?;
    Ok(Bearer { tokens: Vec::new(), files: Some(Arc::new(files)) })
}

fn failure(error: &CredentialError, is_token_file: bool) -> Failure {
    match error {
        CredentialError::Unreadable { path, error: cause } if is_token_file => {
            let shown = path.display().to_string();
            let hint = match cause.kind() {
                io::ErrorKind::NotFound => {
                    let file = text::quoted(&shown);
                    format!("make one with `(umask 077 && remex token new > {file})`, or check the path")
                }
                _ => "check the path and its permissions".to_owned(),
            };
            Failure::new(format!("cannot read the token file `{shown}`"), hint).because(cause.to_string())
        }
        CredentialError::Unreadable { .. } | CredentialError::Tokens { .. } | CredentialError::Key { .. } => {
            Failure::new(error.to_string(), error.hint())
        }
    }
}
