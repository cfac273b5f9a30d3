//! What can be completed at the cursor of a command line.
//!
//! Pure. Start at [`Line::read`].

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use super::{Arguments, limit, restart, signal};

/// A completion candidate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// The whole word.
    pub(crate) word: String,
    /// A short description; may be empty.
    pub(crate) about: String,
}

impl Candidate {
    pub(crate) fn new(word: impl Into<String>, about: impl Into<String>) -> Self {
        Self { word: word.into(), about: about.into() }
    }
}

/// A command line up to the cursor.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// What the word at the cursor can be.
    pub(crate) expected: Expected,
    /// The word at the cursor, as typed so far.
    pub(crate) word: &'a str,
    /// The prefix of that word that is kept, such as `--on=`.
    pub(crate) before: &'a str,
    /// The rest of it.
    pub(crate) value: &'a str,
    /// The value of `--on`.
    pub(crate) on: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Nothing,
    /// One of these.
    Words(Vec<Candidate>),
    /// The name of an environment.
    Environment,
    /// A process on the server selected by `--on`.
    Process,
    Signal,
    /// A program on this machine.
    Program,
    /// A path on this machine.
    LocalPath,
    /// A path on any host: `ENV:path`.
    Path,
    /// A process, or a path with a colon.
    ProcessOrPath,
}

impl<'a> Line<'a> {
    /// Reads words, the first of which is the program and the last of which is at the cursor.
    pub(crate) fn read(words: &'a [String]) -> Self {
        let mut root = Arguments::command();
        root.build();
        let root = &root;
        let (word, before) = match words {
            [] | [_] => ("", &[][..]),
            [_, before @ .., word] => (word.as_str(), before),
        };
        let mut walk = Walk {
            parent: root,
            command: root,
            positionals: 0,
            value_of: None,
            is_verbatim: false,
            on: None,
        };
        for word in before {
            walk.pass(word);
        }
        let (expected, value) = walk.expected(word);
        let on = walk.on.or_else(|| std::env::var("REMEX_ON").ok()).filter(|on| !on.is_empty());
        let expected = match expected {
            // Programs and directories of a remote host are not known here.
            Expected::Program | Expected::LocalPath if on.is_some() => Expected::Nothing,
            expected => expected,
        };
        Self { expected, word, before: &word[..word.len() - value.len()], value, on }
    }
}

/// The state of parsing a command line.
struct Walk<'a> {
    /// The parent of `command`.
    parent: &'a Command,
    command: &'a Command,
    /// The number of positional arguments so far.
    positionals: usize,
    /// The option whose value is expected next.
    value_of: Option<&'a Arg>,
    /// Whether `--` was read, so that no options follow.
    is_verbatim: bool,
    on: Option<String>,
}

impl<'a> Walk<'a> {
    /// Reads a word before the cursor.
    fn pass(&mut self, word: &str) {
        if let Some(option) = self.value_of.take() {
            self.got(option, word);
        } else if self.is_verbatim {
            self.positionals += 1;
        } else if word == "--" {
            self.is_verbatim = true;
        } else if let Some(option) = word.strip_prefix("--") {
            let (name, value) =
                option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            if let Some(option) = self.long(name).filter(|option| takes_value(option)) {
                match value {
                    Some(value) => self.got(option, value),
                    None => self.value_of = Some(option),
                }
            }
        } else if word.len() > 1 && word.starts_with('-') {
            self.pass_short(word);
        } else if let Some(command) = self.command.find_subcommand(word).filter(|_| self.positionals == 0) {
            self.parent = std::mem::replace(&mut self.command, command);
        } else {
            self.is_verbatim = self.positional().is_some_and(Arg::is_trailing_var_arg_set);
            self.positionals += 1;
        }
    }

    /// Reads options of one letter: `-it`, `-C/tmp`, `-C`.
    fn pass_short(&mut self, word: &str) {
        if self.command.get_name() == "kill" && signal::short_signal(word).is_some() {
            return;
        }
        let mut letters = word.trim_start_matches('-').chars();
        while let Some(letter) = letters.next() {
            let option = self.command.get_arguments().find(|option| option.get_short() == Some(letter));
            if let Some(option) = option.filter(|option| takes_value(option)) {
                match letters.as_str() {
                    "" => self.value_of = Some(option),
                    value => self.got(option, value),
                }
                return;
            }
        }
    }

    fn got(&mut self, option: &Arg, value: &str) {
        if option.get_id() == "on" {
            self.on = Some(value.to_owned());
        }
    }

