//! The names that the code has: files, folders, words, and types with what belongs to them.
//!
//! It reads lines, and not Rust: rustfmt puts everything where it is expected.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Folders without anything of ours, apart from hidden ones.
const FOREIGN: [&str; 4] = ["target", "node_modules", "dist", "__pycache__"];

/// Endings of files whose words count as code.
const CODE: [&str; 12] =
    ["rs", "py", "ts", "mjs", "json", "toml", "sh", "service", "socket", "yml", "fish", "bash"];

/// Words before the name of an item.
const MODIFIERS: [&str; 10] =
    ["pub", "const", "async", "unsafe", "extern", "fn", "static", "type", "default", "mut"];

/// Names of kernels, protocols and other crates that our code does not spell like this.
const FOREIGN_NAMES: [&str; 14] = [
    "CAP_SYS_ADMIN",
    "CAP_SYS_RESOURCE",
    "CLONE_INTO_CGROUP",
    "ClientHello",
    "ENOPROTOOPT",
    "EROFS",
    "FILE_FLAG_BACKUP_SEMANTICS",
    "FILE_WRITE_ATTRIBUTES",
    "PR_SET_CHILD_SUBREAPER",
    "Referer",
    "StartTransientUnit",
    "StreamExt",
    "SubjectPublicKeyInfo",
    "tcp_fin_timeout",
];

/// Types of the standard library that have namesakes here.
const NAMESAKES: [&str; 3] = ["Child", "Command", "Path"];

/// What every type may have by a derive.
const DERIVED: [&str; 4] = ["default", "clone", "from", "into"];

pub(super) struct Index {
    files: BTreeSet<String>,
    /// Identifiers in code, and in its strings.
    words: BTreeSet<String>,
    /// Words with slashes in code, such as the names of methods of the protocol.
    paths: BTreeSet<String>,
    functions: BTreeSet<String>,
    /// Fields, variants, functions and constants of each type; types of one name are one.
    members: BTreeMap<String, BTreeSet<String>>,
    /// What each type has by its traits or as an alias.
    ancestors: BTreeMap<String, BTreeSet<String>>,
    constants: BTreeMap<String, Vec<String>>,
}

impl Index {
    pub(super) fn new() -> Self {
        let mut index = Self {
            files: list("").into_iter().collect(),
            words: BTreeSet::new(),
            paths: BTreeSet::new(),
            functions: BTreeSet::new(),
            members: BTreeMap::new(),
            ancestors: BTreeMap::new(),
            constants: BTreeMap::new(),
        };
        for file in index.files.clone() {
            let (_, ending) =
                file.rsplit_once('/').unwrap_or(("", &file)).1.rsplit_once('.').unwrap_or(("", ""));
            let is_script = ending.is_empty() && (file.starts_with("scripts/") || file.starts_with(".ci/"));
            if !CODE.contains(&ending) && !is_script {
                continue;
            }
            let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
            let text = if ending == "rs" { without_comments(&text) } else { text };
            index.add_words(&text);
            if ending == "rs" {
                index.add_items(&text);
            }
        }
        index
    }

