//! Parses an environments file.
//!
//! Start at [`Definitions::parse`].

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use toml::de::{DeTable, DeValue};

use super::{
    Definition, DefinitionError, DefinitionErrorKind, DefinitionErrors, Definitions, Draft, Id,
    LocalInclusion, ValueType,
    definition::reason_and_hint,
    draft::{TokenFile, is_token},
};
use crate::{Program, Target, base::url::without_user, transport::tls::TlsOptions};

const FILE_KEYS: [&str; 3] = ["default", "include_local", "environments"];
const PROGRAM_KEYS: [&str; 3] = ["args", "env", "cwd"];
const TOKEN_KEYS: [&str; 2] = ["auth_bearer_token", "auth_bearer_token_file"];
const TLS_KEYS: [&str; 4] = ["ca", "pin", "client_cert", "client_key"];
const KEYS: [&str; 15] = [
    "id",
    "url",
    "program",
    "args",
    "env",
    "cwd",
    "auth_bearer_token",
    "auth_bearer_token_file",
    "ca",
    "pin",
    "client_cert",
    "client_key",
    "connect_timeout_sec",
    "initialize_timeout_sec",
    "reconnect_timeout_sec",
];

/// The value of `reconnect_timeout_sec` without an end.
const FOREVER: &str = "forever";

impl Definitions {
    /// Parses the text of an environments file; `file` is its path for error messages.
    ///
    /// | key | meaning |
    /// | --- | --- |
    /// | `default` | the id of an environment in the file, `local`, or `none`; by default `local` if included, otherwise the first one |
    /// | `include_local` | whether `local` is included; `true` by default |
    /// | `[[environments]]` | an environment; repeatable |
    /// | `id` | 1 to 64 ASCII letters, digits, `-`, `_`; neither `local` nor `none` |
    /// | `url` | an address for [`Target::parse`] |
    /// | `program`, `args`, `env`, `cwd` | instead of `url`: a program to start that speaks the protocol on its standard streams |
    /// | `auth_bearer_token`, `auth_bearer_token_file` | with a WebSocket `url`: the token to present, or the file that contains it |
    /// | `ca`, `pin` | with a `wss://` address: a PEM file with the CAs of the server, and the public key that it must have |
    /// | `client_cert`, `client_key` | with a `wss://` address: the certificate to present, and its private key |
    /// | `connect_timeout_sec`, `initialize_timeout_sec` | timeouts in seconds, possibly fractional |
    /// | `reconnect_timeout_sec` | how long to try to reconnect, in seconds, or `"forever"` |
    ///
    /// These paths are relative to the directory of the file: `cwd`, `auth_bearer_token_file`, `ca`, `client_cert`,
    /// `client_key`, a unix socket, and a `program` with a slash. Neither variables nor `~` are expanded.
    ///
    /// A Codex `environments.toml` is accepted unchanged: unknown keys are ignored with a warning in
    /// [`Draft::warnings`].
    ///
    /// # Errors
    ///
    /// [`DefinitionErrors`] with all errors, in the order of lines; a TOML syntax error is reported alone, because nothing
    /// else can be parsed.
    ///
    /// ```
    /// use std::path::Path;
    /// use remex_client::environment::Definitions;
    ///
    /// let text = r#"
    /// default = "dev"
    ///
    /// [[environments]]
    /// id = "dev"
    /// program = "ssh"
    /// args = ["dev.example", "remex", "serve", "--listen", "stdio"]
    /// connect_timeout_sec = 2.5
    /// "#;
    /// let draft = Definitions::parse(text, Path::new("environments.toml")).unwrap();
    /// let definitions = draft.with_tokens(|path| Ok(std::fs::read_to_string(path)?)).unwrap();
    /// assert_eq!(definitions.default.unwrap().as_str(), "dev");
    ///
    /// let errors = Definitions::parse("default = 'dev'", Path::new("environments.toml")).unwrap_err();
    /// assert_eq!(
    ///     errors.to_string(),
    ///     "environments.toml:1: the default environment `dev` is not defined; set it with `remex env default NAME`, or ignore it with `--here`"
    /// );
    /// ```
    pub fn parse(text: &str, file: &Path) -> Result<Draft, DefinitionErrors> {
        let mut reader = Reader::new(text, file);
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            reader.record_error(
                error.span().unwrap_or_default().start,
                DefinitionErrorKind::Syntax { message: error.message().to_owned() },
            );
        }
        let definitions =
            if errors.is_empty() { reader.definitions(table.get_ref()) } else { Definitions::nothing() };
        let mut errors = reader.errors;
        errors.sort_by_key(|error| error.line);
        if !errors.is_empty() {
            // A second error on the same line is a consequence of the first.
            errors.dedup_by_key(|error| error.line);
        }
        if errors.iter().all(|error| error.kind.is_warning()) {
            Ok(Draft { warnings: errors, definitions, token_files: reader.token_files })
        } else {
            Err(DefinitionErrors(errors))
        }
    }
}

