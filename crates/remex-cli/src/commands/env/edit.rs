//! `remex env add`, `set`, `default` and `remove`: atomic, validated changes of the environments file.
//!
//! Start at [`EnvironmentsFile`].

mod settings;

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use remex::environments::{self, Configured};
use remex_client::{
    Program,
    environment::{DefinitionError, DefinitionErrorKind, Id, InvalidId},
};
use toml_edit::{DocumentMut, InlineTable, Item, RawString, Table, TableLike, Value, value};

use super::Outcome;
use crate::{
    args::env::edit::{Add, Remove, Set, SetDefault},
    commands::{runtime, there},
    remote::{
        endpoint::{self, Endpoint},
        ssh::OldServer,
    },
    render::{
        confirm,
        failure::{Failure, Kind},
        print, similar, text,
    },
};
use settings::ServerAddress;

pub(super) fn add(flags: &Add) -> Outcome {
    let id = Id::new(flags.name.as_str()).map_err(|error| {
        let what = format!("cannot use `{}` as a name", text::plain(&flags.name));
        match error {
            InvalidId::Characters => Failure::usage(what, similar_name(&flags.name))
                .because("only ASCII letters, digits, `-` and `_` are allowed"),
            _ => Failure::usage(what, error.hint()).because(error.message()),
        }
    })?;
    if id.is_reserved() {
        let what = format!("cannot use `{id}` as a name");
        return Err(Failure::usage(what, "choose another name").because("it is reserved"));
    }
    let settings = &flags.settings;
    let Some(mut address) = settings.address()? else {
        return Err(Failure::usage(
            format!("missing the address of `{id}`"),
            format!("type `remex env add {id} ssh://user@host`, or give a program after `--`"),
        ));
    };
    EnvironmentsFile::open()?.check_is_new(&id)?;
    let mut old_server = None;
    if settings.install {
        old_server =
            address.install().map_err(|failure| failure.with_clause(&format!("`{id}` was not added")))?;
    }
    let mut file = EnvironmentsFile::open()?;
    file.check_is_new(&id)?;
    let mut entry = Table::new();
    entry["id"] = value(id.as_str());
    settings.apply(&mut entry, Some(address))?;
    file.insert(&entry)?;
    settings.finish("added", &id, file)?;
    offer_upgrade(&id, old_server)
}

pub(super) fn set(flags: &Set) -> Outcome {
    let Set { name, settings } = flags;
    if !settings.is_any() {
        return Err(Failure::usage(
            format!("no changes given for `{}`", text::plain(name)),
            "see `remex env set --help`",
        ));
    }
    let mut address = settings.address()?;
    let mut old_server = None;
    if settings.install {
        let mut known = match address.take() {
            Some(address) => address,
            None => EnvironmentsFile::open()?.address_of(name)?,
        };
        old_server = known.install()?;
        address = Some(known);
    }
    let mut file = EnvironmentsFile::open()?;
    settings.apply(file.entry(name)?, address)?;
    let id = Id::new(name.as_str()).map_err(|error| Failure::usage(error.message(), error.hint()))?;
    settings.finish("changed", &id, file)?;
    offer_upgrade(&id, old_server)
}

/// Says that a server still runs the program from before, and replaces it if a person at a terminal wants that.
fn offer_upgrade(id: &Id, old_server: Option<OldServer>) -> Outcome {
    let Some(OldServer { pid, version }) = old_server else { return Ok(0) };
    let pid = pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
    print::note(format!(
        "the server on `{id}` ({version}{pid}) still runs the program from before; `remex upgrade --on {id}` replaces it, \
         and its durable processes run on"
    ));
    if !confirm::is_possible() {
        return Ok(0);
    }
    let runtime = runtime::build(tokio::runtime::Builder::new_current_thread().enable_all(), 1)?;
    runtime.block_on(async {
        if !confirm::ask("replace it now?").await {
            return Ok(0);
        }
        there::upgrade(&Endpoint::named(id.as_str())?).await
    })
}

pub(super) fn default(flags: &SetDefault) -> Outcome {
    let (name, is_new) = match (&flags.name, flags.unset) {
        (None, false) => (endpoint::default_environment()?, false),
        (name, _) => (change_default(name.as_deref())?, true),
    };
    match name {
        Some(id) if is_new => print::out(format!("`{id}` is the default\n"))?,
        None if is_new => print::out("commands use this machine\n")?,
        id => print::out(format!("{}\n", id.unwrap_or_else(Id::local)))?,
    }
    Ok(0)
}

/// Sets the default, and returns it unless it is this machine.
fn change_default(name: Option<&str>) -> Result<Option<Id>, Failure> {
    let mut file = EnvironmentsFile::open()?;
    match name {
        Some(name) if name == Id::local().as_str() || file.has(name) => file.set_default(name),
        Some(name) => return Err(file.unknown(name)),
        None => file.drop_default(),
    }
    let configured = file.save(None)?;
    Ok(configured.definitions.default.filter(|id| *id != Id::local()))
}

