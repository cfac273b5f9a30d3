//! Reads a configuration file, and collects all its mistakes.

use std::{
    path::{Path, PathBuf},
    str::FromStr as _,
    time::Duration,
};

use remex_base::certificate::CertificateName;
use remex_rpc::ListenAddress;
use remex_server::{CertificateGrant, Scopes, StartPolicy};
use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use super::{
    ConfigError, ConfigErrorKind, ConfigErrors, ServerConfig, User, cgroup_use,
    keys::{Key, Kind, TABLES, Value, keys},
};
use crate::units::{parse_duration, parse_size};

/// Digits of a SHA-256 digest.
const DIGEST_DIGITS: usize = 64;

/// A value, and where it stands.
type Item<'a> = Spanned<DeValue<'a>>;

pub(super) fn read(text: &str, file: &Path) -> Result<ServerConfig, ConfigErrors> {
    let lines = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    let mut reader = Reader { file, lines, keys: keys(), errors: Vec::new() };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let message = error.message().to_owned();
        reader.record_error(error.span().unwrap_or_default().start, ConfigErrorKind::Syntax { message });
    }
    let mut config = ServerConfig::default();
    if errors.is_empty() {
        for (name, _) in TABLES {
            if let Some(table) = reader.table(table.get_ref(), name) {
                reader.read_table(&mut config, name, table);
            }
        }
        reader.check_pairs(&config, table.get_ref());
    }
    let mut errors = reader.errors;
    if errors.is_empty() {
        return Ok(config);
    }
    errors.sort_by_key(|error| error.line);
    // The second on a line follows from the first.
    errors.dedup_by_key(|error| error.line);
    Err(ConfigErrors(errors))
}

