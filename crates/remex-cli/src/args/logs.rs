//! The arguments of `remex logs`.

use clap::Args;
use regex_automata::{meta::Regex, util::syntax};

use crate::{
    args::{
        byte_range::{ByteRange, byte_range},
        moment::{Until, past_moment, until},
        shared::{Format, On},
    },
    render::failure::InvalidArg,
};

/// Flags of `remex logs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, by name or unambiguous prefix; with several, each line begins with the name
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) on: On,

    /// Keep printing until the process exits
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Only output since this time: `5m` ago, the last `14:30` (local time), or `2026-11-15T14:30:00Z`
    #[arg(long, value_name = "TIME", value_parser = past_moment)]
    pub(crate) since: Option<u64>,

    /// Only output until this time, in the same formats
    #[arg(long, value_name = "TIME", value_parser = until, conflicts_with = "follow")]
    pub(crate) until: Option<Until>,

    /// Only lines that match this regular expression
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    pub(crate) grep: Option<Pattern>,

    /// With `--grep`, ignore case
    #[arg(short, long, requires = "grep")]
    pub(crate) ignore_case: bool,

    /// With `--grep`, only lines that do not match
    #[arg(short = 'v', long, requires = "grep")]
    pub(crate) invert_match: bool,

    /// With `--grep`, also this many lines before and after each match; `--` separates groups
    #[arg(short = 'C', long, value_name = "LINES", value_parser = lines, requires = "grep")]
    pub(crate) context: Option<usize>,

    /// With `--grep`, also this many lines after each match
    #[arg(short = 'A', long, value_name = "LINES", value_parser = lines, requires = "grep")]
    pub(crate) after_context: Option<usize>,

    /// With `--grep`, also this many lines before each match
    #[arg(short = 'B', long, value_name = "LINES", value_parser = lines, requires = "grep")]
    pub(crate) before_context: Option<usize>,

    /// Only the last lines of the output so far
    #[arg(short = 'n', long, value_name = "LINES", value_parser = lines, allow_negative_numbers = true)]
    pub(crate) tail: Option<usize>,

    /// Only these bytes of the output: `1M..2M`, `..64K`, or `-64K..` for the last 64 KiB
    #[arg(long, value_name = "START..END", value_parser = byte_range, allow_hyphen_values = true,
        conflicts_with_all = ["follow", "since", "until", "tail"])]
    pub(crate) bytes: Option<ByteRange>,

    /// Prefix each line with its time and the zone of this machine
    #[arg(short, long)]
    pub(crate) timestamps: bool,

    /// With `--timestamps`, print times in UTC
    #[arg(long, requires = "timestamps")]
    pub(crate) utc: bool,

    #[command(flatten)]
    pub(crate) format: Format,
}

/// A regular expression, and its text.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    text: String,
    regex: Regex,
}

impl Pattern {
    pub(crate) fn regex(&self) -> Regex {
        self.regex.clone()
    }

    /// Returns the expression that ignores case.
    pub(crate) fn ignoring_case(&self) -> Result<Regex, InvalidArg> {
        compile(&self.text, syntax::Config::new().utf8(false).case_insensitive(true))
    }
}

const EXAMPLES: &str = "\
Examples:
  The output of a process so far:
    remex logs build
  The last lines, and new output until it exits:
    remex logs build --tail 20 --follow
  Errors of the last ten minutes, with times:
    remex logs build --since 10m --grep '(?i)error' --timestamps
  The same without regard to case, each with the two lines around it:
    remex logs build --grep error -i -C 2
  The output between two times of day:
    remex logs build --since 06:00 --until 12:00
  The last 64 KiB, exactly:
    remex logs build --bytes -64K..
  The output of several processes, each line with the name:
    remex logs --follow build lint
";

fn lines(text: &str) -> Result<usize, InvalidArg> {
    text.parse().map_err(|_| InvalidArg::new("it is not a number of lines", "write a number such as `20`"))
}

/// Compiles a regular expression over bytes, which also matches invalid UTF-8.
pub(crate) fn pattern(text: &str) -> Result<Pattern, InvalidArg> {
    let regex = compile(text, syntax::Config::new().utf8(false))?;
    Ok(Pattern { text: text.to_owned(), regex })
}

fn compile(text: &str, syntax: syntax::Config) -> Result<Regex, InvalidArg> {
    Regex::builder().syntax(syntax).configure(Regex::config().utf8_empty(false)).build(text).map_err(
        |error| {
            let (why, at) = match error.syntax_error() {
                Some(regex_syntax::Error::Parse(error)) => {
                    (error.kind().to_string(), Some(error.span().start))
                }
                Some(regex_syntax::Error::Translate(error)) => {
                    (error.kind().to_string(), Some(error.span().start))
                }
                _ => (error.to_string(), None),
            };
            let place = at.map(|at| format!(", at character {}", at.column)).unwrap_or_default();
            let hint = r"to find one of `\.+*?()|[]{}^$` itself, put a backslash before it";
            InvalidArg::new(format!("{why}{place}"), hint)
        },
    )
}
