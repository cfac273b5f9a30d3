//! The groups in which `remex --help` and `remex(1)` list the commands.
//!
//! Start at [`GROUPS`]: a command that is in none of them fails a test.

use std::{fmt::Write as _, io};

use clap::Command;
use rustix::termios::tcgetwinsize;

use crate::render::text;

/// Commands that people look for together.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) heading: &'static str,
    /// In the order in which they are listed.
    pub(super) commands: &'static [&'static str],
}

/// All groups; a new command belongs in one of them.
pub(super) const GROUPS: &[Group] = &[
    Group {
        heading: "Run",
        commands: &["run", "shell", "attach", "wait", "kill", "restart", "resize", "rm", "prune", "gc"],
    },
    Group { heading: "Look", commands: &["ps", "inspect", "logs", "top"] },
    Group { heading: "Files", commands: &["cp", "ls", "cat", "edit", "mkdir", "mv", "watch", "http"] },
    Group { heading: "Hosts", commands: &["env", "doctor", "server", "upgrade"] },
    Group { heading: "Serve", commands: &["serve", "token", "cert", "mcp", "proxy"] },
    Group { heading: "Help", commands: &["help", "completions", "man"] },
];

/// `help` is a command only once clap has built the others.
const HELP: &str = "Describe a command, or list them with exit codes, variables and files";

/// What `remex -h` says below the commands; `--help` has more.
const SHORT_NOTE: &str = "\
`remex help COMMAND` describes a command, with examples; `remex --help` also lists exit codes, environment variables and files.";

/// The columns of lines if stdout is no terminal and COLUMNS is not set.
const USUAL_WIDTH: usize = 100;

/// Makes the help of `remex` list its commands in groups.
pub(super) fn grouped(root: Command) -> Command {
    let header = *root.get_styles().get_header();
    let literal = *root.get_styles().get_literal();
    let columns = columns();
    let names = GROUPS.iter().flat_map(|group| group.commands);
    let name_width = names.map(|name| name.len()).max().unwrap_or_default();
    let mut listed = String::new();
    for Group { heading, commands } in GROUPS {
        let _ = writeln!(listed, "{header}{heading}:{header:#}");
        for name in *commands {
            let Some(about) = about(&root, name) else { continue };
            let indent = name_width + 4;
            let mut lines = wrapped(&about, columns.saturating_sub(indent)).into_iter();
            let first = lines.next().unwrap_or_default();
            let _ =
                writeln!(listed, "  {literal}{name}{literal:#}{:1$}{first}", "", name_width + 2 - name.len());
            for line in lines {
                let _ = writeln!(listed, "{:indent$}{line}", "");
            }
        }
        listed.push('\n');
    }
    root.after_help(SHORT_NOTE).help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}{header}Options:{header:#}\n{{options}}{{after-help}}"
    ))
}

/// Returns what a command does, as one line.
pub(super) fn about(root: &Command, name: &str) -> Option<String> {
    if name == "help" {
        return Some(HELP.to_owned());
    }
    let command = root.find_subcommand(name)?;
    let mut about = command.get_about().map(ToString::to_string).unwrap_or_default();
    for alias in command.get_visible_aliases() {
        let _ = write!(about, " [alias: {alias}]");
    }
    Some(about)
}

/// Returns how long lines may be; as the argument parser finds it for the other help texts.
fn columns() -> usize {
    let of_terminal = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    of_terminal.filter(|columns| *columns > 0).or_else(of_variable).unwrap_or(USUAL_WIDTH)
}

/// Breaks a sentence between words; a word that is longer than a line gets one of its own.
fn wrapped(sentence: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split(' ') {
        match lines.last_mut() {
            Some(line) if text::width(line) + 1 + text::width(word) <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Arguments;

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let root = Arguments::command();
        let shown = root.get_subcommands().filter(|command| !command.is_hide_set());
        let mut missing: BTreeSet<_> = shown.map(|command| command.get_name().to_owned()).collect();
        missing.insert("help".to_owned());
        for name in GROUPS.iter().flat_map(|group| group.commands) {
            assert!(missing.remove(*name), "`{name}` in GROUPS is no command, or is there twice");
        }
        assert!(missing.is_empty(), "add {missing:?} to a group in crates/remex-cli/src/args/groups.rs");
    }

    #[test]
    fn sentences_are_broken_between_words() {
        assert_eq!(wrapped("Remove all exited processes", 12), ["Remove all", "exited", "processes"]);
        assert_eq!(wrapped("unbreakable", 3), ["unbreakable"]);
    }
}