struct Reader<'a> {
    file: &'a Path,
    /// Where lines begin, the first left out.
    lines: Vec<usize>,
    keys: Vec<Key>,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    /// Returns the table with this name, which may have dots, if there is one.
    fn table<'t, 'v>(&mut self, root: &'t DeTable<'v>, name: &'static str) -> Option<&'t DeTable<'v>> {
        let mut table = root;
        let mut parts = name.split('.').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            let item = table.get(part)?;
            let Some(inner) = item.get_ref().as_table() else {
                if parts.peek().is_none() {
                    let key = name.to_owned();
                    let kind = ConfigErrorKind::Type { key, expected: "a table", example: "{ … }" };
                    self.record_error(item.span().start, kind);
                }
                return None;
            };
            table = inner;
        }
        Some(table)
    }

    fn read_table(&mut self, config: &mut ServerConfig, name: &'static str, table: &DeTable<'_>) {
        for (written, item) in table {
            let key =
                self.keys.iter().find(|key| key.table == name && key.name == written.get_ref().as_ref());
            match key.copied() {
                Some(key) => self.read_key(config, key, item),
                None if is_table(name, written.get_ref()) => {}
                None => self.on_unknown(name, written),
            }
        }
    }

    fn read_key(&mut self, config: &mut ServerConfig, key: Key, item: &Item<'_>) {
        let Some(value) = self.value(key, item) else { return };
        if let Err(invalid) = key.set(config, value) {
            self.blame_value(key, item, Rejected::new(invalid.to_string(), "remove the key for its default"));
        }
    }

    fn value(&mut self, key: Key, item: &Item<'_>) -> Option<Value> {
        let value = item.get_ref();
        let text = value.as_str();
        match key.kind {
            Kind::Text => self.expect(key, item, "a text", text.map(|text| Value::Text(text.to_owned()))),
            Kind::Path => self.path(key, item).map(Value::Path),
            Kind::Flag => self.expect(key, item, "true or false", value.as_bool().map(Value::Flag)),
            Kind::Socket => {
                let text = self.expect(key, item, "a text", text)?;
                let address = text.parse().map(Value::Socket);
                let rejected = |_| Rejected::new("it is not an address", "write `IP:PORT`");
                self.accept(key, item, address.map_err(rejected))
            }
            Kind::Count => {
                let count = number(value).and_then(|count| usize::try_from(count).ok());
                self.expect(key, item, "a number", count.map(Value::Count))
            }
            Kind::OptionalCount if text == Some("unlimited") => Some(Value::OptionalCount(None)),
            Kind::OptionalCount => {
                let count = number(value).and_then(|count| usize::try_from(count).ok());
                let count = count.map(|count| Value::OptionalCount(Some(count)));
                self.expect(key, item, "a number or \"unlimited\"", count)
            }
            Kind::Size => {
                let size = number(value).or_else(|| text.and_then(parse_size));
                self.expect(key, item, "a number of bytes such as \"64MiB\"", size.map(Value::Size))
            }
            Kind::Time => self.time(key, item).map(Value::Time),
            Kind::OptionalTime if text == Some("forever") => Some(Value::OptionalTime(None)),
            Kind::OptionalTime => self.time(key, item).map(|time| Value::OptionalTime(Some(time))),
            Kind::Scopes => self.scopes(key, item).map(Value::Scopes),
            Kind::Cgroup => {
                let text = self.expect(key, item, "a text", text)?;
                let wrong = |reason| Rejected::new(reason, "give an absolute path, \"auto\" or \"none\"");
                self.accept(key, item, cgroup_use(text).map(Value::Cgroup).map_err(wrong))
            }
            Kind::Starts => {
                let text = self.expect(key, item, "a text", text)?;
                let unknown = || Rejected::new("it is no such word", "use \"any\", \"confined\" or \"none\"");
                self.accept(key, item, StartPolicy::from_word(text).map(Value::Starts).ok_or_else(unknown))
            }
            Kind::Texts => {
                let texts = self.list(key, item, |reader, item| {
                    let text = reader.expect(key, item, "a list of texts", item.get_ref().as_str())?;
                    Some(text.to_owned())
                });
                texts.map(Value::Texts)
            }
            Kind::Addresses => {
                self.list(key, item, |reader, item| reader.address(key, item)).map(Value::Texts)
            }
            Kind::Digests => {
                self.list(key, item, |reader, item| reader.digest(key, item)).map(Value::Digests)
            }
            Kind::Users => self.list(key, item, |reader, item| reader.user(key, item)).map(Value::Users),
            Kind::Certificates => {
                let certificates = self.list(key, item, |reader, item| reader.certificate(key, item));
                certificates.map(Value::Certificates)
            }
        }
    }

    fn time(&mut self, key: Key, item: &Item<'_>) -> Option<Duration> {
        let time = item.get_ref().as_str().and_then(parse_duration);
        self.expect(key, item, "a time such as \"500ms\", \"10s\", \"5m\" or \"24h\"", time)
    }

    fn path(&mut self, key: Key, item: &Item<'_>) -> Option<PathBuf> {
        let text = self.expect(key, item, "a path", item.get_ref().as_str())?;
        let mistake = match text {
            "" => Some(Rejected::new("it is empty", "give it a value, or remove it")),
            _ if text == "~" || text.starts_with("~/") => {
                Some(Rejected::new("`~` is not expanded", "write the whole path"))
            }
            _ if text.contains('\0') => Some(Rejected::new("it contains a NUL byte", "remove it")),
            _ => None,
        };
        match mistake {
            Some(mistake) => self.accept(key, item, Err(mistake)),
            None => Some(self.file.parent().unwrap_or(Path::new("")).join(text)),
        }
    }

    fn scopes(&mut self, key: Key, item: &Item<'_>) -> Option<Scopes> {
        let text = self.expect(key, item, "a text with scopes", item.get_ref().as_str())?;
        let scopes = text.parse::<Scopes>().map_err(|error| Rejected::new(error.to_string(), error.hint()));
        self.accept(key, item, scopes)
    }

    fn address(&mut self, key: Key, item: &Item<'_>) -> Option<String> {
        let text = self.expect(key, item, "a list of addresses", item.get_ref().as_str())?;
        let address = match text {
            "systemd" => Ok(text.to_owned()),
            _ => ListenAddress::from_str(text)
                .map(|_| text.to_owned())
                .map_err(|error| Rejected::new(error.message(), error.hint())),
        };
        self.accept(key, item, address)
    }

    fn digest(&mut self, key: Key, item: &Item<'_>) -> Option<[u8; 32]> {
        let text = self.expect(key, item, "a list of digests", item.get_ref().as_str())?;
        let rejected = || Rejected::new("it is not a SHA-256 digest", "give 64 hexadecimal digits");
        self.accept(key, item, digest(text).ok_or_else(rejected))
    }

    fn user(&mut self, key: Key, item: &Item<'_>) -> Option<User> {
        let table = self.entry(key, item, &["name", "scope"])?;
        let name = self.entry_name(key, item, table, "users")?;
        let scope = match table.get("scope") {
            Some(scope) => self.scopes(key, scope)?,
            None => Scopes::all(),
        };
        Some(User { name, scope })
    }

    fn certificate(&mut self, key: Key, item: &Item<'_>) -> Option<CertificateGrant> {
        let table = self.entry(key, item, &["name", "key_sha256", "scope"])?;
        let text = self.entry_name(key, item, table, "certificates")?;
        let name = text.parse::<CertificateName>();
        let name = name.map_err(|error| Rejected::new(error.message(), error.hint()));
        let name = self.accept(key, table.get("name").unwrap_or(item), name)?;
        let key_sha256 = match table.get("key_sha256") {
            Some(digest) => Some(self.digest(key, digest)?),
            None => None,
        };
        let scopes = match table.get("scope") {
            Some(scope) => self.scopes(key, scope)?,
            None => Scopes::all(),
        };
        Some(CertificateGrant { name, key_sha256, scopes })
    }

    /// Returns the table of one entry of a list.
    fn entry<'t, 'v>(
        &mut self,
        key: Key,
        item: &'t Item<'v>,
        known: &[&'static str],
    ) -> Option<&'t DeTable<'v>> {
        let table = self.expect(key, item, "a list of tables", item.get_ref().as_table())?;
        for written in table.keys().filter(|written| !known.contains(&written.get_ref().as_ref())) {
            let meant = closest(written.get_ref(), known.iter().copied()).map(|meant| format!("`{meant}`"));
            let kind =
                ConfigErrorKind::UnknownKey { key: written.get_ref().to_string(), table: key.table, meant };
            self.record_error(written.span().start, kind);
        }
        Some(table)
    }

    fn entry_name(
        &mut self,
        key: Key,
        item: &Item<'_>,
        table: &DeTable<'_>,
        list: &'static str,
    ) -> Option<String> {
        let Some(name) = table.get("name") else {
            self.record_error(item.span().start, ConfigErrorKind::Missing { list, key: "name" });
            return None;
        };
        let text = self.expect(key, name, "a list of tables with texts", name.get_ref().as_str())?;
        let text = match text {
            "" => Err(Rejected::new("it is empty", "give it a value, or remove the entry")),
            _ => Ok(text.to_owned()),
        };
        self.accept(key, name, text)
    }

    /// Reads all items of a list, or blames the value for not being one.
    fn list<T>(
        &mut self,
        key: Key,
        item: &Item<'_>,
        mut read: impl FnMut(&mut Self, &Item<'_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let items = self.expect(key, item, "a list", item.get_ref().as_array())?;
        // All of them, for the mistakes of each.
        let read: Vec<_> = items.iter().map(|item| read(self, item)).collect();
        read.into_iter().collect()
    }

    /// Blames keys that have no effect without others.
    fn check_pairs(&mut self, config: &ServerConfig, root: &DeTable<'_>) {
        let tls = &config.tls;
        let mut needs = |is_given: bool, key, with| {
            if is_given && let Some(at) = position(root, key) {
                self.record_error(at, ConfigErrorKind::Alone { key, with });
            }
        };
        needs(tls.cert.is_some() && tls.key.is_none(), "tls.cert", "tls.key");
        needs(tls.key.is_some() && tls.cert.is_none(), "tls.key", "tls.cert");
        needs(tls.client_ca.is_some() && tls.cert.is_none(), "tls.client_ca", "tls.cert");
    }

    fn on_unknown(&mut self, table: &'static str, written: &Spanned<DeString<'_>>) {
        let name = written.get_ref();
        let here = self.keys.iter().filter(|key| key.table == table).map(|key| key.name);
        let tables = TABLES.iter().filter(|_| table.is_empty()).map(|(table, _)| *table);
        let meant = closest(name, here.chain(tables)).map(|meant| format!("`{meant}`"));
        let elsewhere = || {
            let key = self.keys.iter().find(|key| key.name == name.as_ref())?;
            Some(match key.table {
                "" => format!("`{}` at the top of the file", key.name),
                table => format!("`{}` in `[{table}]`", key.name),
            })
        };
        let meant = elsewhere().or(meant);
        let kind = ConfigErrorKind::UnknownKey { key: name.to_string(), table, meant };
        self.record_error(written.span().start, kind);
    }

    /// Returns what was found, or blames the value for its type.
    fn expect<T>(
        &mut self,
        key: Key,
        item: &Item<'_>,
        expected: &'static str,
        found: Option<T>,
    ) -> Option<T> {
        if found.is_none() {
            let kind = ConfigErrorKind::Type { key: key.name.to_owned(), expected, example: key.example };
            self.record_error(item.span().start, kind);
        }
        found
    }

    /// Returns what was parsed, or blames the value.
    fn accept<T>(&mut self, key: Key, item: &Item<'_>, parsed: Result<T, Rejected>) -> Option<T> {
        parsed.map_err(|rejected| self.blame_value(key, item, rejected)).ok()
    }

    fn blame_value(&mut self, key: Key, item: &Item<'_>, rejected: Rejected) {
        let value = match item.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            _ => "this value".to_owned(),
        };
        let Rejected { reason, hint } = rejected;
        let kind = ConfigErrorKind::Value { key: key.name.to_owned(), value, reason, hint };
        self.record_error(item.span().start, kind);
    }

    fn record_error(&mut self, at: usize, kind: ConfigErrorKind) {
        let line = self.lines.partition_point(|start| *start <= at) + 1;
        self.errors.push(ConfigError { file: self.file.to_owned(), line, kind });
    }
}

