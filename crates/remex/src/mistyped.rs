//! Command lines that cannot be parsed, and what was probably meant.
//!
//! Start at [`refuse`].

use std::process::ExitCode;

use clap::{
    CommandFactory as _, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};
use strsim::osa_distance;

use crate::{arguments::Arguments, failure::Failure};

/// The exit code of a command line that makes no sense.
const USAGE: u8 = 2;

/// What other programs call our commands.
const SYNONYMS: &[(&str, &str)] = &[
    ("check", "doctor"),
    ("connect", "attach"),
    ("copy", "cp"),
    ("delete", "rm"),
    ("dir", "ls"),
    ("environment", "env"),
    ("environments", "env"),
    ("exec", "run"),
    ("fg", "attach"),
    ("jobs", "ps"),
    ("list", "ps"),
    ("log", "logs"),
    ("remote", "env"),
    ("scp", "cp"),
    ("sh", "shell"),
    ("signal", "kill"),
    ("spawn", "run"),
    ("ssh", "shell"),
    ("start", "run"),
    ("stop", "kill"),
    ("tail", "logs"),
    ("terminate", "kill"),
];

/// Prints why a command line cannot be parsed, or the help it asks for, and returns the exit code.
pub(crate) fn refuse(error: &Error) -> ExitCode {
    if let Some(failure) = explain(error) {
        failure.print();
        return ExitCode::from(USAGE);
    }
    // Without a reader there is nobody to help.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE))
}

/// Explains an unknown option or command; `None` for what clap explains well itself.
fn explain(error: &Error) -> Option<Failure> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let option = word(ContextKind::InvalidArg).filter(|word| word.starts_with('-'))?;
            let command = command_line(error);
            let mut todo = format!("see `{command} --help`");
            if command == "remex run" {
                todo.push_str("; options of the command itself follow its name");
            }
            let meant = word(ContextKind::SuggestedArg);
            Some(Failure::usage(suggesting(format!("unexpected option `{option}`"), meant), todo))
        }
        ErrorKind::InvalidSubcommand => {
            let typed = word(ContextKind::InvalidSubcommand)?;
            let parent = command_line(error);
            let meant = nearest(&parent, typed).map(|name| format!("{parent} {name}"));
            let todo = format!("`{parent} --help` lists the commands");
            Some(Failure::usage(suggesting(format!("unknown command `{typed}`"), meant.as_deref()), todo))
        }
        _ => None,
    }
}

fn suggesting(what: String, meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!("{what}; did you mean `{meant}`?"),
        None => what,
    }
}

/// Returns the words up to the command that was given wrong arguments: `remex env`.
fn command_line(error: &Error) -> String {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let is_name = |word: &&str| {
        !word.starts_with('-') && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
    };
    let words: Vec<_> =
        usage.split_whitespace().skip_while(|word| *word != "remex").take_while(is_name).collect();
    if words.is_empty() { "remex".to_owned() } else { words.join(" ") }
}

/// Finds the command that was probably meant: by what others call it, or with a letter or two wrong.
fn nearest(parent: &str, typed: &str) -> Option<String> {
    let mut root = Arguments::command();
    let mut command = &mut root;
    for word in parent.split(' ').skip(1) {
        command = command.find_subcommand_mut(word)?;
    }
    let names: Vec<_> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .flat_map(|command| command.get_name_and_visible_aliases())
        .collect();
    let synonym = SYNONYMS.iter().find(|(other, _)| *other == typed).map(|(_, ours)| *ours);
    if let Some(name) = synonym.filter(|name| names.contains(name)) {
        return Some(name.to_owned());
    }
    // In a short word two wrong letters leave too little of it.
    let most = if typed.chars().count() < 5 { 1 } else { 2 };
    let distances = names.iter().map(|name| (osa_distance(name, typed), name));
    distances.filter(|(distance, _)| *distance <= most).min().map(|(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_by_similar_names_and_synonyms() {
        for (parent, typed, meant) in [
            ("remex", "rnu", Some("run")),
            ("remex", "exec", Some("run")),
            ("remex", "stop", Some("kill")),
            ("remex", "atach", Some("attach")),
            ("remex", "complations", Some("completions")),
            ("remex", "frobnicate", None),
            ("remex", "x", None),
            ("remex env", "tets", Some("test")),
            ("remex env", "exec", None),
        ] {
            assert_eq!(nearest(parent, typed).as_deref(), meant, "{parent} {typed}");
        }
    }
}