    /// Returns what the word at the cursor can be, and the part of the word to replace.
    fn expected<'w>(&self, word: &'w str) -> (Expected, &'w str) {
        if let Some(option) = self.value_of {
            return (value_of(option), word);
        }
        if !self.is_verbatim && word.starts_with('-') {
            let assigned = word.strip_prefix("--").and_then(|option| option.split_once('='));
            return match assigned {
                Some((name, value)) => (self.long(name).map_or(Expected::Nothing, value_of), value),
                None => (Expected::Words(self.options()), word),
            };
        }
        if self.positionals == 0 && self.command.has_subcommands() {
            return (Expected::Words(self.subcommands()), word);
        }
        let expected = match self.positional() {
            Some(argument) if argument.is_trailing_var_arg_set() && self.positionals > 0 => {
                Expected::LocalPath
            }
            Some(argument) => value_of(argument),
            None => Expected::Nothing,
        };
        let expected = match (expected, self.parent.get_name(), self.command.get_name()) {
            (Expected::Process, "env", "add") => Expected::Nothing,
            (Expected::Process, "env", _) => Expected::Environment,
            (expected, ..) => expected,
        };
        (expected, word)
    }

    fn long(&self, name: &str) -> Option<&'a Arg> {
        self.command.get_arguments().find(|option| option.get_long() == Some(name))
    }

    /// Returns the positional argument that comes next: the last one again if it may be given several times.
    fn positional(&self) -> Option<&'a Arg> {
        let all: Vec<_> = self.command.get_positionals().collect();
        let several = |argument: &&Arg| matches!(argument.get_action(), ArgAction::Append);
        all.get(self.positionals).or_else(|| all.iter().rev().find(|argument| several(argument))).copied()
    }

    fn options(&self) -> Vec<Candidate> {
        let shown =
            self.command.get_arguments().filter(|option| !option.is_hide_set() && !option.is_positional());
        let mut words = Vec::new();
        for option in shown {
            let about = option.get_help().map(|help| first_line(&help.to_string())).unwrap_or_default();
            let short = option.get_short().map(|letter| format!("-{letter}"));
            let long = option.get_long().map(|name| format!("--{name}"));
            words.extend(short.into_iter().chain(long).map(|word| Candidate::new(word, &about)));
        }
        words
    }

    fn subcommands(&self) -> Vec<Candidate> {
        let shown = self.command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut words = Vec::new();
        for command in shown {
            let about = command.get_about().map(|about| first_line(&about.to_string())).unwrap_or_default();
            words.extend(
                command.get_name_and_visible_aliases().into_iter().map(|name| Candidate::new(name, &about)),
            );
        }
        words
    }
}

fn takes_value(option: &Arg) -> bool {
    option.get_action().takes_values()
}

fn first_line(help: &str) -> String {
    help.lines().next().unwrap_or_default().to_owned()
}

/// Returns what an argument accepts, judging by its value name in the help.
fn value_of(argument: &Arg) -> Expected {
    if !takes_value(argument) {
        return Expected::Nothing;
    }
    let possible = argument.get_possible_values();
    if !possible.is_empty() {
        let shown = possible.iter().filter(|value| !value.is_hide_set());
        let about = |value: &clap::builder::PossibleValue| value.get_help().map(ToString::to_string);
        return Expected::Words(
            shown.map(|value| Candidate::new(value.get_name(), about(value).unwrap_or_default())).collect(),
        );
    }
    let name = argument.get_value_names().and_then(|names| names.first()).map(clap::builder::Str::as_str);
    match name.unwrap_or_default() {
        "ENV|URL" | "ENV" => Expected::Environment,
        "NAME" if argument.is_positional() => Expected::Process,
        "NAME|ENV:PATH" => Expected::ProcessOrPath,
        "SIGNAL" => Expected::Signal,
        "[ENV:]PATH" | "SRC" | "DST" => Expected::Path,
        "DIR" | "PATH" => Expected::LocalPath,
        "POLICY" => {
            let policies = restart::POLICIES.iter();
            Expected::Words(policies.map(|(word, about)| Candidate::new(*word, *about)).collect())
        }
        "COMMAND" => Expected::Program,
        "NAME=VALUE" => {
            let names = limit::NAMES.iter();
            Expected::Words(names.map(|(name, about)| Candidate::new(format!("{name}="), *about)).collect())
        }
        _ => Expected::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expectation(words: &str) -> (String, String, Option<String>) {
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let line = Line::read(&words);
        let expected = match line.expected {
            Expected::Words(words) => {
                let words = words.into_iter().map(|candidate| candidate.word);
                words.filter(|word| word.starts_with(line.value)).collect::<Vec<_>>().join(" ")
            }
            other => format!("{other:?}"),
        };
        (expected, line.before.to_owned(), line.on)
    }

    #[test]
    fn completion_depends_on_the_next_argument() {
        for (words, expected) in [
            ("remex k", "kill"),
            ("remex env te", "test"),
            ("remex env test ", "Environment"),
            ("remex kill --gr", "--grace"),
            ("remex kill ", "Process"),
            ("remex kill one ", "Process"),
            ("remex kill -9 ", "Process"),
            ("remex kill --signal ", "Signal"),
            ("remex kill -s ", "Signal"),
            ("remex attach ", "Process"),
            ("remex resize build ", "Nothing"),
            ("remex resize ", "Process"),
            ("remex ps ", "Nothing"),
            ("remex ps --on ", "Environment"),
            ("remex run --name ", "Nothing"),
            ("remex run --restart a", "always"),
            ("remex run --limit m", "memory="),
            ("remex run --limit=file", "files= file-size="),
            ("remex run ", "Program"),
            ("remex run -- ", "Program"),
            ("remex run ls -", "LocalPath"),
            ("remex run --on build ", "Nothing"),
            ("remex run -it ls ", "LocalPath"),
            ("remex rm ", "ProcessOrPath"),
            ("remex mkdir ", "Path"),
            ("remex cp ", "Path"),
            ("remex cp a b c", "Path"),
            ("remex ls ", "Path"),
            ("remex completions z", "zsh"),
            ("remex env remove ", "Environment"),
            ("remex env add ", "Nothing"),
            ("remex nonsense ", "Nothing"),
        ] {
            assert_eq!(expectation(words).0, expected, "{words}");
        }
    }

    #[test]
    fn the_environment_is_recognized_in_every_spelling() {
        for words in ["remex kill --on build ", "remex kill --on=build "] {
            assert_eq!(expectation(words), ("Process".to_owned(), String::new(), Some("build".to_owned())));
        }
        let (expected, before, _) = expectation("remex kill --on=b");
        assert_eq!((expected.as_str(), before.as_str()), ("Environment", "--on="));
    }
}
