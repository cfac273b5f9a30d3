//! Explains invalid command lines, and suggests corrections.
//!
//! Start at [`report`].

mod elsewhere;

use std::{
    error::Error as _,
    num::{IntErrorKind, ParseIntError},
    process::ExitCode,
};

use clap::{
    Command, CommandFactory as _, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};
use remex_base::quote::shell_word;

use crate::{
    args::Arguments,
    render::{
        failure::{Failure, InvalidArg},
        similar, text,
    },
};

/// The exit code for an invalid command line.
const USAGE: u8 = 2;

/// Prints why a command line cannot be parsed, or the help it asks for, and returns the exit code.
pub(crate) fn report(error: &Error) -> ExitCode {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if is_help {
        // Ignore a closed stdout or stderr.
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE));
    }
    print(&explain(error))
}

/// Prints why a command line cannot be used, and returns the exit code.
pub(super) fn print(failure: &Failure) -> ExitCode {
    failure.print();
    ExitCode::from(USAGE)
}

/// Converts the error to a failure with a reason and a hint.
fn explain(error: &Error) -> Failure {
    let words = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word.as_str()],
        Some(ContextValue::Strings(words)) => words.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let word = |kind| words(kind).first().copied().unwrap_or_default();
    let command = command_line(error);
    let mut help = format!("see `{command} --help`");
    let argument = word(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if command == "remex run" && words(ContextKind::SuggestedArg).is_empty() {
                help.push_str("; options of the command itself go after it: `remex run -- COMMAND --OPTION`");
            }
            if !argument.starts_with('-') && ["remex env add", "remex env set"].contains(&&*command) {
                help.push_str("; put a program such as `ssh HOST remex proxy` after `--`");
            }
            if let Some(hint) = path_syntax_hint(&command, argument) {
                return Failure::usage(format!("unexpected option `{argument}`"), hint);
            }
            let noun = if argument.starts_with('-') { "option" } else { "argument" };
            let what = format!("unexpected {noun} `{argument}`");
            if let Some(advice) = elsewhere::advice_on_option(&command, argument) {
                return Failure::usage(what, advice);
            }
            let meant = nearest_option(&command, argument);
            Failure::usage(suggesting(what, meant.as_deref()), help)
        }
        ErrorKind::InvalidSubcommand => {
            let typed = word(ContextKind::InvalidSubcommand);
            if command == "remex"
                && let Some(advice) = elsewhere::advice_on_command(typed)
            {
                return Failure::usage(format!("unknown command `{typed}`"), advice);
            }
            let meant = nearest(&command, typed).map(|name| format!("{command} {name}"));
            let hint = format!("`{command} --help` lists the commands");
            Failure::usage(suggesting(format!("unknown command `{typed}`"), meant.as_deref()), hint)
        }
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<_> =
                words(ContextKind::InvalidArg).into_iter().map(|word| format!("`{word}`")).collect();
            let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
            let usage = usage.trim().trim_start_matches("Usage: ").to_owned();
            if command == "remex cp"
                && missing == ["`<SRC>...`"]
                && let Some(source) = typed_words().into_iter().rfind(|word| !word.starts_with('-'))
            {
                return Failure::usage(
                    format!("missing `<DST>`: where to copy `{}`", text::plain(&source)),
                    format!("type `remex cp {} DST`; {help}", shell_word(&source)),
                );
            }
            let all = if command == "remex env test" { " or `remex env test --all`" } else { "" };
            Failure::usage(
                format!("missing {}", missing.join(" and ")),
                format!("type `{usage}`{all}; {help}"),
            )
        }
        ErrorKind::InvalidValue if word(ContextKind::InvalidValue).is_empty() => {
            Failure::usage(format!("`{argument}` needs a value"), help)
        }
        ErrorKind::InvalidValue => {
            let what = format!("cannot use `{}` as `{argument}`", word(ContextKind::InvalidValue));
            let meant = words(ContextKind::SuggestedValue).first().copied();
            let possible = words(ContextKind::ValidValue).join(", ");
            Failure::usage(suggesting(what, meant), format!("use one of {possible}"))
        }
        ErrorKind::ValueValidation => {
            let source = error.source();
            let value = word(ContextKind::InvalidValue);
            let what = match argument {
                // `remex resize` has this argument only to explain what to write instead.
                "[SIZE]" => format!("unexpected argument `{value}`"),
                _ => format!("cannot use `{value}` as `{argument}`"),
            };
            let failure = match source.and_then(|source| source.downcast_ref::<InvalidArg>()) {
                Some(invalid) => Failure::usage(what, invalid.hint.as_str()).because(invalid.why.as_str()),
                None => Failure::usage(what, help).because(source.map(reason).unwrap_or_default()),
            };
            match variable(&command, argument) {
                Some(name) => failure.in_variable(&name, &format!("unset {name}")),
                None => failure,
            }
        }
        ErrorKind::ArgumentConflict => {
            let others: Vec<_> =
                words(ContextKind::PriorArg).into_iter().map(|word| format!("`{word}`")).collect();
            let others = if others.is_empty() { "other arguments".to_owned() } else { others.join(" and ") };
            Failure::usage(
                format!("`{argument}` cannot be used with {others}"),
                format!("omit one of them; {help}"),
            )
        }
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Failure::usage(first.replace('\'', "`"), help)
        }
    }
}