    pub(super) fn documents(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str).filter(|file| file.ends_with(".md"))
    }

    /// Our source files in Rust.
    pub(super) fn sources(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str).filter(|file| file.ends_with(".rs"))
    }

    /// Everything that may refer to a document.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let endings = [".md", ".rs", ".py", ".ts"];
        self.files
            .iter()
            .map(String::as_str)
            .filter(move |file| endings.iter().any(|ending| file.ends_with(ending)))
    }

    /// Returns whether there is such a file or folder, by its path from the root.
    pub(super) fn exists(&self, path: &str) -> bool {
        path.is_empty() || self.files.iter().any(|file| begins_with(file, path))
    }

    /// Returns why a name in a document is wrong, if it is one that the code must have.
    pub(super) fn missing(&self, span: &str) -> Option<&'static str> {
        if let Some(path) = as_path(span) {
            return self.missing_path(path);
        }
        let name = without_arguments(span);
        let (name, is_call) = match name.strip_suffix("()") {
            Some(name) => (name, true),
            None => (name, false),
        };
        if name.contains("::") {
            return name.split("::").all(is_identifier).then(|| self.missing_member(name)).flatten();
        }
        if !is_identifier(name) {
            return None;
        }
        let is_compound =
            name.trim_matches('_').contains('_') || name.chars().skip(1).any(char::is_uppercase);
        let is_type = name.starts_with(char::is_uppercase) && name.len() > 1;
        let is_known = if is_call { self.functions.contains(name) } else { self.has_word(name) };
        let why = if is_call { "there is no such function" } else { "there is no such name" };
        ((is_call || is_compound || is_type) && !is_known).then_some(why)
    }

    /// Returns why a name in a comment is wrong; a path there may be an example.
    pub(super) fn missing_in_comment(&self, span: &str) -> Option<&'static str> {
        if as_path(span).is_some() && !span.ends_with(".rs") { None } else { self.missing(span) }
    }

    /// Checks the value that a document gives for a constant; says what the constant is.
    pub(super) fn check_value(&self, name: &str, value: &str) -> Result<(), String> {
        let Some(definitions) = self.constants.get(name) else { return Ok(()) };
        let known: Vec<_> = definitions.iter().filter_map(|text| value_of(text)).collect();
        let is_right = known.is_empty() || value_of(value).is_some_and(|value| known.contains(&value));
        if is_right { Ok(()) } else { Err(definitions.join(" or ")) }
    }

    fn missing_path(&self, path: &str) -> Option<&'static str> {
        let path = path.trim_end_matches('/');
        let source = format!("{path}.rs");
        let is_there = |file: &String| {
            let starts = file.match_indices('/').map(|(at, _)| at + 1).chain([0]);
            starts.into_iter().any(|at| begins_with(&file[at..], path) || file[at..] == source)
        };
        let is_built = path.starts_with("target/");
        let is_known = is_built || self.paths.contains(path) || self.files.iter().any(is_there);
        (!is_known).then_some("there is no such file, folder or method")
    }

    fn missing_member(&self, name: &str) -> Option<&'static str> {
        let mut parts = name.rsplit("::");
        let member = parts.next().unwrap_or_default();
        let owner = parts.next().unwrap_or_default();
        if parts.next().is_some_and(|root| root == "io") || (owner == "io") {
            return None;
        }
        if !self.has_word(owner) && !self.files.iter().any(|file| file.contains(&owner.replace('_', "-"))) {
            return Some("the first part of the path is gone");
        }
        let is_type = self.members.contains_key(owner) || self.ancestors.contains_key(owner);
        let is_own = is_type && self.has_member(owner, member, 0);
        let is_known = is_own || ((!is_type || self.is_open(owner)) && self.has_word(member));
        (!is_known).then_some("the last part of the path is gone")
    }

    /// Returns whether a type may have more than its lines say: one of a macro, or one of the standard library.
    fn is_open(&self, owner: &str) -> bool {
        NAMESAKES.contains(&owner) || self.members.get(owner).is_some_and(|members| members.contains("$"))
    }

    fn has_member(&self, owner: &str, member: &str, depth: usize) -> bool {
        let is_own = self.members.get(owner).is_some_and(|members| members.contains(member));
        let mut ancestors = self.ancestors.get(owner).into_iter().flatten();
        is_own
            || DERIVED.contains(&member)
            || (depth < 4 && ancestors.any(|ancestor| self.has_member(ancestor, member, depth + 1)))
    }

    /// Returns whether code has a word, also as a member of a message whose field is in snake case.
    fn has_word(&self, word: &str) -> bool {
        let snake: String = word
            .chars()
            .flat_map(|c| c.is_uppercase().then_some('_').into_iter().chain(c.to_lowercase()))
            .collect();
        // Constants and calls of the kernel have other prefixes in the libraries through which we use them.
        let bare = word.split_once('_').map_or(word, |(_, rest)| rest);
        let is_kernel = word.starts_with("O_") && self.words.contains(bare);
        let is_call = self.words.contains(&format!("SYS_{word}"));
        let is_member = word.starts_with(char::is_lowercase) && self.words.contains(&snake);
        self.words.contains(word) || is_member || is_kernel || is_call || FOREIGN_NAMES.contains(&word)
    }

    fn add_words(&mut self, text: &str) {
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        self.words.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
        let paths = text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '/' | '-' | '.')));
        self.paths
            .extend(paths.filter(|word| word.contains('/')).map(|word| word.trim_matches('/').to_owned()));
    }

    fn add_items(&mut self, text: &str) {
        // The type whose body the lines are in, and how far its first line is indented.
        let mut within: Option<(String, usize)> = None;
        for line in text.lines() {
            let indent = line.len() - line.trim_start().len();
            let code = without_visibility(line.trim());
            self.add_constant(code);
            if let Some(name) = after_word(code, "fn") {
                self.functions.insert(name.to_owned());
            }
            if let Some((owner, outer)) = &within {
                if code == "}" && indent == *outer {
                    within = None;
                } else if indent == outer + 4 {
                    let mut words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
                    let name = words.find(|word| !word.is_empty() && !MODIFIERS.contains(word));
                    let is_attribute = code.starts_with('#');
                    let members = self.members.entry(owner.clone()).or_default();
                    members.extend(code.contains('$').then(|| "$".to_owned()));
                    members.extend(name.filter(|_| !is_attribute).map(str::to_owned));
                }
                continue;
            }
            if let Some((name, ancestor)) = owner_of(code) {
                self.members.entry(name.clone()).or_default();
                self.ancestors.entry(name.clone()).or_default().extend(ancestor);
                if !code.ends_with(';') && !code.ends_with('}') {
                    within = Some((name, indent));
                } else if let Some((_, fields)) = code.split_once('{') {
                    let names = fields
                        .split([',', '}'])
                        .map(|field| field.split([':', '(', ' ']).find(|word| is_identifier(word)));
                    let members = self.members.entry(name).or_default();
                    members.extend(names.flatten().map(str::to_owned));
                }
            }
        }
    }

    fn add_constant(&mut self, code: &str) {
        let name = after_word(code, "const").or_else(|| after_word(code, "static"));
        if let (Some(name), Some((_, value))) = (name, code.split_once(" = ")) {
            let value = value.trim_end_matches(';').to_owned();
            self.constants.entry(name.to_owned()).or_default().push(value);
        }
    }
}

