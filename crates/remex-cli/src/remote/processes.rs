//! Lists processes, and finds the one that an argument refers to.
//!
//! Start at [`Processes`].

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use remex_client::{
    Client, ErrorKind,
    process::{ExitCause, NameRank, NamedProcess, ProcessInfo, ProcessRef, State, find_by_name},
    session::SessionInfo,
};

use crate::render::{
    confirm,
    failure::{Failure, Kind},
    text::plain,
};

/// How much of the output of a process one read returns, and how long it waits for more.
pub(crate) const READ_BYTES: u64 = 1 << 20;
pub(crate) const READ_WAIT: Duration = Duration::from_secs(20);

/// All processes of one identity on one server.
#[derive(Debug)]
pub(crate) struct Processes {
    client: Client,
    pub(crate) rows: Vec<Row>,
}

/// One process, and its session.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Its unambiguous name.
    pub(crate) name: String,
    pub(crate) session_name: Option<String>,
    pub(crate) client_name: String,
    /// Whether a client is attached to the session.
    pub(crate) attached: bool,
    /// When the session ends unless a client resumes it, in milliseconds since 1970.
    pub(crate) expires_at_ms: Option<u64>,
    /// How long the session lives without a client, if it has none and ends.
    pub(crate) detach_ttl_ms: Option<u64>,
    pub(crate) entry: ProcessInfo,
}

impl Row {
    /// Returns whether it has not exited yet.
    pub(crate) fn is_running(&self) -> bool {
        self.entry.is_running()
    }

    /// Returns whether it or one of its descendants may be alive.
    pub(crate) fn is_alive(&self) -> bool {
        self.entry.is_alive()
    }

    /// Returns whether it outlives the server, in a word.
    pub(crate) fn durability(&self) -> &'static str {
        if self.entry.durable { "yes" } else { "no" }
    }

    /// Describes its state: `running`, `exit 3`; with living descendants, `exit 3, 2 alive`.
    pub(crate) fn state(&self) -> String {
        match self.survivors() {
            Some(survivors) => format!("{}, {survivors}", self.outcome()),
            None => self.outcome(),
        }
    }

    /// Describes the living descendants of an exited process: `2 alive`.
    pub(crate) fn survivors(&self) -> Option<String> {
        if self.is_running() || !self.is_alive() {
            return None;
        }
        Some(match self.entry.living_pids.len() {
            0 => "output open".to_owned(),
            living => format!("{living} alive"),
        })
    }

    /// Describes its own state in a word or two: `running`, `exit 3`, `SIGKILL`, `timeout`; `unknown` if a newer server
    /// has another word for it.
    pub(crate) fn outcome(&self) -> String {
        let entry = &self.entry;
        match (entry.state, entry.cause, &entry.signal) {
            (State::Starting, ..) => "starting".to_owned(),
            (State::Running, ..) => "running".to_owned(),
            (State::Unknown, ..) => "unknown".to_owned(),
            (_, Some(ExitCause::Timeout), _) => "timeout".to_owned(),
            (_, Some(ExitCause::IdleTimeout), _) => "idle timeout".to_owned(),
            (_, Some(ExitCause::OutOfMemory), _) => "out of memory".to_owned(),
            (_, Some(ExitCause::ServerLost), _) => "server lost".to_owned(),
            (_, _, Some(signal)) => plain(signal),
            (..) => format!("exit {}", entry.exit_code.unwrap_or_default()),
        }
    }

    /// Describes the exit in a clause: `it exited with code 3`, `it was ended by SIGKILL`.
    pub(crate) fn exit_clause(&self) -> String {
        let entry = &self.entry;
        match (entry.cause, &entry.signal) {
            (Some(ExitCause::Timeout), _) => "it was ended by its timeout".to_owned(),
            (Some(ExitCause::IdleTimeout), _) => "it was ended by its idle timeout".to_owned(),
            (Some(ExitCause::OutOfMemory), _) => "it was ended because memory ran out".to_owned(),
            (Some(ExitCause::ServerLost), _) => {
                "it was lost with its keeper, its server or its host".to_owned()
            }
            (_, Some(signal)) => format!("it was ended by {}", plain(signal)),
            _ => format!("it exited with code {}", entry.exit_code.unwrap_or_default()),
        }
    }

    /// Returns how long it has been running, or ran.
    pub(crate) fn age(&self, now_ms: u64) -> Duration {
        let until = self.entry.ended_at_ms.unwrap_or(now_ms);
        Duration::from_millis(until.saturating_sub(self.entry.started_at_ms))
    }

    /// Returns how many bytes of output it has written.
    pub(crate) fn output_bytes(&self) -> u64 {
        let said = &self.entry.produced;
        said.stdout.saturating_add(said.stderr).saturating_add(said.pty)
    }

    /// Formats it for a message: `build` (pid 4711).
    pub(crate) fn described(&self) -> String {
        match self.entry.pid {
            Some(pid) => format!("`{}` (pid {pid})", plain(&self.name)),
            None => format!("`{}`", plain(&self.name)),
        }
    }
}