pub(super) fn remove(flags: &Remove) -> Outcome {
    let mut file = EnvironmentsFile::open()?;
    let name = flags.name.as_str();
    if !file.take(name) {
        return Err(file.unknown(name));
    }
    let was_default = file.document.get("default").and_then(Item::as_str) == Some(name);
    if was_default {
        file.drop_default();
    }
    let configured = file.save(None)?;
    print::out(format!("removed `{name}`\n"))?;
    if was_default {
        let default = configured.definitions.default.map_or_else(|| "none".to_owned(), |id| id.to_string());
        print::note(format!(
            "`{name}` was the default, which is now `{default}`; choose another with `remex env default`"
        ));
    }
    Ok(0)
}

/// The environments file, locked for a change.
struct EnvironmentsFile {
    path: PathBuf,
    document: DocumentMut,
    lines: LineEndings,
    permissions: Permissions,
    /// The lock, released when this is closed.
    _directory: File,
}

/// The line endings of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEndings {
    Unix,
    Dos,
}

impl EnvironmentsFile {
    fn open() -> Result<Self, Failure> {
        let path = environments::file(|name| std::env::var_os(name)).ok_or_else(|| {
            Failure::usage("no configuration directory is known", "set HOME or XDG_CONFIG_HOME")
        })?;
        // Keep a link to the real location of the file.
        let path = match fs::canonicalize(&path) {
            Ok(path) => path,
            Err(_) if path.is_symlink() => {
                return Err(Failure::new(
                    format!("cannot change `{}`", path.display()),
                    "create its target, or remove the link",
                )
                .because("it is a dangling symbolic link"));
            }
            Err(_) => path,
        };
        let directory = lock(path.parent().unwrap_or(Path::new("/")))?;
        let io_failure = |error: &io::Error| Failure::io(&format!("read `{}`", path.display()), error);
        // Opening a FIFO would block.
        if fs::metadata(&path).is_ok_and(|there| !there.is_file()) {
            return Err(Failure::new(
                format!("cannot read `{}`", path.display()),
                "move it away; `remex env add` creates a new one",
            )
            .because("it is not a regular file"));
        }
        let (text, permissions) = match fs::read_to_string(&path) {
            Ok(text) => (text, fs::metadata(&path).map_err(|error| io_failure(&error))?.permissions()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (String::new(), Permissions::from_mode(0o600))
            }
            Err(error) => return Err(io_failure(&error)),
        };
        let lines = if text.contains("\r\n") { LineEndings::Dos } else { LineEndings::Unix };
        let text = text.replace("\r\n", "\n");
        let document = text.parse().map_err(|error: toml_edit::TomlError| {
            // The error of our parser names the line.
            match environments::check(&text, &path) {
                Err(error) => endpoint::unusable(Kind::Failed, &error),
                Ok(_) => Failure::bare(Kind::Failed, format!("cannot read `{}`", path.display()))
                    .because(error.to_string()),
            }
        })?;
        Ok(Self { path, document, lines, permissions, _directory: directory })
    }

    /// Appends an environment, in the format of the existing ones.
    fn insert(&mut self, entry: &Table) -> Result<(), Failure> {
        match self.document.entry("environments").or_insert_with(|| Item::ArrayOfTables(Default::default())) {
            Item::ArrayOfTables(tables) => {
                let mut entry = entry.clone();
                if !tables.is_empty() {
                    // Comments directly below the last environment belong to it.
                    let trailing = self.document.trailing().as_str().unwrap_or_default().to_owned();
                    let own = trailing.find("\n\n").map_or(trailing.len(), |end| end + 1);
                    let own = if trailing.starts_with('\n') { 0 } else { own };
                    entry.decor_mut().set_prefix(format!("{}\n", &trailing[..own]));
                    self.document.set_trailing(&trailing[own..]);
                }
                if let Item::ArrayOfTables(tables) = &mut self.document["environments"] {
                    tables.push(entry);
                }
            }
            Item::Value(Value::Array(array)) => array.push(entry.clone().into_inline_table()),
            _ => {
                return Err(Failure::new(
                    format!("`environments` in `{}` is not a list of tables", self.path.display()),
                    "begin each environment with `[[environments]]`",
                ));
            }
        }
        Ok(())
    }

    fn check_is_new(&self, id: &Id) -> Result<(), Failure> {
        if self.has(id.as_str()) {
            return Err(Failure::usage(
                format!("environment `{id}` already exists in `{}`", self.path.display()),
                format!(
                    "choose another name, change it with `remex env set {id}`, or `remex env remove {id}` first"
                ),
            ));
        }
        Ok(())
    }

