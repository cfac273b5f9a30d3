//! The TLS files of your environments: whether they can be read, and how long they are valid.
//!
//! Start at [`check`].

use std::{path::Path, time::Duration};

use remex_client::{
    Target,
    environment::{Definition, Definitions},
    tls::{Identity, TlsOptions},
};
use remex_rpc::tls::{ClientFiles, ClientTls, Validity};

use crate::render::{
    finding::{Finding, Verdict},
    text,
};

const NAME: &str = "certificates";

/// A certificate that is valid for less than this should be renewed.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Checks the TLS files of all environments; all valid ones share one finding.
pub(super) fn check(definitions: &Definitions) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut good = Vec::new();
    for definition in &definitions.environments {
        let Target::WebSocket(socket) = &definition.target else { continue };
        if socket.tls == TlsOptions::default() {
            continue;
        }
        match judge(definition, &socket.tls) {
            Some(finding) => findings.push(finding),
            None => good.push(format!("`{}`", definition.id)),
        }
    }
    if !good.is_empty() {
        findings.push(Finding::ok(NAME, format!("the files of {} are valid", good.join(", "))));
    }
    findings
}

/// Returns what is wrong with the files of an environment.
fn judge(definition: &Definition, options: &TlsOptions) -> Option<Finding> {
    let id = &definition.id;
    let files_of = |identity: &Identity| (identity.certificate.clone(), identity.key.clone());
    let identity = options.identity.as_ref().map(files_of);
    let files = ClientFiles { ca: options.ca.clone(), pin: options.pin, identity };
    if let Err(error) = ClientTls::load(&files) {
        return Some(
            Finding::new(NAME, Verdict::Failed, format!("`{id}`: {}", error.message()))
                .with_hint(format!("restore the file, or change the environment with `remex env set {id}`")),
        );
    }
    let certificate = options.identity.as_ref().map(|identity| identity.certificate.as_path());
    [options.ca.as_deref(), certificate].into_iter().flatten().find_map(|path| outdated(id.as_str(), path))
}

fn outdated(id: &str, path: &Path) -> Option<Finding> {
    let validity = Validity::of_file(path).ok()?;
    let now = i64::try_from(text::now_ms() / 1000).unwrap_or(i64::MAX);
    let left = validity.not_after.saturating_sub(now);
    let (verdict, what) = match u64::try_from(left) {
        Err(_) | Ok(0) => (Verdict::Failed, "has expired".to_owned()),
        Ok(_) if validity.not_before > now => (Verdict::Failed, "is not valid yet".to_owned()),
        Ok(left) if left < SOON.as_secs() => {
            (Verdict::Warning, format!("expires in {}", text::age(Duration::from_secs(left))))
        }
        Ok(_) => return None,
    };
    Some(
        Finding::new(NAME, verdict, format!("`{id}`: `{}` {what}", path.display()))
            .with_hint("renew it; with your own CA, use `remex cert new`"),
    )
}