impl NamedProcess for Row {
    fn info(&self) -> &ProcessInfo {
        &self.entry
    }

    fn short_name(&self) -> Cow<'_, str> {
        plain(&self.entry.process_id).into()
    }

    fn long_name(&self) -> String {
        let session = self.session_name.as_deref().filter(|name| is_word(name));
        format!("{}/{}", session.unwrap_or(&self.entry.session_id), self.short_name())
    }

    fn session_name(&self) -> Option<&str> {
        self.session_name.as_deref()
    }
}

/// An irreversible action on processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Kill,
    Remove,
    Restart,
}

impl Action {
    fn verb(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Remove => "remove",
            Self::Restart => "restart",
        }
    }

    fn not_done(self) -> &'static str {
        match self {
            Self::Kill => "nothing was killed",
            Self::Remove => "nothing was removed",
            Self::Restart => "nothing was restarted",
        }
    }
}

impl Processes {
    /// Lists the processes of the server, oldest first.
    pub(crate) async fn list(client: &Client) -> Result<Self, Failure> {
        let entries = client.processes().await?;
        let sessions = client.sessions().await?;
        let sessions: BTreeMap<_, _> =
            sessions.into_iter().map(|session| (session.session_id.clone(), session)).collect();
        let rows = named(entries.into_iter().map(|entry| row(entry, &sessions)).collect());
        Ok(Self { client: client.clone(), rows })
    }

    /// Finds a process by its name, by the name or id of its session, or by a prefix of these.
    pub(crate) fn find(&self, word: &str) -> Result<&Row, Failure> {
        find(&self.rows, word)
    }

    /// Finds the only running process.
    pub(crate) fn only_running(&self) -> Result<&Row, Failure> {
        let running: Vec<_> = self.rows.iter().filter(|row| row.is_running()).collect();
        match running[..] {
            [row] => Ok(row),
            [] => Err(Failure::of(
                Kind::NotFound,
                "no process is running",
                "start one with `remex run --detach -- COMMAND`; `remex ps --all` includes exited ones",
            )),
            _ => {
                let names: Vec<_> = running.iter().map(|row| plain(&row.name)).collect();
                Err(Failure::usage("several processes are running", "name one of them")
                    .because(names.join(", ")))
            }
        }
    }

    /// Finds several processes; fails before any is changed.
    pub(crate) fn find_all(&self, words: &[String]) -> Result<Vec<&Row>, Failure> {
        words.iter().map(|word| self.find(word)).collect()
    }

    /// Finds several processes for an irreversible action: by full name, or by prefix after a confirmation.
    ///
    /// Duplicates are removed.
    pub(crate) async fn find_confirmed(
        &self,
        words: &[String],
        action: Action,
    ) -> Result<Vec<&Row>, Failure> {
        let found = self.find_or_ask(words, action.verb()).await;
        found.map_err(|failure| match words {
            [_] => failure,
            _ => failure.with_clause(action.not_done()),
        })
    }

    async fn find_or_ask(&self, words: &[String], verb: &str) -> Result<Vec<&Row>, Failure> {
        let mut rows = self.find_all(words)?;
        for (row, word) in rows.iter().zip(words) {
            if row.name_rank(word).is_some_and(NameRank::is_full) {
                continue;
            }
            let name = row.described();
            if !confirm::is_possible() {
                return Err(Failure::usage(
                    format!("`{}` is only a prefix of `{}`", plain(word), plain(&row.name)),
                    format!("use the full name to {verb} it"),
                ));
            }
            if !confirm::ask(&format!("`{}` means {name}; {verb} it?", plain(word))).await {
                return Err(Failure::new(
                    format!("{name} was not changed"),
                    "use the full name to skip the question",
                ));
            }
        }
        let mut seen = BTreeSet::new();
        rows.retain(|row| seen.insert((&row.entry.session_id, &row.entry.process_id)));
        Ok(rows)
    }

    /// Returns the living processes of a tree, including the process itself; `None` if there are none.
    ///
    /// An older server may not report their pids.
    pub(crate) async fn living(&self, row: &Row) -> Result<Option<Vec<u32>>, Failure> {
        let entry = match self.process_ref(row).info().await {
            Err(error) if error.kind() == Some(ErrorKind::UnknownSession) => return Ok(None),
            entry => entry?,
        };
        Ok(entry.filter(|entry| entry.resident_bytes.is_some()).map(|entry| entry.living_pids))
    }

