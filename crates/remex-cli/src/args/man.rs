//! The arguments of `remex man`, and the pages that it writes: one per command, generated from the help texts.
//!
//! Start at [`pages`]; `page` lays one out.

use std::{io, path::PathBuf};

use clap::{Arg, ArgAction, Args, Command, CommandFactory as _};
use clap_mangen::{
    Man,
    roff::{Inline, Roff, bold, italic, roman},
};

use super::{
    Arguments,
    groups::{self, GROUPS, Group},
};

/// Flags of `remex man`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Write all pages to this directory, created if missing; otherwise print `remex.1`
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  Write all pages where `man` looks for them, if `~/.local/bin` is in your PATH:
    remex man --dir ~/.local/share/man/man1
  Only the page of `remex` itself:
    remex man > remex.1";

/// General information at the end of `remex --help` and of the man page `remex.1`.
pub(crate) const GENERAL: &str = "\
Exit codes:
  0    success
  1    the command failed, or a check found a problem
  2    usage error, an error in a configuration file, or a file named by a flag that cannot be read
  3    process, environment, or file named as an operand, not found
  4    cannot connect, or the connection was lost for good
  128 + N  signal N ended remex
  141  the reader of the output closed the pipe

Exit codes of run, shell, attach and wait:
  N    the process exited with code N
  128 + N  signal N ended the process, or remex
  2    usage error, an error in a configuration file, or a file named by a flag that cannot be read
  123  the process was lost with the keeper, the server or the host that ran it, or restarted meanwhile
  124  `run --timeout` ended the process, or `wait --timeout` gave up
  125  any other failure of remex, such as a lost connection
  126  the program is not executable
  127  the program was not found
  141  the reader of the output closed the pipe

Environment variables:
  REMEX_ON  the environment or address to use without `--on` or `--here`, and for `:path`; takes precedence over `remex env default`
  REMEX_ESCAPE  the escape character, if `--escape` is not given; `~` by default
  REMEX_CTRL_C  what Ctrl-C does in `remex attach`, if `--ctrl-c` is not given: `ask` (the default), `interrupt` or `detach`
  REMEX_URL, CODEX_EXEC_SERVER_URL  define the environment `remote` at this address if there is no environments file; select it with `--on remote`
  REMEX_LOG  the log filter of `remex serve`
  XDG_CONFIG_HOME  the directory of `remex/environments.toml`; `~/.config` by default
  XDG_RUNTIME_DIR  the directory of `remex/own.sock`, the socket of your local remex server
  XDG_STATE_HOME  the directory of `remex/`, where your local remex server keeps processes and their output; `~/.local/state` by default
  VISUAL, EDITOR  the editor for `remex edit`; VISUAL takes precedence
  NO_COLOR  disables colours if not empty

Files:
  ~/.config/remex/environments.toml  your environments; see remex-env(1)
  $XDG_RUNTIME_DIR/remex/own.sock  the socket of your local remex server (`/tmp/remex-UID/own.sock` if XDG_RUNTIME_DIR is not set)
  $XDG_RUNTIME_DIR/remex/own.log  its log, in the same directory";

/// A man page.
pub(crate) struct Page {
    /// `remex-env-add`.
    pub(crate) name: String,
    /// In roff.
    pub(crate) text: Vec<u8>,
}

/// Returns the pages of all commands, that of `remex` itself first.
pub(crate) fn pages() -> io::Result<Vec<Page>> {
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    let mut commands = vec![root];
    let mut pages = Vec::new();
    while let Some(command) = commands.pop() {
        pages.push(Page { name: name(&command), text: page(&command)? });
        commands.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
    }
    Ok(pages)
}