struct Reader<'a> {
    file: &'a Path,
    /// The offsets at which lines start, without the first.
    lines: Vec<usize>,
    /// The environment that is being parsed.
    environment: Option<String>,
    /// The ids so far as written, valid or not, with their lines.
    ids: Vec<(String, usize)>,
    token_files: Vec<TokenFile>,
    errors: Vec<DefinitionError>,
}

/// A value and its offset in the text.
struct At<T> {
    value: T,
    at: usize,
}

enum Token {
    Inline(String),
    File(At<PathBuf>),
}

impl<'a> Reader<'a> {
    fn new(text: &str, file: &'a Path) -> Self {
        let lines = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        let (ids, token_files, errors) = (Vec::new(), Vec::new(), Vec::new());
        Self { file, lines, environment: None, ids, token_files, errors }
    }

    fn definitions(&mut self, table: &DeTable<'_>) -> Definitions {
        self.unknown_keys(table, &FILE_KEYS);
        let local = self.local(table);
        let environments = self.environments(table);
        self.environment = None;
        let default = match self.string(table, "default") {
            Some(default) => self.default(&default, local),
            None if local == LocalInclusion::Included => Some(Id::local()),
            None => environments.first().map(|definition| definition.id.clone()),
        };
        Definitions { default, local, environments }
    }

    fn local(&mut self, table: &DeTable<'_>) -> LocalInclusion {
        let Some(value) = table.get("include_local") else { return LocalInclusion::Included };
        match value.get_ref().as_bool() {
            Some(true) => LocalInclusion::Included,
            Some(false) => LocalInclusion::Excluded,
            None => {
                self.record_error(
                    value.span().start,
                    DefinitionErrorKind::Type { key: "include_local", expected: ValueType::Flag },
                );
                LocalInclusion::Included
            }
        }
    }

    fn default(&mut self, default: &At<&str>, local: LocalInclusion) -> Option<Id> {
        match default.value {
            "none" => None,
            "local" if local == LocalInclusion::Included => Some(Id::local()),
            "local" => self.fail(default.at, DefinitionErrorKind::ExcludedDefault),
            // An invalid id has already been reported.
            id if self.ids.iter().any(|(other, _)| other == id) => Id::new(id).ok(),
            id => self.fail(default.at, DefinitionErrorKind::UnknownDefault { default: id.to_owned() }),
        }
    }

    fn environments(&mut self, table: &DeTable<'_>) -> Vec<Definition> {
        let mut definitions = Vec::new();
        let Some(value) = table.get("environments") else { return definitions };
        let Some(array) = value.get_ref().as_array() else {
            self.record_error(value.span().start, DefinitionErrorKind::NoTables);
            return definitions;
        };
        for item in array {
            self.environment = None;
            match item.get_ref().as_table() {
                Some(table) => {
                    definitions.extend(self.definition(table, item.span().start, definitions.len()));
                }
                None => self.record_error(item.span().start, DefinitionErrorKind::NoTables),
            }
        }
        definitions
    }

    /// Parses one environment; `index` is its position in the list.
    fn definition(&mut self, table: &DeTable<'_>, at: usize, index: usize) -> Option<Definition> {
        let id = self.id(table, at);
        self.unknown_keys(table, &KEYS);
        let target = self.target(table, at);
        let connect_timeout = self.seconds(table, "connect_timeout_sec");
        let initialize_timeout = self.seconds(table, "initialize_timeout_sec");
        let reconnect_timeout = self.seconds_or_forever(table, "reconnect_timeout_sec");
        let token = self.token(table);
        let mut definition =
            Definition { id: id?, target: target?, connect_timeout, initialize_timeout, reconnect_timeout };
        match (token, &mut definition.target) {
            (Some(Token::Inline(token)), Target::WebSocket(socket)) => socket.bearer = Some(token),
            (Some(Token::File(At { value: path, at })), Target::WebSocket(_)) => {
                let (file, line) = (self.file.to_owned(), self.line(at));
                self.token_files.push(TokenFile { index, path, file, line });
            }
            // Every other combination has already been reported.
            _ => {}
        }
        Some(definition)
    }

    fn id(&mut self, table: &DeTable<'_>, at: usize) -> Option<Id> {
        if !table.contains_key("id") {
            return self.fail(at, DefinitionErrorKind::NoId);
        }
        let At { value, at } = self.string(table, "id")?;
        self.environment = Some(value.to_owned());
        let first = self.ids.iter().find(|(other, _)| other == value).map(|(_, line)| *line);
        self.ids.push((value.to_owned(), self.line(at)));
        if let Some(first) = first {
            return self.fail(at, DefinitionErrorKind::Duplicate { first });
        }
        match Id::new(value) {
            Ok(id) if id.is_reserved() => self.fail(at, DefinitionErrorKind::Reserved),
            Ok(id) => Some(id),
            Err(invalid) => self.fail(at, DefinitionErrorKind::Id(invalid)),
        }
    }

