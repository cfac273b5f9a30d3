//! Sessions on disk: one file each, and another with their starts. `session_files` writes them.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use remex_access::identity::Identity;
use remex_base::{certificate::CertificateName, trace::LOG_TARGET};
use remex_proto::{ErrorKind, RpcError, process::Started, state::session_table::OnDetach};
use serde::{Deserialize, Serialize};

use super::session_files;
use crate::state::state_dir::{Survival, read as read_file};

/// A session as a later server finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedSession {
    /// The id of the session.
    pub id: String,
    /// On whose behalf it runs processes.
    pub identity: SavedIdentity,
    /// The name that its client gave it.
    pub name: Option<String>,
    /// The name that its client gives itself.
    pub client_name: String,
    /// How long it waits for its client; `None` as long as there is a server.
    pub detach_ttl_ms: Option<u64>,
    /// When its client disconnected, if it has.
    pub detached_at_ms: Option<u64>,
    /// Its number in tags.
    pub number: u32,
    /// Whether it must survive a power failure: a process with `sync` was started in it. Its writer knows that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sync: bool,
}

/// An [`Identity`] that outlives a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SavedIdentity {
    /// The user of the server.
    Owner,
    /// Another user of the host.
    User {
        /// The number of the user.
        uid: u32,
        /// The name of the user.
        name: String,
    },
    /// The bearer of a token.
    Token {
        /// Earlier servers also saved it for tokens that have a name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<[u8; 32]>,
        /// The name of the token.
        name: String,
    },
    /// Saved by a server that did not distinguish kinds of names.
    Certificate(String),
    /// A name in a certificate.
    CertificateName {
        /// What the name is.
        kind: SavedNameKind,
        /// The name.
        name: String,
    },
    /// The subject of a signed token.
    Subject {
        /// Who has signed it.
        issuer: String,
        /// The subject.
        subject: String,
    },
}

/// Which kind of name a certificate has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SavedNameKind {
    Uri,
    Dns,
    Cn,
}

/// A start that is not found in a process: its process was forgotten, or was not durable.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedStart {
    /// The id of the start.
    pub start_id: String,
    /// The id of the process.
    pub process_id: String,
    /// Whether it was a restart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarted: bool,
    /// The result, as far as it is known.
    pub outcome: SavedOutcome,
}

/// The result of a start, as far as it is known.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SavedOutcome {
    /// It was answered with this.
    Started(Started),
    /// It began, and ended at the latest with the server.
    Begun,
}

impl SavedIdentity {
    /// Returns the identity to save; `None` if it ends with its connection or the program.
    pub fn of(identity: &Identity) -> Option<Self> {
        Some(match identity {
            Identity::Owner => SavedIdentity::Owner,
            Identity::User { uid, name } => SavedIdentity::User { uid: *uid, name: name.to_string() },
            Identity::Token { digest, name } => {
                SavedIdentity::Token { digest: *digest, name: name.to_string() }
            }
            Identity::Certificate(name) => {
                let kind = match name {
                    CertificateName::Uri(_) => SavedNameKind::Uri,
                    CertificateName::Dns(_) => SavedNameKind::Dns,
                    CertificateName::Common(_) => SavedNameKind::Cn,
                };
                SavedIdentity::CertificateName { kind, name: name.text().to_owned() }
            }
            Identity::Subject { issuer, subject } => {
                SavedIdentity::Subject { issuer: issuer.to_string(), subject: subject.to_string() }
            }
            Identity::Program | Identity::Own(_) => return None,
        })
    }

    /// Returns the identity.
    pub fn identity(&self) -> Identity {
        match self.clone() {
            SavedIdentity::Owner => Identity::Owner,
            SavedIdentity::User { uid, name } => Identity::User { uid, name: name.into() },
            SavedIdentity::Token { digest: Some(digest), name } => Identity::token(&name, &digest),
            SavedIdentity::Token { digest: None, name } => {
                Identity::Token { name: name.into(), digest: None }
            }
            SavedIdentity::Certificate(name) => Identity::Certificate(probable_name(&name)),
            SavedIdentity::CertificateName { kind, name } => Identity::Certificate(match kind {
                SavedNameKind::Uri => CertificateName::Uri(name.into()),
                SavedNameKind::Dns => CertificateName::dns(&name),
                SavedNameKind::Cn => CertificateName::Common(name.into()),
            }),
            SavedIdentity::Subject { issuer, subject } => {
                Identity::Subject { issuer: issuer.into(), subject: subject.into() }
            }
        }
    }
}

/// Returns the name that an earlier server probably meant; it admitted names of all kinds, so no one gains access.
fn probable_name(name: &str) -> CertificateName {
    if name.starts_with("spiffe://") {
        CertificateName::Uri(name.into())
    } else if name.contains('.') {
        CertificateName::dns(name)
    } else {
        CertificateName::Common(name.into())
    }
}