    /// Removes an exited process and its output from the server.
    pub(crate) async fn forget(&self, row: &Row) -> Result<(), Failure> {
        match self.process_ref(row).forget().await {
            // Another client removed it first, or its session has ended.
            Err(error) if ProcessRef::is_forgotten(&error) => Ok(()),
            forgotten => Ok(forgotten?),
        }
    }

    /// Ends those of the given sessions that are empty and have no client.
    pub(crate) async fn end_empty(&self, session_ids: &BTreeSet<&str>) -> Result<(), Failure> {
        let sessions = self.client.sessions().await?;
        let is_empty = |session: &SessionInfo| session.processes == 0 && !session.is_attached;
        for session in sessions.into_iter().filter(is_empty) {
            if session_ids.contains(session.session_id.as_str()) {
                // A client may resume it at this moment, or another one may end it.
                let _ = self.client.end_session(session.session_id).await;
            }
        }
        Ok(())
    }

    /// Returns a reference to whichever process has the name of a row at the time of a call.
    pub(crate) fn process_ref(&self, row: &Row) -> ProcessRef {
        self.client.process_ref(&row.entry.session_id, &row.entry.process_id)
    }

    /// Returns a reference to the listed process, and not to one that was restarted since.
    pub(crate) fn listed_ref(&self, row: &Row) -> ProcessRef {
        self.process_ref(row).with_incarnation(row.entry.incarnation)
    }
}

fn find<'a>(rows: &'a [Row], word: &str) -> Result<&'a Row, Failure> {
    if word.is_empty() {
        // It would be a prefix of every name.
        return Err(Failure::usage("the name of a process is empty", "give a name from `remex ps`"));
    }
    match find_by_name(rows, word)[..] {
        [row] => Ok(row),
        [] => Err(Failure::of(
            Kind::NotFound,
            format!("unknown process `{}`{}", plain(word), choices(rows)),
            "see `remex ps --all`; exited processes are removed a day after they exit",
        )),
        ref matching => {
            let names: Vec<_> = matching.iter().map(|row| plain(&row.name)).collect();
            Err(Failure::usage(
                format!("`{}` could be any of {}", plain(word), names.join(", ")),
                "type more of its name",
            ))
        }
    }
}

fn choices(rows: &[Row]) -> String {
    const MOST: usize = 5;
    match rows.len() {
        0 => "; no processes exist".to_owned(),
        1..=MOST => {
            let names: Vec<_> = rows.iter().map(|row| plain(&row.name)).collect();
            format!("; known: {}", names.join(", "))
        }
        _ => String::new(),
    }
}

/// Gives processes with the same name longer, unambiguous names.
fn named(mut rows: Vec<Row>) -> Vec<Row> {
    let mut seen = BTreeMap::<String, usize>::new();
    for row in &rows {
        *seen.entry(row.name.clone()).or_default() += 1;
    }
    for row in &mut rows {
        if seen.get(&row.name).is_some_and(|times| *times > 1) {
            row.name = row.long_name();
        }
    }
    rows
}

fn row(entry: ProcessInfo, sessions: &BTreeMap<String, SessionInfo>) -> Row {
    let session = sessions.get(&entry.session_id);
    let is_word = is_word(&entry.process_id);
    let mut row = Row {
        name: entry.process_id.clone(),
        session_name: session.and_then(|session| session.name.clone()),
        client_name: session.map(|session| session.client_name.clone()).unwrap_or_default(),
        attached: session.is_some_and(|session| session.is_attached),
        expires_at_ms: session.and_then(|session| session.expires_at_ms),
        detach_ttl_ms: session
            .and_then(|session| Some(session.expires_at_ms?.saturating_sub(session.detached_at_ms?))),
        entry,
    };
    if !is_word {
        row.name = row.long_name();
    }
    row
}