/// Returns the type whose body or implementation begins with a line, and what else it has the members of.
fn owner_of(code: &str) -> Option<(String, Option<String>)> {
    let code = code.strip_prefix("unsafe ").unwrap_or(code);
    if let Some(rest) = code.strip_prefix("impl") {
        let rest = without_generics(rest);
        let rest = rest.trim_end_matches('{').split(" where ").next()?;
        let (ancestor, name) = match rest.split_once(" for ") {
            Some((ancestor, name)) => (Some(last_name(ancestor)), name),
            None => (None, rest),
        };
        return Some((last_name(name), ancestor)).filter(|(name, _)| is_identifier(name));
    }
    for keyword in ["struct", "enum", "trait", "union"] {
        if let Some(name) = code.strip_prefix(keyword).and_then(|rest| after_word(rest, "")) {
            return Some((name.to_owned(), None));
        }
    }
    let (name, of) = code.strip_prefix("type ")?.split_once(" = ")?;
    Some((last_name(&without_generics(name)), Some(last_name(&without_generics(of.trim_end_matches(';'))))))
}

/// Removes `pub`, `pub(crate)` and the like from the beginning of a line.
fn without_visibility(code: &str) -> &str {
    match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(code, |(_, rest)| rest),
        Some(rest) => rest.strip_prefix(' ').unwrap_or(code),
        None => code,
    }
}