impl SavedSession {
    /// Returns what happens when its client disconnects.
    pub fn on_detach(&self) -> OnDetach {
        self.detach_ttl_ms.map_or(OnDetach::Keep, OnDetach::ExpireAfterMs)
    }
}

impl SavedOutcome {
    /// Returns what a repeated start is answered with.
    pub fn outcome(self, process_id: &str) -> Result<Started, RpcError> {
        match self {
            SavedOutcome::Started(started) => Ok(started),
            SavedOutcome::Begun => {
                let message = format!("process `{process_id}` has ended with the server that started it");
                Err(RpcError::new(ErrorKind::UnknownProcess, message)
                    .with_hint("start it again with a new `startId`; a durable process survives the server"))
            }
        }
    }
}

/// The sessions in a directory that no server uses.
#[derive(Debug)]
pub(crate) struct SavedSessions {
    dir: PathBuf,
}

impl SavedSessions {
    pub(crate) fn in_dir(dir: PathBuf) -> Self {
        SavedSessions { dir }
    }

    /// Returns the ids of all of them, also of those that cannot be read.
    pub(crate) fn ids(&self) -> io::Result<HashSet<String>> {
        let mut ids = HashSet::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                ids.extend(path.file_stem().map(|id| id.to_string_lossy().into_owned()));
            }
        }
        Ok(ids)
    }

    /// Remembers the start of a process whose log is about to be deleted; as
    /// [`SessionFiles::forget`](super::SessionFiles::forget).
    pub(crate) fn forget(&self, session: &str, start: &SavedStart, log: &Path) -> io::Result<()> {
        let saved = read_session(&self.dir.join(format!("{session}.json")));
        let survival = match saved {
            Ok(saved) if saved.sync => Survival::PowerFailure,
            _ => Survival::Process,
        };
        session_files::forget(&self.dir, session, &line(start), log, survival)
    }
}

pub(super) fn line(start: &SavedStart) -> Vec<u8> {
    let mut line = serde_json::to_vec(start).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Sessions with their starts, and the ids of those that cannot be read.
type ReadSessions = (Vec<(SavedSession, Vec<SavedStart>)>, HashSet<String>);

/// Returns the sessions on disk.
pub(super) fn read(dir: &Path) -> io::Result<ReadSessions> {
    let (mut sessions, mut unreadable) = (Vec::new(), HashSet::new());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match read_session(&path) {
            Ok(session) => {
                let starts = read_file(&path.with_extension("starts")).unwrap_or_default();
                let lines = starts.split(|byte| *byte == b'\n');
                // The last line may be torn: that start was not answered.
                let starts = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
                sessions.push((session, starts));
            }
            Err(error) => {
                tracing::warn!(target: LOG_TARGET, %error, path = %path.display(), "cannot read a session in the state directory");
                unreadable.extend(path.file_stem().map(|id| id.to_string_lossy().into_owned()));
            }
        }
    }
    Ok((sessions, unreadable))
}

pub(super) fn read_session(path: &Path) -> io::Result<SavedSession> {
    Ok(serde_json::from_slice(&read_file(path)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(json: &str) -> Identity {
        serde_json::from_str::<SavedIdentity>(json).unwrap().identity()
    }

    #[test]
    fn identities_are_read_as_earlier_servers_saved_them_and_as_this_one_does() {
        let digest = [0x9f; 32];
        let bytes = format!("{digest:?}");
        let named = saved(&format!(r#"{{"token":{{"digest":{bytes},"name":"ci"}}}}"#));
        assert_eq!(named, Identity::token("ci", &[7; 32]), "another token of the same name");
        let unnamed = saved(&format!(r#"{{"token":{{"digest":{bytes},"name":"9f9f9f9f"}}}}"#));
        assert_eq!(unnamed, Identity::token("9f9f9f9f", &digest));
        assert_ne!(unnamed, Identity::token("9f9f9f9f", &[7; 32]));
        for (earlier, now) in [
            ("spiffe://example.com/ci", "uri:spiffe://example.com/ci"),
            ("ci.example.com", "dns:ci.example.com"),
            ("ci", "cn:ci"),
        ] {
            let expected = Identity::Certificate(now.parse().unwrap());
            assert_eq!(saved(&format!(r#"{{"certificate":"{earlier}"}}"#)), expected);
        }
        let names = ["uri:spiffe://example.com/ci", "dns:ci", "cn:ci"];
        let certificates = names.map(|name| Identity::Certificate(name.parse().unwrap()));
        for identity in certificates.into_iter().chain([named, unnamed]) {
            let text = serde_json::to_string(&SavedIdentity::of(&identity).unwrap()).unwrap();
            assert_eq!(saved(&text), identity, "{text}");
        }
    }
}