/// Returns the environment variable that an invalid value comes from; `None` if the option was typed.
fn variable(command: &str, argument: &str) -> Option<String> {
    let option = argument.split_whitespace().next()?;
    let is_option = |word: &String| word.split('=').next() == Some(option);
    if typed_words().iter().take_while(|word| *word != "--").any(is_option) {
        return None;
    }
    let mut root = Arguments::command();
    let command = find(&mut root, command)?;
    let argument =
        command.get_arguments().find(|argument| argument.get_long() == option.strip_prefix("--"))?;
    Some(argument.get_env()?.to_string_lossy().into_owned())
}

/// Explains `ENV:path` to users who try `--on` or `--here` with a file command.
fn path_syntax_hint(command: &str, argument: &str) -> Option<String> {
    let name = command.strip_prefix("remex ")?;
    let is_elsewhere = match argument {
        "--on" => true,
        "--here" => false,
        _ => return None,
    };
    let (elsewhere, here) = match name {
        "cp" => ("SRC ENV:DST", "SRC DST"),
        "ls" | "cat" | "edit" | "watch" => ("ENV:PATH", "PATH"),
        _ => return None,
    };
    Some(if is_elsewhere {
        format!(
            "put the environment before the path: `{command} {elsewhere}`; give an address a name first with `remex env \
             add ENV URL`"
        )
    } else {
        format!("a path without `ENV:` is on this machine: `{command} {here}`")
    })
}

/// Explains why a value is invalid; number errors are rephrased, because they mention types.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let Some(number) = error.downcast_ref::<ParseIntError>() else { return error.to_string() };
    match number.kind() {
        IntErrorKind::Zero => "it must be at least 1",
        IntErrorKind::PosOverflow => "it is too large",
        IntErrorKind::NegOverflow => "it is too small",
        _ => "expected a whole number",
    }
    .to_owned()
}

fn suggesting(what: String, meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!("{what}; did you mean `{meant}`?"),
        None => what,
    }
}

/// Returns the command with the invalid arguments, such as `remex env`.
fn command_line(error: &Error) -> String {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let is_name = |word: &&str| {
        !word.starts_with('-') && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
    };
    let words: Vec<_> =
        usage.split_whitespace().skip_while(|word| *word != "remex").take_while(is_name).collect();
    if words.is_empty() { typed_command(typed_words().into_iter()) } else { words.join(" ") }
}

/// Returns the words after the name of this program.
fn typed_words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Returns the command that was typed, for errors that do not contain it.
fn typed_command(words: impl Iterator<Item = String>) -> String {
    let mut root = Arguments::command();
    let (mut command, mut path) = (&mut root, "remex".to_owned());
    for word in words {
        let Some(found) = command.find_subcommand_mut(&word) else { break };
        path = format!("{path} {}", found.get_name());
        command = found;
    }
    path
}

/// Finds a command by its words, such as `remex env add`.
fn find<'a>(root: &'a mut Command, words: &str) -> Option<&'a mut Command> {
    words.split(' ').skip(1).try_fold(root, |command, word| command.find_subcommand_mut(word))
}

/// Finds the command that was probably meant: by synonym or by similar spelling.
fn nearest(parent: &str, typed: &str) -> Option<String> {
    let mut root = Arguments::command();
    let command = find(&mut root, parent)?;
    let names: Vec<_> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .flat_map(|command| command.get_name_and_visible_aliases())
        .collect();
    let synonym = elsewhere::synonym(typed).filter(|name| names.contains(name));
    synonym.or_else(|| similar::nearest(typed, names)).map(str::to_owned)
}

/// Finds the option that was probably meant, which the command must have.
fn nearest_option(command: &str, typed: &str) -> Option<String> {
    let mut root = Arguments::command();
    let command = find(&mut root, command)?;
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let names: Vec<_> = shown.filter_map(clap::Arg::get_long).collect();
    let word = typed.strip_prefix("--")?.split('=').next()?;
    let synonym = elsewhere::option_synonym(word).filter(|name| names.contains(name));
    synonym.or_else(|| similar::nearest(word, names)).map(|name| format!("--{name}"))
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
            // Not `prune` and not `logs`.
            ("remex", "pause", None),
            ("remex", "login", None),
            ("remex env", "tets", Some("test")),
            ("remex env", "exec", None),
        ] {
            assert_eq!(nearest(parent, typed).as_deref(), meant, "{parent} {typed}");
        }
    }

    #[test]
    fn options_are_found_by_similar_names_and_synonyms() {
        for (command, typed, meant) in [
            ("remex run", "--detatch", Some("--detach")),
            ("remex run", "--tty", Some("--terminal")),
            ("remex run", "--workdir=/srv", Some("--cwd")),
            ("remex logs", "--lines", Some("--tail")),
            // `ps` has no such option.
            ("remex ps", "--workdir", None),
            ("remex run", "--rm", None),
            ("remex run", "-x", None),
        ] {
            assert_eq!(nearest_option(command, typed).as_deref(), meant, "{command} {typed}");
        }
    }

    #[test]
    fn no_advice_is_given_on_what_exists() {
        let mut root = Arguments::command();
        root.build();
        for (word, _) in elsewhere::ADVICE_ON_COMMANDS {
            assert!(root.find_subcommand(word).is_none(), "`{word}` is a command");
        }
        for (command, option, _) in elsewhere::ADVICE_ON_OPTIONS {
            let found = root.find_subcommand(command).unwrap();
            let exists =
                found.get_arguments().any(|argument| argument.get_long() == option.strip_prefix("--"));
            assert!(!exists, "`{command} {option}` exists");
        }
    }
}
