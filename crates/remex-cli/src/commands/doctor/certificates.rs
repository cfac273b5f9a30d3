//! The TLS files of your environments: whether they can be read, and how long they are valid.
//!
//! Start at [`check`].

use std::path::Path;

use remex_client::{
    Target,
    environment::{Definition, Definitions},
    tls::{Identity, TlsOptions},
};
use remex_rpc::tls::{ClientFiles, ClientTls};

use crate::{
    commands::validity,
    render::finding::{Finding, Verdict},
};

const NAME: &str = "certificates";

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

/// Returns the problems with the files of an environment.
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
    let (verdict, what) = validity::outdated(path)?;
    let what = format!("`{id}`: `{}` {what}", path.display());
    Some(Finding::new(NAME, verdict, what).with_hint(validity::REMEDY))
}
