//! Which processes there are, and which one a person means.
//!
//! Start at [`Processes`].

use std::collections::BTreeMap;

use remex_client::Client;
use remex_proto::{
    process::{Entry, List, Scope, State},
    session,
};

use crate::{
    failure::{Failure, Kind},
    followed::Followed,
    text::plain,
};

/// Every process of one identity on one server.
#[derive(Debug)]
pub(crate) struct Processes {
    client: Client,
    pub(crate) rows: Vec<Row>,
}

/// One process, and the session it is in.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The shortest word that means this process and no other.
    pub(crate) name: String,
    pub(crate) session_name: Option<String>,
    pub(crate) client_name: String,
    /// Whether a client has the session now.
    pub(crate) attached: bool,
    /// When the session ends unless a client comes back, in milliseconds since 1970.
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) entry: Entry,
}

impl Row {
    /// Tells whether it has not exited yet.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.entry.state, State::Starting | State::Running)
    }

    fn long_name(&self) -> String {
        let session = self.session_name.as_deref().unwrap_or(&self.entry.session_id);
        format!("{session}/{}", self.entry.process_id)
    }

    /// Tells how well a word fits: the lower the better.
    fn fit(&self, word: &str) -> Option<Fit> {
        let long = self.long_name();
        let by_id = format!("{}/{}", self.entry.session_id, self.entry.process_id);
        let names = [&self.entry.process_id, &self.entry.session_id, &long, &by_id];
        let names = names.into_iter().chain(&self.session_name);
        names
            .filter_map(|name| match name.strip_prefix(word) {
                Some("") => Some(Fit::Exact),
                Some(_) => Some(Fit::Prefix),
                None => None,
            })
            .min()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Exact,
    Prefix,
}

impl Processes {
    /// Asks the server; the oldest process comes first.
    pub(crate) async fn list(client: &Client) -> Result<Self, Failure> {
        let listing = client.call(List { session_id: None, scope: Scope::Identity }).await?;
        let sessions = client.call(session::List {}).await?.sessions;
        let sessions: BTreeMap<_, _> =
            sessions.into_iter().map(|session| (session.session_id.clone(), session)).collect();
        let mut entries = listing.processes;
        entries.sort_by(|one, other| {
            (one.started_at_ms, &one.process_id).cmp(&(other.started_at_ms, &other.process_id))
        });
        let mut rows: Vec<_> = entries.into_iter().map(|entry| row(entry, &sessions)).collect();
        let mut seen = BTreeMap::<String, usize>::new();
        for row in &rows {
            *seen.entry(row.name.clone()).or_default() += 1;
        }
        for row in &mut rows {
            if seen.get(&row.name).is_some_and(|times| *times > 1) {
                row.name = row.long_name();
            }
        }
        Ok(Self { client: client.clone(), rows })
    }

    /// Finds the process that a person means: by its name, its session's name or id, or the beginning of one.
    pub(crate) fn find(&self, word: &str) -> Result<&Row, Failure> {
        let best = self.rows.iter().filter_map(|row| row.fit(word)).min();
        let mut fitting: Vec<_> =
            self.rows.iter().filter(|row| best.is_some() && row.fit(word) == best).collect();
        if fitting.len() > 1 && fitting.iter().filter(|row| row.is_running()).count() == 1 {
            fitting.retain(|row| row.is_running());
        }
        match fitting[..] {
            [row] => Ok(row),
            [] => Err(Failure::of(
                Kind::NotFound,
                format!("there is no process `{}`{}", plain(word), self.choices()),
                "see `remex ps --all`; what has ended is forgotten after a while",
            )),
            _ => {
                let names: Vec<_> = fitting.iter().map(|row| plain(&row.name)).collect();
                Err(Failure::usage(
                    format!("`{}` could be any of {}", plain(word), names.join(", ")),
                    "type more of its name",
                ))
            }
        }
    }

    /// Finds a process and the way to act on it.
    pub(crate) fn follow(&self, word: &str) -> Result<Followed, Failure> {
        Ok(self.followed(self.find(word)?))
    }

    pub(crate) fn followed(&self, row: &Row) -> Followed {
        Followed {
            client: self.client.clone(),
            session_id: row.entry.session_id.clone(),
            process_id: row.entry.process_id.clone(),
        }
    }

    fn choices(&self) -> String {
        const MOST: usize = 5;
        match self.rows.len() {
            0 => ": there are none".to_owned(),
            1..=MOST => {
                let names: Vec<_> = self.rows.iter().map(|row| plain(&row.name)).collect();
                format!(": there are {}", names.join(", "))
            }
            _ => String::new(),
        }
    }
}

fn row(entry: Entry, sessions: &BTreeMap<String, session::Entry>) -> Row {
    let session = sessions.get(&entry.session_id);
    Row {
        name: entry.process_id.clone(),
        session_name: session.and_then(|session| session.name.clone()),
        client_name: session.map(|session| session.client_name.clone()).unwrap_or_default(),
        attached: session.is_some_and(|session| session.attached),
        expires_at_ms: session.and_then(|session| session.expires_at_ms),
        entry,
    }
}
