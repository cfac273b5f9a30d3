//! `remex logs`: what a process has said, and with `--follow` what it says.

mod lines;
mod selection;

use std::{
    io::{self, Write as _},
    time::Duration,
};

use clap::Args;
use regex_automata::{meta::Regex, util::syntax};
use remex_proto::process::Stream;

use self::selection::{Item, Selection, Wanted};
use super::Outcome;
use crate::{
    cut,
    failure::Failure,
    find::Processes,
    followed::{Followed, Patience},
    place::{On, Otherwise},
    print,
    text::{duration, now_ms, plain},
};

/// How long the output of a process may stay open after its end before that is worth a word.
const OPEN: Duration = Duration::from_secs(1);

/// Flags of `remex logs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The process, by its name or the beginning of it
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    on: On,

    /// Go on until the process has ended
    #[arg(short, long)]
    follow: bool,

    /// Only what was said in the last time, such as `30s` or `5m`
    #[arg(long, value_name = "TIME", value_parser = duration)]
    since: Option<Duration>,

    /// Only lines that match this regular expression
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    grep: Option<Regex>,

    /// Only the last lines of what was said so far
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,

    /// Put the time before each line
    #[arg(short, long)]
    timestamps: bool,
}

const EXAMPLES: &str = "\
Examples:
  What a process has said so far:
    remex logs build
  The last lines, and what follows until it ends:
    remex logs build --tail 20 --follow
  What went wrong in the last ten minutes, with times:
    remex logs build --since 10m --grep '(?i)error' --timestamps
";

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let place = flags.on.place(Otherwise::OwnIfThere).await?;
    let client = place.connect(cut::outlive).await?;
    let followed = Processes::list(&client).await?.follow(&flags.name)?;
    let since = flags.since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let selection = Selection::new(Wanted {
        since_ms: since.map(|since| now_ms().saturating_sub(since)),
        pattern: flags.grep.clone(),
        tail: flags.tail,
        times: flags.timestamps,
    });
    cut::told(place.kind, &client, show(&followed, selection, flags)).await?;
    let _ = client.end().await;
    Ok(0)
}

async fn show(followed: &Followed, mut selection: Selection, flags: &Flags) -> Result<(), Failure> {
    let follow = flags.follow;
    let mut warned = false;
    let newest = followed.shortly_before(0).await?;
    let mut cursor = 0;
    let mut behind = true;
    loop {
        let patience = if behind { Patience::None } else { Patience::Some };
        let news = followed.read(&mut cursor, patience).await?;
        let is_all = news.pieces.is_empty();
        write(selection.take(news.gap.map(|gap| gap.bytes), news.pieces))?;
        if behind && (is_all || cursor >= newest) {
            behind = false;
            if follow {
                write(selection.caught_up())?;
            }
        }
        if (!behind && !follow) || (news.closed && is_all) {
            return write(selection.finish());
        }
        if news.end.is_some() && !warned {
            warned = true;
            if !followed.closes_within(OPEN).await? {
                let name = plain(&flags.name);
                print::note(format!(
                    "`{name}` has ended, but something that it started holds its output open; \
                     `remex kill {name} --tree` ends that"
                ));
            }
        }
    }
}

/// Writes each stream where it belongs; what goes to the same one goes at once.
fn write(items: Vec<Item>) -> Result<(), Failure> {
    let mut items = items.into_iter().peekable();
    while let Some(item) = items.next() {
        match item {
            Item::Gap(bytes) => {
                let amount =
                    bytes.map_or_else(|| "some output is".to_owned(), |bytes| format!("{bytes} bytes are"));
                print::note(format!("{amount} gone here: more was said than the server keeps"));
            }
            Item::Bytes(stream, mut bytes) => {
                while let Some(Item::Bytes(_, more)) =
                    items.next_if(|next| matches!(next, Item::Bytes(other, _) if *other == stream))
                {
                    bytes.extend(more);
                }
                match stream {
                    Stream::Stdout | Stream::Pty => print::out(&bytes)?,
                    Stream::Stderr => io::stderr()
                        .write_all(&bytes)
                        .map_err(|error| Failure::io("write to standard error", &error))?,
                }
            }
        }
    }
    Ok(())
}

/// Compiles an expression that matches bytes; what is no UTF-8 can be matched too.
fn pattern(text: &str) -> Result<Regex, String> {
    Regex::builder()
        .syntax(syntax::Config::new().utf8(false))
        .configure(Regex::config().utf8_empty(false))
        .build(text)
        .map_err(|error| match error.syntax_error() {
            Some(syntax) => syntax.to_string(),
            None => error.to_string(),
        })
}