/// Returns the name of a command's page: `remex-env-add`.
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .title(name(command).to_uppercase())
        .source(format!("remex {}", env!("CARGO_PKG_VERSION")))
        .manual("remex");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut roff = Roff::new();
    // Names of options are typed as they are, so they are never broken.
    roff.control("SH", ["SYNOPSIS"]).control("nh", []).text(synopsis(command)).control("hy", []);
    roff.to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_name() == "remex" {
        let mut roff = Roff::new();
        subcommands_in_groups(&mut roff, command);
        roff.to_writer(&mut page)?;
    } else if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let after = command.get_after_long_help().or(command.get_after_help());
    let mut roff = Roff::new();
    sections(&mut roff, &after.map(ToString::to_string).unwrap_or_default());
    let parent = name(command).rsplit_once('-').map(|(parent, _)| parent.to_owned());
    if let Some(parent) = parent {
        roff.control("SH", ["SEE ALSO"]).text([bold(parent), roman("(1)")]);
    }
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Returns how a command is typed: its options with their values, and its arguments.
fn synopsis(command: &Command) -> Vec<Inline> {
    let mut words = vec![bold(command.get_bin_name().unwrap_or_else(|| command.get_name()))];
    let is_general = |argument: &&Arg| ["help", "version"].contains(&argument.get_id().as_str());
    let options = command.get_arguments().filter(|argument| !argument.is_positional());
    for option in options.filter(|option| !option.is_hide_set() && !is_general(option)) {
        words.push(roman(if option.is_required_set() { " " } else { " [" }));
        let short = option.get_short().map(|letter| format!("-{letter}"));
        let long = option.get_long().map(|name| format!("--{name}"));
        for (index, name) in short.into_iter().chain(long).enumerate() {
            words.extend((index > 0).then(|| roman("|")));
            words.push(bold(name));
        }
        if option.get_action().takes_values() {
            words.extend([roman(" "), italic(value_name(option))]);
        }
        words.extend((!option.is_required_set()).then(|| roman("]")));
        words.extend(matches!(option.get_action(), ArgAction::Append).then(|| roman("...")));
    }
    for argument in command.get_positionals().filter(|argument| !argument.is_hide_set()) {
        words.push(roman(if argument.is_required_set() { " " } else { " [" }));
        words.push(italic(value_name(argument)));
        words.extend((!argument.is_required_set()).then(|| roman("]")));
        let most = argument.get_num_args().map_or(1, |range| range.max_values());
        words.extend((most > 1).then(|| roman("...")));
    }
    if command.has_subcommands() {
        let is_required = command.is_subcommand_required_set() || command.is_arg_required_else_help_set();
        words.extend(if is_required {
            vec![roman(" "), italic("COMMAND")]
        } else {
            vec![roman(" ["), italic("COMMAND"), roman("]")]
        });
    }
    words
}

fn value_name(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    names.iter().map(clap::builder::Str::as_str).collect::<Vec<_>>().join(" ")
}

/// Lists the commands as the help does.
fn subcommands_in_groups(roff: &mut Roff, root: &Command) {
    roff.control("SH", ["SUBCOMMANDS"]);
    for Group { heading, commands } in GROUPS {
        roff.control("SS", [*heading]);
        for name in *commands {
            let Some(about) = groups::about(root, name) else { continue };
            let page = if *name == "help" {
                vec![bold("remex help")]
            } else {
                vec![bold(format!("remex-{name}")), roman("(1)")]
            };
            roff.control("TP", []).text(page).text([roman(about)]);
        }
    }
}

/// Formats the part of a help text after the flags.
///
/// A line that ends with `:` above an indented one is a heading; two spaces start a sentence, or a term and its
/// description; four spaces start a command. Anything else is a note.
fn sections(roff: &mut Roff, text: &str) {
    let mut in_section = false;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let is_heading = lines.peek().is_some_and(|next| next.starts_with(' '));
        let indent = line.len() - line.trim_start().len();
        let words = line.trim();
        match (indent, words.strip_suffix(':'), words.split_once("  ")) {
            (_, _, _) if words.is_empty() => {
                roff.control("PP", []);
            }
            (0, Some(heading), _) if is_heading => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
                in_section = true;
            }
            (0, _, _) => {
                if in_section {
                    roff.control("SH", ["NOTES"]);
                    in_section = false;
                }
                roff.text([roman(words)]);
            }
            (4.., _, _) => {
                roff.control("RS", ["4"]).control("nf", []).text([bold(words)]).control("fi", []);
                roff.control("RE", []);
            }
            (_, _, Some((word, meaning))) => {
                roff.control("TP", []).text([bold(word)]).text([roman(meaning.trim())]);
            }
            (_, _, None) => {
                roff.control("PP", []).text([roman(words)]);
            }
        }
    }
}