    fn target(&mut self, table: &DeTable<'_>, at: usize) -> Option<Target> {
        match (table.get("url"), table.get("program")) {
            (None, None) => self.fail(at, DefinitionErrorKind::NoServer),
            (Some(_), Some(program)) => self.fail(program.span().start, DefinitionErrorKind::TwoServers),
            (Some(_), None) => {
                self.misplaced(table, &PROGRAM_KEYS, "program");
                self.url(table)
            }
            (None, Some(_)) => {
                self.misplaced(table, &TOKEN_KEYS, "url");
                self.needs_tls(table);
                self.program(table)
            }
        }
    }

    fn url(&mut self, table: &DeTable<'_>) -> Option<Target> {
        let At { value: url, at } = self.string(table, "url")?;
        match Target::parse(url) {
            Ok(target @ (Target::Unix(_) | Target::Program(_))) => {
                for value in TOKEN_KEYS.iter().filter_map(|key| table.get(*key)) {
                    self.record_error(value.span().start, DefinitionErrorKind::SocketToken);
                }
                self.needs_tls(table);
                Some(match target {
                    Target::Unix(path) => Target::Unix(self.beside(&path)),
                    target => target,
                })
            }
            Ok(Target::WebSocket(socket)) if url.starts_with("wss://") => {
                Some(Target::WebSocket(socket.tls(self.tls(table))))
            }
            Ok(target) => {
                self.needs_tls(table);
                Some(target)
            }
            Err(error) => {
                let (reason, hint) = reason_and_hint(error);
                self.fail(at, DefinitionErrorKind::Url { url: without_user(url), reason, hint })
            }
        }
    }

    fn tls(&mut self, table: &DeTable<'_>) -> TlsOptions {
        let mut options = TlsOptions::new();
        options.ca = self.path(table, "ca").map(|path| path.value);
        if let Some(At { value, at }) = self.string(table, "pin") {
            match value.parse() {
                Ok(pin) => options.pin = Some(pin),
                Err(invalid) => self.record_error(at, DefinitionErrorKind::Pin(invalid)),
            }
        }
        for (key, with) in [("client_cert", "client_key"), ("client_key", "client_cert")] {
            if let (Some(value), None) = (table.get(key), table.get(with)) {
                self.record_error(value.span().start, DefinitionErrorKind::Alone { key, with });
            }
        }
        match (self.path(table, "client_cert"), self.path(table, "client_key")) {
            (Some(certificate), Some(key)) => options.identity(certificate.value, key.value),
            _ => options,
        }
    }

    fn needs_tls(&mut self, table: &DeTable<'_>) {
        for key in TLS_KEYS {
            if let Some(value) = table.get(key) {
                self.record_error(value.span().start, DefinitionErrorKind::NeedsTls { key });
            }
        }
    }

    fn program(&mut self, table: &DeTable<'_>) -> Option<Target> {
        let (args, env) = (self.args(table), self.env(table));
        let cwd = self.path(table, "cwd").map(|cwd| cwd.value);
        let mut program = self.string(table, "program")?.value.to_owned();
        if program.contains('/') {
            program = self.path(table, "program")?.value.to_string_lossy().into_owned();
        }
        Some(Target::Program(Program { program, args, env, cwd }))
    }

    fn args(&mut self, table: &DeTable<'_>) -> Vec<String> {
        let Some(value) = table.get("args") else { return Vec::new() };
        let strings = value.get_ref().as_array().and_then(|array| {
            array
                .iter()
                .map(|item| Some((item.span().start, item.get_ref().as_str()?)))
                .collect::<Option<Vec<_>>>()
        });
        let Some(strings) = strings else {
            self.record_error(
                value.span().start,
                DefinitionErrorKind::Type { key: "args", expected: ValueType::Strings },
            );
            return Vec::new();
        };
        for (at, text) in &strings {
            if text.contains('\0') {
                self.record_error(*at, DefinitionErrorKind::Zero { key: "args" });
            }
        }
        strings.into_iter().map(|(_, text)| text.to_owned()).collect()
    }