/// Returns whether a name can be typed: it is not empty, has no invisible characters, and no colon, which would make it
/// a path for `remex rm`.
fn is_word(name: &str) -> bool {
    !name.is_empty() && plain(name) == name && !name.contains(':')
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates a process as listed by a server, in a session with this name.
    pub(crate) fn process(session: &str, id: &str, state: State) -> Row {
        let mut entry = ProcessInfo::new(format!("id-of-{session}"), id);
        entry.argv = vec!["sleep".to_owned(), "1000".to_owned()];
        entry.pid = Some(4711);
        entry.state = state;
        entry.started_at_ms = 1_000;
        entry.cpu_ms = Some(0);
        entry.resident_bytes = (state != State::Closed).then_some(0);
        entry.living_pids = if state == State::Closed { Vec::new() } else { vec![4711] };
        let session_name = (!session.is_empty()).then(|| session.to_owned());
        Row {
            name: id.to_owned(),
            session_name,
            client_name: String::new(),
            attached: false,
            expires_at_ms: None,
            detach_ttl_ms: None,
            entry,
        }
    }

    fn found<'a>(rows: &'a [Row], word: &str) -> Result<&'a str, (Kind, String)> {
        find(rows, word).map(|row| row.name.as_str()).map_err(|failure| (failure.kind(), failure.message()))
    }

    #[test]
    fn a_process_is_found_by_its_name_or_an_unambiguous_beginning() {
        let rows = named(vec![
            process("ci", "build", State::Running),
            process("ci", "builder", State::Running),
            process("night", "lint", State::Running),
        ]);
        for (word, name) in [
            ("build", "build"),
            ("builde", "builder"),
            ("l", "lint"),
            ("night", "lint"),
            ("ci/builder", "builder"),
        ] {
            assert_eq!(found(&rows, word), Ok(name), "{word}");
        }
        let ambiguous = |text: &str| Err((Kind::Usage, text.to_owned()));
        assert_eq!(found(&rows, "b"), ambiguous("`b` could be any of build, builder"));
        assert_eq!(found(&rows, "ci"), ambiguous("`ci` could be any of build, builder"));
        assert_eq!(found(&rows, ""), ambiguous("the name of a process is empty"));
        let text = "unknown process `x`; known: build, builder, lint".to_owned();
        assert_eq!(found(&rows, "x"), Err((Kind::NotFound, text)));
    }

    #[test]
    fn a_process_name_takes_precedence_over_a_session_name() {
        let rows = [process("build", "build", State::Running), process("build", "lint", State::Running)];
        assert_eq!(found(&rows, "build"), Ok("build"));
        assert_eq!(found(&rows, "lint"), Ok("lint"));
    }

    #[test]
    fn running_processes_are_preferred_to_exited_ones() {
        let rows = named(vec![
            process("old", "build", State::Closed),
            process("new", "build", State::Running),
            process("older", "bake", State::Closed),
        ]);
        assert_eq!(found(&rows, "build"), Ok("new/build"));
        assert_eq!(found(&rows, "b"), Ok("new/build"));
        assert_eq!(found(&rows, "ba"), Ok("bake"));
        assert_eq!(found(&rows, "old/build"), Ok("old/build"));
        assert_eq!(found(&rows[..1], "bu"), Ok("old/build"));
    }

    #[test]
    fn every_process_is_found_by_its_displayed_name() {
        // Names that begin with each other, the same name in several sessions, sessions named like processes.
        let words = ["a", "ab", "abc", "b", "ba"];
        let states = [State::Running, State::Closed];
        let mut rows = Vec::new();
        for (number, session) in ["", "a", "ab", "c"].into_iter().enumerate() {
            for (index, word) in words.iter().enumerate().filter(|(index, _)| (number + index) % 3 > 0) {
                rows.push(process(session, word, states[(number * index) % 2]));
            }
        }
        let rows = named(rows);
        for row in &rows {
            let found = find(&rows, &row.name).unwrap_or_else(|failure| panic!("{}: {failure:?}", row.name));
            assert_eq!(found.long_name(), row.long_name());
        }
    }

    #[test]
    fn a_process_without_a_typable_name_gets_one() {
        let sessions = BTreeMap::new();
        let ids = ["", "a\nb", "\u{202e}x", "good"];
        let rows = ids.map(|id| row(process("s", id, State::Running).entry, &sessions));
        assert_eq!(
            rows.each_ref().map(|row| row.name.as_str()),
            ["id-of-s/", "id-of-s/a\u{fffd}b", "id-of-s/\u{fffd}x", "good"]
        );
        for row in &rows {
            assert_eq!(find(&rows, &row.name).unwrap().entry.process_id, row.entry.process_id);
        }
    }

    #[test]
    fn process_states_are_one_or_two_words() {
        let mut row = process("s", "p", State::Closed);
        row.entry.exit_code = Some(3);
        assert_eq!(row.state(), "exit 3");
        (row.entry.exit_code, row.entry.signal) = (Some(137), Some("SIGKILL".to_owned()));
        assert_eq!(row.state(), "SIGKILL");
        row.entry.cause = Some(ExitCause::Timeout);
        assert_eq!(row.state(), "timeout");
        (row.entry.resident_bytes, row.entry.living_pids) = (Some(4096), vec![4712, 4713]);
        assert_eq!((row.state().as_str(), row.outcome().as_str()), ("timeout, 2 alive", "timeout"));
        let mut held = process("s", "p", State::Exited);
        (held.entry.exit_code, held.entry.living_pids) = (Some(0), Vec::new());
        assert_eq!(held.state(), "exit 0, output open");
        assert_eq!(process("s", "p", State::Running).state(), "running");
    }
}