/// Returns the last name of a path, without references and generics.
fn last_name(path: &str) -> String {
    let path = path.trim().trim_start_matches(['&', '!']);
    path.rsplit("::").next().unwrap_or_default().trim().to_owned()
}

/// Removes everything between angle brackets.
fn without_generics(text: &str) -> String {
    let mut depth = 0_usize;
    let mut last = ' ';
    let mut kept = String::new();
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            '>' if last != '-' => depth = depth.saturating_sub(1),
            c if depth == 0 => kept.push(c),
            _ => {}
        }
        last = c;
    }
    kept
}

/// Returns the name after a keyword at the beginning of a line or behind modifiers.
fn after_word<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let rest = if keyword.is_empty() {
        code.strip_prefix(' ')?
    } else {
        let at = code.find(&format!("{keyword} "))?;
        let is_modifier = |word: &str| word.is_empty() || MODIFIERS.contains(&word) || word.starts_with('"');
        let is_first = code[..at].split(' ').all(is_modifier);
        is_first.then_some(&code[at + keyword.len() + 1..])?
    };
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| is_identifier(name) && !MODIFIERS.contains(name))
}

/// Returns a span that is a path of ours: one with a slash, or a source file.
fn as_path(span: &str) -> Option<&str> {
    let is_ours = is_path(span) && !span.starts_with(['/', '.', '~', '-']);
    let is_plain = !span.contains(char::is_uppercase) || span.starts_with("crates/");
    (is_ours && ((span.contains('/') && is_plain) || span.ends_with(".rs"))).then_some(span)
}

fn is_path(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.'))
}

/// Removes generics, and the arguments of a call.
fn without_arguments(span: &str) -> &str {
    let span = span.split('<').next().unwrap_or_default();
    match span.split_once('(') {
        Some((name, "")) => name,
        Some((name, _)) if span.ends_with(')') && name.len() + 2 < span.len() => name,
        _ => span,
    }
}

pub(super) fn is_identifier(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !text.is_empty() && text.chars().all(is_inner) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the value of a number, a size or a time as people write it, or of a simple constant: in bytes or microseconds.
pub(super) fn value_of(text: &str) -> Option<u128> {
    let text = text.trim();
    for (call, factor) in [("from_millis(", 1_000), ("from_secs(", 1_000_000), ("from_micros(", 1)] {
        if let Some((_, rest)) = text.split_once(call) {
            return Some(value_of(rest.strip_suffix(')')?)? * factor);
        }
    }
    if let Some((value, shift)) = text.split_once(" << ") {
        return Some(value_of(value)? << value_of(shift)?);
    }
    if text.contains(" * ") {
        return text.split(" * ").map(value_of).product();
    }
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: u128 = number.replace([',', '_'], "").parse().ok()?;
    let factor = match unit {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "µs" => 1,
        "ms" => 1_000,
        "s" | "seconds" => 1_000_000,
        "minutes" => 60_000_000,
        _ => return None,
    };
    Some(number * factor)
}

/// Removes comments from a source file.
fn without_comments(text: &str) -> String {
    let code = |line: &str| {
        let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
        comment.map_or_else(|| line.to_owned(), |(at, _)| line[..at].trim_end().to_owned())
    };
    text.lines().map(|line| code(line) + "\n").collect()
}

/// Returns whether a path is another one, or is below it.
fn begins_with(path: &str, begin: &str) -> bool {
    path.strip_prefix(begin).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the files of ours below a folder, by their paths from the root.
pub(super) fn list(folder: &str) -> Vec<String> {
    let mut files = Vec::new();
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return files };
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if FOREIGN.contains(&name.as_str()) || (name.starts_with('.') && name != ".ci") {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            files.append(&mut list(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// The root of the project.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