    /// Returns the environment with this name, for changes.
    fn entry(&mut self, name: &str) -> Result<&mut dyn TableLike, Failure> {
        let unknown = self.unknown(name);
        let found: Option<&mut dyn TableLike> = match self.document.get_mut("environments") {
            Some(Item::ArrayOfTables(tables)) => tables
                .iter_mut()
                .find(|table| table.get("id").and_then(Item::as_str) == Some(name))
                .map(|table| table as &mut dyn TableLike),
            Some(Item::Value(Value::Array(array))) => array
                .iter_mut()
                .filter_map(Value::as_inline_table_mut)
                .find(|table| id_of(table) == Some(name))
                .map(|table| table as &mut dyn TableLike),
            _ => None,
        };
        found.ok_or(unknown)
    }

    /// Returns the address of an environment.
    fn address_of(&mut self, name: &str) -> Result<ServerAddress, Failure> {
        let entry = self.entry(name)?;
        let text = |key| entry.get(key).and_then(Item::as_str).map(str::to_owned);
        let Some(program) = text("program") else {
            return Ok(ServerAddress::Url(text("url").unwrap_or_default()));
        };
        let args = entry.get("args").and_then(Item::as_array).into_iter().flatten();
        Ok(ServerAddress::Program(Program::new(program).args(args.filter_map(|arg| arg.as_str()))))
    }

    fn has(&self, name: &str) -> bool {
        self.names().contains(&name)
    }