/// Why a value cannot be used, and what to do about it.
struct Rejected {
    reason: String,
    hint: String,
}

impl Rejected {
    fn new(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: hint.into() }
    }
}

/// Returns whether a table has a table of this name.
fn is_table(parent: &str, name: &str) -> bool {
    let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
    !name.is_empty() && TABLES.iter().any(|(table, _)| *table == path)
}

/// Returns where the value of `TABLE.KEY` stands.
fn position(root: &DeTable<'_>, path: &str) -> Option<usize> {
    let (table, key) = path.split_once('.')?;
    Some(root.get(table)?.get_ref().as_table()?.get(key)?.span().start)
}

fn number(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn digest(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != DIGEST_DIGITS || !hex.is_ascii() {
        return None;
    }
    let mut digest = [0; DIGEST_DIGITS / 2];
    for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.contains('+'))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(digest)
}

/// Returns the known word that is most like the one written, if any is.
fn closest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Distances between long words take long, and no key is this long.
    if written.len() > 64 {
        return None;
    }
    let distance = |known: &&str| strsim::damerau_levenshtein(written, known);
    let best = known.filter(|known| !known.is_empty()).min_by_key(distance)?;
    let most = if best.len() > 4 { 2 } else { 1 };
    (distance(&best) <= most || best.starts_with(written) && written.len() > 3).then_some(best)
}