    fn env(&mut self, table: &DeTable<'_>) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        let Some(value) = table.get("env") else { return env };
        let Some(table) = value.get_ref().as_table() else {
            self.record_error(
                value.span().start,
                DefinitionErrorKind::Type { key: "env", expected: ValueType::Table },
            );
            return env;
        };
        for (key, value) in table {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            if name.is_empty() || name.contains(['=', '\0']) {
                self.record_error(at, DefinitionErrorKind::Variable { name: name.to_owned() });
            }
            match value.get_ref().as_str() {
                Some(text) if text.contains('\0') => {
                    self.record_error(at, DefinitionErrorKind::Zero { key: "env" });
                }
                Some(text) => drop(env.insert(name.to_owned(), text.to_owned())),
                None => self.record_error(
                    value.span().start,
                    DefinitionErrorKind::Type { key: "env", expected: ValueType::Table },
                ),
            }
        }
        env
    }

    fn token(&mut self, table: &DeTable<'_>) -> Option<Token> {
        let [inline, file] = TOKEN_KEYS;
        if let (Some(_), Some(file)) = (table.get(inline), table.get(file)) {
            return self.fail(file.span().start, DefinitionErrorKind::TwoTokens);
        }
        if table.contains_key(file) {
            return self.path(table, file).map(Token::File);
        }
        let At { value: token, at } = self.string(table, inline)?;
        if is_token(token) {
            Some(Token::Inline(token.to_owned()))
        } else {
            self.fail(at, DefinitionErrorKind::Token)
        }
    }

    fn seconds_or_forever(&mut self, table: &DeTable<'_>, key: &'static str) -> Option<Duration> {
        match table.get(key)?.get_ref().as_str() {
            Some(FOREVER) => Some(Duration::MAX),
            _ => self.seconds(table, key),
        }
    }

    fn seconds(&mut self, table: &DeTable<'_>, key: &'static str) -> Option<Duration> {
        let value = table.get(key)?;
        let duration = match value.get_ref() {
            DeValue::Integer(number) => {
                u64::from_str_radix(number.as_str(), number.radix()).ok().map(Duration::from_secs)
            }
            DeValue::Float(number) => {
                number.as_str().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            }
            _ => None,
        };
        match duration.filter(|duration| !duration.is_zero()) {
            Some(duration) => Some(duration),
            None => self.fail(value.span().start, DefinitionErrorKind::Seconds { key }),
        }
    }

    fn path(&mut self, table: &DeTable<'_>, key: &'static str) -> Option<At<PathBuf>> {
        let At { value, at } = self.string(table, key)?;
        if value == "~" || value.starts_with("~/") {
            return self.fail(at, DefinitionErrorKind::Tilde { key });
        }
        Some(At { value: self.beside(Path::new(value)), at })
    }

    /// Returns a string that is not empty and contains no NUL byte.
    fn string<'t>(&mut self, table: &'t DeTable<'_>, key: &'static str) -> Option<At<&'t str>> {
        let value = table.get(key)?;
        let at = value.span().start;
        let kind = match value.get_ref().as_str() {
            None => DefinitionErrorKind::Type { key, expected: ValueType::String },
            Some("") => DefinitionErrorKind::Empty { key },
            Some(text) if text.contains('\0') => DefinitionErrorKind::Zero { key },
            Some(value) => return Some(At { value, at }),
        };
        self.fail(at, kind)
    }

    /// Resolves a path relative to the directory of the file.
    fn beside(&self, path: &Path) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }

    fn unknown_keys(&mut self, table: &DeTable<'_>, known: &[&'static str]) {
        for key in table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let meant = known.iter().copied().find(|known| is_like(key.get_ref(), known));
            self.record_error(
                key.span().start,
                DefinitionErrorKind::UnknownKey { key: key.get_ref().to_string(), meant },
            );
        }
    }

    fn misplaced(&mut self, table: &DeTable<'_>, keys: &[&'static str], with: &'static str) {
        for key in keys.iter().copied() {
            if let Some(value) = table.get(key) {
                self.record_error(value.span().start, DefinitionErrorKind::Misplaced { key, with });
            }
        }
    }

    fn fail<T>(&mut self, at: usize, kind: DefinitionErrorKind) -> Option<T> {
        self.record_error(at, kind);
        None
    }

    fn record_error(&mut self, at: usize, kind: DefinitionErrorKind) {
        let (file, line, environment) = (self.file.to_owned(), self.line(at), self.environment.clone());
        self.errors.push(DefinitionError { file, line, environment, kind });
    }

    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at) + 1
    }
}

/// Returns whether two words differ by at most two edits, or one in short words.
fn is_like(written: &str, known: &str) -> bool {
    let most = if known.len() > 4 { 2 } else { 1 };
    if written.len().abs_diff(known.len()) > most {
        return false;
    }
    let known: Vec<char> = known.chars().collect();
    let mut row: Vec<usize> = (0..=known.len()).collect();
    for (at, a) in written.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, b) in known.iter().enumerate() {
            let least = (row[column] + 1).min(row[column + 1] + 1).min(diagonal + usize::from(a != *b));
            diagonal = std::mem::replace(&mut row[column + 1], least);
        }
    }
    row[known.len()] <= most
}
