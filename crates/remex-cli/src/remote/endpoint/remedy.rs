//! The very command that mends an environment which a server refuses, or which does not recognize its server.
//!
//! Start at [`remedy`].

use remex_client::{Error, environment::Id};
use remex_rpc::tls::TlsFailure;

use crate::render::text;

/// Returns the hint for a connection that failed because of a missing setting; `name` is that of the environment, or an address.
pub(super) fn remedy(name: &str, error: &Error) -> Option<String> {
    match error {
        Error::Unauthorized { presented: false, status: 401, reason: None, target, .. } => {
            let change = Change::new(name, target);
            Some(match change.id {
                Some(_) => format!("give it the token with `{}`", change.with("--token-file PATH")),
                None => format!(
                    "give the token beside `--on` with `--token-file PATH`, or to an environment with `{}`",
                    change.with("--token-file PATH")
                ),
            })
        }
        Error::Unreachable { target, cause: Some(cause), .. } => {
            let failure = cause.get_ref()?.downcast_ref::<TlsFailure>()?;
            of_tls(&Change::new(name, target), failure)
        }
        _ => None,
    }
}

fn of_tls(change: &Change<'_>, failure: &TlsFailure) -> Option<String> {
    Some(match failure {
        TlsFailure::UnknownIssuer => format!(
            "name its CA with `{}`, or its public key with `{}`; `remex cert new` and the start of the server print both",
            change.with("--ca PATH"),
            change.with("--pin sha256:…")
        ),
        TlsFailure::IsAuthority => format!(
            "pin its public key with `{}` and without a CA, or sign a separate certificate for the server",
            change.with("--pin sha256:…")
        ),
        TlsFailure::PinMismatch { found, .. } => format!(
            "only if you know that the server has a new key, `{}`; otherwise another server responds at this address",
            change.with(&format!("--pin {found}"))
        ),
        TlsFailure::CertificateRequired => format!(
            "present one with `{}`; `remex cert new client NAME` makes one",
            change.with("--client-cert PATH --client-key PATH")
        ),
        TlsFailure::CertificateRefused { .. } => format!(
            "check that it is valid and that the server trusts its CA, or present another one with `{}`",
            change.with("--client-cert PATH --client-key PATH")
        ),
        _ => return None,
    })
}

/// The beginning of a command that changes an environment, or adds one for an address.
struct Change<'a> {
    id: Option<Id>,
    target: &'a str,
}

impl<'a> Change<'a> {
    fn new(name: &str, target: &'a str) -> Self {
        Self { id: Id::new(name).ok().filter(|id| !id.is_reserved()), target }
    }

    fn with(&self, flags: &str) -> String {
        match &self.id {
            Some(id) => format!("remex env set {id} {flags}"),
            None => format!("remex env add NAME {} {flags}", text::line(&[self.target.to_owned()])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suggested_command_matches_the_environment_or_address() {
        let of = |name, failure| of_tls(&Change::new(name, "wss://lab.example:7070"), &failure).unwrap();
        let named = of("lab", TlsFailure::UnknownIssuer);
        assert!(named.contains("`remex env set lab --ca PATH`"), "{named}");
        assert!(named.contains("`remex env set lab --pin sha256:…`"), "{named}");
        let plain = of("wss://lab.example:7070", TlsFailure::CertificateRequired);
        let command = "`remex env add NAME wss://lab.example:7070 --client-cert PATH --client-key PATH`";
        assert!(plain.contains(command), "{plain}");
    }
}