    fn names(&self) -> Vec<&str> {
        match self.document.get("environments") {
            Some(Item::ArrayOfTables(tables)) => {
                tables.iter().filter_map(|table| table.get("id").and_then(Item::as_str)).collect()
            }
            Some(Item::Value(Value::Array(array))) => {
                array.iter().filter_map(|value| value.as_inline_table().and_then(id_of)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Explains that no environment has this name, and which one was probably meant.
    fn unknown(&self, name: &str) -> Failure {
        let path = self.path.display();
        let meant = similar::nearest(name, self.names()).map(|meant| format!("; did you mean `{meant}`?"));
        Failure::of(
            Kind::NotFound,
            format!("unknown environment `{}` in `{path}`{}", text::plain(name), meant.unwrap_or_default()),
            "see `remex env list`, or add it with `remex env add`",
        )
    }

    /// Removes an environment, and returns whether it existed.
    fn take(&mut self, name: &str) -> bool {
        match self.document.get_mut("environments") {
            Some(Item::ArrayOfTables(tables)) => {
                let has_name = |table: &Table| table.get("id").and_then(Item::as_str) == Some(name);
                let Some(index) = tables.iter().position(has_name) else { return false };
                let kept = tables.get(index).and_then(heading).unwrap_or_default();
                tables.remove(index);
                if let Some(next) = tables.get_mut(index) {
                    let prefix = next.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
                    let prefix = if kept.is_empty() { prefix } else { prefix.trim_start_matches('\n') };
                    let prefix = format!("{kept}{prefix}");
                    next.decor_mut().set_prefix(prefix);
                } else {
                    let trailing = self.document.trailing().as_str().unwrap_or_default();
                    let kept = if trailing.is_empty() { kept.trim_end_matches('\n') } else { &kept };
                    let end = if trailing.is_empty() && !kept.is_empty() { "\n" } else { "" };
                    self.document.set_trailing(format!("{kept}{end}{trailing}"));
                }
                true
            }
            Some(Item::Value(Value::Array(array))) => {
                let has_name = |value: &Value| value.as_inline_table().and_then(id_of) == Some(name);
                let found = array.iter().position(has_name);
                found.map(|index| array.remove(index)).is_some()
            }
            _ => false,
        }
    }

    /// Sets the default; keeps comments.
    fn set_default(&mut self, name: &str) {
        if let Some(before) = self.document.get_mut("default").and_then(Item::as_value_mut) {
            let decor = before.decor().clone();
            *before = Value::from(name);
            *before.decor_mut() = decor;
            return;
        }
        let is_first = self.document.iter().all(|(_, item)| !item.is_value());
        self.document["default"] = value(name);
        let heading = self.first_table().filter(|_| is_first).and_then(|table| {
            let heading = heading(table)?;
            let prefix =
                table.decor().prefix()?.as_str()?.strip_prefix(&heading).unwrap_or_default().to_owned();
            table.decor_mut().set_prefix(format!("\n{prefix}"));
            Some(heading)
        });
        if let (Some(heading), Some(mut key)) = (heading, self.document.key_mut("default")) {
            key.leaf_decor_mut().set_prefix(heading);
        }
    }

    /// Removes the default; its comments move to the next item.
    fn drop_default(&mut self) {
        let next = self.document.iter().skip_while(|(name, _)| *name != "default").nth(1);
        let next = next.map(|(name, item)| (name.to_owned(), item.is_value()));
        let Some((key, item)) = self.document.remove_entry("default") else { return };
        let text = |raw: Option<&RawString>| raw.and_then(RawString::as_str).unwrap_or_default().to_owned();
        let above = text(key.leaf_decor().prefix());
        let behind = text(item.as_value().and_then(|value| value.decor().suffix()));
        let behind = behind.trim();
        let kept = if behind.is_empty() { above } else { format!("{above}{behind}\n") };
        match next {
            Some((name, true)) => {
                if let Some(mut key) = self.document.key_mut(&name) {
                    let before = text(key.leaf_decor().prefix());
                    key.leaf_decor_mut().set_prefix(format!("{kept}{before}"));
                }
            }
            Some((_, false)) => {
                if let Some(table) = self.first_table() {
                    let before = text(table.decor().prefix());
                    let is_apart = kept.ends_with("\n\n");
                    let before = if is_apart { before.trim_start_matches('\n') } else { &before };
                    table.decor_mut().set_prefix(format!("{kept}{before}"));
                }
            }
            None => {
                let before = self.document.trailing().as_str().unwrap_or_default();
                let after = format!("{kept}{before}");
                self.document.set_trailing(after);
            }
        }
    }

    fn first_table(&mut self) -> Option<&mut Table> {
        self.document.get_mut("environments")?.as_array_of_tables_mut()?.get_mut(0)
    }

    /// Replaces the file atomically, if the new content is valid and `added` can be used.
    fn save(&self, added: Option<&Id>) -> Result<Configured, Failure> {
        let text = self.document.to_string();
        // The empty line between the removed item and the first environment.
        let mut text = text.trim_start_matches('\n').to_owned();
        if self.lines == LineEndings::Dos {
            text = text.replace('\n', "\r\n");
        }
        let text = text.as_str();
        let configured = environments::check(text, &self.path).map_err(|error| {
            let about_added = match (&error, added) {
                (environments::Error::Invalid(errors), Some(id)) => {
                    errors.0.iter().find(|error| is_about(error, id)).map(|error| refused(id, &error.kind))
                }
                _ => None,
            };
            about_added.unwrap_or_else(|| endpoint::unusable(Kind::Usage, &error))
        })?;
        if let Some((id, token_error)) = added.and_then(|id| Some((id, configured.token_error(id)?))) {
            return Err(refused(id, &token_error.kind));
        }
        for warning in &configured.warnings {
            print::note(warning.to_string());
        }
        let temporary = self.path.with_file_name(format!(".environments.toml.{}", std::process::id()));
        self.replace(&temporary, text).map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Failure::io(&format!("write `{}`", self.path.display()), &error)
        })?;
        Ok(configured)
    }

    fn replace(&self, temporary: &Path, text: &str) -> io::Result<()> {
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(temporary)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(self.permissions.clone())?;
        file.sync_all()?;
        fs::rename(temporary, &self.path)
    }
}

fn is_about(error: &DefinitionError, id: &Id) -> bool {
    error.environment.as_deref() == Some(id.as_str())
}

/// Explains why an environment was not added; omits the line number, because the file was not written.
fn refused(id: &Id, error: &DefinitionErrorKind) -> Failure {
    let hint = error.hint();
    let hint = hint.as_deref().unwrap_or("write the token to that file first, or check its path");
    Failure::usage(format!("cannot add `{id}`"), hint).because(error.message())
}

/// Creates the directory if missing, and waits for the lock.
fn lock(directory: &Path) -> Result<File, Failure> {
    let locked = || {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let file = File::open(directory)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(file)
    };
    locked().map_err(|error: io::Error| match directory.ancestors().find(|path| path.exists()) {
        Some(file) if !file.is_dir() => {
            let path = directory.join("environments.toml");
            Failure::new(format!("cannot save `{}`", path.display()), "move that file away")
                .because(format!("`{}` is not a directory", file.display()))
        }
        _ => Failure::io(&format!("lock `{}`", directory.display()), &error),
    })
}

/// Suggests a valid name that is similar to an invalid one.
fn similar_name(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let words: Vec<_> = name.chars().map(letter).collect();
    let words: String = words.into_iter().collect();
    let words: Vec<_> = words.split('-').filter(|word| !word.is_empty()).collect();
    match Id::new(words.join("-")) {
        Ok(id) if !id.is_reserved() => format!("try `{id}`"),
        _ => "choose another name".to_owned(),
    }
}

/// Returns the comments above a table that an empty line separates: they do not belong to this table alone.
fn heading(table: &Table) -> Option<String> {
    let prefix = table.decor().prefix()?.as_str()?;
    let (heading, _) = prefix.rsplit_once("\n\n")?;
    heading.contains('#').then(|| format!("{heading}\n\n"))
}

fn id_of(table: &InlineTable) -> Option<&str> {
    table.get("id").and_then(Value::as_str)
}
